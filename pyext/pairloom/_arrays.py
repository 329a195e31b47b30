"""Checks of NumPy arrays of embeddings; without torch."""

from __future__ import annotations

from typing import Any

import numpy as np

DTYPES = ("float16", "float32", "float64")


def check_array(name: str, array: np.ndarray) -> None:
    """A matrix of floats."""
    if array.dtype.name not in DTYPES:
        raise TypeError(f"{name} is an array of {array.dtype}; arrays of embeddings must be {', '.join(DTYPES)}")
    if array.ndim != 2 or array.shape[1] == 0:
        raise ValueError(f"{name} is an array of shape {array.shape}; it must be 2-D (rows, dimensions)")


def readable(array: np.ndarray) -> np.ndarray:
    """The same array if kernels can read it as it lies, else a copy: other byte order, not aligned."""
    native = array.dtype.newbyteorder("=")
    whole = all(stride % array.itemsize == 0 for stride in array.strides)
    return array if array.flags.aligned and array.dtype.isnative and whole else np.array(array, dtype=native, order="C")


def narrowed(name: str, array: np.ndarray, dtype: np.dtype, why: str) -> np.ndarray:
    """The array in a narrower type.

    Raises:
        ValueError: a finite number that becomes infinite.
    """
    with np.errstate(over="ignore"):
        narrow = np.ascontiguousarray(array, dtype=dtype)
    if narrow.dtype.itemsize < array.dtype.itemsize:
        lost = np.isinf(narrow) & ~np.isinf(array)
        if lost.any():
            raise ValueError(f"{name} holds {array[lost][0]:g}, which {narrow.dtype} cannot hold; {why}")
    return narrow


def load_matrix(path: Any) -> np.ndarray:
    """A .npy file, memory-mapped.

    Raises:
        ValueError: no .npy file, or one that is no matrix of floats.
        OSError: a file that is not there.
    """
    try:
        embeddings = np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError as error:
        raise ValueError(f"path {path} cannot be read as a .npy file of numbers: {error}") from None
    if not isinstance(embeddings, np.ndarray):  # an .npz archive
        raise ValueError(f"path {path} holds several arrays; it must be a .npy file with one matrix")
    check_array("embeddings", embeddings)
    return embeddings
