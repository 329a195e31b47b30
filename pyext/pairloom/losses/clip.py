"""Symmetric contrastive loss of CLIP: function, module, record."""

import math
from collections.abc import Iterator
from typing import Literal, overload

import torch
from torch import Tensor, nn

from pairloom import _checks, reference
from pairloom._dispatch import as_temperature, gradient_bits, pair_loss, scripted_as
from pairloom._labels import operator_labels
from pairloom._registry import OpRecord, Sample, Support, register
from pairloom._stats import PairStats
from pairloom.losses._distances import compared_rows


def _clip_script(
    image: Tensor,
    text: Tensor,
    temperature: Tensor | float = 0.07,
    ids: Tensor | None = None,
    same_id: str = "ignore",
    normalize: bool = True,
    similarity: str = "cosine",
    reduction: str = "mean",
    weights: Tensor | None = None,
    ignore_index: int | None = -100,
) -> Tensor:
    scale = as_temperature(temperature, image)
    labels: Tensor | None = None
    if ids is not None:
        labels = operator_labels(ids, ignore_index)
    rows, columns = compared_rows(image, text, similarity, normalize)
    assert columns is not None
    return torch.ops.pairloom.clip(
        rows, columns, scale, labels, weights,
        similarity, reduction, same_id, ignore_index, gradient_bits(rows, columns, scale, reduction), False,
    )[0]  # fmt: skip


@overload
def clip(
    image: Tensor,
    text: Tensor,
    *,
    temperature: Tensor | float = 0.07,
    ids: Tensor | None = None,
    same_id: str = "ignore",
    normalize: bool = True,
    similarity: str = "cosine",
    reduction: str = "mean",
    weights: Tensor | None = None,
    ignore_index: int | None = -100,
    return_stats: Literal[False] = False,
) -> Tensor: ...
@overload
def clip(
    image: Tensor,
    text: Tensor,
    *,
    temperature: Tensor | float = 0.07,
    ids: Tensor | None = None,
    same_id: str = "ignore",
    normalize: bool = True,
    similarity: str = "cosine",
    reduction: str = "mean",
    weights: Tensor | None = None,
    ignore_index: int | None = -100,
    return_stats: Literal[True],
) -> tuple[Tensor, PairStats]: ...
@scripted_as(_clip_script)
def clip(
    image: Tensor,
    text: Tensor,
    *,
    temperature: Tensor | float = 0.07,
    ids: Tensor | None = None,
    same_id: str = "ignore",
    normalize: bool = True,
    similarity: str = "cosine",
    reduction: str = "mean",
    weights: Tensor | None = None,
    ignore_index: int | None = -100,
    return_stats: bool = False,
) -> Tensor | tuple[Tensor, PairStats]:
    r"""Symmetric InfoNCE of CLIP: every image picks its text among all texts, every text its image.

        L_i = ( info_nce of image i among all texts + info_nce of text i among all images ) / 2

    Source: Radford et al., "Learning Transferable Visual Models From Natural Language Supervision", 2021. Its logit
    scale is 1 / temperature.

    Args:
        image: (N, D) float32, float64, float16 or bfloat16, any strides.
        text: (N, D). Row i belongs to image i.
        temperature: number above 0, or float tensor: 0-d, or (N,) with one value for each pair. Gets a gradient.
        ids: (N,) integer or bool, the identity of each pair: captions that several images share, images that several
            captions describe. No two pairs with the same id are negatives of each other.
            Or (N, L) of 0 and 1, multi-hot: rows that share any label are like rows with one id.
        same_id: "ignore" or "positive", what other columns with the id of the row are.
        similarity: "cosine" (rows are normalised; a row shorter than 1e-12 has similarity 0), "dot", "euclidean" (s is
            the negated distance, with gradient 0 between equal rows) or "squared_euclidean" (its square).
        normalize: whether the two distances are those of the rows divided by their length; a row shorter than 1e-12
            becomes 0. "cosine" always divides, "dot" never.
        reduction: "mean", "mean_all", "mean_nonzero", "sum" or "none" (one loss for each pair).
        weights: (N,) float, >= 0, one for each pair. Gets a gradient.
        ignore_index: pairs with this id take no part; None switches it off.
        return_stats: also return `PairStats` of both ways together: 2 N anchors.

    Returns:
        The loss: 0-d, or (N,) for "none"; float64 if an embedding is, else float32. With ``return_stats`` the tuple
        (loss, `PairStats`).

    Raises:
        TypeError: embeddings that are not float, ids that are not integer or bool.
        ValueError: shapes or devices that do not fit, a temperature not above 0 or weights below 0 (looked at on the
            CPU in eager mode only), an unknown word. Nothing is computed before.

    One pair, or no negatives left: 0. All pairs ignored, all weights 0, or N = 0: 0. NaN in a row that takes part: NaN.

    Cost: 8 N N D flops with all gradients where no logit is beyond 40 (cosine: temperature at least 0.025), else, and
    with ``same_id="positive"``, statistics or a temperature for each row, 12 N N D; O(N D) bytes beside the inputs.
    Second derivatives, `torch.func` transforms and devices without a kernel compute `pairloom.reference.clip` instead,
    with O(N N) memory.

    Example:
        >>> import torch, pairloom
        >>> image = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-0.8, 0.6]])
        >>> text = torch.tensor([[0.8, 0.6], [0.28, 0.96], [-0.28, 0.96], [-1.0, 0.0]])
        >>> f"{pairloom.functional.clip(image, text, temperature=0.5).item():.4f}"
        '0.8074'
    """
    _checks.loss_settings(similarity, reduction, ignore_index, normalize=normalize, allowed=_checks.SIMILARITIES)
    _checks.embeddings("image", image, text=text)
    if image.shape[0] != text.shape[0]:
        raise ValueError(
            f"text has {text.shape[0]} rows and image has {image.shape[0]}; row i of text belongs to image i"
        )
    _checks.temperature(temperature, "image", image)
    if ids is not None:
        _checks.labels("ids", ids, "image", image, multi_hot=True)
        _checks.multi_hot_entries("ids", ids, ignore_index)
    _checks.choice("same_id", same_id, ("ignore", "positive"))
    _checks.weights(weights, "image", image)
    scale = as_temperature(temperature, image)
    rows, columns = compared_rows(image, text, similarity, normalize)
    assert columns is not None
    return pair_loss(
        torch.ops.pairloom.clip, reference.clip,
        rows, columns, scale, None if ids is None else operator_labels(ids, ignore_index), weights,
        similarity, reduction, same_id, ignore_index, gradient_bits(rows, columns, scale, reduction), return_stats,
    )  # fmt: skip


