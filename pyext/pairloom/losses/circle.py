"""Circle loss: function, module, record. Its rule is plain torch, streamed (`pairloom._stream`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pairloom import _checks, reference
from pairloom._dispatch import gradient_bits, scripted_as
from pairloom._registry import OpRecord, Sample, Support, register
from pairloom._stream import define_streamed
from pairloom.losses._labelled import LabelledLoss, labelled_loss, scripted_pairs
from pairloom.losses._samples import labelled_samples
from pairloom.losses._translate import PeerKeywords
from pairloom.reference.circle import circle_rule

if TYPE_CHECKING:
    from typing_extensions import Unpack


def _circle_script(
    embeddings: Tensor,
    labels: Tensor | None = None,
    ref_emb: Tensor | None = None,
    ref_labels: Tensor | None = None,
    m: float = 0.4,
    gamma: float = 80.0,
    similarity: str = "cosine",
    reduction: str = "mean",
    weights: Tensor | None = None,
    ignore_index: int | None = -100,
) -> Tensor:
    rows, columns, own, others = scripted_pairs(
        embeddings, labels, ref_emb, ref_labels, similarity, False, ignore_index
    )
    bits = gradient_bits(rows, columns, None, reduction, weights=weights)
    return torch.ops.pairloom.circle(
        rows, columns, own, others, weights, m, gamma, similarity, reduction, ignore_index, bits, False
    )[0]


@scripted_as(_circle_script)
def circle(
    embeddings: Tensor,
    labels: Tensor | None = None,
    ref_emb: Tensor | None = None,
    ref_labels: Tensor | None = None,
    *,
    m: float = 0.4,
    gamma: float = 80.0,
    similarity: str = "cosine",
    reduction: str = "mean",
    weights: Tensor | None = None,
    ignore_index: int | None = -100,
    indices_tuple: Any = None,
    return_stats: bool = False,
) -> Any:
    r"""Circle loss: every pair pulls with a weight that grows with its distance from the optimum.

    With s_ij the similarity of anchor i and column j, P_i the columns of the class of anchor i and N_i the others:

        a_p = [1 + m - s_ip]_+,   a_n = [s_in + m]_+                        constants: they have no gradient
        L_i = log(1 + sum_{n in N_i} e^{gamma a_n (s_in - m)}  sum_{p in P_i} e^{-gamma a_p (s_ip - 1 + m)})

    Because a_p and a_n are constants, the gradient is that of the paper and not the derivative of L_i; second
    derivatives hold them constant too. Source: Sun et al., "Circle Loss: A Unified Perspective of Pair Similarity
    Optimization", CVPR 2020, per anchor; names, defaults and mean as in pytorch-metric-learning. The paper takes m=0.25
    and gamma=256 for faces, 128 for persons.

    Args:
        embeddings: (N, D) float32, float64, float16 or bfloat16, any strides; the anchors. Dtypes of the two may
            differ; half inputs are summed in float32, and each gradient comes back in the dtype of its input.
        labels: (N,) integer or bool, the class of each anchor (exact up to 64 bits).
            Or (N, L) of 0 and 1, multi-hot: whoever shares any label with an anchor is its positive.
        ref_emb: (M, D) columns to compare with instead of the batch itself; no pair is left out then.
        ref_labels: (M,) the class of each reference row.
        m: relaxation: positives are pulled up to 1 + m, negatives pushed down to -m.
        gamma: scale of the exponents, above 0.
        similarity: "cosine" or "dot".
        reduction: "mean" and "mean_nonzero" (over the anchors with a loss other than 0), "mean_all" (over all anchors
            not ignored), "sum", or "none" (one loss for each anchor). With ``weights`` a mean is sum(w L) / sum(w).
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
    `pairloom.reference.circle` instead, with O(N M) memory.

    Example:
        >>> import torch, pairloom
        >>> x = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-0.8, 0.6]])
        >>> y = torch.tensor([0, 0, 1, 1])
        >>> f"{pairloom.functional.circle(x, y, m=0.25).item():.4f}"
        '30.9036'
    """
    _check_settings(m, gamma)
    return labelled_loss(
        "circle",
        embeddings,
        labels,
        ref_emb,
        ref_labels,
        (m, gamma),
        similarity=similarity,
        reduction=reduction,
        weights=weights,
        ignore_index=ignore_index,
        return_stats=return_stats,
        indices_tuple=indices_tuple,
    )


def _check_settings(m: float, gamma: float) -> None:
    _checks.finite_number("m", m)
    _checks.positive_number("gamma", gamma)


class CircleLoss(LabelledLoss):
    """Circle loss as a module; all about it stands at `pairloom.functional.circle`.

    Args:
        m: relaxation: positives are pulled up to 1 + m, negatives pushed down to -m.
        gamma: scale of the exponents, above 0.
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
        >>> pairloom.CircleLoss()(x, torch.tensor([0, 0, 1, 1])).backward()
        >>> tuple(x.grad.shape)
        (4, 4)
    """

    function = staticmethod(circle)

    def __init__(
        self,
        m: float = 0.4,
        gamma: float = 80.0,
        *,
        similarity: str = "cosine",
        reduction: str = "mean",
        ignore_index: int | None = -100,
        **peer: Unpack[PeerKeywords],
    ) -> None:
        _check_settings(m, gamma)
        own = {"m": float(m), "gamma": float(gamma)}
        super().__init__(own, similarity, reduction, ignore_index, **peer)


def _samples(
    *, dtype: torch.dtype = torch.float32, shape: tuple[int, int, int] = (6, 9, 5), seed: int = 0
) -> Iterator[Sample]:
    for sample in labelled_samples({"gamma": 8.0}, dtype=dtype, shape=shape, seed=seed):
        yield sample
        if sample.name == "references":
            yield Sample("steep", {**sample.arguments, "m": 0.25, "gamma": 80.0}, sample.differentiable, True)


define_streamed("circle", circle_rule, ("float m", "float gamma"), mean="nonzero")
record = register(
    OpRecord(
        name="circle",
        function=circle,
        module=CircleLoss,
        reference=reference.circle,
        samples=_samples,
        support=Support(
            aoti=False,
            standalone=False,
            true_gradient=False,
            cuda="chunks",
            double_backward=False,  # with constant weights, not the derivative of the gradient
        ),
    )
)
