"""NT-Xent: function and module over the InfoNCE operator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, overload

import torch
from torch import Tensor

from pairloom import _checks, reference
from pairloom._checks import SIMILARITIES
from pairloom._dispatch import as_temperature, gradient_bits, pair_loss, scripted_as
from pairloom._labels import operator_labels
from pairloom._stats import PairStats
from pairloom.losses._distances import compared_rows
from pairloom.losses._labelled import check_labelled
from pairloom.losses._mined import mined_loss, mined_pairs
from pairloom.losses._pair_means import AVERAGES, PairMeanLoss, positives_per_anchor
from pairloom.losses._translate import PeerKeywords
from pairloom.reference.info_nce import info_nce_rule

if TYPE_CHECKING:
    from typing_extensions import Unpack


def _arguments(
    embeddings: Tensor,
    labels: Tensor,
    ref_emb: Tensor | None,
    ref_labels: Tensor | None,
    temperature: Tensor | float,
    average: str,
    reduction: str,
    weights: Tensor | None,
    ignore_index: int | None,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None, int]:
    """Temperature, row_labels, column_labels, weights, needs_grad of the operator."""
    row_labels = operator_labels(labels, ignore_index)
    column_labels: Tensor | None = None
    if ref_labels is not None:
        column_labels = operator_labels(ref_labels, ignore_index)
    scale = as_temperature(temperature, embeddings)
    if average == "pairs":
        # L_i is a mean over the positives of i: weighted with their number, the pairs count alike.
        pairs = positives_per_anchor(row_labels, column_labels, ignore_index)
        weights = pairs if weights is None else pairs * weights
    return scale, row_labels, column_labels, weights, gradient_bits(embeddings, ref_emb, scale, reduction)


def _nt_xent_script(
    embeddings: Tensor,
    labels: Tensor | None = None,
    ref_emb: Tensor | None = None,
    ref_labels: Tensor | None = None,
    temperature: Tensor | float = 0.07,
    average: str = "pairs",
    normalize: bool = True,
    similarity: str = "cosine",
    reduction: str = "mean",
    weights: Tensor | None = None,
    ignore_index: int | None = -100,
) -> Tensor:
    if labels is None:
        raise ValueError("labels is None; pass the class of each embedding, an integer tensor of shape (N,)")
    embeddings, ref_emb = compared_rows(embeddings, ref_emb, similarity, normalize)
    scale, row_labels, column_labels, weights, bits = _arguments(
        embeddings, labels, ref_emb, ref_labels, temperature, average, reduction, weights, ignore_index
    )
    return torch.ops.pairloom.info_nce(
        embeddings, ref_emb, scale, row_labels, column_labels, weights,
        similarity, reduction, "only", ignore_index, bits, False,
    )[0]  # fmt: skip


@overload
def nt_xent(
    embeddings: Tensor,
    labels: Tensor | None = None,
    ref_emb: Tensor | None = None,
    ref_labels: Tensor | None = None,
    *,
    temperature: Tensor | float = 0.07,
    average: str = "pairs",
    normalize: bool = True,
    similarity: str = "cosine",
    reduction: str = "mean",
    weights: Tensor | None = None,
    ignore_index: int | None = -100,
    indices_tuple: Any = None,
    return_stats: Literal[False] = False,
) -> Tensor: ...
@overload
def nt_xent(
    embeddings: Tensor,
    labels: Tensor | None = None,
    ref_emb: Tensor | None = None,
    ref_labels: Tensor | None = None,
    *,
    temperature: Tensor | float = 0.07,
    average: str = "pairs",
    normalize: bool = True,
    similarity: str = "cosine",
    reduction: str = "mean",
    weights: Tensor | None = None,
    ignore_index: int | None = -100,
    indices_tuple: Any = None,
    return_stats: Literal[True],
) -> tuple[Tensor, PairStats]: ...
@scripted_as(_nt_xent_script)
def nt_xent(
    embeddings: Tensor,
    labels: Tensor | None = None,
    ref_emb: Tensor | None = None,
    ref_labels: Tensor | None = None,
    *,
    temperature: Tensor | float = 0.07,
    average: str = "pairs",
    normalize: bool = True,
    similarity: str = "cosine",
    reduction: str = "mean",
    weights: Tensor | None = None,
    ignore_index: int | None = -100,
    indices_tuple: Any = None,
    return_stats: bool = False,
) -> Tensor | tuple[Tensor, PairStats]:
    r"""NT-Xent: every positive pair against all negatives of its anchor; other positives are in no denominator.

    With z_ij = s(anchor i, column j) / temperature_i, P_i the columns of the class of anchor i and N_i the others:

        l_ip = -log( e^{z_ip} / ( e^{z_ip} + sum_{n in N_i} e^{z_in} ) )      L_i = mean_{p in P_i} l_ip

    The columns are the batch itself without the anchor, or ``ref_emb``. Two views of each sample, labelled by the
    number of the sample, are SimCLR. With positives in each other's denominator it is `sup_con`. Source: Chen et al.,
    "A Simple Framework for Contrastive Learning of Visual Representations", 2020; several positives and defaults as in
    pytorch-metric-learning.

    Args:
        embeddings: (N, D) float32, float64, float16 or bfloat16, any strides; the anchors.
        labels: (N,) integer or bool, the class of each anchor (exact up to 64 bits).
            Or (N, L) of 0 and 1, multi-hot: whoever shares any label with an anchor is its positive.
        ref_emb: (M, D) columns to compare with instead of the batch itself; no pair is left out then.
        ref_labels: (M,) the class of each reference row.
        temperature: number above 0, or float tensor: 0-d, or (N,) with one value for each anchor. Gets a gradient.
        average: what a mean is taken over: "pairs" (all positive pairs alike) or "anchors". With "pairs" L_i has the
            weight |P_i|, in a sum and in "none" too.
        similarity: "cosine" (rows are normalised; a row shorter than 1e-12 has similarity 0), "dot", "euclidean" (s is
            the negated distance, with gradient 0 between equal rows) or "squared_euclidean" (its square).
        normalize: whether the two distances are those of the rows divided by their length; a row shorter than 1e-12
            becomes 0. "cosine" always divides, "dot" never.
        reduction: "mean", "mean_all", "mean_nonzero", "sum" or "none" (one loss for each anchor).
        weights: (N,) float, >= 0, one for each anchor.
        ignore_index: anchors of this class leave the loss and every mean, columns of it are no pair for anybody; None
            switches it off.
        indices_tuple: pairs of a miner, 3 index tensors (anchors, positives, negatives) or 4 (anchors, positives,
            anchors of negatives, negatives): only these count, each once (pytorch-metric-learning counts a pair that is
            named twice twice), and ``labels`` may be None. Gradients are then made in backward. Or a miner of
            pairs (`pairloom.miners`), which chooses in the pass of the loss.
        return_stats: also return `PairStats`, counted in the same pass.

    Returns:
        The loss: 0-d, or (N,) for "none"; float64 if an embedding is, else float32. With ``return_stats`` the tuple
        (loss, `PairStats`).

    Raises:
        TypeError, ValueError: as `pairloom.functional.sup_con`; nothing is computed before.

    No positive pair at all: 0 with gradient 0. An anchor without negatives: L_i = 0.

    Cost: that of `pairloom.functional.info_nce`, and a sort of the labels (multi-hot ones: of
    `pairloom.functional.multi_similarity` on rows of length 1).

    Example:
        >>> import torch, pairloom
        >>> first = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-0.8, 0.6]])
        >>> second = torch.tensor([[0.8, 0.6], [0.28, 0.96], [-0.28, 0.96], [-1.0, 0.0]])
        >>> sample = torch.arange(4).repeat(2)
        >>> f"{pairloom.functional.nt_xent(torch.cat([first, second]), sample, temperature=0.5).item():.4f}"
        '1.2203'
    """
    check_labelled(
        embeddings,
        labels,
        ref_emb,
        ref_labels,
        similarity,
        reduction,
        weights,
        ignore_index,
        SIMILARITIES,
        normalize,
        indices_tuple,
    )
    _checks.temperature(temperature, "embeddings", embeddings)
    _checks.choice("average", average, AVERAGES)
    if indices_tuple is not None:
        embeddings, ref_emb = compared_rows(embeddings, ref_emb, similarity, normalize)
        pairs = mined_pairs(indices_tuple, embeddings, ref_emb, labels, ref_labels, ignore_index, similarity, normalize)
        if average == "pairs":
            count = pairs.positives()
            weights = count if weights is None else count * weights
        return mined_loss(
            info_nce_rule,
            {"temperature": temperature},
            pairs,
            embeddings,
            ref_emb,
            similarity=similarity,
            reduction=reduction,
            weights=weights,
            return_stats=return_stats,
        )
    assert labels is not None
    embeddings, ref_emb = compared_rows(embeddings, ref_emb, similarity, normalize)
    scale, row_labels, column_labels, weights, bits = _arguments(
        embeddings, labels, ref_emb, ref_labels, temperature, average, reduction, weights, ignore_index
    )
    return pair_loss(
        torch.ops.pairloom.info_nce, reference.info_nce,
        embeddings, ref_emb, scale, row_labels, column_labels, weights,
        similarity, reduction, "only", ignore_index, bits, return_stats,
    )  # fmt: skip


class NTXentLoss(PairMeanLoss):
    """NT-Xent as a module; formula, shapes, empty cases and cost: `pairloom.functional.nt_xent`.

    Called like the loss of pytorch-metric-learning: ``loss(embeddings, labels, ref_emb=..., ref_labels=...)``.

    Args:
        temperature: number above 0.
        average: "pairs" or "anchors".
        similarity: "cosine", "dot", "euclidean" or "squared_euclidean".
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
        >>> pairloom.NTXentLoss(temperature=0.1)(x, torch.tensor([0, 0, 1, 1])).backward()
        >>> tuple(x.grad.shape)
        (4, 4)
    """

    function = staticmethod(nt_xent)
    similarities = SIMILARITIES

    def __init__(
        self,
        temperature: float = 0.07,
        *,
        average: str = "pairs",
        similarity: str = "cosine",
        normalize: bool = True,
        reduction: str = "mean",
        ignore_index: int | None = -100,
        **peer: Unpack[PeerKeywords],
    ) -> None:
        _checks.positive_number("temperature", temperature)
        own = {"temperature": float(temperature), "average": average, "normalize": normalize}
        super().__init__(own, similarity, reduction, ignore_index, **peer)
