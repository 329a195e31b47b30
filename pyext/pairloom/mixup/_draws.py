"""Random shares, from a generator."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def beta(a: float, b: float, shape: Sequence[int], generator: torch.Generator | None = None) -> Tensor:
    """Draws from Beta(a, b), float64 on the CPU: x / (x + y) of two Gamma draws.

    Gamma(p) is Gamma(p + 1) u^(1 / p) with u uniform: in logarithms, where those of small p do not underflow.
    """

    def log_gamma(p: float) -> Tensor:
        larger = torch._standard_gamma(torch.full(tuple(shape), p + 1.0, dtype=torch.float64), generator=generator)
        uniform = 1 - torch.rand(tuple(shape), generator=generator, dtype=torch.float64)  # above 0
        return larger.log() + uniform.log() / p

    return (log_gamma(a) - log_gamma(b)).sigmoid()
