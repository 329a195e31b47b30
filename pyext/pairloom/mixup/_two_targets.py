"""InfoNCE with two targets that share the probability: lam and 1 - lam."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pairloom.losses.info_nce import info_nce
from pairloom.reference.similarity import compute_dtype, unit_rows


def two_target_info_nce(
    query: Tensor,
    keys: Tensor,
    others: Tensor | None,
    second: Tensor,
    lam: Tensor,
    temperature: float,
) -> Tensor:
    """(N, D), (N, D), (M, D) or None, (N,) rows of [keys; others], (N,) or 0-d -> (N,) losses.

        L_i = -lam_i log p_i(i) - (1 - lam_i) log p_i(second_i),    p_i = softmax over [keys; others] of s_ij / t

    That is the cross-entropy with the own key, from the kernel, plus the difference of two similarities.
    """
    loss: Callable[..., Any] = info_nce  # its overloads want a literal return_stats
    losses: Tensor = loss(query, keys, others, temperature=temperature, reduction="none")
    if query.shape[0] == 0:
        return losses
    dtype = compute_dtype(query, keys)
    every = keys if others is None else torch.cat([keys.to(dtype), others.to(dtype)])
    unit = unit_rows(query.to(dtype))
    own, other = unit_rows(keys.to(dtype)), unit_rows(every.index_select(0, second).to(dtype))
    away = (unit * (own - other)).sum(1) / temperature
    return losses + (1 - lam).to(losses.dtype) * away


def reduced(losses: Tensor, reduction: str) -> Tensor:
    """(N,) -> its mean (0 for none), its sum, or itself."""
    if reduction == "none":
        return losses
    return losses.sum() if reduction == "sum" or losses.shape[0] == 0 else losses.mean()
