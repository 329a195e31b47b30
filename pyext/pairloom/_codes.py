"""Rows in few bits, in memory or beside the .npy file that they were made of; without torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pairloom._fingerprints import matrix_fingerprint
from pairloom._folders import ABOUT, new_folder
from pairloom._progress import progress_bar

SCREENS = ("int8", "bf16")
MOST_CODES = 65536
BLOCK_BYTES = 2**26
"""Of embeddings in float64 that are read at a time while codes are made."""
RECORDS = 5
COPY = (ABOUT, "codes.npy", "records.npy")
"""Files of a copy."""


def _native_code_rows(*arguments: Any) -> tuple[np.ndarray, np.ndarray]:
    from pairloom import _native  # here: what is missing of an installation is said where it is first needed

    return _native.code_rows(*arguments)


class Codes(NamedTuple):
    """Rows in few bits, as ``_native.code_rows`` makes them."""

    codes: np.ndarray
    """(M, D and zeros up to whole cache lines) int8, or bfloat16 as int16"""
    records: np.ndarray
    """(5, M) float32: scale, bound on the norm of the residual, bound on the norm, 1 / norm, sum of the codes"""


def code_rows(rows: np.ndarray, screen: str, progress: bool, threads: int, into: Codes | None = None) -> Codes:
    """The codes of all rows, block by block; uint16 are the bits of bfloat16."""
    if into is None:
        empty = Codes(*_native_code_rows(rows[:0], screen))
        into = Codes(
            np.empty((len(rows), empty.codes.shape[1]), empty.codes.dtype), np.empty((RECORDS, len(rows)), np.float32)
        )
    step = max(BLOCK_BYTES // (rows.shape[1] * 8), 1)
    with progress_bar(progress, f"coding rows as {screen}", len(rows)) as advance:
        for first in range(0, len(rows), step):
            block = slice(first, min(first + step, len(rows)))
            into.codes[block], into.records[:, block] = _native_code_rows(rows[block], screen, threads)
            advance(block.stop - first)
    return into


def codes_beside(path: Path, rows: np.ndarray, screen: str, progress: bool, threads: int) -> Codes:
    """The copy in the folder beside a .npy file; made first if it is missing, damaged or of something else."""
    folder = path.with_name(f"{path.name}.{screen}")
    about = {"format": 1, "screen": screen, "embeddings": matrix_fingerprint(rows)}
    found = _found(folder, about, rows, screen)
    if found is not None:
        return found
    with new_folder(folder, COPY, "copy") as partial:
        code_rows(rows, screen, progress, threads, _mapped(partial, rows, screen, "w+"))
        (partial / ABOUT).write_text(json.dumps(about))
        return _mapped(partial, rows, screen, "r")  # stays readable under any name


def _found(folder: Path, about: dict[str, Any], rows: np.ndarray, screen: str) -> Codes | None:
    """The copy of these rows, if there is a whole one."""
    try:
        if json.loads((folder / ABOUT).read_text()) != about:
            return None
        return _mapped(folder, rows, screen, "r")
    except (OSError, ValueError, EOFError):
        return None


def _mapped(folder: Path, rows: np.ndarray, screen: str, mode: str) -> Codes:
    """Files of a folder as codes.

    Raises:
        OSError, ValueError, EOFError: files that are missing or damaged.
    """
    empty = Codes(*_native_code_rows(rows[:0], screen))
    shapes = {
        "codes.npy": (empty.codes.dtype, (len(rows), empty.codes.shape[1])),
        "records.npy": (empty.records.dtype, (RECORDS, len(rows))),
    }
    arrays = []
    for name, (kind, shape) in shapes.items():
        if mode == "r":
            array = np.load(folder / name, mmap_mode="r")
            if array.dtype != kind or array.shape != shape or not array.flags.c_contiguous:
                raise ValueError(f"{folder / name} holds {array.dtype} {array.shape}; expected {kind} {shape}")
        else:
            array = np.lib.format.open_memmap(folder / name, mode="w+", dtype=kind, shape=shape)
        arrays.append(array)
    return Codes(*arrays)
