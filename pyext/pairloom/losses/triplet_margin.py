"""Triplet margin loss: function, module, record."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pairloom import _checks, reference
from pairloom._dispatch import gradient_bits, scripted_as
from pairloom._labels import operator_labels
from pairloom._registry import OpRecord, Sample, register
from pairloom._stream import RULES, StreamedRule
from pairloom.losses._distances import compared_rows
from pairloom.losses._labelled import DISTANCES, LabelledLoss, labelled_loss
from pairloom.losses._samples import labelled_samples
from pairloom.losses._translate import PeerKeywords
from pairloom.reference.triplet_margin import triplet_margin_of_triplets, triplet_margin_rule

if TYPE_CHECKING:
    from typing_extensions import Unpack

TRIPLETS = ("all", "hard", "semihard", "easy")


def _triplet_margin_script(
    embeddings: Tensor,
    labels: Tensor | None = None,
    ref_emb: Tensor | None = None,
    ref_labels: Tensor | None = None,
    margin: float = 0.05,
    smooth_loss: bool = False,
    triplets: str = "all",
    mining_margin: float | None = None,
    similarity: str = "euclidean",
    normalize: bool = True,
    reduction: str = "mean",
    weights: Tensor | None = None,
    ignore_index: int | None = -100,
) -> Tensor:
    if labels is None:
        raise ValueError("labels is None; pass the class of each embedding, an integer tensor of shape (N,)")
    row_labels = operator_labels(labels, ignore_index)
    column_labels = None if ref_labels is None else operator_labels(ref_labels, ignore_index)
    embeddings, ref_emb = compared_rows(embeddings, ref_emb, similarity, normalize)
    lowest, highest = _bounds(margin, triplets, mining_margin)
    bits = gradient_bits(embeddings, ref_emb, None, reduction, None, None, weights)
    return torch.ops.pairloom.triplet_margin(
        embeddings, ref_emb, row_labels, column_labels, weights,
        margin, smooth_loss, lowest, highest, similarity, reduction, ignore_index, bits, False,
    )[0]  # fmt: skip


@scripted_as(_triplet_margin_script)
def triplet_margin(
    embeddings: Tensor,
    labels: Tensor | None = None,
    ref_emb: Tensor | None = None,
    ref_labels: Tensor | None = None,
    *,
    margin: float = 0.05,
    smooth_loss: bool = False,
    triplets: str = "all",
    mining_margin: float | None = None,
    similarity: str = "euclidean",
    normalize: bool = True,
    reduction: str = "mean",
    weights: Tensor | None = None,
    ignore_index: int | None = -100,
    indices_tuple: Any = None,
    return_stats: bool = False,
) -> Any:
    r"""Triplet loss over all triplets of the batch, or over those of one kind, without ever listing them.

    With D = -s a distance, over anchors a, columns p of their class and columns n of other classes:

        L_apn = [ D_ap - D_an + margin ]_+    or, with smooth_loss,    log(1 + e^{D_ap - D_an + margin})

        all         every triplet; with mining_margin those with D_an - D_ap <= mining_margin
        hard        D_an - D_ap <= 0 (and <= mining_margin)
        semihard    0 < D_an - D_ap <= mining_margin
        easy        D_an - D_ap > mining_margin

    Which triplets are taken has no gradient. Source: Schroff, Kalenichenko, Philbin, "FaceNet", CVPR 2015; names and
    defaults as in pytorch-metric-learning, with the types of its TripletMarginMiner (whose margin is 0.2).

    Args:
        embeddings: (N, D) float32, float64, float16 or bfloat16, any strides; the anchors. Dtypes of the two may
            differ; half inputs are summed in float32, and each gradient comes back in the dtype of its input.
        labels: (N,) integer or bool, the class of each anchor (exact up to 64 bits).
            Or (N, L) of 0 and 1, multi-hot: whoever shares any label with an anchor is its positive.
        ref_emb: (M, D) columns to compare with instead of the batch itself; no pair is left out then.
        ref_labels: (M,) the class of each reference row.
        margin: how much farther negatives are to be than positives.
        smooth_loss: whether to take the logarithm instead of the hinge.
        triplets: "all", "hard", "semihard" or "easy".
        mining_margin: the bound of the four kinds; ``margin`` when None, and no bound for "all".
        similarity: "euclidean" (D is the distance), "squared_euclidean" (its square), "cosine" or "dot" (D is the
            negated similarity).
        normalize: whether the two distances are those of the rows divided by their length; a row shorter than 1e-12
            becomes 0. "cosine" always divides, "dot" never.
        reduction: "mean" and "mean_nonzero" (over the triplets above 0), "mean_all" (over all triplets taken), "sum"
            (over triplets), or "none" (the sum over the triplets of each anchor). With ``weights`` every triplet counts
            as much as its anchor.
        weights: (N,) float, >= 0, one for each anchor. Gets a gradient.
        ignore_index: anchors and columns of this class are in no triplet; None switches it off.
        indices_tuple: of a miner, 3 index tensors (anchors, positives, negatives): these triplets and no others, one
            that is named twice counts twice; or 4 (anchors, positives, anchors of negatives, negatives): all triplets
            of these pairs. ``labels`` may be None. Gradients are then made in backward. Or a miner of
            pairs (`pairloom.miners`), which chooses in the pass of the loss.
        return_stats: also return `PairStats`, counted in the same pass.

    Returns:
        The loss: 0-d, or (N,) for "none"; float64 if an embedding is, else float32. With ``return_stats`` the tuple
        (loss, `PairStats`).

    Raises:
        TypeError: embeddings that are not float, labels that are not integer or bool.
        ValueError: labels missing, shapes or devices that do not fit, a setting out of range, an unknown word. Nothing
            is computed before.

    No triplets of the kind, or none above 0: 0, with gradient 0. Anchor without positives or without negatives: none.
    All anchors ignored, all weights 0, or N = 0: 0. NaN in a row that takes part: NaN.

    Cost: 2 N M D flops forward, 6 N M D with both gradients, and one step for each triplet, vectors of them at a time
    (tens of picoseconds; the smooth form some ten times that); O((N + M) D) memory. Second derivatives and devices
    without a kernel compute `pairloom.reference.triplet_margin` instead, with O(N M) memory; the smooth form in
    `torch.func`, and ONNX, hold all triplets.

    Example:
        >>> import torch, pairloom
        >>> x = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-0.8, 0.6]])
        >>> y = torch.tensor([0, 0, 1, 1])
        >>> f"{pairloom.functional.triplet_margin(x, y, margin=0.2).item():.4f}"
        '0.4620'
    """
    _check_settings(margin, smooth_loss, triplets, mining_margin)
    return labelled_loss(
        "triplet_margin",
        embeddings,
        labels,
        ref_emb,
        ref_labels,
        (margin, smooth_loss, *_bounds(margin, triplets, mining_margin)),
        similarity=similarity,
        reduction=reduction,
        weights=weights,
        ignore_index=ignore_index,
        return_stats=return_stats,
        allowed=DISTANCES,
        normalize=normalize,
        indices_tuple=indices_tuple,
    )


def _check_settings(margin: float, smooth_loss: bool, triplets: str, mining_margin: float | None) -> None:
    _checks.finite_number("margin", margin)
    _checks.flag("smooth_loss", smooth_loss)
    _checks.choice("triplets", triplets, TRIPLETS)
    if mining_margin is not None:
        _checks.finite_number("mining_margin", mining_margin)


def _bounds(margin: float, triplets: str, mining_margin: float | None) -> tuple[float | None, float | None]:
    """Between which values D_an - D_ap lies, the upper one included; None is no bound."""
    if triplets == "all":
        return None, mining_margin
    bound = margin if mining_margin is None else mining_margin
    if triplets == "hard":
        return None, min(bound, 0.0)
    return (0.0, bound) if triplets == "semihard" else (bound, None)


class TripletMarginLoss(LabelledLoss):
    """Triplet margin loss as a module; all about it stands at `pairloom.functional.triplet_margin`.

    Args:
        margin: how much farther negatives are to be than positives.
        swap: only False: distances between positives and negatives are in no row of the anchor.
        smooth_loss: whether to take the logarithm instead of the hinge.
        triplets_per_anchor: only "all": no triplet is drawn at random, since all of them cost no more.
        triplets: "all", "hard", "semihard" or "easy".
        mining_margin: the bound of the four kinds; ``margin`` when None, and no bound for "all".
        similarity: "euclidean" (D is the distance), "squared_euclidean" (its square), "cosine" or "dot" (D is the
            negated similarity).
        normalize: whether the two distances are those of the rows divided by their length.
        reduction: "mean", "mean_all", "mean_nonzero", "sum" or "none".
        ignore_index: anchors and columns of this class take no part; None switches it off.
        **peer: ``distance``, ``reducer``, ``embedding_regularizer``, ``embedding_reg_weight``, ``collect_stats`` as in
            pytorch-metric-learning, see `pairloom.losses.PeerKeywords`.

    Raises:
        ValueError, TypeError: a setting that is not allowed; in the call, an index tuple or missing labels.

    Example:
        >>> import torch, pairloom
        >>> x = torch.eye(4, requires_grad=True)
        >>> pairloom.TripletMarginLoss()(x, torch.tensor([0, 0, 1, 1])).backward()
        >>> tuple(x.grad.shape)
        (4, 4)
    """

    function = staticmethod(triplet_margin)
    similarities = DISTANCES
    means_over = "triplets"

    def __init__(
        self,
        margin: float = 0.05,
        swap: bool = False,
        smooth_loss: bool = False,
        triplets_per_anchor: str = "all",
        *,
        triplets: str = "all",
        mining_margin: float | None = None,
        similarity: str = "euclidean",
        normalize: bool = True,
        reduction: str = "mean",
        ignore_index: int | None = -100,
        **peer: Unpack[PeerKeywords],
    ) -> None:
        _check_settings(margin, smooth_loss, triplets, mining_margin)
        if swap is not False:
            raise ValueError(f"swap is {swap!r}; it must be False: this loss sees the distances of the anchor only")
        if triplets_per_anchor != "all":
            raise ValueError(
                f"triplets_per_anchor is {triplets_per_anchor!r}; it must be 'all': taking every triplet costs no more "
                "here (triplets='semihard' or 'hard' takes fewer)"
            )
        own = {
            "margin": float(margin),
            "smooth_loss": smooth_loss,
            "triplets": triplets,
            "mining_margin": mining_margin,
            "normalize": normalize,
        }
        super().__init__(own, similarity, reduction, ignore_index, **peer)


def _samples(
    *, dtype: torch.dtype = torch.float32, shape: tuple[int, int, int] = (6, 9, 5), seed: int = 0
) -> Iterator[Sample]:
    for sample in labelled_samples({"margin": 0.3}, dtype=dtype, shape=shape, seed=seed):
        if sample.name != "dot":
            yield Sample(sample.name, sample.arguments, sample.differentiable, needs_float64=True)
        if sample.name in ("one-batch", "references"):
            for triplets, similarity in (("hard", "cosine"), ("semihard", "squared_euclidean"), ("easy", "dot")):
                other = {**sample.arguments, "similarity": similarity, "triplets": triplets, "mining_margin": 0.2}
                yield Sample(f"{triplets}-{sample.name}", other, sample.differentiable, needs_float64=True)
            other = {**sample.arguments, "smooth_loss": True}  # a number of triplets that float16 cannot hold
            yield Sample(f"smooth-{sample.name}", other, sample.differentiable, needs_float64=True)
            other = {**other, "triplets": "semihard", "normalize": False}
            yield Sample(f"smooth-semihard-{sample.name}", other, sample.differentiable, needs_float64=True)


RULES["triplet_margin"] = StreamedRule(
    triplet_margin_rule, ["margin", "smooth_loss", "lowest", "highest"], "nonzero", triplet_margin_of_triplets
)
record = register(
    OpRecord(
        name="triplet_margin",
        function=triplet_margin,
        module=TripletMarginLoss,
        reference=reference.triplet_margin,
        samples=_samples,
    )
)
