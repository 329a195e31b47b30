"""The metrics on the whole matrix of scores, in tensors: what an exported graph computes; eager code walks in blocks.

    hits_qi = [ label(answer_i of q) == label(q) ],  answers by score, ties by lowest index; NaN and -inf are no answer
    R_q     = items of the gallery with the query's label, the query itself not counted; none for R = 0

All return 0-d float64 and ``error_rates`` two (T,) of them, NaN where there is nothing to average: no row, no query
that can be judged, no pair of a kind. O(Q M) memory. Formulas, sources and checks: `pairloom.metrics`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pairloom.reference.similarity import pairwise_similarity

MOST = 2**53
"""Ranks are float64, and no gallery has more rows: a larger k says the same and may be no int64."""


class ErrorRates(NamedTuple):
    """Of each threshold, (T,) float64: a pair is accepted where its similarity is at least the threshold."""

    false_accept_rate: Tensor
    """Share of the pairs of different classes that are accepted."""
    false_reject_rate: Tensor
    """Share of the pairs of one class that are not."""


class _Ranked(NamedTuple):
    hits: Tensor
    """(Q, M) bool, best answer first"""
    rank: Tensor
    """(M,) float64, from 1"""
    relevant: Tensor
    """(Q,) int64"""

    def mean(self, values: Tensor) -> Tensor:
        """Over queries with something to find."""
        judged = self.relevant > 0
        return torch.where(judged, values, 0.0).sum() / judged.sum()

    def within(self, count: Tensor | int) -> Tensor:
        """(Q, M) hits among the first answers."""
        limit = count.unsqueeze(1) if isinstance(count, Tensor) else count
        return self.hits & (self.rank <= limit)


def _scores(
    queries: Tensor, query_labels: Tensor, gallery: Tensor | None, gallery_labels: Tensor | None, similarity: str
) -> tuple[Tensor, Tensor, Tensor]:
    """(Q, M) scores, NaN for what is no pair; which of them are of one class; and which are pairs at all."""
    one_batch = gallery is None or gallery_labels is None
    others = queries if gallery is None else gallery
    labels = query_labels if gallery_labels is None else gallery_labels
    scores = pairwise_similarity(queries, others, similarity)
    same = query_labels.to(torch.int64).unsqueeze(1) == labels.to(torch.int64)
    pair = torch.ones_like(same)
    if one_batch:
        index = torch.arange(queries.shape[0], device=queries.device)
        pair = index.unsqueeze(1) != index
    return torch.where(pair, scores, torch.nan), same & pair, pair


def _ranked(
    queries: Tensor, query_labels: Tensor, gallery: Tensor | None, gallery_labels: Tensor | None, similarity: str
) -> _Ranked:
    scores, same, _ = _scores(queries, query_labels, gallery, gallery_labels, similarity)
    scores = torch.where(scores.isnan(), -torch.inf, scores)
    if torch.onnx.is_in_onnx_export():  # it has one sort, which is stable
        values, order = torch.sort(scores, dim=1, descending=True)
    else:
        values, order = torch.sort(scores, dim=1, descending=True, stable=True)
    rank = torch.arange(1, scores.shape[1] + 1, device=scores.device).to(torch.float64)
    return _Ranked(same.gather(1, order) & (values > -torch.inf), rank, same.sum(1))


def recall_at_k(
    queries: Tensor,
    query_labels: Tensor,
    gallery: Tensor | None = None,
    gallery_labels: Tensor | None = None,
    *,
    k: int = 1,
    similarity: str = "cosine",
) -> Tensor:
    """Share of the queries with a hit among the first k."""
    ranked = _ranked(queries, query_labels, gallery, gallery_labels, similarity)
    return ranked.mean(ranked.within(min(k, MOST)).any(1).to(torch.float64))


def precision_at_1(
    queries: Tensor,
    query_labels: Tensor,
    gallery: Tensor | None = None,
    gallery_labels: Tensor | None = None,
    *,
    similarity: str = "cosine",
) -> Tensor:
    """`recall_at_k` of 1."""
    return recall_at_k(queries, query_labels, gallery, gallery_labels, k=1, similarity=similarity)


def r_precision(
    queries: Tensor,
    query_labels: Tensor,
    gallery: Tensor | None = None,
    gallery_labels: Tensor | None = None,
    *,
    similarity: str = "cosine",
) -> Tensor:
    """Share of hits among the first R."""
    ranked = _ranked(queries, query_labels, gallery, gallery_labels, similarity)
    found = ranked.within(ranked.relevant).sum(1).to(torch.float64)
    return ranked.mean(found / ranked.relevant.clamp(min=1))


def map_at_r(
    queries: Tensor,
    query_labels: Tensor,
    gallery: Tensor | None = None,
    gallery_labels: Tensor | None = None,
    *,
    similarity: str = "cosine",
) -> Tensor:
    """Mean over the first R answers of the precision up to each hit."""
    ranked = _ranked(queries, query_labels, gallery, gallery_labels, similarity)
    precision = ranked.hits.to(torch.float64).cumsum(1) / ranked.rank
    total = torch.where(ranked.within(ranked.relevant), precision, 0.0).sum(1)
    return ranked.mean(total / ranked.relevant.clamp(min=1))


def mean_reciprocal_rank(
    queries: Tensor,
    query_labels: Tensor,
    gallery: Tensor | None = None,
    gallery_labels: Tensor | None = None,
    *,
    similarity: str = "cosine",
) -> Tensor:
    """1 / rank of the first hit, 0 for none."""
    ranked = _ranked(queries, query_labels, gallery, gallery_labels, similarity)
    reciprocal = torch.where(ranked.hits, 1 / ranked.rank, 0.0)
    return ranked.mean(torch.cat([reciprocal, reciprocal.new_zeros(reciprocal.shape[0], 1)], dim=1).amax(1))


def ndcg_at_k(
    queries: Tensor,
    query_labels: Tensor,
    gallery: Tensor | None = None,
    gallery_labels: Tensor | None = None,
    *,
    k: int = 10,
    similarity: str = "cosine",
) -> Tensor:
    """Discounted hits among the first k, divided by what is best possible."""
    ranked = _ranked(queries, query_labels, gallery, gallery_labels, similarity)
    k = min(k, MOST)
    gains = (1 / (ranked.rank + 1).log2()).unsqueeze(0)
    found = torch.where(ranked.within(k), gains, 0.0).sum(1)
    ideal = torch.where(ranked.rank <= ranked.relevant.clamp(max=k).unsqueeze(1), gains, 0.0).sum(1)
    return ranked.mean(found / torch.where(ideal > 0, ideal, 1.0))


def roc_auc(
    queries: Tensor,
    query_labels: Tensor,
    gallery: Tensor | None = None,
    gallery_labels: Tensor | None = None,
    *,
    similarity: str = "cosine",
) -> Tensor:
    """Share of pairs of pairs in the right order, ties half: below each positive stand so many negatives."""
    scores, same, pair = (x.flatten() for x in _scores(queries, query_labels, gallery, gallery_labels, similarity))
    pair = pair & ~scores.isnan()
    positive, negative = same & pair, ~same & pair
    values, order = torch.sort(torch.where(pair, scores, torch.inf))
    # Equal scores are a group; groups are numbered in rising order.
    previous = values[(torch.arange(values.shape[0], device=values.device) - 1).clamp(min=0)]
    group = (values != previous).to(torch.int64).cumsum(0)
    of_group = [
        torch.zeros_like(values, dtype=torch.float64).scatter_add(0, group, kind[order].to(torch.float64))
        for kind in (positive, negative)
    ]
    above, below = of_group[0], of_group[1].cumsum(0) - of_group[1]
    return (above * (below + of_group[1] / 2)).sum() / (above.sum() * of_group[1].sum())


def error_rates(
    queries: Tensor,
    query_labels: Tensor,
    gallery: Tensor | None = None,
    gallery_labels: Tensor | None = None,
    *,
    thresholds: Tensor,
    similarity: str = "cosine",
) -> ErrorRates:
    """(T,) shares of pairs of two classes at or above each threshold, and of pairs of one class below it."""
    scores, same, pair = (x.flatten() for x in _scores(queries, query_labels, gallery, gallery_labels, similarity))
    pair = pair & ~scores.isnan()
    edges = thresholds.to(torch.float64)
    above = scores.to(torch.float64).unsqueeze(1) >= edges
    positive, negative = (same & pair).unsqueeze(1), (~same & pair).unsqueeze(1)
    accepted = (above & negative).sum(0).to(torch.float64) / negative.sum()
    refused = (~above & positive).sum(0).to(torch.float64) / positive.sum()
    return ErrorRates(*(torch.where(edges.isnan(), torch.nan, rate) for rate in (accepted, refused)))


def alignment(a: Tensor, b: Tensor, *, alpha: float = 2.0) -> Tensor:
    """Mean distance of the two rows of a pair, to the power alpha."""
    difference = a.to(torch.float64) - b.to(torch.float64)
    # Not mean(), which ONNX Runtime answers with 0 for no rows.
    return (difference * difference).sum(1).sqrt().pow(alpha).sum() / a.shape[0]


def uniformity(x: Tensor, *, t: float = 2.0) -> Tensor:
    """Logarithm of the mean Gaussian similarity of two different rows."""
    exponents = pairwise_similarity(x, x, "squared_euclidean").to(torch.float64) * t
    index = torch.arange(x.shape[0], device=x.device)
    exponents = torch.where(index.unsqueeze(1) == index, -torch.inf, exponents)
    count = torch.ones_like(index).sum().to(torch.float64)
    # logsumexp of ONNX Runtime passes over NaN.
    broken = torch.where(exponents.isnan(), exponents, 0.0).sum()
    return exponents.flatten().logsumexp(0) - (count * (count - 1)).log() + broken
