"""Generalised lifted structure loss: function, module, record; its rule is streamed (`pairloom._stream`)."""

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
from pairloom.reference.lifted_structure import lifted_structure_rule

if TYPE_CHECKING:
    from typing_extensions import Unpack


def _lifted_structure_script(
    embeddings: Tensor,
    labels: Tensor | None = None,
    ref_emb: Tensor | None = None,
    ref_labels: Tensor | None = None,
    neg_margin: float = 1.0,
    pos_margin: float = 0.0,
    similarity: str = "euclidean",
    normalize: bool = True,
    reduction: str = "mean",
    weights: Tensor | None = None,
    ignore_index: int | None = -100,
) -> Tensor:
    if similarity == "cosine" or similarity == "dot":
        neg_margin, pos_margin = -neg_margin, -pos_margin
    rows, columns, own, others = scripted_pairs(
        embeddings, labels, ref_emb, ref_labels, similarity, normalize, ignore_index
    )
    bits = gradient_bits(rows, columns, None, reduction, weights=weights)
    return torch.ops.pairloom.lifted_structure(
        rows, columns, own, others, weights, neg_margin, pos_margin, similarity, reduction, ignore_index, bits, False
    )[0]


@scripted_as(_lifted_structure_script)
def lifted_structure(
    embeddings: Tensor,
    labels: Tensor | None = None,
    ref_emb: Tensor | None = None,
    ref_labels: Tensor | None = None,
    *,
    neg_margin: float = 1.0,
    pos_margin: float = 0.0,
    similarity: str = "euclidean",
    normalize: bool = True,
    reduction: str = "mean",
    weights: Tensor | None = None,
    ignore_index: int | None = -100,
    indices_tuple: Any = None,
    return_stats: bool = False,
) -> Any:
    r"""Generalised lifted structure loss: smooth farthest positive against smooth nearest negative of every anchor.

    With D = -s a distance, P_i the columns of the class of anchor i and N_i the others:

        L_i = [ log sum_{p in P_i} e^{D_ip - pos_margin} + log sum_{n in N_i} e^{neg_margin - D_in} ]_+

    With "cosine" and "dot" the margins are similarities, as in pytorch-metric-learning: e^{pos_margin - s_ip} and
    e^{s_in - neg_margin}.

    Source: Oh Song et al., "Deep Metric Learning via Lifted Structured Feature Embedding", CVPR 2016, per anchor as in
    Hermans et al., 2017. Names and margins as in pytorch-metric-learning, whose anchors without positives keep their
    negative half; here they have loss 0.

    Args:
        embeddings: (N, D) float32, float64, float16 or bfloat16, any strides; the anchors. Dtypes of the two may
            differ; half inputs are summed in float32, and each gradient comes back in the dtype of its input.
        labels: (N,) integer or bool, the class of each anchor (exact up to 64 bits).
            Or (N, L) of 0 and 1, multi-hot: whoever shares any label with an anchor is its positive.
        ref_emb: (M, D) columns to compare with instead of the batch itself; no pair is left out then.
        ref_labels: (M,) the class of each reference row.
        neg_margin: distance that negatives are pushed beyond, or similarity that they are pushed below.
        pos_margin: distance that positives are pulled below, or similarity that they are pulled above.
        similarity: "euclidean" (D is the distance), "squared_euclidean" (its square), "cosine" or "dot" (D is the
            negated similarity).
        normalize: whether the two distances are those of the rows divided by their length; a row shorter than 1e-12
            becomes 0. "cosine" always divides, "dot" never.
        reduction: "mean" and "mean_all" (over all anchors not ignored), "mean_nonzero" (over those with a loss other
            than 0), "sum", or "none" (one loss for each anchor). With ``weights`` a mean is sum(w L) / sum(w).
        weights: (N,) float, >= 0, one for each anchor. Gets a gradient.
        ignore_index: anchors of this class leave the loss and every mean, columns of it are no pair for anybody; None
            switches it off.
        indices_tuple: pairs of a miner, 3 index tensors (anchors, positives, negatives) or 4 (anchors, positives,
            anchors of negatives, negatives): only these count, each once, and ``labels`` may be None. Gradients are
            then made in backward. Or a miner of pairs (`pairloom.miners`), which chooses in the pass of the loss.
        return_stats: also return `PairStats`, counted in the same pass.

    Returns:
        The loss: 0-d, or (N,) for "none"; float64 if an embedding is, else float32. With ``return_stats`` the tuple
        (loss, `PairStats`).

    Raises:
        TypeError: embeddings that are not float, labels that are not integer or bool.
        ValueError: labels missing, shapes or devices that do not fit, a setting out of range, an unknown word. Nothing
            is computed before.

    Anchor without positives or without negatives: 0.
    All anchors ignored, all weights 0, or N = 0: 0. NaN in a row that takes part: NaN.

    Cost: 2 N M D flops forward, 6 N M D with both gradients, and some passes of plain torch over each chunk of the
    N x M similarities; O((N + M) D) memory. Second derivatives and devices without a kernel compute
    `pairloom.reference.lifted_structure` instead, with O(N M) memory.

    Example:
        >>> import torch, pairloom
        >>> x = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-0.8, 0.6]])
        >>> y = torch.tensor([0, 0, 1, 1])
        >>> f"{pairloom.functional.lifted_structure(x, y).item():.4f}"
        '1.2997'
    """
    _checks.finite_number("neg_margin", neg_margin)
    _checks.finite_number("pos_margin", pos_margin)
    if similarity in _checks.LOSS_SIMILARITIES:  # a similarity is a distance with the sign turned, and so is its margin
        neg_margin, pos_margin = -neg_margin, -pos_margin
    return labelled_loss(
        "lifted_structure",
        embeddings,
        labels,
        ref_emb,
        ref_labels,
        (neg_margin, pos_margin),
        similarity=similarity,
        reduction=reduction,
        weights=weights,
        ignore_index=ignore_index,
        return_stats=return_stats,
        allowed=DISTANCES,
        normalize=normalize,
        indices_tuple=indices_tuple,
    )


