"""MixCo: momentum contrast with an added task on mixed images."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pairloom import _checks
from pairloom.losses.moco import moco
from pairloom.mixup._shares import share
from pairloom.mixup._two_targets import reduced, two_target_info_nce
from pairloom.mixup.mix import mix


def mixco(
    query: Tensor,
    mixed: Tensor,
    keys: Tensor,
    queue: Tensor | None,
    lam: Tensor | float,
    *,
    temperature: float = 0.2,
    mix_temperature: float = 0.05,
    weight: float = 1.0,
) -> Tensor:
    r"""Momentum contrast of clean queries, plus picking both parents of every mixed query.

        L = MoCo(query, keys, queue; t) + w mean_b ( -lam_b log p_b(b) - (1 - lam_b) log p_b(b + B/2) )
        p_b = softmax over [keys; queue] of s(mixed_b, .) / t_mix

    The clean task sees its own key and the queue, the mixed one all keys of the batch and the queue.

    Args:
        query: (B, D) float, B even: embeddings of the clean images.
        mixed: (B/2, D) embeddings of images b mixed with images b + B/2 (`MixCo.mix`).
        keys: (B, D) of the momentum encoder; detached here.
        queue: (M, D) earlier keys, or None.
        lam: the share of image b, a number or (B/2,).
        temperature: of the clean task.
        mix_temperature: of the mixed task.
        weight: of the mixed task, 0 or more.

    Returns:
        0-d; gradients for query and mixed.

    Raises:
        TypeError, ValueError: arguments that do not fit, an odd batch.

    Cost: that of two calls of `pairloom.info_nce`; O((B + M) D) memory. Log-probabilities are those of a log-softmax:
    they do not underflow.

    Source: Kim et al., "MixCo: Mix-up Contrastive Learning for Visual Representation", 2020.

    Example:
        >>> import torch, pairloom
        >>> keys = torch.eye(4)
        >>> mixed = pairloom.mixup.mix(keys, torch.tensor([2, 3]), 0.7, first=torch.tensor([0, 1]))
        >>> f"{pairloom.mixup.mixco(keys, mixed, keys, None, 0.7).item():.4f}"
        '3.1514'
    """
    _checks.embeddings("query", query, mixed=mixed, keys=keys, queue=queue)
    half = _half(query.shape[0])
    if keys.shape[0] != query.shape[0]:
        raise ValueError(f"keys has {keys.shape[0]} rows and query {query.shape[0]}; each query has a key")
    if mixed.shape[0] != half:
        raise ValueError(f"mixed has {mixed.shape[0]} rows for {query.shape[0]} queries; it must have {half}")
    for name, value in (("temperature", temperature), ("mix_temperature", mix_temperature)):
        _checks.positive_number(name, value)
    _checks.finite_number("weight", weight)
    if weight < 0:
        raise ValueError(f"weight is {weight}; it must be 0 or more")
    part = share("lam", lam, [(), (half,)]).detach().to(query.device)
    keys = keys.detach()
    clean: Tensor = moco(query, keys, queue, temperature=temperature)
    others = keys[half:] if queue is None else torch.cat([keys[half:], queue.detach().to(keys.dtype)])
    second = torch.arange(half, 2 * half, device=query.device)
    losses = two_target_info_nce(mixed, keys[:half], others, second, part, mix_temperature)
    return clean + weight * reduced(losses, "mean")


class MixCo(nn.Module):
    """Draws for MixCo, and its loss.

        mixed, lam = mixco.mix(images)
        loss = mixco(encoder(images), encoder(mixed), keys, queue, lam)

    Args:
        temperature: of the clean task.
        mix_temperature: of the mixed task.
        weight: of the mixed task.
        generator: of the draws, on the CPU: lam is uniform on [0, 1) for each mixture.

    Example:
        >>> import torch, pairloom
        >>> mixco = pairloom.mixup.MixCo()
        >>> images = torch.randn(6, 8)
        >>> mixed, lam = mixco.mix(images)
        >>> mixco(images, mixed, images, None, lam).dim()
        0
    """

    def __init__(
        self,
        temperature: float = 0.2,
        mix_temperature: float = 0.05,
        *,
        weight: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        _checks.positive_number("temperature", temperature)
        _checks.positive_number("mix_temperature", mix_temperature)
        _checks.finite_number("weight", weight)
        if weight < 0:
            raise ValueError(f"weight is {weight}; it must be 0 or more")
        self.settings = {"temperature": temperature, "mix_temperature": mix_temperature, "weight": weight}
        self.generator = generator

    def mix(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """(B, ...) -> mixtures of image b with image b + B/2 (B/2, ...), lam (B/2,)."""
        half = _half(images.shape[0])
        lam = torch.rand(half, generator=self.generator, dtype=torch.float64)
        second = torch.arange(half, 2 * half, device=images.device)
        return mix(images, second, lam, first=torch.arange(half, device=images.device)), lam

    def forward(self, query: Tensor, mixed: Tensor, keys: Tensor, queue: Tensor | None, lam: Tensor) -> Tensor:
        """0-d: `mixco` of embeddings."""
        return mixco(query, mixed, keys, queue, lam, **self.settings)

    def extra_repr(self) -> str:
        """The settings."""
        return ", ".join(f"{name}={value}" for name, value in self.settings.items())


def _half(batch: int) -> int:
    if batch % 2:
        raise ValueError(f"the batch has {batch} items; MixCo mixes the first half with the second: it must be even")
    return batch // 2
