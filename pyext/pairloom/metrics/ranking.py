"""Where right answers stand among all answers: R-precision, mean reciprocal rank, nDCG."""

from __future__ import annotations

import torch
from torch import Tensor

from pairloom.metrics._export import exported_as
from pairloom.metrics._ranking import (
    check_search,
    mean_over_queries,
    ranked_answers,
    scored_blocks,
    searched,
    within_r,
)
from pairloom.reference import metrics as dense


@exported_as(dense.r_precision, check_search)
def r_precision(
    queries: Tensor,
    query_labels: Tensor,
    gallery: Tensor | None = None,
    gallery_labels: Tensor | None = None,
    *,
    similarity: str = "cosine",
) -> float:
    """Share of right answers among the first R, with R the number of relevant items of the query.

        R-precision = mean_q 1/R sum_{i=1..R} [ label(answer_i) == label(q) ]

    Source: Musgrave, Belongie and Lim, "A Metric Learning Reality Check", ECCV 2020; equal to ``r_precision`` of
    pytorch-metric-learning. Leave-one-out, ties and queries without a relevant item as in `map_at_r`.

    Args:
        queries: (Q, D) float32, float64, float16 or bfloat16 embeddings.
        query_labels: (Q,) integer or bool, the class of each query.
        gallery: (M, D) embeddings to search; None means the queries themselves.
        gallery_labels: (M,) the class of each gallery row, given exactly when ``gallery`` is.
        similarity: "cosine", "dot", "euclidean" or "squared_euclidean".

    Returns:
        A number from 0 to 1; NaN when no query has a relevant item.

    Raises:
        TypeError: embeddings that are not float, labels that are not integer or bool.
        ValueError: shapes or devices that do not fit, one of gallery and gallery_labels alone, an unknown word.

    Cost: as `map_at_r`.

    Example:
        >>> import torch, pairloom
        >>> x = torch.tensor([[0.0], [1.0], [3.0], [4.0]])
        >>> labels = torch.tensor([0, 0, 1, 0])
        >>> f"{pairloom.metrics.r_precision(x, labels, similarity='euclidean'):.4f}"
        '0.5000'
    """
    blocks = ranked_answers(queries, query_labels, gallery, gallery_labels, similarity, depth=None)
    return mean_over_queries([within_r(block).sum(1) / block.relevant.to(torch.float64) for block in blocks])


@exported_as(dense.mean_reciprocal_rank, check_search)
def mean_reciprocal_rank(
    queries: Tensor,
    query_labels: Tensor,
    gallery: Tensor | None = None,
    gallery_labels: Tensor | None = None,
    *,
    similarity: str = "cosine",
) -> float:
    """Mean of 1 / rank of the first right answer, over the whole gallery.

        MRR = mean_q 1 / min( i : label(answer_i) == label(q) )

    Answers are ranked as `pairloom.topk` does: by similarity, ties by lowest index; a score of NaN or -inf is no
    answer, and a query whose relevant items all have such scores counts 0. Queries without a relevant item are left
    out. Nothing is sorted: the rank is one more than the answers before the best right one.

    Args:
        queries: (Q, D) float32, float64, float16 or bfloat16 embeddings.
        query_labels: (Q,) integer or bool, the class of each query.
        gallery: (M, D) embeddings to search; None means the queries themselves.
        gallery_labels: (M,) the class of each gallery row, given exactly when ``gallery`` is.
        similarity: "cosine", "dot", "euclidean" or "squared_euclidean".

    Returns:
        A number from 0 to 1; NaN when no query has a relevant item.

    Raises:
        TypeError: embeddings that are not float, labels that are not integer or bool.
        ValueError: shapes or devices that do not fit, one of gallery and gallery_labels alone, an unknown word.

    Cost: 2 Q M D flops; O(Q + M) bytes and one block of scores (4 MiB) beside the inputs.

    Example:
        >>> import torch, pairloom
        >>> x = torch.tensor([[0.0], [1.0], [3.0], [4.0]])
        >>> labels = torch.tensor([0, 0, 1, 0])
        >>> f"{pairloom.metrics.mean_reciprocal_rank(x, labels, similarity='euclidean'):.4f}"
        '0.8333'
    """
    given = searched(queries, query_labels, gallery, gallery_labels)
    values = []
    for block, scores, hits in scored_blocks(given, similarity) if len(given.gallery) else ():
        answers = scores > -torch.inf  # not NaN
        best = torch.where(hits & answers, scores, -torch.inf).amax(dim=1, keepdim=True)
        index = torch.arange(scores.shape[1], device=scores.device)
        first = torch.where(hits & (scores == best), index, scores.shape[1]).amin(dim=1, keepdim=True)
        before = answers & ((scores > best) | ((scores == best) & (index < first)))
        reciprocal = 1 / (1 + before.sum(1)).to(torch.float64)
        found = best.squeeze(1) > -torch.inf
        values.append(torch.where(found, reciprocal, 0.0)[given.relevant[block] > 0])
    return mean_over_queries([value for value in values if len(value)])


@exported_as(dense.ndcg_at_k, check_search)
def ndcg_at_k(
    queries: Tensor,
    query_labels: Tensor,
    gallery: Tensor | None = None,
    gallery_labels: Tensor | None = None,
    *,
    k: int = 10,
    similarity: str = "cosine",
) -> float:
    """Normalised discounted cumulative gain of the first k answers, where an answer is right or not.

        DCG@k(q) = sum_{i=1..k} [ label(answer_i) == label(q) ] / log2(i + 1)
        nDCG@k   = mean_q DCG@k(q) / sum_{i=1..min(R, k)} 1 / log2(i + 1)

    Source: Järvelin and Kekäläinen, "Cumulated Gain-Based Evaluation of IR Techniques", 2002; equal to ``ndcg_score``
    of scikit-learn where scores do not tie. Leave-one-out, ties and queries without a relevant item as in
    `recall_at_k`.

    Args:
        queries: (Q, D) float32, float64, float16 or bfloat16 embeddings.
        query_labels: (Q,) integer or bool, the class of each query.
        gallery: (M, D) embeddings to search; None means the queries themselves.
        gallery_labels: (M,) the class of each gallery row, given exactly when ``gallery`` is.
        k: answers looked at, 1 or more.
        similarity: "cosine", "dot", "euclidean" or "squared_euclidean".

    Returns:
        A number from 0 to 1; NaN when no query has a relevant item.

    Raises:
        TypeError: embeddings that are not float, labels that are not integer or bool, k that is not an integer.
        ValueError: shapes or devices that do not fit, one of gallery and gallery_labels alone, k below 1, an unknown
            word.

    Cost: as `recall_at_k`.

    Example:
        >>> import torch, pairloom
        >>> x = torch.tensor([[0.0], [1.0], [3.0], [4.0]])
        >>> labels = torch.tensor([0, 0, 1, 0])
        >>> f"{pairloom.metrics.ndcg_at_k(x, labels, k=2, similarity='euclidean'):.4f}"
        '0.5377'
    """
    values = []
    for block in ranked_answers(queries, query_labels, gallery, gallery_labels, similarity, depth=k):
        rank = torch.arange(1, block.hits.shape[1] + 1, device=block.hits.device, dtype=torch.float64)
        gains = 1 / (rank + 1).log2()
        ideal = gains.cumsum(0)[block.relevant.clamp(max=len(gains)) - 1]
        values.append((block.hits * gains).sum(1) / ideal)
    return mean_over_queries(values)
