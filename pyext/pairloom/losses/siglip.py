"""Sigmoid loss of SigLIP: function, module, record. Its rule is plain torch, streamed (`pairloom._stream`)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from pairloom import _checks, reference
from pairloom._dispatch import as_temperature, gradient_bits, not_scripted, scripted_as
from pairloom._registry import OpRecord, Sample, register
from pairloom._stats import PairStats
from pairloom._stream import STREAMED, define_streamed
from pairloom.losses._labelled import labelled_loss, scripted_pairs
from pairloom.reference.siglip import siglip_rule


def _siglip_script(
    image: Tensor,
    text: Tensor,
    negatives: Tensor | None = None,
    scale: Tensor | float = 10.0,
    bias: Tensor | float = -10.0,
    ids: Tensor | None = None,
    similarity: str = "cosine",
    reduction: str = "mean",
    weights: Tensor | None = None,
    ignore_index: int | None = -100,
) -> Tensor:
    labels = torch.arange(image.shape[0], device=image.device)
    if ids is None:
        ignore_index = None
    else:
        labels = ids.to(torch.int64)
    columns, column_labels = text, labels
    if negatives is not None:
        columns = torch.cat([text, negatives])
        column_labels = torch.cat([labels, _of_nobody(labels, ignore_index, negatives.shape[0])])
    rows, others, own, other_labels = scripted_pairs(
        image, labels, columns, column_labels, similarity, False, ignore_index
    )
    temperature = as_temperature(scale, image).reciprocal()
    shift = as_temperature(bias, image)
    bits = gradient_bits(rows, others, temperature, reduction, shift, None, weights)
    return torch.ops.pairloom.siglip(
        rows, others, own, other_labels, weights, temperature, shift, similarity, reduction, ignore_index, bits, False
    )[0]


@scripted_as(_siglip_script)
def siglip(
    image: Tensor,
    text: Tensor,
    negatives: Tensor | None = None,
    *,
    scale: Tensor | float = 10.0,
    bias: Tensor | float = -10.0,
    ids: Tensor | None = None,
    similarity: str = "cosine",
    reduction: str = "mean",
    weights: Tensor | None = None,
    ignore_index: int | None = -100,
    return_stats: bool = False,
) -> Any:
    r"""Sigmoid loss of SigLIP: is this text the image's, asked of every pair on its own.

    With columns c = [text; negatives] and z_ij = scale_i s(image_i, c_j) + bias_i:

        L_i = log(1 + e^{-z_ii}) + sum_{j != i} log(1 + e^{z_ij})

    Source: Zhai et al., "Sigmoid Loss for Language Image Pre-Training", ICCV 2023 (their sum over pairs is divided by
    the number of images, as the mean here).

    Args:
        image: (N, D) float32, float64, float16 or bfloat16, any strides. Dtypes of the three may differ; half inputs
            are summed in float32, and each gradient comes back in the dtype of its input.
        text: (N, D). Row i belongs to image i.
        negatives: (M, D) further texts that belong to none of the images, for example those of other ranks.
        scale: what similarities are multiplied with; number above 0, or float tensor: 0-d, or (N,). Gets a gradient.
        bias: what is added then; finite number, or float tensor: 0-d, or (N,). Gets a gradient.
        ids: (N,) integer or bool, the identity of each pair (exact up to 64 bits): pairs with one id match each other.
            Or (N, L) of 0 and 1, multi-hot: pairs that share any label match.
        similarity: "cosine" or "dot".
        reduction: "mean" and "mean_all" (over all images not ignored), "mean_nonzero" (over those with a loss other
            than 0), "sum", or "none" (one loss for each image). With ``weights`` a mean is sum(w L) / sum(w).
        weights: (N,) float, >= 0, one for each image. Gets a gradient.
        ignore_index: pairs with this id take no part; None switches it off.
        return_stats: also return `PairStats`, counted in the same pass.

    Returns:
        The loss: 0-d, or (N,) for "none"; float64 if an embedding is, else float32. With ``return_stats`` the tuple
        (loss, `PairStats`).

    Raises:
        TypeError: embeddings that are not float, ids that are not integer or bool.
        ValueError: shapes or devices that do not fit, a setting out of range, an unknown word. Nothing is computed
            before.

    All images ignored, all weights 0, or N = 0: 0. NaN in a row that takes part: NaN.

    Cost: 2 N (N + M) D flops forward, 6 N (N + M) D with both gradients, and some passes of plain torch over each chunk
    of the similarities; O((N + M) D) memory. Second derivatives and devices without a kernel compute
    `pairloom.reference.siglip` instead, with O(N (N + M)) memory.

    Example:
        >>> import torch, pairloom
        >>> image = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-0.8, 0.6]])
        >>> text = torch.tensor([[0.8, 0.6], [0.28, 0.96], [-0.28, 0.96], [-1.0, 0.0]])
        >>> f"{pairloom.functional.siglip(image, text).item():.4f}"
        '1.8555'
    """
    _checks.embeddings("image", image, text=text, negatives=negatives)
    if image.shape[0] != text.shape[0]:
        raise ValueError(
            f"text has {text.shape[0]} rows and image has {image.shape[0]}; row i of text belongs to image i"
        )
    _checks.temperature(scale, "image", image, name="scale")
    _checks.label_value("ignore_index", ignore_index)
    if ids is None:
        labels, ignore_index = torch.arange(image.shape[0], device=image.device), None
    else:
        _checks.labels("ids", ids, "image", image, multi_hot=True)
        labels = ids.to(torch.int64)
    columns, column_labels = text, labels
    if negatives is not None:
        columns = torch.cat([text, negatives])
        column_labels = torch.cat([labels, _of_nobody(labels, ignore_index, negatives.shape[0])])
    return labelled_loss(
        "siglip",
        image,
        labels,
        columns,
        column_labels,
        (),
        similarity=similarity,
        reduction=reduction,
        weights=weights,
        ignore_index=ignore_index,
        return_stats=return_stats,
        temperature=1 / scale,
        bias=bias,
    )


def _of_nobody(labels: Tensor, ignore_index: int | None, count: int) -> Tensor:
    """So many labels that no row has and that are not ignored."""
    if labels.dim() == 2:  # sets: the empty one
        return labels.new_zeros((count, labels.shape[1]))
    # What follows the largest or precedes the smallest; labels at both ends of the range leave neither: then one of
    # some numbers that nobody uses. A fixed few, so that memory stays O(N).
    known = torch.cat([labels, labels.new_zeros(1)])
    last, first = known.amax(dim=0), known.amin(dim=0)
    ends = torch.stack([last + 1, first - 1, last + 2, first - 2])
    odd = 0x5DEECE66D * torch.arange(1, 29, device=labels.device)
    candidates = torch.cat([ends, odd])
    taken = (candidates.unsqueeze(1) == known.unsqueeze(0)).any(dim=1)
    if ignore_index is not None:
        taken = taken | (candidates == ignore_index)
    return candidates.gather(0, taken.to(torch.int64).argmin(dim=0, keepdim=True)).expand(count)


@not_scripted
class SigLIPLoss(nn.Module):
    """Sigmoid loss of SigLIP with learned scale and bias; formula and cost: `pairloom.functional.siglip`.

    Args:
        scale: number above 0; the starting value when it is learned.
        bias: finite number; the starting value when it is learned.
        learn: own ``log_scale`` = log(scale) and ``bias`` as parameters, learned with the encoders.
        similarity: "cosine" or "dot".
        reduction: "mean", "mean_all", "mean_nonzero", "sum" or "none".
        ignore_index: pairs with this id take no part; None switches it off.

    Raises:
        ValueError, TypeError: a setting that is not allowed.

    Example:
        >>> import torch, pairloom
        >>> loss = pairloom.SigLIPLoss()
        >>> loss(torch.eye(3), torch.eye(3)).backward()
        >>> loss.log_scale.grad is not None, loss.bias.grad is not None
        (True, True)
    """

    def __init__(
        self,
        scale: float = 10.0,
        bias: float = -10.0,
        *,
        learn: bool = True,
        similarity: str = "cosine",
        reduction: str = "mean",
        ignore_index: int | None = -100,
    ) -> None:
        super().__init__()
        _checks.positive_number("scale", scale)
        _checks.finite_number("bias", bias)
        _checks.flag("learn", learn)
        _checks.choice("similarity", similarity, _checks.LOSS_SIMILARITIES)
        _checks.choice("reduction", reduction, _checks.REDUCTIONS)
        _checks.label_value("ignore_index", ignore_index)
        self.log_scale = nn.Parameter(torch.tensor(math.log(scale)), requires_grad=learn)
        self.bias = nn.Parameter(torch.tensor(float(bias)), requires_grad=learn)
        self.similarity = similarity
        self.reduction = reduction
        self.ignore_index = ignore_index

    def forward(
        self, image: Tensor, text: Tensor, negatives: Tensor | None = None, ids: Tensor | None = None
    ) -> Tensor:
        """The loss; arguments as in `pairloom.functional.siglip`."""
        value: Tensor = siglip(image, text, negatives, ids=ids, **self._settings())
        return value

    def with_stats(
        self, image: Tensor, text: Tensor, negatives: Tensor | None = None, ids: Tensor | None = None
    ) -> tuple[Tensor, PairStats]:
        """The loss and the statistics of its pairs, from the same pass."""
        value, stats = siglip(image, text, negatives, ids=ids, return_stats=True, **self._settings())
        return value, stats

    def _settings(self) -> dict[str, Any]:
        return {
            "scale": self.log_scale.exp(),
            "bias": self.bias,
            "similarity": self.similarity,
            "reduction": self.reduction,
            "ignore_index": self.ignore_index,
        }

    def extra_repr(self) -> str:
        """The settings."""
        return (
            f"learn={self.bias.requires_grad}, similarity={self.similarity!r}, reduction={self.reduction!r}, "
            f"ignore_index={self.ignore_index}"
        )


def _samples(
    *, dtype: torch.dtype = torch.float32, shape: tuple[int, int, int] = (6, 9, 5), seed: int = 0
) -> Iterator[Sample]:
    n, m, d = shape
    generator = torch.Generator().manual_seed(seed)
    image, text, negatives = (
        torch.randn(rows, d, generator=generator, dtype=torch.float64).to(dtype) for rows in (n, n, m)
    )
    ids = torch.randint(0, max(n // 2, 1), (n,), generator=generator)
    ignored = torch.where(torch.arange(n) % 3 == 1, -100, ids)
    pair, both = {"image": image, "text": text, "scale": 5.0, "bias": -2.0}, ("image", "text")
    yield Sample("pairs", pair, both)
    yield Sample("negatives", {**pair, "negatives": negatives}, (*both, "negatives"))
    scalars = {"scale": torch.tensor(4.0, dtype=torch.float64), "bias": torch.tensor(-1.0, dtype=torch.float64)}
    yield Sample("learned", {**pair, **scalars}, (*both, "scale", "bias"))
    rows = {"scale": torch.linspace(1, 9, n).double(), "bias": torch.linspace(-3, 1, n).double()}
    yield Sample("row-scale-and-bias", {**pair, **rows, "negatives": negatives}, (*both, "negatives", "scale", "bias"))
    yield Sample("ids", {**pair, "ids": ids, "negatives": negatives}, (*both, "negatives"))
    weights = torch.rand(n, generator=generator)
    for reduction in _checks.REDUCTIONS:
        yield Sample(f"{reduction}-weights", {**pair, "ids": ignored, "weights": weights, "reduction": reduction}, both)
    yield Sample("learned-weights", {**pair, "weights": weights.double()}, (*both, "weights"))
    yield Sample("strided", {**pair, "image": image.repeat(1, 2)[:, ::2], "text": text.T.contiguous().T}, both)


define_streamed("siglip", siglip_rule, ("Tensor temperature", "Tensor bias"))
record = register(
    OpRecord(
        name="siglip",
        function=siglip,
        module=SigLIPLoss,
        reference=reference.siglip,
        samples=_samples,
        support=STREAMED,
    )
)
