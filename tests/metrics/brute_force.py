"""The metrics by their definitions, one query and one Python list at a time: the oracle of this folder.

Scores are those of `pairloom.pairwise_similarity`, so that a tie here is a tie there; everything else is plain Python.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

import pairloom


def recall_at_k(
    queries: Tensor,
    query_labels: Tensor,
    gallery: Tensor | None = None,
    gallery_labels: Tensor | None = None,
    *,
    k: int = 1,
    similarity: str = "cosine",
) -> float:
    """Share of the queries with a hit among the first k."""
    judged = _hits_and_relevant(queries, query_labels, gallery, gallery_labels, similarity)
    return _mean([float(any(hits[:k])) for hits, _ in judged])


def map_at_r(
    queries: Tensor,
    query_labels: Tensor,
    gallery: Tensor | None = None,
    gallery_labels: Tensor | None = None,
    *,
    similarity: str = "cosine",
) -> float:
    """Mean over queries of 1/R sum of the precisions at the ranks of the hits up to R."""
    judged = _hits_and_relevant(queries, query_labels, gallery, gallery_labels, similarity)
    return _mean(
        [sum(sum(hits[: i + 1]) / (i + 1) for i in range(r) if hits[i : i + 1] == [True]) / r for hits, r in judged]
    )


def precision_at_1(*rows: Tensor | None, similarity: str = "cosine") -> float:
    """Share of the queries whose first answer is a hit."""
    return _mean([float(hits[:1] == [True]) for hits, _ in _hits_and_relevant(*rows, similarity=similarity)])


def r_precision(*rows: Tensor | None, similarity: str = "cosine") -> float:
    """Hits among the first R, divided by R."""
    return _mean([sum(hits[:r]) / r for hits, r in _hits_and_relevant(*rows, similarity=similarity)])


def mean_reciprocal_rank(*rows: Tensor | None, similarity: str = "cosine") -> float:
    """1 / rank of the first hit, 0 without one."""
    judged = _hits_and_relevant(*rows, similarity=similarity)
    return _mean([1 / (1 + hits.index(True)) if any(hits) else 0.0 for hits, _ in judged])


def ndcg_at_k(*rows: Tensor | None, k: int = 10, similarity: str = "cosine") -> float:
    """Gains of the hits among the first k, divided by those of R hits in a row."""

    def gain(hits: list[bool]) -> float:
        return sum(1 / math.log2(i + 2) for i, hit in enumerate(hits[:k]) if hit)

    judged = _hits_and_relevant(*rows, similarity=similarity)
    return _mean([gain(hits) / gain([True] * min(r, k)) for hits, r in judged])


def roc_auc(*rows: Tensor | None, similarity: str = "cosine") -> float:
    """Share of (pair of one class, pair of two) in the right order; equal ones count half."""
    same, other = _pairs(*rows, similarity=similarity)
    return _mean([(s > t) + (s == t) / 2 for s in same for t in other])


def error_rates(
    *rows: Tensor | None, thresholds: Tensor, similarity: str = "cosine"
) -> tuple[list[float], list[float]]:
    """Of each threshold the share of pairs of two classes that reach it, and of pairs of one that do not."""
    same, other = _pairs(*rows, similarity=similarity)
    limits = thresholds.tolist()
    return [_mean([float(s >= t) for s in other]) for t in limits], [
        _mean([float(s < t) for s in same]) for t in limits
    ]


def alignment(a: Tensor, b: Tensor, *, alpha: float = 2.0) -> float:
    """Mean distance to the power alpha."""
    return _mean([math.dist(x, y) ** alpha for x, y in zip(a.tolist(), b.tolist(), strict=True)])


def uniformity(x: Tensor, *, t: float = 2.0) -> float:
    """Logarithm of the mean potential of all pairs."""
    rows = x.tolist()
    mean = _mean([math.exp(-t * math.dist(rows[i], rows[j]) ** 2) for i in range(len(rows)) for j in range(i)])
    return math.log(mean) if mean > 0 else mean


def effective_rank(x: Tensor) -> float:
    """e to the entropy of the singular values: square roots of the eigenvalues of the Gram matrix."""
    if x.numel() == 0 or not bool(x.isfinite().all()):
        return math.nan
    gram = x.double() @ x.double().T
    values = torch.linalg.eigvalsh(gram).clamp(min=0).sqrt().tolist()
    shares = [value / sum(values) for value in values] if sum(values) else []
    return math.exp(-sum(q * math.log(q) for q in shares if q > 1e-12)) if shares else 0.0


def _pairs(
    queries: Tensor,
    query_labels: Tensor,
    gallery: Tensor | None = None,
    gallery_labels: Tensor | None = None,
    *,
    similarity: str,
) -> tuple[list[float], list[float]]:
    """Similarities of the pairs of one class, and of two; what is no number is no pair."""
    alone = gallery is None or gallery_labels is None
    items = queries if gallery is None else gallery
    wanted, labels = query_labels.tolist(), (query_labels if gallery_labels is None else gallery_labels).tolist()
    found: tuple[list[float], list[float]] = [], []
    for i, row in enumerate(pairloom.pairwise_similarity(queries, items, similarity=similarity).tolist()):
        for j, score in enumerate(row):
            if not (alone and i == j) and not math.isnan(score):
                found[0 if wanted[i] == labels[j] else 1].append(score)
    return found


def _hits_and_relevant(
    queries: Tensor,
    query_labels: Tensor,
    gallery: Tensor | None = None,
    gallery_labels: Tensor | None = None,
    similarity: str = "cosine",
) -> list[tuple[list[bool], int]]:
    leave_one_out = gallery is None or gallery_labels is None
    items = queries if gallery is None else gallery
    wanted = query_labels.tolist()
    labels = wanted if gallery_labels is None else gallery_labels.tolist()
    judged = []
    for q, row in enumerate(pairloom.pairwise_similarity(queries, items, similarity=similarity).tolist()):
        others = [j for j in range(len(items)) if not (leave_one_out and j == q)]
        ranked = sorted((j for j in others if row[j] > -math.inf), key=lambda j: (-row[j], j))
        relevant = sum(labels[j] == wanted[q] for j in others)
        if relevant:
            judged.append(([labels[j] == wanted[q] for j in ranked], relevant))
    return judged


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan
