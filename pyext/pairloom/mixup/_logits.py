"""Checks of logits with labels, and the cross-entropy between two labels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from pairloom import _checks


def check_logits(first: str, logits: Tensor, **others: Tensor) -> None:
    """(B, K) floats, all of one shape."""
    _checks.embeddings(first, logits, **others)
    for name, other in others.items():
        if other.shape != logits.shape:
            raise ValueError(
                f"{name} has shape {tuple(other.shape)}; it must be that of {first}, {tuple(logits.shape)}"
            )


def class_labels(name: str, labels: Any, of: str, logits: Tensor) -> Tensor:
    """(B,) int64 from 0 to K - 1."""
    _checks.labels(name, labels, of, logits)
    labels = labels.to(torch.int64)
    if _checks.values_readable(labels) and labels.numel():
        lowest, highest = (int(x) for x in labels.aminmax())
        if lowest < 0 or highest >= logits.shape[1]:
            wrong = lowest if lowest < 0 else highest
            raise ValueError(f"{name} holds {wrong}; {of} has {logits.shape[1]} classes, 0 to {logits.shape[1] - 1}")
    return labels


def between(part: Tensor, own: Tensor, other: Tensor) -> Tensor:
    """part own + (1 - part) other; what has no weight has no say, be it infinite."""
    first = torch.where(part > 0, part * torch.where(part > 0, own, 0.0), 0.0)
    rest = 1 - part
    return first + torch.where(rest > 0, rest * torch.where(rest > 0, other, 0.0), 0.0)


def class_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """(B,) cross-entropies, summed in float32 or float64."""
    return cross_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)), labels, reduction="none")


def mean(losses: Tensor) -> Tensor:
    """0 for no item."""
    return losses.mean() if losses.shape[0] else losses.sum()
