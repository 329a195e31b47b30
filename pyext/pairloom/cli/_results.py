"""Results of a search, written: .npz, .csv, .parquet, or CSV on stdout.

A file is written beside its place and takes it as a whole, so an interruption leaves nothing half-written.
"""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from pairloom.cli._tables import either, need_pyarrow

SUFFIXES = (".npz", ".csv", ".parquet")
STDOUT = Path("-")
COLUMNS = ("query", "rank", "id", "score")
HELP = (
    "File to write: .npz (arrays scores and ids; held in memory), .csv or .parquet (columns query, rank, id, score; "
    "query counts from 0, rank from 1; streamed), or - for CSV on stdout."
)

Write = Callable[[np.ndarray, np.ndarray], None]
"""(scores (B, k), ids (B, k)) of the next B queries; id -1 or "" and score -inf stand for nothing."""


def check_output(path: Path, suffixes: tuple[str, ...] = SUFFIXES) -> None:
    """Before any work: a kind of file that we write, in a folder that is there."""
    if path.suffix.lower() not in suffixes:
        raise ValueError(f"--output is {path}; it must end in {either(suffixes)}")
    check_folder(path)
    if path.suffix.lower() == ".parquet":
        need_pyarrow()


def check_folder(path: Path) -> None:
    """A place for a file."""
    if not path.parent.is_dir():
        raise ValueError(f"--output is {path}, and there is no folder {path.parent}")
    if path.is_dir():
        raise ValueError(f"--output is {path}, which is a folder; pass a file")
    if not os.access(path.parent, os.W_OK):
        raise ValueError(f"--output is {path}, and the folder {path.parent} cannot be written")


def progress_wanted(output: Path) -> bool:
    """A bar is for people who look at a terminal, and does not run through results on the same terminal."""
    return sys.stderr.isatty() and not (output == STDOUT and sys.stdout.isatty())


@contextmanager
def results(output: Path) -> Iterator[Write]:
    """Gives the function that takes the results, batch by batch in the order of the queries."""
    if output == STDOUT:
        with _csv_rows(sys.stdout) as write:
            yield write
        sys.stdout.flush()
        return
    partial = output.with_name(f".{output.name}.{os.getpid()}.partial")
    try:
        with _opened(output.suffix.lower(), partial) as write:
            yield write
        partial.replace(output)
    finally:
        partial.unlink(missing_ok=True)


def _opened(suffix: str, path: Path) -> AbstractContextManager[Write]:
    return {".npz": _npz, ".csv": _csv, ".parquet": _parquet}[suffix](path)


def _rows(first: int, scores: np.ndarray, ids: np.ndarray) -> tuple[np.ndarray, ...]:
    """The four columns; what is missing is no row."""
    query, rank = np.nonzero(scores > -np.inf)
    return query + first, rank + 1, ids[query, rank], scores[query, rank]


@contextmanager
def _csv(path: Path) -> Iterator[Write]:
    with path.open("w", encoding="utf-8", newline="") as file, _csv_rows(file) as write:
        yield write


@contextmanager
def _csv_rows(file: Any) -> Iterator[Write]:
    lines = csv.writer(file, lineterminator="\n")
    lines.writerow(COLUMNS)
    done = 0

    def write(scores: np.ndarray, ids: np.ndarray) -> None:
        nonlocal done
        query, rank, names, score = _rows(done, scores, ids)
        # So many digits give back the same bits. NumPy's own text is shorter, but made in a place that loses a Ctrl-C.
        texts = map(("%.17g" if score.dtype == np.float64 else "%.9g").__mod__, score.tolist())
        lines.writerows(zip(query.tolist(), rank.tolist(), names.tolist(), texts, strict=True))
        done += len(scores)

    yield write


@contextmanager
def _parquet(path: Path) -> Iterator[Write]:
    pyarrow = need_pyarrow()
    done, writer = 0, None

    def write(scores: np.ndarray, ids: np.ndarray) -> None:
        nonlocal done, writer
        query, rank, names, score = _rows(done, scores, ids)
        kind = pyarrow.int64() if ids.dtype.kind in "iu" else pyarrow.string()
        arrays = [query, rank.astype(np.int32), pyarrow.array(names.tolist(), kind), score]
        table = pyarrow.table(dict(zip(COLUMNS, arrays, strict=True)))
        if writer is None:
            writer = pyarrow.parquet.ParquetWriter(path, table.schema)
        writer.write_table(table)
        done += len(scores)

    try:
        yield write
    finally:
        if writer is not None:
            writer.close()


@contextmanager
def _npz(path: Path) -> Iterator[Write]:
    parts: list[tuple[np.ndarray, np.ndarray]] = []
    yield lambda scores, ids: parts.append((scores, ids if ids.dtype.kind in "iu" else ids.astype(str)))
    scores, ids = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    with path.open("wb") as file:
        np.savez(file, scores=scores, ids=ids)
