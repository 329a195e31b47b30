"""Mean average precision at R."""

from __future__ import annotations

import torch
from torch import Tensor

from pairloom.metrics._export import exported_as
from pairloom.metrics._ranking import Ranked, check_search, mean_over_queries, ranked_answers, within_r
from pairloom.reference import metrics as dense


@exported_as(dense.map_at_r, check_search)
def map_at_r(
    queries: Tensor,
    query_labels: Tensor,
    gallery: Tensor | None = None,
    gallery_labels: Tensor | None = None,
    *,
    similarity: str = "cosine",
) -> float:
    """Mean average precision at R: are the R items of a query's class the R most similar ones?

        AP@R(q) = 1/R sum_{i=1..R} precision(i) [ label(answer_i) == label(q) ],   precision(i) = hits in 1..i / i
        MAP@R   = mean_q AP@R(q)

    with R the number of relevant items of the query. It is 1 exactly when every class is perfectly clustered, which
    recall@1 cannot tell. Source: Musgrave, Belongie and Lim, "A Metric Learning Reality Check", ECCV 2020; equal to
    ``mean_average_precision_at_r`` of pytorch-metric-learning. Answers are ranked as `pairloom.topk` does: by
    similarity, ties by lowest index; a score of NaN or -inf is no answer.

    Without a gallery every query searches among the other queries (leave-one-out), and R does not count the query. It
    is left out by its position, so an exact duplicate of it is an answer like any other. Queries without a relevant
    item have no R and are left out of the mean.

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

    Cost: 2 Q M D flops and the selection of R of M scores per query; O(Q + M) bytes and one block of answers (30 MB, or
    one query's R if that is more) beside the inputs, never the Q x M matrix.

    Example:
        >>> import torch, pairloom
        >>> x = torch.tensor([[0.0], [1.0], [3.0], [4.0]])
        >>> labels = torch.tensor([0, 0, 1, 0])  # the third item is alone in its class: left out as a query
        >>> f"{pairloom.metrics.map_at_r(x, labels, similarity='euclidean'):.4f}"  # (1/2 + 1/2 + 1/4) / 3
        '0.4167'
    """
    blocks = ranked_answers(queries, query_labels, gallery, gallery_labels, similarity, depth=None)
    return mean_over_queries([_average_precision_at_r(block) for block in blocks])


def _average_precision_at_r(block: Ranked) -> Tensor:
    """(B,) float64."""
    rank = torch.arange(1, block.hits.shape[1] + 1, device=block.hits.device)
    hits = within_r(block)
    precision = hits.cumsum(dim=1) / rank.to(torch.float64)
    return (precision * hits).sum(dim=1) / block.relevant
