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
