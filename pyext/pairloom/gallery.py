"""Galleries that are searched again and again: with a copy in few bits for exact answers sooner, or as int8 alone."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pairloom import _checks, _codes, _library
from pairloom._arrays import check_array, load_matrix, readable
from pairloom._codes import MOST_CODES, SCREENS
from pairloom._gallery_blocks import has_tensor_strides, rows_of
from pairloom._id_lists import IdLists

_library.load()


class Codes(NamedTuple):
    """Rows in few bits, as ``torch.ops.pairloom.code_rows`` makes them."""

    codes: Tensor
    """(M, D and zeros up to whole cache lines) int8 or bfloat16"""
    records: Tensor
    """(5, M) float32: scale, bound on the norm of the residual, bound on the norm, 1 / norm, sum of the codes"""


class Gallery:
    r"""Embeddings to search, with a copy in few bits that finds the exact answers sooner.

        x = scale * codes + residual
        |s(a, b) - estimate| <= |scale_a codes_a| |residual_b| + |residual_a| |b| + roundings

    `topk` scores the codes, keeps the rows whose bound reaches the k-th best, and scores those in full precision with
    the arithmetic of the kernel. Ids and scores are bit for bit those without a copy, for every input: rows with NaN or
    of norm 1e18 and more are always scored in full, and a query that keeps too many rows (all scores tie, say) is
    given to the kernel. The proof stands in docs/decisions/0016-screening.md.

    Args:
        embeddings: (M, D) float tensor on the CPU, or a NumPy array or memory map of float16, float32 or float64,
            which may be larger than memory: a search reads the codes, and of the embeddings what it scores in full.
            They are not copied; they must not change.
        screen: "int8" (a quarter of float32), "bf16" (a half, closer bounds) or None (no copy).
        progress: show a bar on stderr while the copy is made.

    Attributes:
        embeddings: as given.
        screen: as given.

    Raises:
        TypeError, ValueError: embeddings that are no float matrix, an unknown word, more than 65,536 columns.

    Cost: one pass over the embeddings; M D bytes ("int8") or 2 M D ("bf16") beside them, with D in whole
    cache lines. A search takes 2 Q M D operations on int8 (bfloat16), and 2 D for each row that is scored in full:
    `topk(..., return_stats=True)` counts them. Source: the bound is Cauchy and Schwarz; filtering by certified bounds
    as in VA-files (Weber, Schek, Blott, VLDB 1998).

    Example:
        >>> import torch, pairloom
        >>> generator = torch.Generator().manual_seed(0)
        >>> rows = torch.randn(5000, 64, generator=generator)
        >>> gallery = pairloom.Gallery(rows, screen="int8")
        >>> scores, ids, stats = pairloom.topk(rows[:2], gallery, k=3, return_stats=True)
        >>> torch.equal(ids, pairloom.topk(rows[:2], rows, k=3)[1])
        True
        >>> bool((stats.rescored < 500).all())
        True
    """

    def __init__(self, embeddings: Tensor | np.ndarray, *, screen: str | None = "int8", progress: bool = False) -> None:
        _check_rows(embeddings)
        if screen is not None:
            _checks.choice("screen", screen, SCREENS)
        _checks.flag("progress", progress)
        self.embeddings = embeddings
        self.screen = screen
        self._rows = as_tensor(embeddings)
        self._codes = None if screen is None else _coded(self._rows, screen, progress)

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, screen: str | None = "int8", progress: bool = False) -> Gallery:
        """A gallery of a .npy file, memory-mapped, whose copy is made once and kept beside it.

        The copy is a folder, ``<path>.int8`` or ``<path>.bf16``, memory-mapped too. It is made when it is missing or
        was made of other embeddings (shape, dtype, and 256 rows are compared), and takes its place as a whole: an
        interruption leaves nothing half-written, and several processes or threads may open the same file at once.

        Args:
            path: of a .npy file with float16, float32 or float64 (M, D).
            screen: "int8", "bf16" or None.
            progress: show a bar on stderr while the copy is made.

        Raises:
            ValueError: no .npy file, or one that is no float matrix.
            OSError: a file that is not there, a folder that cannot be written, other files where the copy goes.

        Example:
            >>> import numpy as np, pairloom, tempfile, pathlib, torch
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     path = pathlib.Path(folder) / "gallery.npy"
            ...     np.save(path, np.eye(4, 8, dtype=np.float32))
            ...     gallery = pairloom.Gallery.open(path)
            ...     pairloom.topk(torch.eye(1, 8), gallery, k=2)[1].tolist()
            ...     sorted(entry.name for entry in path.parent.iterdir())
            [[0, 1]]
            ['gallery.npy', 'gallery.npy.int8']
        """
        path = Path(path)
        embeddings = load_matrix(path)
        gallery = cls(embeddings, screen=None)
        if screen is not None:
            _checks.choice("screen", screen, SCREENS)
            _checks.flag("progress", progress)
            gallery.screen = screen
            made = _codes.codes_beside(path, readable(embeddings), screen, progress, torch.get_num_threads())
            gallery._codes = _as_tensors(made, screen)
        return gallery

    def __len__(self) -> int:
        return self.embeddings.shape[0]

    @property
    def shape(self) -> tuple[int, int]:
        """(M, D)"""
        return (self.embeddings.shape[0], self.embeddings.shape[1])

    def __repr__(self) -> str:
        rows, dim = self.shape
        dtype = str(self.embeddings.dtype).removeprefix("torch.")
        return f"Gallery({rows:,} x {dim} {dtype}, screen={self.screen!r})"

    def search(
        self, queries: Tensor, k: int, similarity: str, exclude: IdLists | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Scores, indices, and how many rows were scored in full for each query (None: all of them). No checks."""
        indptr, indices = (None, None) if exclude is None else exclude
        if self._codes is None:
            return *torch.ops.pairloom.topk(queries, self._rows, k, similarity, indptr, indices), None
        return torch.ops.pairloom.screened_topk(queries, self._rows, *self._codes, k, similarity, indptr, indices)


