"""The share of the first of a pair, as an argument."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pairloom import _checks


def share(name: str, lam: Tensor | float, shapes: Sequence[tuple[int, ...]]) -> Tensor:
    """Shares as float64: a number becomes 0-d; a tensor must have one of the shapes. From 0 to 1.

    Raises:
        TypeError: no number, and no tensor of floats.
        ValueError: another shape, values outside [0, 1] (NaN among them).
    """
    if not isinstance(lam, Tensor):
        _checks.finite_number(name, lam)
        if not 0 <= lam <= 1:
            raise ValueError(f"{name} is {lam}; it is the share of the first of a pair, from 0 to 1")
        return torch.tensor(float(lam), dtype=torch.float64)
    if not lam.is_floating_point():
        raise TypeError(f"{name} has dtype {str(lam.dtype).removeprefix('torch.')}; shares are floats from 0 to 1")
    if tuple(lam.shape) not in shapes:
        raise ValueError(f"{name} has shape {tuple(lam.shape)}; allowed: {', '.join(map(str, shapes))}")
    if _checks.values_readable(lam) and lam.numel():
        lowest, highest = (float(x) for x in lam.detach().aminmax())  # NaN is both
        if not 0 <= lowest <= highest <= 1:
            wrong = highest if lowest >= 0 else lowest
            raise ValueError(f"{name} holds {wrong:g}; it is the share of the first of a pair, from 0 to 1")
    return lam.to(torch.float64)  # 1 - lam is then right for half precision too
