"""The k most similar gallery rows of every query.

    order    score descending, then gallery index ascending (ties: lowest index first)
    rule     an index is returned only for a score above -inf and not NaN; every other place holds index -1, score -inf

so k > M, M = 0 and rows with NaN need no rule of their own. Scores are those of `reference.pairwise_similarity`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pairloom.reference.similarity import pairwise_similarity


def topk(queries: Tensor, gallery: Tensor, k: int, similarity: str = "cosine") -> tuple[Tensor, Tensor]:
    """(Q, D), (M, D) -> scores (Q, k) in the compute dtype, indices (Q, k) int64. Memory O(Q M)."""
    scores, indices = torch.sort(_returnable(queries, gallery, k, similarity), dim=1, descending=True, stable=True)
    return _pad_missing(scores.narrow(1, 0, k), indices.narrow(1, 0, k))


def topk_standard(queries: Tensor, gallery: Tensor, k: int, similarity: str = "cosine") -> tuple[Tensor, Tensor]:
    """`topk` in the operators that ONNX has: its TopK returns the lowest index first, so no full sort is needed.

    Only for export: ``aten.topk`` itself does not promise an order of ties.
    """
    scores, indices = torch.topk(_returnable(queries, gallery, k, similarity), k, dim=1)
    return _pad_missing(scores, indices)


def _returnable(queries: Tensor, gallery: Tensor, k: int, similarity: str) -> Tensor:
    """Scores with NaN as -inf, and enough columns of -inf behind them that k of them always exist."""
    scores = pairwise_similarity(queries, gallery, similarity)
    scores = torch.where(scores.isnan(), -torch.inf, scores)
    if isinstance(scores.shape[1], int) and scores.shape[1] >= k:
        return scores
    # Always k of them, whatever M is: an exported graph whose gallery size is dynamic has no `min(k, M)`.
    return torch.cat([scores, scores.new_full((scores.shape[0], k), -torch.inf)], dim=1)


def _pad_missing(scores: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    return scores, torch.where(scores > -torch.inf, indices, -1)
