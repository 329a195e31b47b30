"""Precision at 1."""

from __future__ import annotations

from torch import Tensor

from pairloom.metrics._export import exported_as
from pairloom.metrics._ranking import check_search
from pairloom.metrics.recall import recall_at_k
from pairloom.reference import metrics as dense


@exported_as(dense.precision_at_1, check_search)
def precision_at_1(
    queries: Tensor,
    query_labels: Tensor,
    gallery: Tensor | None = None,
    gallery_labels: Tensor | None = None,
    *,
    similarity: str = "cosine",
) -> float:
    """Share of the queries whose most similar item has their class: the accuracy of a nearest-neighbour classifier.

        P@1 = mean_q [ label(answer_1) == label(q) ]

    The same number as ``recall_at_k(..., k=1)``, under the name it has in Musgrave et al., "A Metric Learning Reality
    Check", ECCV 2020. Arguments, leave-one-out, ties, errors and cost as in `recall_at_k`.

    Returns:
        A number from 0 to 1; NaN when no query has a relevant item.

    Example:
        >>> import torch, pairloom
        >>> x = torch.tensor([[0.0], [1.0], [3.0], [4.0]])
        >>> f"{pairloom.metrics.precision_at_1(x, torch.tensor([0, 0, 1, 0]), similarity='euclidean'):.4f}"
        '0.6667'
    """
    return recall_at_k(queries, query_labels, gallery, gallery_labels, k=1, similarity=similarity)
