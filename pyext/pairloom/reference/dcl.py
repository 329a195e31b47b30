"""Decoupled contrastive loss of every anchor: the positives are in no denominator.

    z_ij = s_ij / temperature_i
    L_i  = lse_{n in N_i} z_in - mean_{p in P_i} z_ip        may be negative

    No positives or no negatives: L_i = 0.

Source: Yeh et al., "Decoupled Contrastive Learning", ECCV 2022; its two views are one batch, labelled by sample, and
its value (the sum of both directions) is twice the mean over these anchors.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pairloom.reference._rows import by_row, labelled_loss, log_sum_exp


def dcl_rule(s: Tensor, positive: Tensor, negative: Tensor, temperature: Tensor | float) -> Tensor:
    """(R, M) similarities and masks -> (R,) losses."""
    z = s / by_row(temperature, s)
    log_negatives, no_negative = log_sum_exp(z, negative)
    mean = torch.where(positive, z, 0.0).sum(1) / positive.sum(1).clamp(min=1)
    return torch.where(no_negative | ~positive.any(dim=1), 0.0, log_negatives - mean)


def dcl(
    rows: Tensor,
    columns: Tensor | None,
    row_labels: Tensor,
    column_labels: Tensor | None,
    weights: Tensor | None,
    temperature: Tensor | float = 0.1,
    similarity: str = "cosine",
    reduction: str = "mean",
    ignore_index: int | None = -100,
    want_stats: bool = False,
) -> tuple[Tensor, Tensor]:
    """(N, D), (M, D) or None -> loss (0-d, or (N,) for "none") in the compute dtype, statistics (13,) float64."""

    def rule(s: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        return dcl_rule(s, positive, negative, temperature)

    return labelled_loss(
        rule, rows, columns, row_labels, column_labels, weights, similarity, reduction, ignore_index, want_stats
    )