class Int8Gallery:
    """A gallery that is kept as int8 alone: a quarter of the memory, approximate scores.

        scale = max |x| / 127,  codes = round(x / scale);    s(a, b) = (scale_a scale_b) (codes_a . codes_b)

    with the product of the codes exact in int32, and queries coded by the same rule; "cosine" divides by the norms of
    the rows before they were coded. Ids are those of these scores: the best first, the lowest id first among equals.
    Codes and "dot" are the same on every processor; in "cosine" the norm of a query may round differently. For exact
    answers see `Gallery`.

    Args:
        embeddings: (M, D) float tensor on the CPU, or a NumPy array or memory map; read once, not kept.
        progress: show a bar on stderr meanwhile.

    Raises:
        TypeError, ValueError: embeddings that are no float matrix, more than 65,536 columns.

    Rows with NaN or of norm 1e18 and more cannot be coded and are never returned. Similarities are "cosine" and "dot".

    Cost: one pass over the embeddings; M (D + 20) bytes, with D in whole cache lines. A search takes 2 Q M D
    operations on int8: AMX or AVX-512 VNNI instructions where the processor has them.

    Example:
        >>> import torch, pairloom
        >>> gallery = pairloom.Int8Gallery(torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 0.1]]))
        >>> scores, ids = pairloom.topk(torch.tensor([[1.0, 0.0]]), gallery, k=2, similarity="dot")
        >>> ids.tolist(), scores.shape
        ([[2, 0]], torch.Size([1, 2]))
    """

    def __init__(self, embeddings: Tensor | np.ndarray, *, progress: bool = False) -> None:
        _check_rows(embeddings)
        _checks.flag("progress", progress)
        self.shape = (embeddings.shape[0], embeddings.shape[1])
        self._codes = _coded(as_tensor(embeddings), "int8", progress)

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"Int8Gallery({self.shape[0]:,} x {self.shape[1]})"

    @property
    def codes(self) -> Tensor:
        """(M, D) int8"""
        return self._codes.codes[:, : self.shape[1]]

    @property
    def scales(self) -> Tensor:
        """(M,) float32"""
        return self._codes.records[0]

    def search(self, queries: Tensor, k: int, similarity: str, exclude: IdLists | None) -> tuple[Tensor, Tensor]:
        """Scores and indices. No checks."""
        indptr, indices = (None, None) if exclude is None else exclude
        return torch.ops.pairloom.coded_topk(queries, *self._codes, k, similarity, indptr, indices)


def _check_rows(embeddings: Any) -> None:
    if isinstance(embeddings, np.ndarray):
        check_array("embeddings", embeddings)
    else:
        _checks.embeddings("embeddings", embeddings)
        if embeddings.device.type != "cpu":
            raise ValueError(f"embeddings are on {embeddings.device}; a gallery with codes is searched on the CPU")
    if embeddings.shape[1] > MOST_CODES:
        raise ValueError(f"embeddings have {embeddings.shape[1]:,} columns; codes take at most {MOST_CODES:,}")


def as_tensor(embeddings: Tensor | np.ndarray) -> Tensor:
    """A tensor over the same memory. Kernels only read it: torch need not warn that a memory map cannot be written."""
    if isinstance(embeddings, Tensor):
        return embeddings.detach()
    flags = embeddings.flags
    if not (flags.aligned and embeddings.dtype.isnative and has_tensor_strides(embeddings)):
        return rows_of(embeddings, slice(None))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writ")
        return torch.from_numpy(embeddings)


def _as_array(rows: Tensor) -> np.ndarray:
    """An array over the same memory; bfloat16 by its bits, uint16."""
    if rows.dtype == torch.bfloat16:
        return rows.view(torch.int16).numpy().view(np.uint16)
    return rows.numpy()


def _coded(rows: Tensor, screen: str, progress: bool) -> Codes:
    """The codes of all rows, block by block."""
    return _as_tensors(_codes.code_rows(_as_array(rows), screen, progress, torch.get_num_threads()), screen)


def _as_tensors(made: _codes.Codes, screen: str) -> Codes:
    codes, records = (as_tensor(array) for array in made)
    return Codes(codes if screen == "int8" else codes.view(torch.bfloat16), records)
