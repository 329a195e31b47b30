"""Decoupled contrastive loss: function, module, record. Its rule is plain torch, streamed (`pairloom._stream`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pairloom import _checks, reference
from pairloom._dispatch import as_temperature, gradient_bits, scripted_as
from pairloom._registry import OpRecord, Sample, register
from pairloom._stream import STREAMED, define_streamed
from pairloom.losses._distances import compared_rows
from pairloom.losses._labelled import LabelledLoss, labelled_loss, scripted_pairs
from pairloom.losses._mined import LabelledPairs, MinedPairs, mined_pairs
from pairloom.losses._samples import labelled_samples
from pairloom.losses._translate import PeerKeywords
from pairloom.reference._rows import reduce_rows
from pairloom.reference.dcl import dcl_rule
from pairloom.streaming import RowContext, stream_rows

if TYPE_CHECKING:
    from typing_extensions import Unpack


def _dcl_script(
    embeddings: Tensor,
    labels: Tensor | None = None,
    ref_emb: Tensor | None = None,
    ref_labels: Tensor | None = None,
    temperature: Tensor | float = 0.1,
    similarity: str = "cosine",
    normalize: bool = True,
    sigma: float | None = None,
    reduction: str = "mean",
    weights: Tensor | None = None,
    ignore_index: int | None = -100,
) -> Tensor:
    if sigma is not None:
        raise ValueError("sigma is given; DCLW has no TorchScript form, save it with torch.export instead")
    scale = as_temperature(temperature, embeddings)
    rows, columns, own, others = scripted_pairs(
        embeddings, labels, ref_emb, ref_labels, similarity, normalize, ignore_index
    )
    bits = gradient_bits(rows, columns, scale, reduction, weights=weights)
    return torch.ops.pairloom.dcl(
        rows, columns, own, others, weights, scale, similarity, reduction, ignore_index, bits, False
    )[0]


@scripted_as(_dcl_script)
def dcl(
    embeddings: Tensor,
    labels: Tensor | None = None,
    ref_emb: Tensor | None = None,
    ref_labels: Tensor | None = None,
    *,
    temperature: Tensor | float = 0.1,
    similarity: str = "cosine",
    normalize: bool = True,
    sigma: float | None = None,
    reduction: str = "mean",
    weights: Tensor | None = None,
    ignore_index: int | None = -100,
    indices_tuple: Any = None,
    return_stats: bool = False,
) -> Any:
    r"""Decoupled contrastive loss (DCL): InfoNCE without the positive in the denominator.

    With z_ij = s(anchor i, column j) / temperature_i, P_i the columns of the class of anchor i and N_i the others:

        L_i = log sum_{n in N_i} e^{z_in} - mean_{p in P_i} z_ip            may be negative

    With ``sigma`` positives that are far apart weigh more (DCLW): with s_i the mean similarity of the positives of
    anchor i, over the n anchors that have positives and negatives,

        L_i = log sum_{n in N_i} e^{z_in} - w_i mean_{p in P_i} z_ip,       w_i = 2 - n softmax_i(s_i / sigma)

    Two views of each sample are one batch, labelled by the number of the sample. Source: Yeh et al., "Decoupled
    Contrastive Learning", ECCV 2022, whose value, the sum of both directions, is twice the mean here. The weights get
    gradients, as in the public code.

    Args:
        embeddings: (N, D) float32, float64, float16 or bfloat16, any strides; the anchors. Dtypes of the two may
            differ; half inputs are summed in float32, and each gradient comes back in the dtype of its input.
        labels: (N,) integer or bool, the class of each anchor (exact up to 64 bits).
            Or (N, L) of 0 and 1, multi-hot: whoever shares any label with an anchor is its positive.
        ref_emb: (M, D) columns to compare with instead of the batch itself; no pair is left out then.
        ref_labels: (M,) the class of each reference row.
        temperature: number above 0, or float tensor: 0-d, or (N,). Gets a gradient.
        similarity: "cosine" (rows are normalised; a row shorter than 1e-12 has similarity 0), "dot", "euclidean" (s is
            the negated distance, with gradient 0 between equal rows) or "squared_euclidean" (its square).
        normalize: whether the two distances are those of the rows divided by their length; a row shorter than 1e-12
            becomes 0. "cosine" always divides, "dot" never.
        sigma: spread of the weights of the positives, above 0 (0.5 in the paper); None: every positive weighs 1.
            Gradients are then made in backward, and the similarities twice.
        reduction: "mean" and "mean_all" (over all anchors not ignored), "mean_nonzero" (over those with a loss above
            0), "sum", or "none" (one loss for each anchor). With ``weights`` a mean is sum(w L) / sum(w).
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
    `pairloom.reference.dcl` instead, with O(N M) memory.

    Example:
        >>> import torch, pairloom
        >>> x = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-0.8, 0.6]])
        >>> y = torch.tensor([0, 0, 1, 1])
        >>> f"{pairloom.functional.dcl(x, y, temperature=0.5).item():.4f}"
        '-0.2161'
    """
    if sigma is not None:
        _checks.positive_number("sigma", sigma)
        _checks.choice("reduction", reduction, _checks.REDUCTIONS)
        _checks.weights(weights, "embeddings", embeddings)
    found = labelled_loss(
        "dcl",
        embeddings,
        labels,
        ref_emb,
        ref_labels,
        (),
        similarity=similarity,
        reduction=reduction if sigma is None else "none",
        weights=weights if sigma is None else None,
        ignore_index=ignore_index,
        return_stats=return_stats,
        allowed=_checks.SIMILARITIES,
        normalize=normalize,
        temperature=temperature,
        indices_tuple=indices_tuple,
    )
    if sigma is None:
        return found
    losses, stats = found if return_stats else (found, None)
    rows, columns = compared_rows(embeddings, ref_emb, similarity, normalize)
    if indices_tuple is None:
        assert labels is not None
        pairs: LabelledPairs | MinedPairs = LabelledPairs(rows, labels, ref_labels, ignore_index)
    else:
        pairs = mined_pairs(indices_tuple, rows, columns, labels, ref_labels, ignore_index, similarity, normalize)
    losses = losses + _of_the_weights(pairs, rows, columns, similarity, temperature, sigma)
    value = reduce_rows(losses, pairs.keep, weights, reduction)
    if stats is None:
        return value
    return value, stats._replace(active_anchors=(pairs.keep & (losses > 0)).sum().to(torch.float64))


def _of_the_weights(
    pairs: LabelledPairs | MinedPairs,
    rows: Tensor,
    columns: Tensor | None,
    similarity: str,
    temperature: Tensor | float,
    sigma: float,
) -> Tensor:
    """(N,): what the weights of DCLW add to the losses, (1 - w_i) times the mean of the positive logits of anchor i."""

    def mean_positive(s: Tensor, ctx: RowContext) -> Tensor:
        positive, _ = pairs.of(ctx, s)
        return torch.where(positive, s, 0.0).sum(1) / positive.sum(1).clamp(min=1)

    def has_both(s: Tensor, ctx: RowContext) -> Tensor:
        positive, negative = pairs.of(ctx, s)
        return (positive.any(1) & negative.any(1)).to(s.dtype)

    mean = stream_rows(mean_positive, rows, columns, similarity=similarity)
    with torch.no_grad():
        counted = pairs.keep & (stream_rows(has_both, rows, columns, similarity=similarity) > 0)
    share = torch.where(counted, mean / sigma, torch.finfo(mean.dtype).min).softmax(0)
    logits = torch.where(counted, mean, 0.0) / as_temperature(temperature, rows).to(mean.dtype)
    return torch.where(counted, (counted.sum() * share - 1) * logits, 0.0)


class DCLLoss(LabelledLoss):
    """Decoupled contrastive loss as a module; all about it stands at `pairloom.functional.dcl`.

    Args:
        temperature: number above 0, or float tensor: 0-d, or (N,). Gets a gradient.
        similarity: "cosine", "dot", "euclidean" or "squared_euclidean".
        normalize: whether the two distances are those of the rows divided by their length.
        sigma: spread of the weights of the positives (DCLW); None: every positive weighs 1.
        reduction: "mean", "mean_all", "mean_nonzero", "sum" or "none".
        ignore_index: anchors and columns of this class take no part; None switches it off.
        **peer: ``distance``, ``reducer``, ``embedding_regularizer``, ``embedding_reg_weight``, ``collect_stats`` as in
            pytorch-metric-learning, see `pairloom.losses.PeerKeywords`.

    Raises:
        ValueError, TypeError: a setting that is not allowed; in the call, what the function refuses.

    Example:
        >>> import torch, pairloom
        >>> x = torch.eye(4, requires_grad=True)
        >>> pairloom.DCLLoss()(x, torch.tensor([0, 0, 1, 1])).backward()
        >>> tuple(x.grad.shape)
        (4, 4)
    """

    function = staticmethod(dcl)
    similarities = _checks.SIMILARITIES

    def __init__(
        self,
        temperature: float = 0.1,
        *,
        similarity: str = "cosine",
        normalize: bool = True,
        sigma: float | None = None,
        reduction: str = "mean",
        ignore_index: int | None = -100,
        **peer: Unpack[PeerKeywords],
    ) -> None:
        _checks.positive_number("temperature", temperature)
        if sigma is not None:
            _checks.positive_number("sigma", sigma)
        own = {"temperature": float(temperature), "normalize": normalize, "sigma": sigma}
        super().__init__(own, similarity, reduction, ignore_index, **peer)


def _samples(
    *, dtype: torch.dtype = torch.float32, shape: tuple[int, int, int] = (6, 9, 5), seed: int = 0
) -> Iterator[Sample]:
    for sample in labelled_samples({"temperature": 0.3}, dtype=dtype, shape=shape, seed=seed, distances=True):
        yield sample
        if sample.name in ("one-batch", "references"):
            learned = {**sample.arguments, "temperature": torch.linspace(0.2, 1.0, shape[0], dtype=torch.float64)}
            yield Sample(f"row-temperature-{sample.name}", learned, (*sample.differentiable, "temperature"))


define_streamed("dcl", dcl_rule, ("Tensor temperature",))
record = register(
    OpRecord(
        name="dcl",
        function=dcl,
        module=DCLLoss,
        reference=reference.dcl,
        samples=_samples,
        support=STREAMED,
    )
)
