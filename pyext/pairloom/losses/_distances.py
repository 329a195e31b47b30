"""Distances beside similarities: rows as a loss compares them, and margins that change their sign."""

from __future__ import annotations

import torch
from torch import Tensor

from pairloom.reference.similarity import unit_rows


def compared_rows(a: Tensor, b: Tensor | None, similarity: str, normalize: bool) -> tuple[Tensor, Tensor | None]:
    """Rows for the operator: divided by their length for a distance with ``normalize``, else as they are.

    ("cosine" divides inside the operator, "dot" never.) They are made contiguous, so that norms add up in one order for
    every layout. TorchScript compiles this.
    """
    if not normalize or similarity == "cosine" or similarity == "dot":
        return a, b
    wide = a.dtype == torch.float64 or (b is not None and b.dtype == torch.float64)
    dtype = torch.float64 if wide else torch.float32
    return unit_rows(a.to(dtype).contiguous()), None if b is None else unit_rows(b.to(dtype).contiguous())


def is_distance(similarity: str) -> bool:
    """Whether larger values of what the word names mean less alike."""
    return similarity == "euclidean" or similarity == "squared_euclidean"  # TorchScript compiles this
