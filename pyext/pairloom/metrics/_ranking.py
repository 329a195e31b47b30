"""What every retrieval metric is made of: for each query, which of its ranked answers are right, and how many could be.

Written once here: checks, leave-one-out, ties, and the walk over queries in blocks of bounded memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from pairloom import _checks
from pairloom.scoring import topk
from pairloom.similarity import pairwise_similarity

BLOCK_ANSWERS = 1 << 19
"""Answers (queries times depth) judged at once. An answer takes about 60 bytes on the way, so a block takes 30 MB."""


BLOCK_SCORES = 1 << 20
"""Scores of a block where whole rows are looked at: 4 MiB."""


class Ranked(NamedTuple):
    """Answers to one block of queries; every query has at least one relevant item."""

    hits: Tensor
    """(B, depth) bool, best answer first: whether the answer has the query's label. A missing answer is no hit."""
    relevant: Tensor
    """(B,) int64, R: items of the gallery with the query's label, the query itself not counted."""


class Searched(NamedTuple):
    """Queries and what they are to find."""

    queries: Tensor
    query_labels: Tensor
    gallery: Tensor
    gallery_labels: Tensor
    leave_one_out: bool
    relevant: Tensor
    """(Q,) int64, R: items of the gallery with the query's label, the query itself not counted."""


def check_search(
    queries: Tensor,
    query_labels: Tensor,
    gallery: Tensor | None,
    gallery_labels: Tensor | None,
    similarity: str,
    k: int = 1,
) -> None:
    """The arguments of every metric that searches, before anything is computed."""
    _checks.count("k", k, least=1)
    _checks.embeddings("queries", queries, gallery=gallery)
    _checks.labels("query_labels", query_labels, "queries", queries)
    _checks.given_together("gallery_labels", gallery_labels, "gallery", gallery, "pass both, or neither")
    _checks.given_together("gallery", gallery, "gallery_labels", gallery_labels, "pass both, or neither")
    if gallery is not None and gallery_labels is not None:
        _checks.labels("gallery_labels", gallery_labels, "gallery", gallery)
        _checks.same_label_kind("query_labels", query_labels, "gallery_labels", gallery_labels)
    _checks.choice("similarity", similarity, _checks.SIMILARITIES)


def searched(queries: Tensor, query_labels: Tensor, gallery: Tensor | None, gallery_labels: Tensor | None) -> Searched:
    """The arguments of a metric, detached, and how much there is to find."""
    leave_one_out = gallery is None
    queries, query_labels = queries.detach(), query_labels.to(torch.int64)
    gallery = queries if gallery is None else gallery.detach()
    gallery_labels = query_labels if gallery_labels is None else gallery_labels.to(torch.int64)
    relevant = _count_equal(query_labels, gallery_labels) - int(leave_one_out)
    return Searched(queries, query_labels, gallery, gallery_labels, leave_one_out, relevant)


def scored_blocks(given: Searched, similarity: str) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Some queries at a time: their numbers (B,), scores (B, M), and hits (B, M).

    A query is no answer to itself: its score is NaN, as every score that is no number.
    """
    count = max(1, BLOCK_SCORES // max(len(given.gallery), 1))
    for block in torch.arange(len(given.queries), device=given.queries.device).split(count):
        scores = pairwise_similarity(given.queries[block], given.gallery, similarity=similarity)
        if given.leave_one_out:
            scores.scatter_(1, block.unsqueeze(1), torch.nan)
        yield block, scores, given.query_labels[block].unsqueeze(1) == given.gallery_labels


def ranked_answers(
    queries: Tensor,
    query_labels: Tensor,
    gallery: Tensor | None,
    gallery_labels: Tensor | None,
    similarity: str,
    *,
    depth: int | None,
) -> Iterator[Ranked]:
    """Blocks of queries with their first ``depth`` answers; None looks as deep as the query has relevant items.

    Queries without a relevant item are left out, and the others come with the largest R first: a block is as deep as
    its first query needs, and queries of rare classes do not pay for the frequent ones.
    """
    given = searched(queries, query_labels, gallery, gallery_labels)
    queries, query_labels, gallery, gallery_labels, leave_one_out, relevant = given
    order = relevant.argsort(descending=True, stable=True)
    order = order[: int((relevant > 0).sum())]
    while len(order) > 0:
        deepest = int(relevant[order[0]]) if depth is None else min(depth, len(gallery))
        asked = deepest + int(leave_one_out)  # one more, because the query may find itself
        block, order = order.tensor_split([max(1, BLOCK_ANSWERS // asked)])
        _, indices = topk(queries[block], gallery, asked, similarity=similarity)
        if leave_one_out:
            indices = _without_self(indices, block)
        same = gallery_labels[indices.clamp(min=0)] == query_labels[block].unsqueeze(1)
        yield Ranked(same & (indices >= 0), relevant[block])


def within_r(block: Ranked) -> Tensor:
    """Hits among the first R answers; a block may be deeper than some of its queries' R."""
    rank = torch.arange(1, block.hits.shape[1] + 1, device=block.hits.device)
    return block.hits & (rank <= block.relevant.unsqueeze(1))


def mean_over_queries(blocks: list[Tensor]) -> float:
    """Mean of the values of all judged queries; NaN when there is none."""
    return float(torch.cat(blocks).mean()) if blocks else float("nan")


def _without_self(indices: Tensor, own: Tensor) -> Tensor:
    """(B, k + 1) answers -> the k best of them that are not the query itself, told by position and not by score.

    A query is not always among its own answers: exact duplicates with a lower index come before it, and with a dot
    product longer rows do. The last answer is then the one too many.
    """
    others = indices != own.unsqueeze(1)
    others[:, -1] &= ~others.all(dim=1)
    return indices[others].view(indices.shape[0], indices.shape[1] - 1)


def _count_equal(labels: Tensor, among: Tensor) -> Tensor:
    """(Q,) how many of ``among`` (M,) equal each label, in O((Q + M) log M)."""
    if among.numel() == 0:
        return torch.zeros_like(labels)
    values, counts = among.unique(return_counts=True)
    place = torch.searchsorted(values, labels.contiguous()).clamp(max=values.numel() - 1)
    return torch.where(values[place] == labels, counts[place], 0)
