"""Similarity of row i with row i: what losses on two views need beside the streamed blocks."""

from __future__ import annotations

from torch import Tensor

from pairloom.reference.similarity import compute_dtype, unit_rows


def paired_similarity(a: Tensor, b: Tensor, similarity: str) -> Tensor:
    """(N, D) and (N, D) -> (N,) in the compute dtype, "cosine" or "dot". O(N D)."""
    dtype = compute_dtype(a, b)
    a, b = a.to(dtype), b.to(dtype)
    if similarity == "cosine":
        a, b = unit_rows(a), unit_rows(b)
    return (a * b).sum(1)
