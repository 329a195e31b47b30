"""Whether a matrix is still the one that something on disk was made of, without reading all of it."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

SAMPLED_ROWS = 256
"""Rows of a matrix that its fingerprint reads: enough to tell two models apart, at no cost."""


def matrix_fingerprint(matrix: Tensor | np.ndarray) -> str:
    """Shape, dtype and a hash of some rows, spread evenly; the same for a tensor and for an array."""
    rows = np.unique(np.linspace(0, max(len(matrix) - 1, 0), SAMPLED_ROWS).astype(np.int64))[: len(matrix)]
    dtype = matrix.dtype.name if isinstance(matrix, np.ndarray) else str(matrix.dtype).removeprefix("torch.")
    return f"{'x'.join(map(str, matrix.shape))} {dtype} {content_fingerprint(matrix[rows])}"


def content_fingerprint(*matrices: Tensor | np.ndarray) -> str:
    """A hash of all bytes, in this machine's order."""
    digest = hashlib.blake2b(digest_size=8)
    for matrix in matrices:
        digest.update(_bytes(matrix))
    return digest.hexdigest()


def _bytes(matrix: Any) -> bytes:
    if isinstance(matrix, np.ndarray):
        return matrix.astype(matrix.dtype.newbyteorder("="), copy=False).tobytes()
    import torch

    return matrix.contiguous().view(torch.uint8).numpy().tobytes()
