"""Batch-hard triplet loss: function, module, record. Its rule is plain torch, streamed (`pairloom._stream`)."""

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
from pairloom.reference.batch_hard_triplet import batch_hard_triplet_rule

if TYPE_CHECKING:
    from typing_extensions import Unpack


def _batch_hard_triplet_script(
    embeddings: Tensor,
    labels: Tensor | None = None,
    ref_emb: Tensor | None = None,
    ref_labels: Tensor | None = None,
    margin: float | None = 0.2,
    similarity: str = "euclidean",
    normalize: bool = True,
    reduction: str = "mean",
    weights: Tensor | None = None,
    ignore_index: int | None = -100,
) -> Tensor:
    rows, columns, own, others = scripted_pairs(
        embeddings, labels, ref_emb, ref_labels, similarity, normalize, ignore_index
    )
    bits = gradient_bits(rows, columns, None, reduction, weights=weights)
    return torch.ops.pairloom.batch_hard_triplet(
        rows, columns, own, others, weights, margin, similarity, reduction, ignore_index, bits, False
    )[0]


@scripted_as(_batch_hard_triplet_script)
def batch_hard_triplet(
    embeddings: Tensor,
    labels: Tensor | None = None,
    ref_emb: Tensor | None = None,
    ref_labels: Tensor | None = None,
    *,
    margin: float | None = 0.2,
    similarity: str = "euclidean",
    normalize: bool = True,
    reduction: str = "mean",
    weights: Tensor | None = None,
    ignore_index: int | None = -100,
    indices_tuple: Any = None,
    return_stats: bool = False,
) -> Any:
    r"""Triplet loss on the farthest positive and the nearest negative of every anchor.

    With D = -s a distance, P_i the columns of the class of anchor i and N_i the others:

        L_i = [ max_{p in P_i} D_ip - min_{n in N_i} D_in + margin ]_+    or    log(1 + e^{max D_ip - min D_in})

    Which pairs are hardest has no gradient; of equal ones the first counts. Source: Hermans, Beyer, Leibe, "In Defense
    of the Triplet Loss for Person Re-Identification", 2017.

    Args:
        embeddings: (N, D) float32, float64, float16 or bfloat16, any strides; the anchors. Dtypes of the two may
            differ; half inputs are summed in float32, and each gradient comes back in the dtype of its input.
        labels: (N,) integer or bool, the class of each anchor (exact up to 64 bits).
            Or (N, L) of 0 and 1, multi-hot: whoever shares any label with an anchor is its positive.
        ref_emb: (M, D) columns to compare with instead of the batch itself; no pair is left out then.
        ref_labels: (M,) the class of each reference row.
        margin: how much farther the negative is to be; None takes the logarithm, the soft margin.
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
    `pairloom.reference.batch_hard_triplet` instead, with O(N M) memory.

    Example:
        >>> import torch, pairloom
        >>> x = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-0.8, 0.6]])
        >>> y = torch.tensor([0, 0, 1, 1])
        >>> f"{pairloom.functional.batch_hard_triplet(x, y).item():.4f}"
        '0.2310'
    """
    _check_margin(margin)
    return labelled_loss(
        "batch_hard_triplet",
        embeddings,
        labels,
        ref_emb,
        ref_labels,
        (margin,),
        similarity=similarity,
        reduction=reduction,
        weights=weights,
        ignore_index=ignore_index,
        return_stats=return_stats,
        allowed=DISTANCES,
        normalize=normalize,
        indices_tuple=indices_tuple,
    )


def _check_margin(margin: float | None) -> None:
    if margin is not None:
        _checks.finite_number("margin", margin)


class BatchHardTripletLoss(LabelledLoss):
    """Batch-hard triplet loss as a module; all about it stands at `pairloom.functional.batch_hard_triplet`.

    Args:
        margin: how much farther the negative is to be; None takes the logarithm, the soft margin.
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
        >>> pairloom.BatchHardTripletLoss()(x, torch.tensor([0, 0, 1, 1])).backward()
        >>> tuple(x.grad.shape)
        (4, 4)
    """

    function = staticmethod(batch_hard_triplet)
    similarities = DISTANCES

    def __init__(
        self,
        margin: float | None = 0.2,
        *,
        similarity: str = "euclidean",
        normalize: bool = True,
        reduction: str = "mean",
        ignore_index: int | None = -100,
        **peer: Unpack[PeerKeywords],
    ) -> None:
        _check_margin(margin)
        own = {"margin": margin, "normalize": normalize}
        super().__init__(own, similarity, reduction, ignore_index, **peer)


def _samples(
    *, dtype: torch.dtype = torch.float32, shape: tuple[int, int, int] = (6, 9, 5), seed: int = 0
) -> Iterator[Sample]:
    for sample in labelled_samples({}, dtype=dtype, shape=shape, seed=seed):
        if sample.name != "dot":
            yield Sample(sample.name, sample.arguments, sample.differentiable, needs_float64=True)
        if sample.name in ("one-batch", "references"):
            for similarity in ("cosine", "dot", "squared_euclidean"):
                other = {**sample.arguments, "similarity": similarity, "margin": None}
                yield Sample(f"soft-{similarity}-{sample.name}", other, sample.differentiable, needs_float64=True)
            other = {**sample.arguments, "normalize": False}
            yield Sample(f"as-they-are-{sample.name}", other, sample.differentiable, needs_float64=True)


define_streamed("batch_hard_triplet", batch_hard_triplet_rule, ("float? margin",))
record = register(
    OpRecord(
        name="batch_hard_triplet",
        function=batch_hard_triplet,
        module=BatchHardTripletLoss,
        reference=reference.batch_hard_triplet,
        samples=_samples,
        support=STREAMED,
    )
)