class CLIPLoss(nn.Module):
    """Symmetric contrastive loss of CLIP as a module; formula and cost: `pairloom.functional.clip`.

    Args:
        temperature: number above 0; the starting value when it is learned.
        learn_temperature: own ``log_scale`` = log(1 / temperature) as a parameter, learned with the encoders.
        max_scale: the scale 1 / temperature that is used never exceeds this, however ``log_scale`` moves (it gets no
            gradient beyond).
        same_id: "ignore" or "positive", what other columns with the id of the row are.
        similarity: "cosine", "dot", "euclidean" or "squared_euclidean".
        normalize: whether the two distances are those of the rows divided by their length.
        reduction: "mean", "mean_all", "mean_nonzero", "sum" or "none".
        ignore_index: pairs with this id take no part; None switches it off.

    Raises:
        ValueError, TypeError: a setting that is not allowed.

    Example:
        >>> import torch, pairloom
        >>> loss = pairloom.CLIPLoss()
        >>> loss(torch.eye(3), torch.eye(3)).backward()
        >>> loss.log_scale.grad is not None
        True
    """

    # TorchScript reads this annotation: it must not be a string, so no `from __future__ import annotations` here.
    log_scale: Tensor | None

    def __init__(
        self,
        temperature: float = 0.07,
        *,
        learn_temperature: bool = True,
        max_scale: float = 100.0,
        same_id: str = "ignore",
        similarity: str = "cosine",
        normalize: bool = True,
        reduction: str = "mean",
        ignore_index: int | None = -100,
    ) -> None:
        super().__init__()
        _checks.positive_number("temperature", temperature)
        _checks.positive_number("max_scale", max_scale)
        _checks.choice("same_id", same_id, ("ignore", "positive"))
        _checks.loss_settings(similarity, reduction, ignore_index, normalize=normalize, allowed=_checks.SIMILARITIES)
        if learn_temperature and 1 / temperature > max_scale:
            raise ValueError(
                f"temperature is {temperature}, a scale of {1 / temperature:g}; max_scale is {max_scale:g}"
            )
        self.temperature = float(temperature)
        self.max_scale = float(max_scale)
        self.same_id = same_id
        self.similarity = similarity
        self.normalize = normalize
        self.reduction = reduction
        self.ignore_index = ignore_index
        if learn_temperature:
            self.log_scale = nn.Parameter(torch.tensor(-math.log(temperature)))
        else:
            self.register_parameter("log_scale", None)

    def forward(self, image: Tensor, text: Tensor, ids: Tensor | None = None) -> Tensor:
        """The loss; arguments as in `pairloom.functional.clip`."""
        return clip(
            image,
            text,
            temperature=self.current_temperature(),
            ids=ids,
            same_id=self.same_id,
            similarity=self.similarity,
            normalize=self.normalize,
            reduction=self.reduction,
            ignore_index=self.ignore_index,
        )

    def with_stats(self, image: Tensor, text: Tensor, ids: Tensor | None = None) -> tuple[Tensor, PairStats]:
        """The loss and the statistics of its pairs, from the same pass."""
        return clip(
            image,
            text,
            temperature=self.current_temperature(),
            ids=ids,
            same_id=self.same_id,
            similarity=self.similarity,
            normalize=self.normalize,
            reduction=self.reduction,
            ignore_index=self.ignore_index,
            return_stats=True,
        )

    def current_temperature(self) -> Tensor | float:
        """The temperature: the given number, or e^(-log_scale), at least 1 / max_scale, when it is learned."""
        log_scale = self.log_scale
        if log_scale is None:
            return self.temperature
        return torch.exp(-log_scale.clamp(max=math.log(self.max_scale)))

    def extra_repr(self) -> str:
        """The settings."""
        return (
            f"temperature={self.temperature}, learn_temperature={self.log_scale is not None}, "
            f"max_scale={self.max_scale}, same_id={self.same_id!r}, similarity={self.similarity!r}, "
            f"normalize={self.normalize}, reduction={self.reduction!r}, ignore_index={self.ignore_index}"
        )


