"""Random shares, from a generator."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def beta(a: float, b: float, shape: Sequence[int], generator: torch.Generator | None = None) -> Tensor:
    """Draws from Beta(a, b), float64 on the CPU: x / (x + y) of two Gamma draws."""
    x, y = (
        torch._standard_gamma(torch.full(tuple(shape), p, dtype=torch.float64), generator=generator) for p in (a, b)
    )
    return x / (x + y)
