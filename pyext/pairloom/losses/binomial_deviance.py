"""Binomial deviance loss: function, module, record. Its rule is plain torch, streamed (`pairloom._stream`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pairloom import _checks, reference
from pairloom._dispatch import gradient_bits, scripted_as
from pairloom._registry import OpRecord, Sample, register
from pairloom._stream import STREAMED, define_streamed
from pairloom.losses._labelled import LabelledLoss, labelled_loss, scripted_pairs
from pairloom.losses._samples import labelled_samples
from pairloom.losses._translate import PeerKeywords
from pairloom.reference.binomial_deviance import binomial_deviance_rule

if TYPE_CHECKING:
    from typing_extensions import Unpack


def _binomial_deviance_script(
    embeddings: Tensor,
    labels: Tensor | None = None,
    ref_emb: Tensor | None = None,
    ref_labels: Tensor | None = None,
    alpha: float = 2.0,
    beta: float = 50.0,
    base: float = 0.5,
    similarity: str = "cosine",
    reduction: str = "mean",
    weights: Tensor | None = None,
    ignore_index: int | None = -100,
) -> Tensor:
    rows, columns, own, others = scripted_pairs(
        embeddings, labels, ref_emb, ref_labels, similarity, False, ignore_index
    )
    bits = gradient_bits(rows, columns, None, reduction, weights=weights)
    return torch.ops.pairloom.binomial_deviance(
        rows, columns, own, others, weights, alpha, beta, base, similarity, reduction, ignore_index, bits, False
    )[0]


@scripted_as(_binomial_deviance_script)
def binomial_deviance(
    embeddings: Tensor,
    labels: Tensor | None = None,
    ref_emb: Tensor | None = None,
    ref_labels: Tensor | None = None,
    *,
    alpha: float = 2.0,
    beta: float = 50.0,
    base: float = 0.5,
    similarity: str = "cosine",
    reduction: str = "mean",
    weights: Tensor | None = None,
    ignore_index: int | None = -100,
    indices_tuple: Any = None,
    return_stats: bool = False,
) -> Any:
    r"""Binomial deviance: every pair is a logistic question, positives and negatives averaged apart.

    With s_ij the similarity of anchor i and column j, P_i the columns of its class and N_i the others:

        L_i = mean_{p in P_i} log(1 + e^{alpha (base - s_ip)}) + mean_{n in N_i} log(1 + e^{beta (s_in - base)})

    Source: Yi, Lei, Li, "Deep Metric Learning for Practical Person Re-Identification", 2014; settings of Wang et al.,
    "Multi-Similarity Loss", CVPR 2019.

    Args:
        embeddings: (N, D) float32, float64, float16 or bfloat16, any strides; the anchors. Dtypes of the two may
            differ; half inputs are summed in float32, and each gradient comes back in the dtype of its input.
        labels: (N,) integer or bool, the class of each anchor (exact up to 64 bits).
            Or (N, L) of 0 and 1, multi-hot: whoever shares any label with an anchor is its positive.
        ref_emb: (M, D) columns to compare with instead of the batch itself; no pair is left out then.
        ref_labels: (M,) the class of each reference row.
        alpha: steepness for positives, above 0.
        beta: steepness for negatives, above 0.
        base: similarity where the logistic turns.
        similarity: "cosine" or "dot".
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

    Anchor without positives, or without negatives: that half is 0.
    All anchors ignored, all weights 0, or N = 0: 0. NaN in a row that takes part: NaN.

    Cost: 2 N M D flops forward, 6 N M D with both gradients, and some passes of plain torch over each chunk of the
    N x M similarities; O((N + M) D) memory. Second derivatives and devices without a kernel compute
    `pairloom.reference.binomial_deviance` instead, with O(N M) memory.

    Example:
        >>> import torch, pairloom
        >>> x = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-0.8, 0.6]])
        >>> y = torch.tensor([0, 0, 1, 1])
        >>> f"{pairloom.functional.binomial_deviance(x, y).item():.4f}"
        '4.3481'
    """
    _checks.positive_number("alpha", alpha)
    _checks.positive_number("beta", beta)
    _checks.finite_number("base", base)
    return labelled_loss(
        "binomial_deviance",
        embeddings,
        labels,
        ref_emb,
        ref_labels,
        (alpha, beta, base),
        similarity=similarity,
        reduction=reduction,
        weights=weights,
        ignore_index=ignore_index,
        return_stats=return_stats,
        indices_tuple=indices_tuple,
    )


class BinomialDevianceLoss(LabelledLoss):
    """Binomial deviance loss as a module; all about it stands at `pairloom.functional.binomial_deviance`.

    Args:
        alpha: steepness for positives, above 0.
        beta: steepness for negatives, above 0.
        base: similarity where the logistic turns.
        similarity: "cosine" or "dot".
        reduction: "mean", "mean_all", "mean_nonzero", "sum" or "none".
        ignore_index: anchors and columns of this class take no part; None switches it off.
        **peer: ``distance``, ``reducer``, ``embedding_regularizer``, ``embedding_reg_weight``, ``collect_stats`` as in
            pytorch-metric-learning, see `pairloom.losses.PeerKeywords`.

    Raises:
        ValueError, TypeError: a setting that is not allowed; in the call, what the function refuses.

    Example:
        >>> import torch, pairloom
        >>> x = torch.eye(4, requires_grad=True)
        >>> pairloom.BinomialDevianceLoss()(x, torch.tensor([0, 0, 1, 1])).backward()
        >>> tuple(x.grad.shape)
        (4, 4)
    """

    function = staticmethod(binomial_deviance)

    def __init__(
        self,
        alpha: float = 2.0,
        beta: float = 50.0,
        base: float = 0.5,
        *,
        similarity: str = "cosine",
        reduction: str = "mean",
        ignore_index: int | None = -100,
        **peer: Unpack[PeerKeywords],
    ) -> None:
        _checks.positive_number("alpha", alpha)
        _checks.positive_number("beta", beta)
        _checks.finite_number("base", base)
        own = {"alpha": float(alpha), "beta": float(beta), "base": float(base)}
        super().__init__(own, similarity, reduction, ignore_index, **peer)


def _samples(
    *, dtype: torch.dtype = torch.float32, shape: tuple[int, int, int] = (6, 9, 5), seed: int = 0
) -> Iterator[Sample]:
    yield from labelled_samples({}, dtype=dtype, shape=shape, seed=seed)


define_streamed(
    "binomial_deviance",
    binomial_deviance_rule,
    (
        "float alpha",
        "float beta",
        "float base",
    ),
)
record = register(
    OpRecord(
        name="binomial_deviance",
        function=binomial_deviance,
        module=BinomialDevianceLoss,
        reference=reference.binomial_deviance,
        samples=_samples,
        support=STREAMED,
    )
)
