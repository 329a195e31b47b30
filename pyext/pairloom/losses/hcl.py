"""Hard-negative contrastive loss: function, module, record. Its rule is plain torch, streamed (`pairloom._stream`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pairloom import _checks, reference
from pairloom._dispatch import as_temperature, gradient_bits, scripted_as
from pairloom._registry import OpRecord, Sample, register
from pairloom._stream import STREAMED, define_streamed
from pairloom.losses._labelled import LabelledLoss, labelled_loss, scripted_pairs
from pairloom.losses._samples import labelled_samples
from pairloom.losses._translate import PeerKeywords
from pairloom.reference.hcl import hcl_rule

if TYPE_CHECKING:
    from typing_extensions import Unpack


def _hcl_script(
    embeddings: Tensor,
    labels: Tensor | None = None,
    ref_emb: Tensor | None = None,
    ref_labels: Tensor | None = None,
    temperature: Tensor | float = 0.5,
    concentration: float = 1.0,
    tau_plus: float = 0.1,
    similarity: str = "cosine",
    reduction: str = "mean",
    weights: Tensor | None = None,
    ignore_index: int | None = -100,
) -> Tensor:
    scale = as_temperature(temperature, embeddings)
    rows, columns, own, others = scripted_pairs(
        embeddings, labels, ref_emb, ref_labels, similarity, False, ignore_index
    )
    bits = gradient_bits(rows, columns, scale, reduction, weights=weights)
    return torch.ops.pairloom.hcl(
        rows,
        columns,
        own,
        others,
        weights,
        scale,
        concentration,
        tau_plus,
        similarity,
        reduction,
        ignore_index,
        bits,
        False,
    )[0]


@scripted_as(_hcl_script)
def hcl(
    embeddings: Tensor,
    labels: Tensor | None = None,
    ref_emb: Tensor | None = None,
    ref_labels: Tensor | None = None,
    *,
    temperature: Tensor | float = 0.5,
    concentration: float = 1.0,
    tau_plus: float = 0.1,
    similarity: str = "cosine",
    reduction: str = "mean",
    weights: Tensor | None = None,
    ignore_index: int | None = -100,
    indices_tuple: Any = None,
    return_stats: bool = False,
) -> Any:
    r"""Contrastive loss with debiased, hard-weighted negatives (HCL); debiased only with ``concentration=0``.

    With z_ij = s(anchor i, column j) / temperature_i, P_i the columns of the class of anchor i and N_i the others:

        w_n  = e^{concentration z_in} / mean_{k in N_i} e^{concentration z_ik}
        g_ip = max( (sum_n w_n e^{z_in} - tau_plus |N_i| e^{z_ip}) / (1 - tau_plus), |N_i| e^{-1 / temperature} )
        L_i  = mean_{p in P_i} log(1 + g_ip e^{-z_ip})

    Two views of each sample are one batch, labelled by the number of the sample. The weights have a gradient, as in the
    authors' code. Source: Robinson et al., "Contrastive Learning with Hard Negative Samples", ICLR 2021; Chuang et al.,
    "Debiased Contrastive Learning", NeurIPS 2020.

    Args:
        embeddings: (N, D) float32, float64, float16 or bfloat16, any strides; the anchors. Dtypes of the two may
            differ; half inputs are summed in float32, and each gradient comes back in the dtype of its input.
        labels: (N,) integer or bool, the class of each anchor (exact up to 64 bits).
            Or (N, L) of 0 and 1, multi-hot: whoever shares any label with an anchor is its positive.
        ref_emb: (M, D) columns to compare with instead of the batch itself; no pair is left out then.
        ref_labels: (M,) the class of each reference row.
        temperature: number above 0, or float tensor: 0-d, or (N,). Gets a gradient.
        concentration: how much hard negatives are preferred, at least 0.
        tau_plus: share of the negatives that are of the class of the anchor, from 0 to below 1.
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

    Anchor without positives or without negatives: 0.
    All anchors ignored, all weights 0, or N = 0: 0. NaN in a row that takes part: NaN.

    Cost: 2 N M D flops forward, 6 N M D with both gradients, and some passes of plain torch over each chunk of the
    N x M similarities; O((N + M) D) memory. Second derivatives and devices without a kernel compute
    `pairloom.reference.hcl` instead, with O(N M) memory.

    Example:
        >>> import torch, pairloom
        >>> x = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-0.8, 0.6]])
        >>> y = torch.tensor([0, 0, 1, 1])
        >>> f"{pairloom.functional.hcl(x, y).item():.4f}"
        '0.7999'
    """
    _check_settings(concentration, tau_plus)
    return labelled_loss(
        "hcl",
        embeddings,
        labels,
        ref_emb,
        ref_labels,
        (concentration, tau_plus),
        similarity=similarity,
        reduction=reduction,
        weights=weights,
        ignore_index=ignore_index,
        return_stats=return_stats,
        temperature=temperature,
        indices_tuple=indices_tuple,
    )


def _check_settings(concentration: float, tau_plus: float) -> None:
    _checks.finite_number("concentration", concentration)
    _checks.finite_number("tau_plus", tau_plus)
    if concentration < 0:
        raise ValueError(f"concentration is {concentration}; it must be 0 or more")
    if not 0 <= tau_plus < 1:
        raise ValueError(f"tau_plus is {tau_plus}; it must be at least 0 and below 1")


class HCLLoss(LabelledLoss):
    """Hard-negative contrastive loss as a module; all about it stands at `pairloom.functional.hcl`.

    Args:
        temperature: number above 0, or float tensor: 0-d, or (N,). Gets a gradient.
        concentration: how much hard negatives are preferred, at least 0.
        tau_plus: share of the negatives that are of the class of the anchor, from 0 to below 1.
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
        >>> pairloom.HCLLoss()(x, torch.tensor([0, 0, 1, 1])).backward()
        >>> tuple(x.grad.shape)
        (4, 4)
    """

    function = staticmethod(hcl)

    def __init__(
        self,
        temperature: float = 0.5,
        concentration: float = 1.0,
        tau_plus: float = 0.1,
        *,
        similarity: str = "cosine",
        reduction: str = "mean",
        ignore_index: int | None = -100,
        **peer: Unpack[PeerKeywords],
    ) -> None:
        _check_settings(concentration, tau_plus)
        _checks.positive_number("temperature", temperature)
        own = {
            "temperature": float(temperature),
            "concentration": float(concentration),
            "tau_plus": float(tau_plus),
        }
        super().__init__(own, similarity, reduction, ignore_index, **peer)


def _samples(
    *, dtype: torch.dtype = torch.float32, shape: tuple[int, int, int] = (6, 9, 5), seed: int = 0
) -> Iterator[Sample]:
    for sample in labelled_samples({}, dtype=dtype, shape=shape, seed=seed):
        yield sample
        if sample.name in ("one-batch", "references"):
            debiased = {**sample.arguments, "concentration": 0.0, "tau_plus": 0.3}
            yield Sample(f"debiased-{sample.name}", debiased, sample.differentiable)
            learned = {**sample.arguments, "temperature": torch.linspace(0.2, 1.0, shape[0], dtype=torch.float64)}
            yield Sample(f"row-temperature-{sample.name}", learned, (*sample.differentiable, "temperature"))


define_streamed(
    "hcl",
    hcl_rule,
    (
        "Tensor temperature",
        "float concentration",
        "float tau_plus",
    ),
)
record = register(
    OpRecord(
        name="hcl",
        function=hcl,
        module=HCLLoss,
        reference=reference.hcl,
        samples=_samples,
        support=STREAMED,
    )
)
