"""Recall at k."""

from __future__ import annotations

import torch
from torch import Tensor

from pairloom.metrics._export import exported_as
from pairloom.metrics._ranking import check_search, mean_over_queries, ranked_answers
from pairloom.reference import metrics as dense


@exported_as(dense.recall_at_k, check_search)
def recall_at_k(
    queries: Tensor,
    query_labels: Tensor,
    gallery: Tensor | None = None,
    gallery_labels: Tensor | None = None,
    *,
    k: int = 1,
    similarity: str = "cosine",
) -> float:
    """Share of the queries that find at least one item of their class among the k most similar ones.

        recall@k = mean_q [ any( label(answer_i) == label(q) for i in 1..k ) ]

    This is the recall@k of deep metric learning (Oh Song et al., "Deep Metric Learning via Lifted Structured Feature
    Embedding", CVPR 2016), not the share of all relevant items that are found. Answers are ranked as `pairloom.topk`
    does: by similarity, ties by lowest index; a score of NaN or -inf is no answer.

    Without a gallery every query searches among the other queries (leave-one-out). It is left out by its position, so
    an exact duplicate of it is an answer like any other. Queries without a relevant item, which could not be right, are
    left out of the mean.

    Args:
        queries: (Q, D) float32, float64, float16 or bfloat16 embeddings.
        query_labels: (Q,) integer or bool, the class of each query.
        gallery: (M, D) embeddings to search; None means the queries themselves.
        gallery_labels: (M,) the class of each gallery row, given exactly when ``gallery`` is.
        k: answers looked at, 1 or more; more than there are items counts them all.
        similarity: "cosine", "dot", "euclidean" or "squared_euclidean".

    Returns:
        A number from 0 to 1; NaN when no query has a relevant item.

    Raises:
        TypeError: embeddings that are not float, labels that are not integer or bool, k that is not an integer.
        ValueError: shapes or devices that do not fit, one of gallery and gallery_labels alone, k below 1, an unknown
            word.

    Cost: 2 Q M D flops; O(Q + M) bytes and one block of answers (30 MB) beside the inputs, never the Q x M matrix.

    Example:
        >>> import torch, pairloom
        >>> x = torch.tensor([[0.0], [1.0], [3.0], [4.0]])
        >>> labels = torch.tensor([0, 0, 1, 0])  # the third item is alone in its class: left out as a query
        >>> f"{pairloom.metrics.recall_at_k(x, labels, similarity='euclidean'):.4f}"
        '0.6667'
        >>> pairloom.metrics.recall_at_k(x, labels, k=2, similarity="euclidean")
        1.0
    """
    blocks = ranked_answers(queries, query_labels, gallery, gallery_labels, similarity, depth=k)
    return mean_over_queries([block.hits.any(dim=1).to(torch.float64) for block in blocks])
