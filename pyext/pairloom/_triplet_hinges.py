"""The hinge rule of `triplet_margin` on some rows in C++, ``torch.ops.pairloom.triplet_hinges``, and its gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pairloom import _library
from pairloom.reference._rows import Terms

_library.load()


class _Hinges(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, s: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor]:
        total, active, count, slope = torch.ops.pairloom.triplet_hinges(s, *others, ctx.needs_input_grad[0])
        ctx.save_for_backward(slope)
        ctx.mark_non_differentiable(active, count)
        return total, active, count

    @staticmethod
    def backward(ctx: Any, *d_outputs: Any) -> Any:
        (slope,) = ctx.saved_tensors
        return slope * d_outputs[0].unsqueeze(1), *[None] * 5


def triplet_hinges(
    s: Tensor, positive: Tensor, negative: Tensor, margin: float, lowest: float | None, highest: float | None
) -> Terms:
    """(R, M) similarities and masks -> hinges of all triplets of each row, as in `pairloom.reference.triplet_margin`.

    One pass over the negatives of a row for each of its positives. Differentiable once, on the CPU.
    """
    return Terms(*_Hinges.apply(s, positive, negative, margin, lowest, highest))
