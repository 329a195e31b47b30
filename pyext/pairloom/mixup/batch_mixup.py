"""Mixtures of a batch with itself at random: partners, shares, mixed items."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from pairloom import _checks
from pairloom.mixup._draws import beta
from pairloom.mixup.mix import mix

DRAWS = ("batch", "item")


class Mixed(NamedTuple):
    """A batch, mixed with itself."""

    items: Tensor
    """(B, ...)"""
    partner: Tensor
    """(B,) int64: with which item each was mixed, -1 for none."""
    lam: Tensor
    """The share of the item itself: 0-d, or (B,)."""


class BatchMixup(nn.Module):
    """Every item of a batch, mixed with one of the same batch: partners are a random permutation.

        mixed_i = lam_i x_i + (1 - lam_i) x_{partner_i},      lam ~ Beta(alpha, alpha)

    Args:
        alpha: of the shares' distribution, above 0.
        draw: "batch" draws one share for a batch, "item" one for each item.
        larger_first: take max(lam, 1 - lam): the item itself is the larger part.
        generator: of the draws, on the CPU.

    Source: Zhang, Cisse, Dauphin, Lopez-Paz, "mixup: Beyond Empirical Risk Minimization", ICLR 2018.

    Example:
        >>> import torch, pairloom
        >>> mixer = pairloom.mixup.BatchMixup(2.0, draw="item")
        >>> mixed = mixer(torch.randn(8, 3, 4, 4))
        >>> mixed.items.shape, mixed.partner.shape, mixed.lam.shape
        (torch.Size([8, 3, 4, 4]), torch.Size([8]), torch.Size([8]))
    """

    def __init__(
        self,
        alpha: float = 1.0,
        *,
        draw: str = "batch",
        larger_first: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        _checks.positive_number("alpha", alpha)
        _checks.choice("draw", draw, DRAWS)
        _checks.flag("larger_first", larger_first)
        self.alpha = alpha
        self.draw = draw
        self.larger_first = larger_first
        self.generator = generator

    def shares(self, count: int) -> Tensor:
        """0-d or (count,) float64, on the CPU."""
        lam = beta(self.alpha, self.alpha, () if self.draw == "batch" else (count,), self.generator)
        return torch.maximum(lam, 1 - lam) if self.larger_first else lam

    def forward(self, items: Tensor, partner: Tensor | None = None) -> Mixed:
        """(B, ...), and partners (B,) or None for a random permutation -> `Mixed`."""
        if partner is None:
            partner = torch.randperm(items.shape[0], generator=self.generator).to(items.device)
        lam = self.shares(items.shape[0])
        return Mixed(mix(items, partner, lam), partner, lam)

    def extra_repr(self) -> str:
        """The settings."""
        return f"alpha={self.alpha}, draw={self.draw!r}, larger_first={self.larger_first}"
