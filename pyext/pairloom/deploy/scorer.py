"""Top-k against a gallery in a process without torch."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pairloom._arrays import check_array, load_matrix, narrowed, readable
from pairloom._codes import MOST_CODES, SCREENS, Codes, code_rows, codes_beside
from pairloom._fingerprints import matrix_fingerprint
from pairloom._folders import ABOUT, new_folder
from pairloom._id_tables import LARGEST_ID, id_table
from pairloom.deploy._exclusions import exclusions, rows_of
from pairloom.deploy._onnx_file import read_gallery
from pairloom.deploy._rows import Rows

SIMILARITIES = ("cosine", "dot", "euclidean", "squared_euclidean")
FILES = (ABOUT, "embeddings.npy", "codes.npy", "records.npy", "ids.npy")
KIND = "pairloom scorer"
MOST = 2**31


class Scorer:
    """The k most similar rows of a gallery for every query, by the kernels of `pairloom.topk`, without torch.

        scores, ids = scorer(queries, k)

    Scores are bit for bit those of `pairloom.topk`, ids those of its rows: best first, the row that stands first among
    equals; a NaN score is never returned, and missing places hold score -inf and id -1 (or the empty string). Searches
    may run in many threads, also while others add and remove rows: each sees the rows of one moment.

    Args:
        gallery: (M, D) float32, float64 or float16, any strides; a memory map may be larger than memory. Not copied
            before rows are added or removed; it must not change.
        similarity: "cosine", "dot", "euclidean" or "squared_euclidean": larger is better.
        ids: (M,) integers or strings, each once; row numbers by default. A scorer without rows takes the kind of the
            first that come.
        screen: "int8" or "bf16": codes that find the same answers sooner, as `pairloom.Gallery`.
        threads: of a search; as many as this process may use by default.
        k: results per query where a call names none.

    Raises:
        TypeError, ValueError: arguments that do not fit, an id that comes twice.

    Cost: 2 Q M D flops a search; O(Q k) bytes beside the inputs. For "cosine" the norms of the rows are found by the
    first search. Threads are started for each search (some 20 microseconds each); nothing outlives it.

    Example:
        >>> import numpy as np
        >>> from pairloom.deploy import Scorer
        >>> scorer = Scorer(np.array([[1.0, 0.0], [0.0, 1.0], [2.0, 0.1]], np.float32), ids=["a", "b", "c"])
        >>> scores, ids = scorer(np.array([[1.0, 0.0]], np.float32), k=2)
        >>> ids.tolist()
        [['a', 'c']]
        >>> scorer.remove(["a"])
        >>> scorer(np.array([[1.0, 0.0]], np.float32), k=2)[1].tolist()
        [['c', 'b']]
    """

    _largest: int
    """The largest number that was ever an id."""

    def __init__(
        self,
        gallery: np.ndarray,
        *,
        similarity: str = "cosine",
        ids: Any = None,
        screen: str | None = None,
        threads: int | None = None,
        k: int | None = None,
    ) -> None:
        embeddings = _matrix("gallery", gallery)
        self._settle(similarity, screen, threads, k, embeddings.shape[1])
        codes = None if screen is None else code_rows(embeddings, screen, False, self.threads)
        self._rows = Rows(embeddings, codes, _ids(ids, len(embeddings)), embeddings.shape[1])

    @classmethod
    def from_gallery(cls, gallery: np.ndarray, **settings: Any) -> Scorer:
        """`Scorer` of an array."""
        return cls(gallery, **settings)

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], *, screen: str | None = None, progress: bool = False, **settings: Any
    ) -> Scorer:
        """A scorer of a .npy file, memory-mapped; codes are kept beside it, those of `pairloom.Gallery.open`.

        Args:
            path: of a .npy file with float16, float32 or float64 (M, D).
            screen: "int8", "bf16" or None.
            progress: show a bar on stderr while codes are made.
            **settings: as of `Scorer`.
        """
        embeddings = load_matrix(path)
        scorer = cls(embeddings, **settings)
        if screen is not None:
            scorer._settle(scorer.similarity, screen, scorer.threads, scorer.k, scorer.dim)
            codes = codes_beside(Path(path), readable(embeddings), screen, progress, scorer.threads)
            scorer._rows = Rows(scorer._rows.embeddings, codes, scorer._rows.ids, scorer.dim)
        return scorer

    @classmethod
    def from_onnx(cls, path: str | os.PathLike[str], *, threads: int | None = None) -> Scorer:
        """The scoring of a file that `pairloom.export.to_onnx` wrote: gallery, ids, similarity and k. Needs onnx.

        Queries are embeddings: an encoder in the file is left to ONNX Runtime. What the file holds as int8 alone is
        scored as int8.

        Raises:
            ImportError: onnx is not installed.
            ValueError: another file, or one whose gallery is an input of the graph.
        """
        stored = read_gallery(path)
        scorer = cls.__new__(cls)
        screen = None if stored.codes is None else "int8"
        scorer._settle(stored.similarity, screen, threads, stored.k, stored.dim)
        rows = stored.codes.codes if stored.codes is not None else stored.embeddings
        assert rows is not None
        scorer._rows = Rows(stored.embeddings, stored.codes, _ids(stored.ids, len(rows)), stored.dim)
        return scorer

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, threads: int | None = None) -> Scorer:
        """A scorer that `save` wrote; arrays are memory-mapped.

        Raises:
            ValueError: a folder that no scorer wrote, or a damaged one.
        """
        path = Path(path)
        try:
            about = json.loads((path / ABOUT).read_text())
            if about["kind"] != KIND:
                raise ValueError("another kind")
            arrays = {
                name: np.load(path / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in about["arrays"]
            }
            sizes = {len(array.T if name == "records" else array) for name, array in arrays.items()}
            if sizes != {about["rows"]}:
                raise ValueError("sizes differ")
            if {name: _fingerprint(name, array) for name, array in arrays.items()} != about["arrays"]:
                raise ValueError("an array is not the one that was saved")
        except (OSError, ValueError, KeyError, TypeError, EOFError) as error:
            raise ValueError(f"path {path} is no folder that Scorer.save wrote, or it is damaged: {error}") from None
        scorer = cls.__new__(cls)
        scorer._settle(about["similarity"], about["screen"], threads, about["k"], about["dim"])
        codes = Codes(arrays["codes"], arrays["records"]) if "codes" in arrays else None
        scorer._rows = Rows(arrays.get("embeddings"), codes, _ids(arrays["ids"], about["rows"]), about["dim"])
        scorer._largest = about["largest"]
        return scorer

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a folder, as a whole: an interruption leaves what was there.

        Raises:
            FileExistsError: a file, or a folder with other files, is in its place.
        """
        rows = self._rows
        codes = {} if rows.codes is None else {"codes": rows.codes.codes, "records": rows.codes.records}
        embeddings = {} if rows.embeddings is None else {"embeddings": rows.embeddings}
        arrays = {**embeddings, **codes, "ids": rows.ids.astype(str) if rows.ids.dtype == object else rows.ids}
        about = {
            "kind": KIND,
            "format": 1,
            "similarity": self.similarity,
            "screen": self.screen,
            "k": self.k,
            "dim": rows.dim,
            "rows": len(rows),
            "arrays": {name: _fingerprint(name, array) for name, array in arrays.items()},
            "largest": _largest(rows.ids, self._largest),
        }
        with new_folder(Path(path), FILES, "scorer") as partial:
            for name, array in arrays.items():
                np.save(partial / f"{name}.npy", np.asarray(array))
            (partial / ABOUT).write_text(json.dumps(about))

    def __call__(
        self, queries: np.ndarray, k: int | None = None, *, exclude: Any = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """(Q, D) -> scores (Q, k), float64 if queries or gallery are, else float32; ids (Q, k).

        Args:
            queries: (Q, D) float32, float64 or float16, any strides.
            k: results per query, 0 or more.
            exclude: ids that are no answer: an array (Q,) with one for each query (-1 or "" for none), a list with the
                ids of each query, or CSR, a tuple (indptr (Q + 1,), ids).

        Raises:
            TypeError, ValueError: queries of another kind or size, no k, ids that are not there.
        """
        rows = self._rows  # of this moment
        queries = _matrix("queries", queries)
        if queries.shape[1] != rows.dim:
            raise ValueError(
                f"queries has {queries.shape[1]} dimensions per row and the gallery has {rows.dim}; they must be equal"
            )
        k = self.k if k is None else _count("k", k)
        if k is None:
            raise ValueError("k is None, and this scorer has no default; pass k")
        if rows.embeddings is None and queries.dtype == np.float64:
            queries = narrowed("queries", queries, np.dtype(np.float32), "this scorer has int8 alone")
        excluded = exclusions(exclude, len(queries), rows)
        scores, found = rows.search(queries, k, self.similarity, excluded, self.threads)
        return scores, rows.names[found]

    def add(self, embeddings: np.ndarray, ids: Any = None) -> None:
        """Put rows (n, D) behind all others; without ``ids`` they are numbered on from the largest.

        Raises:
            TypeError, ValueError: rows or ids that do not fit, an id that is there; a scorer of int8 alone.
        """
        embeddings = _matrix("embeddings", embeddings)
        with self._changing():
            rows = self._rows
            if rows.embeddings is None:
                raise ValueError("this scorer has int8 alone and takes no more rows; make it of embeddings with screen")
            if embeddings.shape[1] != rows.dim:
                raise ValueError(
                    f"embeddings has {embeddings.shape[1]} dimensions per row and the gallery has {rows.dim}; "
                    "they must be equal"
                )
            if not np.can_cast(embeddings.dtype, rows.embeddings.dtype):
                raise TypeError(
                    f"embeddings is {embeddings.dtype} and the gallery {rows.embeddings.dtype}, which would round; "
                    f"pass embeddings.astype({str(rows.embeddings.dtype)!r})"
                )
            more = self._more_ids(ids, len(embeddings), rows)
            stored = np.ascontiguousarray(embeddings, rows.embeddings.dtype)
            self._rows = rows.joined(stored, more, self.screen, self.threads)
            self._largest = _largest(more, self._largest)

    def remove(self, ids: Sequence[Any] | np.ndarray) -> None:
        """Take rows away.

        Raises:
            TypeError, ValueError: what is no id, or none that is there; then all rows stay.
        """
        with self._changing():
            rows = self._rows
            gone = rows_of("ids", ids, rows)
            self._largest = _largest(rows.ids, self._largest)  # an id that is gone is not given out again
            self._rows = rows.without(gone)

    @property
    def ids(self) -> np.ndarray:
        """(M,) int64 or strings, in the order of the rows."""
        return self._rows.ids.copy()

    @property
    def dim(self) -> int:
        """D."""
        return self._rows.dim if hasattr(self, "_rows") else 0

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        rows = self._rows
        dtype = "int8" if rows.embeddings is None else rows.embeddings.dtype
        return f"Scorer({len(rows):,} x {rows.dim} {dtype}, similarity={self.similarity!r}, screen={self.screen!r})"

    def _settle(self, similarity: str, screen: str | None, threads: int | None, k: int | None, dim: int) -> None:
        for name, value, allowed in (("similarity", similarity, SIMILARITIES), ("screen", screen, (*SCREENS, None))):
            if value not in allowed:
                raise ValueError(f"{name} is {value!r}; allowed: {', '.join(str(one) for one in allowed)}")
        if screen is not None and dim > MOST_CODES:
            raise ValueError(f"gallery has {dim:,} columns; codes take at most {MOST_CODES:,}")
        if threads is not None and _count("threads", threads) == 0:
            raise ValueError("threads is 0; it must be 1 or more")
        self.similarity = similarity
        self.screen = screen
        self.threads = len(os.sched_getaffinity(0)) if threads is None else threads
        self.k = None if k is None else _count("k", k)
        self._changes = threading.Lock()
        self._process = os.getpid()
        self._largest = -1

    def _changing(self) -> threading.Lock:
        """The lock of changes; a new one in a child process, where nobody may be left to open it."""
        if self._process != os.getpid():
            self._changes, self._process = threading.Lock(), os.getpid()
        return self._changes

    def _more_ids(self, ids: Any, count: int, rows: Rows) -> np.ndarray:
        if ids is None:
            if rows.ids.dtype == object and len(rows):
                raise ValueError("ids is missing; this scorer has strings for ids")
            first = _largest(rows.ids, self._largest) + 1
            if first + count - 1 > LARGEST_ID:
                raise ValueError(
                    f"ids is missing, and above the largest, {first - 1}, are no {count} numbers; pass ids"
                )
            return np.arange(first, first + count, dtype=np.int64)
        more = _ids(ids, count)
        if count == 0:
            return rows.ids[:0]
        if len(rows) and more.dtype != rows.ids.dtype:
            kinds = {True: "strings", False: "integers"}
            raise TypeError(
                f"ids are {kinds[more.dtype == object]}; those of this scorer are {kinds[more.dtype != object]}"
            )
        known = [one for one in more.tolist() if rows.place(one) is not None]
        if known:
            raise ValueError(f"ids holds {known[0]!r}, which is there already")
        return more


def _largest(ids: np.ndarray, before: int) -> int:
    """The largest number that was ever an id."""
    return before if ids.dtype == object or not len(ids) else max(before, int(ids.max()))


def _fingerprint(name: str, array: np.ndarray) -> str:
    """Of some rows, evenly spread; records lie by columns."""
    by_row = array.T if name == "records" else array
    return matrix_fingerprint(by_row if by_row.ndim == 2 else by_row[:, None])


def _matrix(name: str, array: Any) -> np.ndarray:
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{name} is a {type(array).__name__}; it must be a NumPy array")
    check_array(name, array)
    return readable(array)


def _count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} is {value!r}; it must be an integer")
    if not 0 <= value < MOST:
        raise ValueError(f"{name} is {value}; it must be 0 or more and below 2**31")
    return int(value)


def _ids(ids: Any, count: int) -> np.ndarray:
    """(count,) int64 or objects that are strings, each once; row numbers for None."""
    return np.arange(count, dtype=np.int64) if ids is None else id_table(ids, count)
