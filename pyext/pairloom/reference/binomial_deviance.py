"""Binomial deviance of every anchor.

    L_i = mean_{p in P_i} log(1 + e^{alpha (base - s_ip)}) + mean_{n in N_i} log(1 + e^{beta (s_in - base)})

    No positives, or no negatives: that half is 0.

Source: Yi, Lei, Li, "Deep Metric Learning for Practical Person Re-Identification", 2014, with a weight in the
exponent of each half as in Wang et al., "Multi-Similarity Loss", CVPR 2019.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pairloom.reference._rows import labelled_loss, softplus


def binomial_deviance_rule(
    s: Tensor, positive: Tensor, negative: Tensor, alpha: float, beta: float, base: float
) -> Tensor:
    """(R, M) similarities and masks -> (R,) losses."""
    pull = torch.where(positive, softplus(torch.where(positive, alpha * (base - s), 0.0)), 0.0)
    push = torch.where(negative, softplus(torch.where(negative, beta * (s - base), 0.0)), 0.0)
    return pull.sum(1) / positive.sum(1).clamp(min=1) + push.sum(1) / negative.sum(1).clamp(min=1)


def binomial_deviance(
    rows: Tensor,
    columns: Tensor | None,
    row_labels: Tensor,
    column_labels: Tensor | None,
    weights: Tensor | None,
    alpha: float = 2.0,
    beta: float = 50.0,
    base: float = 0.5,
    similarity: str = "cosine",
    reduction: str = "mean",
    ignore_index: int | None = -100,
    want_stats: bool = False,
) -> tuple[Tensor, Tensor]:
    """(N, D), (M, D) or None -> loss (0-d, or (N,) for "none") in the compute dtype, statistics (13,) float64."""

    def rule(s: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        return binomial_deviance_rule(s, positive, negative, alpha, beta, base)

    return labelled_loss(
        rule, rows, columns, row_labels, column_labels, weights, similarity, reduction, ignore_index, want_stats
    )
