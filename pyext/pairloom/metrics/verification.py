"""Are two items of one class? Every pair is a question, its similarity the answer: ROC-AUC, errors at thresholds."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pairloom import _checks
from pairloom.metrics._export import exported_as
from pairloom.metrics._ranking import Searched, check_search, scored_blocks, searched
from pairloom.reference import metrics as dense
from pairloom.reference.metrics import ErrorRates


def _check_thresholds(
    queries: Tensor,
    query_labels: Tensor,
    gallery: Tensor | None,
    gallery_labels: Tensor | None,
    thresholds: Tensor,
    similarity: str,
) -> None:
    if not isinstance(thresholds, Tensor) or not thresholds.is_floating_point():
        kind = thresholds.dtype if isinstance(thresholds, Tensor) else type(thresholds).__name__
        raise TypeError(f"thresholds is {kind}; it must be a float tensor")
    if thresholds.dim() != 1:
        raise ValueError(f"thresholds has shape {tuple(thresholds.shape)}; it must be 1-D")
    check_search(queries, query_labels, gallery, gallery_labels, similarity)
    _checks.same_device("thresholds", thresholds, "queries", queries)
    # Also constants of a module that is being exported have values; inputs of the graph and buffers have none.
    known = type(thresholds) in (Tensor, torch.nn.Parameter) and not torch.compiler.is_dynamo_compiling()
    if known and any(map(math.isnan, thresholds.tolist())):
        raise ValueError("thresholds holds nan; every one must be a number")


@exported_as(dense.roc_auc, check_search)
def roc_auc(
    queries: Tensor,
    query_labels: Tensor,
    gallery: Tensor | None = None,
    gallery_labels: Tensor | None = None,
    *,
    similarity: str = "cosine",
) -> float:
    """Probability that a pair of one class is more similar than a pair of two classes, over all such pairs, exactly.

        AUC = ( #{s_p > s_n} + #{s_p == s_n} / 2 ) / (P N)     over the P pairs of one class and the N others

    the area under the ROC curve of the pairs (query, gallery item); equal to ``roc_auc_score`` of scikit-learn on all
    similarities. Without a gallery, pairs of the queries among themselves, without (i, i). Similarities that are NaN
    are no pair.

    Args:
        queries: (Q, D) float32, float64, float16 or bfloat16 embeddings.
        query_labels: (Q,) integer or bool, the class of each query.
        gallery: (M, D) embeddings to compare with; None means the queries themselves.
        gallery_labels: (M,) the class of each gallery row, given exactly when ``gallery`` is.
        similarity: "cosine", "dot", "euclidean" or "squared_euclidean".

    Returns:
        A number from 0 to 1; NaN without pairs of either kind.

    Raises:
        TypeError: embeddings that are not float, labels that are not integer or bool.
        ValueError: shapes or devices that do not fit, one of gallery and gallery_labels alone, an unknown word.

    Cost: the similarities twice, 4 Q M D flops, and a search of each among the P of one class, which are kept.

    Example:
        >>> import torch, pairloom
        >>> x = torch.tensor([[0.0], [1.0], [3.0], [4.0]])
        >>> f"{pairloom.metrics.roc_auc(x, torch.tensor([0, 0, 0, 1]), similarity='euclidean'):.4f}"
        '0.6667'
    """
    given = searched(queries, query_labels, gallery, gallery_labels)
    same = [scores[hits & ~scores.isnan()] for _, scores, hits in scored_blocks(given, similarity)]
    positives = torch.cat(same or [given.queries.new_empty(0)]).sort().values
    below = others = ties = 0
    for _, scores, hits in scored_blocks(given, similarity):
        negatives = scores[~hits & ~scores.isnan()]
        first = torch.searchsorted(positives, negatives)
        last = torch.searchsorted(positives, negatives, right=True)
        below += int((len(positives) - last).sum())  # Python's integers: pairs of pairs may be more than 2^63
        ties += int((last - first).sum())
        others += len(negatives)
    pairs = len(positives) * others
    return (2 * below + ties) / (2 * pairs) if pairs else float("nan")


@exported_as(dense.error_rates, _check_thresholds)
def error_rates(
    queries: Tensor,
    query_labels: Tensor,
    gallery: Tensor | None = None,
    gallery_labels: Tensor | None = None,
    *,
    thresholds: Tensor,
    similarity: str = "cosine",
) -> ErrorRates:
    """False accepts and false rejects when a pair counts as one class from a similarity on: FAR and FRR.

        FAR(t) = #{different classes, s >= t} / #{different classes}       FRR(t) = #{one class, s < t} / #{one class}

    Where both are equal is the equal error rate. Pairs as in `roc_auc`.

    Args:
        queries, query_labels, gallery, gallery_labels, similarity: as in `roc_auc`.
        thresholds: (T,) floats, in any order.

    Returns:
        `ErrorRates`: ``false_accept_rate`` and ``false_reject_rate``, (T,) float64; NaN where there is no pair of that
        kind.

    Raises:
        TypeError, ValueError: as `roc_auc`; thresholds that are no 1-D float tensor, are on another device or hold NaN
            (an exported graph answers NaN to NaN).

    Cost: 2 Q M D flops, O(Q + M + T) bytes and one block of scores (4 MiB).

    Example:
        >>> import torch, pairloom
        >>> x = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-0.8, 0.6]])
        >>> rates = pairloom.metrics.error_rates(x, torch.tensor([0, 0, 1, 1]), thresholds=torch.tensor([0.0, 0.7]))
        >>> rates.false_accept_rate.tolist(), rates.false_reject_rate.tolist()
        ([0.75, 0.25], [0.0, 1.0])
    """
    given = searched(queries, query_labels, gallery, gallery_labels)
    edges, order = thresholds.detach().to(torch.float64).sort()
    rejected = [_below(given, similarity, edges, kind) for kind in (False, True)]  # of two classes, of one
    back = order.argsort()
    (different, n), (same, p) = rejected
    nothing = torch.full_like(edges, torch.nan)
    accepted, refused = 1 - different / n if n else nothing, same / p if p else nothing
    return ErrorRates(accepted[back], refused[back])


def _below(given: Searched, similarity: str, edges: Tensor, same: bool) -> tuple[Tensor, int]:
    """(T,) how many pairs of a kind are below each of the sorted edges, and how many there are."""
    counts = torch.zeros(len(edges) + 1, dtype=torch.int64, device=edges.device)
    for _, scores, hits in scored_blocks(given, similarity):
        chosen = scores[(hits if same else ~hits) & ~scores.isnan()].to(torch.float64)
        counts += torch.bincount(torch.searchsorted(edges, chosen, right=True), minlength=len(counts))
    return counts.cumsum(0)[:-1].to(torch.float64), int(counts.sum())
