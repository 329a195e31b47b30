"""Contrastive loss: function, module, record. Its rule is plain torch, streamed (`pairloom._stream`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pairloom import _checks, reference
from pairloom._dispatch import gradient_bits, scripted_as
from pairloom._registry import OpRecord, Sample, register
from pairloom._stream import STREAMED, define_streamed
from pairloom.losses._labelled import DISTANCES, LabelledLoss, labelled_loss, scripted_pairs
from pairloom.losses._samples import labelled_samples
from pairloom.losses._translate import PeerKeywords
from pairloom.reference.contrastive import contrastive_rule

if TYPE_CHECKING:
    from typing_extensions import Unpack

FORMS = ("linear", "squared")


def _contrastive_script(
    embeddings: Tensor,
    labels: Tensor | None = None,
    ref_emb: Tensor | None = None,
    ref_labels: Tensor | None = None,
    pos_margin: float = 0.0,
    neg_margin: float = 1.0,
    form: str = "linear",
    similarity: str = "euclidean",
    normalize: bool = True,
    reduction: str = "mean",
    weights: Tensor | None = None,
    ignore_index: int | None = -100,
) -> Tensor:
    if similarity == "cosine" or similarity == "dot":
        pos_margin, neg_margin = -pos_margin, -neg_margin
    rows, columns, own, others = scripted_pairs(
        embeddings, labels, ref_emb, ref_labels, similarity, normalize, ignore_index
    )
    bits = gradient_bits(rows, columns, None, reduction, weights=weights)
    return torch.ops.pairloom.contrastive(
        rows,
        columns,
        own,
        others,
        weights,
        pos_margin,
        neg_margin,
        form == "squared",
        similarity,
        reduction,
        ignore_index,
        bits,
        False,
    )[0]


@scripted_as(_contrastive_script)
def contrastive(
    embeddings: Tensor,
    labels: Tensor | None = None,
    ref_emb: Tensor | None = None,
    ref_labels: Tensor | None = None,
    *,
    pos_margin: float = 0.0,
    neg_margin: float = 1.0,
    form: str = "linear",
    similarity: str = "euclidean",
    normalize: bool = True,
    reduction: str = "mean",
    weights: Tensor | None = None,
    ignore_index: int | None = -100,
    indices_tuple: Any = None,
    return_stats: bool = False,
) -> Any:
    r"""Contrastive loss: positive pairs are pulled within one distance, negative pairs pushed beyond another.

    With D = -s a distance, over the pairs (i, j) of anchors and columns:

        linear     mean of [D_ij - pos_margin]_+ over positive pairs + mean of [neg_margin - D_ij]_+ over negative pairs
        squared    mean over all pairs of 1/2 [D_ij - pos_margin]_+^2 (positive), 1/2 [neg_margin - D_ij]_+^2 (negative)

    With "cosine" and "dot" the margins are similarities, as in pytorch-metric-learning: [pos_margin - s_ij]_+ and
    [s_ij - neg_margin]_+.

    Source: Hadsell, Chopra, LeCun, "Dimensionality Reduction by Learning an Invariant Mapping", CVPR 2006 (squared,
    with ``reduction="mean_all"``); names, defaults and the linear form as in pytorch-metric-learning.

    Args:
        embeddings: (N, D) float32, float64, float16 or bfloat16, any strides; the anchors. Dtypes of the two may
            differ; half inputs are summed in float32, and each gradient comes back in the dtype of its input.
        labels: (N,) integer or bool, the class of each anchor (exact up to 64 bits).
            Or (N, L) of 0 and 1, multi-hot: whoever shares any label with an anchor is its positive.
        ref_emb: (M, D) columns to compare with instead of the batch itself; no pair is left out then.
        ref_labels: (M,) the class of each reference row.
        pos_margin: distance that positives are pulled below, or similarity that they are pulled above.
        neg_margin: distance that negatives are pushed beyond, or similarity that they are pushed below.
        form: "linear" or "squared".
        similarity: "euclidean" (D is the distance), "squared_euclidean" (its square), "cosine" or "dot" (D is the
            negated similarity).
        normalize: whether the two distances are those of the rows divided by their length; a row shorter than 1e-12
            becomes 0. "cosine" always divides, "dot" never.
        reduction: "mean" and "mean_nonzero" (over the pairs above 0), "mean_all" (over all pairs), "sum" (over pairs),
            or "none" (the sum over the pairs of each anchor). With ``weights`` every pair counts as much as its anchor.
        weights: (N,) float, >= 0, one for each anchor. Gets a gradient.
        ignore_index: anchors and columns of this class are in no pair; None switches it off.
        indices_tuple: pairs of a miner, 3 index tensors (anchors, positives, negatives) or 4 (anchors, positives,
            anchors of negatives, negatives): only these count, each once (pytorch-metric-learning counts a pair that is
            named twice twice), and ``labels`` may be None. Gradients are then made in backward. Or a miner of
            pairs (`pairloom.miners`), which chooses in the pass of the loss.
        return_stats: also return `PairStats`, counted in the same pass.

    Returns:
        The loss: 0-d, or (N,) for "none"; float64 if an embedding is, else float32. With ``return_stats`` the tuple
        (loss, `PairStats`).

    Raises:
        TypeError: embeddings that are not float, labels that are not integer or bool.
        ValueError: labels missing, shapes or devices that do not fit, a setting out of range, an unknown word. Nothing
            is computed before.

    No pairs, or none above 0: 0, with gradient 0, for each of the two means. Equal rows: gradient 0.
    All anchors ignored, all weights 0, or N = 0: 0. NaN in a row that takes part: NaN.

    Cost: 2 N M D flops forward, 8 N M D with both gradients (the means are counted first), and some passes of plain
    torch over each chunk of the N x M similarities; O((N + M) D) memory. Second derivatives and devices without a
    kernel compute `pairloom.reference.contrastive` instead, with O(N M) memory.

    Example:
        >>> import torch, pairloom
        >>> x = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-0.8, 0.6]])
        >>> y = torch.tensor([0, 0, 1, 1])
        >>> f"{pairloom.functional.contrastive(x, y).item():.4f}"
        '1.2620'
    """
    _check_settings(pos_margin, neg_margin, form)
    if similarity in _checks.LOSS_SIMILARITIES:  # a similarity is a distance with the sign turned, and so is its margin
        pos_margin, neg_margin = -pos_margin, -neg_margin
    return labelled_loss(
        "contrastive",
        embeddings,
        labels,
        ref_emb,
        ref_labels,
        (pos_margin, neg_margin, form == "squared"),
        similarity=similarity,
        reduction=reduction,
        weights=weights,
        ignore_index=ignore_index,
        return_stats=return_stats,
        allowed=DISTANCES,
        normalize=normalize,
        indices_tuple=indices_tuple,
    )


def _check_settings(pos_margin: float, neg_margin: float, form: str) -> None:
    _checks.finite_number("pos_margin", pos_margin)
    _checks.finite_number("neg_margin", neg_margin)
    _checks.choice("form", form, FORMS)


class ContrastiveLoss(LabelledLoss):
    """Contrastive loss as a module; all about it stands at `pairloom.functional.contrastive`.

    Args:
        pos_margin: distance that positives are pulled below, or similarity that they are pulled above.
        neg_margin: distance that negatives are pushed beyond, or similarity that they are pushed below.
        form: "linear" or "squared".
        similarity: "euclidean" (D is the distance), "squared_euclidean" (its square), "cosine" or "dot" (D is the
            negated similarity).
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
        >>> pairloom.ContrastiveLoss()(x, torch.tensor([0, 0, 1, 1])).backward()
        >>> tuple(x.grad.shape)
        (4, 4)
    """

    function = staticmethod(contrastive)
    similarities = DISTANCES
    means_over = "pairs"

    def __init__(
        self,
        pos_margin: float = 0.0,
        neg_margin: float = 1.0,
        *,
        form: str = "linear",
        similarity: str = "euclidean",
        normalize: bool = True,
        reduction: str = "mean",
        ignore_index: int | None = -100,
        **peer: Unpack[PeerKeywords],
    ) -> None:
        _check_settings(pos_margin, neg_margin, form)
        own = {
            "pos_margin": float(pos_margin),
            "neg_margin": float(neg_margin),
            "form": form,
            "normalize": normalize,
        }
        super().__init__(own, similarity, reduction, ignore_index, **peer)


def _samples(
    *, dtype: torch.dtype = torch.float32, shape: tuple[int, int, int] = (6, 9, 5), seed: int = 0
) -> Iterator[Sample]:
    for sample in labelled_samples({}, dtype=dtype, shape=shape, seed=seed):
        if sample.name != "dot":
            yield Sample(sample.name, sample.arguments, sample.differentiable, needs_float64=True)
        if sample.name in ("one-batch", "references"):
            for similarity in ("cosine", "dot", "squared_euclidean"):
                other = {**sample.arguments, "similarity": similarity, "neg_margin": 0.5, "pos_margin": 0.1}
                yield Sample(f"{similarity}-{sample.name}", other, sample.differentiable, needs_float64=True)
            other = {**sample.arguments, "normalize": False, "form": "squared", "neg_margin": 3.0}
            yield Sample(f"squared-{sample.name}", other, sample.differentiable)


define_streamed(
    "contrastive",
    contrastive_rule,
    (
        "float pos_margin",
        "float neg_margin",
        "bool squared",
    ),
    parts=2,
    mean="nonzero",
)
record = register(
    OpRecord(
        name="contrastive",
        function=contrastive,
        module=ContrastiveLoss,
        reference=reference.contrastive,
        samples=_samples,
        support=STREAMED,
    )
)
