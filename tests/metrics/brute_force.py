"""The metrics by their definitions, one query and one Python list at a time: the oracle of this folder.

Scores are those of `pairloom.pairwise_similarity`, so that a tie here is a tie there; everything else is plain Python.
"""

from __future__ import annotations

import math

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


def _hits_and_relevant(
    queries: Tensor, query_labels: Tensor, gallery: Tensor | None, gallery_labels: Tensor | None, similarity: str
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
