"""Similarity of every row of ``a`` with every row of ``b``; larger is more alike, also for distances.

    dot                s_ij = a_i . b_j
    cosine             s_ij = N(a_i) . N(b_j),  N(x) = x / ||x||,  N(x) = 0 where ||x|| < 1e-12
    euclidean          s_ij = -||a_i - b_j||      (gradient 0 where the two rows are equal)
    squared_euclidean  s_ij = -||a_i - b_j||^2

Source: conventions of pytorch-metric-learning's distances, with the sign turned so that larger is always better.
Euclidean distances are sums of squared differences: never ||a||^2 + ||b||^2 - 2 a.b, which cancels for close rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

NORM_FLOOR = 1e-12
"""A row shorter than this has no direction: its cosine similarity and its gradient are 0."""


def compute_dtype(*embeddings: Tensor) -> torch.dtype:
    """The dtype of all sums: float64 when any input is float64, else float32 (also for half inputs)."""
    return torch.float64 if any(x.dtype == torch.float64 for x in embeddings) else torch.float32


def unit_rows(x: Tensor) -> Tensor:
    """Rows divided by their norm; zero rows stay 0 with gradient 0, NaN rows stay NaN."""
    inverse_norm, zero = inverse_norms(x)
    return torch.where(zero, 0.0, x * inverse_norm)


def inverse_norms(x: Tensor, floor: float = NORM_FLOOR) -> tuple[Tensor, Tensor]:
    """1 / ||x|| of each row (..., 1), and where the row is shorter than the floor (the value there is of no use).

    (TorchScript compiles this: it sees default values of arguments, but no global floats.)
    """
    # Divided by their largest entry, rows of any length have squares that do not overflow. (Entries below 1e-30, whose
    # reciprocal could, belong to zero rows.)
    largest = x.detach().abs().amax(dim=-1, keepdim=True)
    scale = torch.where(largest > 1e-30, largest, 1.0).reciprocal()
    scaled = x * scale
    squares = (scaled * scaled).sum(dim=-1, keepdim=True)
    # The inner `where` keeps 1/0 out of the graph: masking only its result would leave NaN in the (second) derivative.
    inverse = torch.where(squares == 0, 1.0, squares).rsqrt()
    return inverse * scale, squares.detach().sqrt() < floor * scale


def pairwise_similarity(a: Tensor, b: Tensor, similarity: str = "cosine") -> Tensor:
    """(N, D) and (M, D) -> (N, M) in the compute dtype. Memory O(N M), O(N M D) for the Euclidean ones."""
    dtype = compute_dtype(a, b)
    a, b = a.to(dtype), b.to(dtype)
    if similarity == "dot":
        return a @ b.transpose(0, 1)
    if similarity == "cosine":
        return unit_rows(a) @ unit_rows(b).transpose(0, 1)
    if similarity not in ("euclidean", "squared_euclidean"):
        raise ValueError(f"similarity is {similarity!r}; allowed: cosine, dot, euclidean, squared_euclidean")
    difference = a.unsqueeze(1) - b.unsqueeze(0)
    squares = (difference * difference).sum(dim=-1)
    if similarity == "squared_euclidean":
        return -squares
    same = squares == 0
    return -torch.where(same, 0.0, torch.where(same, 1.0, squares).sqrt())