class GeneralizedLiftedStructureLoss(LabelledLoss):
    """Generalised lifted structure loss as a module; all about it stands at `pairloom.functional.lifted_structure`.

    Args:
        neg_margin: distance that negatives are pushed beyond, or similarity that they are pushed below.
        pos_margin: distance that positives are pulled below, or similarity that they are pulled above.
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
        >>> pairloom.GeneralizedLiftedStructureLoss()(x, torch.tensor([0, 0, 1, 1])).backward()
        >>> tuple(x.grad.shape)
        (4, 4)
    """

    function = staticmethod(lifted_structure)
    similarities = DISTANCES

    def __init__(
        self,
        neg_margin: float = 1.0,
        pos_margin: float = 0.0,
        *,
        similarity: str = "euclidean",
        normalize: bool = True,
        reduction: str = "mean",
        ignore_index: int | None = -100,
        **peer: Unpack[PeerKeywords],
    ) -> None:
        _checks.finite_number("neg_margin", neg_margin)
        _checks.finite_number("pos_margin", pos_margin)
        own = {"neg_margin": float(neg_margin), "pos_margin": float(pos_margin), "normalize": normalize}
        super().__init__(own, similarity, reduction, ignore_index, **peer)


def _samples(
    *, dtype: torch.dtype = torch.float32, shape: tuple[int, int, int] = (6, 9, 5), seed: int = 0
) -> Iterator[Sample]:
    for sample in labelled_samples({}, dtype=dtype, shape=shape, seed=seed):
        if sample.name != "dot":
            yield sample
        if sample.name in ("one-batch", "references"):
            for similarity in ("cosine", "dot", "squared_euclidean"):
                other = {**sample.arguments, "similarity": similarity, "neg_margin": 0.5}
                yield Sample(f"{similarity}-{sample.name}", other, sample.differentiable)
            for similarity in ("euclidean", "squared_euclidean"):
                other = {**sample.arguments, "similarity": similarity, "normalize": False}
                yield Sample(f"{similarity}-as-they-are-{sample.name}", other, sample.differentiable)


define_streamed(
    "lifted_structure",
    lifted_structure_rule,
    (
        "float neg_margin",
        "float pos_margin",
    ),
)
record = register(
    OpRecord(
        name="lifted_structure",
        function=lifted_structure,
        module=GeneralizedLiftedStructureLoss,
        reference=reference.lifted_structure,
        samples=_samples,
        support=STREAMED,
    )
)
