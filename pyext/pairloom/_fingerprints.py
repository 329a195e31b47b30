"""Whether a matrix is still the one that something on disk was made of, without reading all of it."""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from torch import Tensor

from pairloom._gallery_blocks import rows_of

SAMPLED_ROWS = 256
"""Rows of a matrix that its fingerprint reads: enough to tell two models apart, at no cost."""


def matrix_fingerprint(matrix: Tensor | np.ndarray) -> str:
    """Shape, dtype and a hash of some rows, spread evenly."""
    rows = np.unique(np.linspace(0, max(len(matrix) - 1, 0), SAMPLED_ROWS).astype(np.int64))
    content = rows_of(matrix, rows[: len(matrix)]).contiguous()
    dtype = str(matrix.dtype).removeprefix("torch.")
    return f"{'x'.join(map(str, matrix.shape))} {dtype} {content_fingerprint(content)}"


def content_fingerprint(*tensors: Tensor) -> str:
    """A hash of all bytes."""
    digest = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        digest.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
