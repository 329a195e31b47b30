"""Symmetric contrastive loss of CLIP: function and module over the InfoNCE operator."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from pairloom import _checks
from pairloom._dispatch import scripted_as
from pairloom.losses.info_nce import _info_nce_script, info_nce


def _clip_script(
    image: Tensor,
    text: Tensor,
    temperature: Tensor | float = 0.07,
    ids: Tensor | None = None,
    same_id: str = "ignore",
    similarity: str = "cosine",
    reduction: str = "mean",
    weights: Tensor | None = None,
    ignore_index: int | None = -100,
) -> Tensor:
    to_text = _info_nce_script(
        image, text, None, temperature, ids, None, same_id, similarity, reduction, weights, ignore_index
    )
    to_image = _info_nce_script(
        text, image, None, temperature, ids, None, same_id, similarity, reduction, weights, ignore_index
    )
    return (to_text + to_image) / 2


@scripted_as(_clip_script)
def clip(
    image: Tensor,
    text: Tensor,
    *,
    temperature: Tensor | float = 0.07,
    ids: Tensor | None = None,
    same_id: str = "ignore",
    similarity: str = "cosine",
    reduction: str = "mean",
    weights: Tensor | None = None,
    ignore_index: int | None = -100,
) -> Tensor:
    r"""Symmetric InfoNCE of CLIP: every image picks its text among all texts, every text its image.

        L = ( info_nce(image, text) + info_nce(text, image) ) / 2

    Source: Radford et al., "Learning Transferable Visual Models From Natural Language Supervision", 2021. Its logit
    scale is 1 / temperature.

    Args:
        image: (N, D) float32, float64, float16 or bfloat16, any strides.
        text: (N, D). Row i belongs to image i.
        temperature: number above 0, or float tensor: 0-d, or (N,) with one value for each pair. Gets a gradient.
        ids: (N,) integer or bool, the identity of each pair: captions that several images share, images that several
            captions describe. No two pairs with the same id are negatives of each other.
        same_id: "ignore" or "positive", what other columns with the id of the row are.
        similarity: "cosine" or "dot".
        reduction: "mean", "mean_all", "mean_nonzero", "sum" or "none" (one loss for each pair).
        weights: (N,) float, >= 0, one for each pair.
        ignore_index: pairs with this id take no part; None switches it off.

    Returns:
        The loss: 0-d, or (N,) for "none"; float64 if an embedding is, else float32.

    Raises:
        TypeError, ValueError: as `pairloom.functional.info_nce`, which computes both directions.

    Cost: twice that of `pairloom.functional.info_nce`, 12 N N D flops with all gradients; O(N D) bytes.

    Example:
        >>> import torch, pairloom
        >>> image = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-0.8, 0.6]])
        >>> text = torch.tensor([[0.8, 0.6], [0.28, 0.96], [-0.28, 0.96], [-1.0, 0.0]])
        >>> f"{pairloom.functional.clip(image, text, temperature=0.5).item():.4f}"
        '0.8074'
    """
    _checks.embeddings("image", image, text=text)
    if image.shape[0] != text.shape[0]:
        raise ValueError(
            f"text has {text.shape[0]} rows and image has {image.shape[0]}; row i of text belongs to image i"
        )
    options: dict[str, Any] = {
        "temperature": temperature,
        "ids": ids,
        "same_id": same_id,
        "similarity": similarity,
        "reduction": reduction,
        "weights": weights,
        "ignore_index": ignore_index,
    }
    return (info_nce(image, text, **options) + info_nce(text, image, **options)) / 2


class CLIPLoss(nn.Module):
    """Symmetric contrastive loss of CLIP as a module; formula and cost: `pairloom.functional.clip`.

    Args:
        temperature: number above 0; the starting value when it is learned.
        learn_temperature: own ``log_scale`` = log(1 / temperature) as a parameter, learned with the encoders.
        max_scale: the scale 1 / temperature that is used never exceeds this, however ``log_scale`` moves (it gets no
            gradient beyond).
        same_id: "ignore" or "positive", what other columns with the id of the row are.
        similarity: "cosine" or "dot".
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
        reduction: str = "mean",
        ignore_index: int | None = -100,
    ) -> None:
        super().__init__()
        _checks.positive_number("temperature", temperature)
        _checks.positive_number("max_scale", max_scale)
        _checks.choice("same_id", same_id, ("ignore", "positive"))
        _checks.loss_settings(similarity, reduction, ignore_index)
        if learn_temperature and 1 / temperature > max_scale:
            raise ValueError(
                f"temperature is {temperature}, a scale of {1 / temperature:g}; max_scale is {max_scale:g}"
            )
        self.temperature = float(temperature)
        self.max_scale = float(max_scale)
        self.same_id = same_id
        self.similarity = similarity
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
            reduction=self.reduction,
            ignore_index=self.ignore_index,
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
            f"reduction={self.reduction!r}, ignore_index={self.ignore_index}"
        )
