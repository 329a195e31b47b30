"""Lifted structure loss in its original form, of pairs: function and module, streamed by `pairloom.stream_rows`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pairloom import _checks
from pairloom._dispatch import not_scripted
from pairloom.losses._distances import compared_rows, is_distance
from pairloom.losses._labelled import DISTANCES, check_labelled
from pairloom.losses._mined import LabelledPairs, MinedPairs, mined_pairs
from pairloom.losses._pair_means import AVERAGES, PairMeanLoss
from pairloom.losses._translate import PeerKeywords
from pairloom.losses.lifted_structure import lifted_structure
from pairloom.reference._rows import Terms, log_sum_exp, reduce_rows
from pairloom.streaming import RowContext, stream_rows

if TYPE_CHECKING:
    from typing_extensions import Unpack


@not_scripted
def lifted_structure_pairs(
    embeddings: Tensor,
    labels: Tensor | None = None,
    ref_emb: Tensor | None = None,
    ref_labels: Tensor | None = None,
    *,
    neg_margin: float = 1.0,
    pos_margin: float = 0.0,
    average: str = "pairs",
    similarity: str = "euclidean",
    normalize: bool = True,
    reduction: str = "mean",
    weights: Tensor | None = None,
    ignore_index: int | None = -100,
    indices_tuple: Any = None,
    return_stats: bool = False,
) -> Any:
    r"""Lifted structure loss of positive pairs: each against all negatives of both its ends.

    With D = -s a distance and N_i the rows of another class than row i:

        J_ij = log( sum_{k in N_i} e^{neg_margin - D_ik} + sum_{l in N_j} e^{neg_margin - D_jl} ) + D_ij - pos_margin
        L    = mean over positive pairs (i, j) of [J_ij]_+^2 / 2

    With "cosine" and "dot" the margins are similarities, as in pytorch-metric-learning: e^{s_ik - neg_margin} and
    pos_margin - s_ij. The form of one anchor alone is `lifted_structure`. With references, j and the negatives of i are
    references, and the negatives of j are embeddings. Source: Oh Song et al., "Deep Metric Learning via Lifted
    Structured Feature Embedding", CVPR 2016; names and margins as in pytorch-metric-learning, which counts negatives of
    another row as those of j when there are references.

    Args:
        embeddings: (N, D) float32, float64, float16 or bfloat16, any strides; the anchors.
        labels: (N,) integer or bool, the class of each anchor (exact up to 64 bits).
            Or (N, L) of 0 and 1, multi-hot: whoever shares any label with an anchor is its positive.
        ref_emb: (M, D) columns to compare with instead of the batch itself; no pair is left out then.
        ref_labels: (M,) the class of each reference row.
        neg_margin: distance that negatives are to have.
        pos_margin: distance that positives may have.
        average: "pairs", or "anchors": the loss of an anchor is the mean over its positive pairs, and the reduction is
            over anchors.
        similarity: "euclidean" (D is the distance), "squared_euclidean" (its square), "cosine" or "dot" (D is the
            negated similarity).
        normalize: whether the two distances are those of the rows divided by their length; a row shorter than 1e-12
            becomes 0. "cosine" always divides, "dot" never.
        reduction: "mean" and "mean_all" (over all positive pairs), "mean_nonzero" (over those with a loss above 0),
            "sum", or "none" (the sum of its pairs for each anchor).
        weights: (N,) float, >= 0, one for each anchor, weighs its pairs. Gets a gradient.
        ignore_index: rows of this class take no part; None switches it off.
        indices_tuple: pairs of a miner, 3 index tensors (anchors, positives, negatives) or 4 (anchors, positives,
            anchors of negatives, negatives): only these count, each once (pytorch-metric-learning counts a pair that is
            named twice twice), and ``labels`` may be None. Gradients are then made in backward. Or a miner of
            pairs (`pairloom.miners`), which chooses in the pass of the loss.
        return_stats: also return `PairStats`, counted in another pass.

    Returns:
        The loss: 0-d, or (N,) for "none"; float64 if an embedding is, else float32. With ``return_stats`` the tuple
        (loss, `PairStats`).

    Raises:
        TypeError: embeddings that are not float, labels that are not integer or bool.
        ValueError: labels missing, shapes or devices that do not fit, a setting out of range, an unknown word. Nothing
            is computed before.

    No positive pair, or no negative pair: 0. NaN in a row that takes part: NaN.

    Cost: two passes over all pairs (three with references), 4 N M D flops forward, and some passes of plain torch over
    each chunk of rows; O((N + M) D) memory.

    Example:
        >>> import torch, pairloom
        >>> x = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-0.8, 0.6]])
        >>> f"{pairloom.functional.lifted_structure_pairs(x, torch.tensor([0, 0, 1, 1])).item():.4f}"
        '2.0998'
    """
    _check_settings(neg_margin, pos_margin)
    _checks.choice("average", average, AVERAGES)
    check_labelled(
        embeddings,
        labels,
        ref_emb,
        ref_labels,
        similarity,
        reduction,
        weights,
        ignore_index,
        DISTANCES,
        normalize,
        indices_tuple,
    )
    rows, columns = compared_rows(embeddings, ref_emb, similarity, normalize)
    if not is_distance(similarity):  # a similarity is a distance with the sign turned, and so is its margin
        neg_margin, pos_margin = -neg_margin, -pos_margin
    if indices_tuple is not None and columns is not None:
        raise ValueError("indices_tuple is given with ref_emb; this loss takes index tuples of one batch only")
    if indices_tuple is None:
        assert labels is not None
        pairs: LabelledPairs | MinedPairs = LabelledPairs(rows, labels, ref_labels, ignore_index)
    else:
        pairs = mined_pairs(indices_tuple, rows, columns, labels, ref_labels, ignore_index, similarity, normalize)

    def negatives(s: Tensor, ctx: RowContext, pairs: LabelledPairs | MinedPairs = pairs) -> Tensor:
        total, nothing = log_sum_exp(neg_margin + s, pairs.of(ctx, s)[1])
        return torch.where(nothing, -torch.inf, total)

    def terms(s: Tensor, ctx: RowContext) -> Tensor:
        """(R, M) -> (R, M): the loss of every positive pair, 0 elsewhere."""
        near_row, near_column = ctx.row_args[0].unsqueeze(1), ctx.column_args[0].unsqueeze(0)
        positive = pairs.of(ctx, s)[0] & ~((near_row == -torch.inf) & (near_column == -torch.inf))
        # Masked before the exponential: log(e^a + e^b) of -inf and -inf has no derivative.
        far = torch.where(
            positive,
            torch.logaddexp(torch.where(positive, near_row, 0.0), torch.where(positive, near_column, 0.0))
            - s
            - pos_margin,
            0.0,
        )
        return torch.where(far <= 0, 0.0, far * far / 2)  # "not <= 0", so that NaN is kept

    row_near = column_near = stream_rows(negatives, rows, columns, similarity=similarity)
    if columns is not None:
        assert labels is not None
        assert ref_labels is not None
        back = LabelledPairs(columns, ref_labels, labels, ignore_index)
        column_near = stream_rows(lambda s, ctx: negatives(s, ctx, back), columns, rows, similarity=similarity)
    given: dict[str, Any] = {"similarity": similarity, "row_args": (row_near,), "column_args": (column_near,)}
    total = stream_rows(lambda s, ctx: terms(s, ctx).sum(1), rows, columns, **given)
    with torch.no_grad():
        count = stream_rows(lambda s, ctx: pairs.of(ctx, s)[0].sum(1).to(s.dtype), rows, columns, **given)
        active = count
        if reduction == "mean_nonzero":
            active = stream_rows(lambda s, ctx: (~(terms(s, ctx) <= 0)).sum(1).to(s.dtype), rows, columns, **given)
    parts = (Terms(total, active, count),) if average == "pairs" else total / count.clamp(min=1)
    loss = reduce_rows(parts, pairs.keep, weights, reduction)
    if not return_stats:
        return loss
    with torch.no_grad():  # the pairs are those of the other form
        options: dict[str, Any] = {"similarity": similarity, "normalize": normalize, "ignore_index": ignore_index}
        options["indices_tuple"] = indices_tuple
        _, stats = lifted_structure(embeddings, labels, ref_emb, ref_labels, return_stats=True, **options)
        active_anchors = (pairs.keep & (total > 0)).sum().to(torch.float64)
    return loss, stats._replace(active_anchors=active_anchors)


def _check_settings(neg_margin: float, pos_margin: float) -> None:
    _checks.finite_number("neg_margin", neg_margin)
    _checks.finite_number("pos_margin", pos_margin)


class LiftedStructureLoss(PairMeanLoss):
    """Lifted structure loss of pairs as a module; all about it stands at `pairloom.functional.lifted_structure_pairs`.

    Args:
        neg_margin: distance that negatives are to have.
        pos_margin: distance that positives may have.
        average: "pairs" or "anchors", what a mean is over.
        similarity: "euclidean", "squared_euclidean", "cosine" or "dot".
        normalize: whether the two distances are those of the rows divided by their length.
        reduction: "mean", "mean_all", "mean_nonzero", "sum" or "none".
        ignore_index: anchors and columns of this class take no part; None switches it off.
        **peer: ``distance``, ``reducer``, ``embedding_regularizer``, ``embedding_reg_weight``, ``collect_stats`` as in
            pytorch-metric-learning, see `pairloom.losses.PeerKeywords`.

    Raises:
        ValueError, TypeError: a setting that is not allowed; in the call, what the function refuses.

    Example:
        >>> import torch, pairloom
        >>> x = torch.eye(4, requires_grad=True)
        >>> pairloom.LiftedStructureLoss()(x, torch.tensor([0, 0, 1, 1])).backward()
        >>> tuple(x.grad.shape)
        (4, 4)
    """

    function = staticmethod(lifted_structure_pairs)
    similarities = DISTANCES

    def __init__(
        self,
        neg_margin: float = 1.0,
        pos_margin: float = 0.0,
        *,
        average: str = "pairs",
        similarity: str = "euclidean",
        normalize: bool = True,
        reduction: str = "mean",
        ignore_index: int | None = -100,
        **peer: Unpack[PeerKeywords],
    ) -> None:
        _check_settings(neg_margin, pos_margin)
        own = {
            "neg_margin": float(neg_margin),
            "pos_margin": float(pos_margin),
            "average": average,
            "normalize": normalize,
        }
        super().__init__(own, similarity, reduction, ignore_index, **peer)
