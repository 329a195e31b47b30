"""The k most similar gallery rows of every query.

    order    score descending, then gallery index ascending (ties: lowest index first)
    rule     an index is returned only for a score above -inf and not NaN; every other place holds index -1, score -inf

so k > M, M = 0 and rows with NaN need no rule of their own. Scores are those of `reference.pairwise_similarity`, and
-inf for what query q excludes: gallery rows exclude_indices[exclude_indptr[q]..exclude_indptr[q + 1]), in any order.
Repeats and rows outside the gallery do nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pairloom.reference.similarity import pairwise_similarity


def topk(
    queries: Tensor,
    gallery: Tensor,
    k: int,
    similarity: str = "cosine",
    exclude_indptr: Tensor | None = None,
    exclude_indices: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """(Q, D), (M, D), (Q + 1,), (E,) -> scores (Q, k) in the compute dtype, indices (Q, k) int64. Memory O(Q M)."""
    scores = pairwise_similarity(queries, gallery, similarity)
    return best(_without(scores, exclude_indptr, exclude_indices), k)


def topk_standard(
    queries: Tensor,
    gallery: Tensor,
    k: int,
    similarity: str = "cosine",
    exclude_indptr: Tensor | None = None,
    exclude_indices: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`topk` in the operators that ONNX has."""
    scores = pairwise_similarity(queries, gallery, similarity)
    return best_standard(_without(scores, exclude_indptr, exclude_indices), k)


def best(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k best columns of scores (Q, M)."""
    scores, indices = torch.sort(_returnable(scores, k), dim=1, descending=True, stable=True)
    return _pad_missing(scores.narrow(1, 0, k), indices.narrow(1, 0, k))


def best_standard(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """`best` for export: ONNX's TopK returns the lowest index first, so no full sort is needed.

    Only there: ``aten.topk`` itself does not promise an order of ties.
    """
    scores, indices = torch.topk(_returnable(scores, k), k, dim=1)
    return _pad_missing(scores, indices)


def _returnable(scores: Tensor, k: int) -> Tensor:
    """-inf for NaN, and enough columns of -inf behind them that k of them always exist."""
    scores = torch.where(scores.isnan(), -torch.inf, scores)
    if isinstance(scores.shape[1], int) and scores.shape[1] >= k:
        return scores
    # Always k of them, whatever M is: an exported graph whose gallery size is dynamic has no `min(k, M)`.
    return torch.cat([scores, scores.new_full((scores.shape[0], k), -torch.inf)], dim=1)


def _without(scores: Tensor, exclude_indptr: Tensor | None, exclude_indices: Tensor | None) -> Tensor:
    if exclude_indptr is None or exclude_indices is None:
        return scores
    return scores.masked_fill(_excluded(scores, exclude_indptr, exclude_indices), -torch.inf)


def _excluded(scores: Tensor, indptr: Tensor, indices: Tensor) -> Tensor:
    """(Q, M) bool. Rows outside the gallery go to a column of their own, which is cut off."""
    q, m = scores.shape
    # Query of each id, by counting the lists that ended before it: ONNX and graphs of any size have these operators.
    ends = indptr[1:]
    ended = torch.zeros(indices.shape[0] + 1, dtype=torch.int64, device=indices.device)
    rows = ended.scatter_add(0, ends, torch.ones_like(ends)).cumsum(0)[:-1]
    columns = torch.where((indices >= 0) & (indices < m), indices, m)
    mask = torch.zeros(q, m + 1, dtype=torch.bool, device=scores.device)
    return mask.index_put((rows, columns), torch.ones((), dtype=torch.bool, device=scores.device))[:, :m]


def _pad_missing(scores: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    return scores, torch.where(scores > -torch.inf, indices, -1)