def _samples(
    *, dtype: torch.dtype = torch.float32, shape: tuple[int, int, int] = (6, 9, 5), seed: int = 0
) -> Iterator[Sample]:
    n, _, d = shape
    generator = torch.Generator().manual_seed(seed)
    image, text = (torch.randn(n, d, generator=generator, dtype=torch.float64).to(dtype) for _ in range(2))
    ids = torch.randint(0, max(n // 2, 1), (n,), generator=generator)
    ignored = torch.where(torch.arange(n) % 3 == 1, -100, ids)
    pair, both = {"image": image, "text": text, "temperature": 0.2}, ("image", "text")
    yield Sample("pairs", pair, both)
    yield Sample("dot", {**pair, "similarity": "dot", "temperature": 1.0}, both)
    yield Sample("euclidean", {**pair, "similarity": "euclidean"}, both)
    yield Sample("squared_euclidean", {**pair, "similarity": "squared_euclidean", "normalize": False}, both)
    yield Sample("low-temperature", {**pair, "temperature": 0.01}, both, needs_float64=True)
    scalar, per_row = torch.tensor(0.3, dtype=torch.float64), torch.linspace(0.1, 1.0, n, dtype=torch.float64)
    yield Sample("learned-temperature", {**pair, "temperature": scalar}, (*both, "temperature"))
    yield Sample("row-temperature", {**pair, "temperature": per_row}, (*both, "temperature"))
    for same_id in ("ignore", "positive"):
        yield Sample(f"ids-{same_id}", {**pair, "ids": ids, "same_id": same_id}, both)
    weights = torch.rand(n, generator=generator)
    for reduction in _checks.REDUCTIONS:
        yield Sample(f"{reduction}-weights", {**pair, "ids": ignored, "weights": weights, "reduction": reduction}, both)
    yield Sample("learned-weights", {**pair, "weights": weights.double()}, (*both, "weights"))
    yield Sample("strided", {**pair, "image": image.repeat(1, 2)[:, ::2], "text": text.T.contiguous().T}, both)


record = register(
    OpRecord(
        name="clip",
        function=clip,
        module=CLIPLoss,
        reference=reference.clip,
        samples=_samples,
        support=Support(cuda="kernel"),
    )
)
