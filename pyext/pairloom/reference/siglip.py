"""Sigmoid loss: every pair of a row and a column on its own, a match or none.

    z_ij = s(rows_i, columns_j) / temperature_i + bias_i
    L_i  = sum_{p in P_i} log(1 + e^{-z_ip}) + sum_{n in N_i} log(1 + e^{z_in})

Source: Zhai et al., "Sigmoid Loss for Language Image Pre-Training", ICCV 2023.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pairloom.reference._rows import by_row, labelled_loss, softplus


def siglip_rule(
    s: Tensor, positive: Tensor, negative: Tensor, temperature: Tensor | float, bias: Tensor | float
) -> Tensor:
    """(R, M) similarities and masks -> (R,) losses."""
    z = s / by_row(temperature, s) + by_row(bias, s)
    pair = positive | negative
    return torch.where(pair, softplus(torch.where(pair, torch.where(positive, -z, z), 0.0)), 0.0).sum(dim=1)


def siglip(
    rows: Tensor,
    columns: Tensor | None,
    row_labels: Tensor,
    column_labels: Tensor | None,
    weights: Tensor | None,
    temperature: Tensor | float = 0.1,
    bias: Tensor | float = -10.0,
    similarity: str = "cosine",
    reduction: str = "mean",
    ignore_index: int | None = -100,
    want_stats: bool = False,
) -> tuple[Tensor, Tensor]:
    """(N, D), (M, D) or None -> loss (0-d, or (N,) for "none") in the compute dtype, statistics (13,) float64."""

    def rule(s: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        return siglip_rule(s, positive, negative, temperature, bias)

    return labelled_loss(
        rule, rows, columns, row_labels, column_labels, weights, similarity, reduction, ignore_index, want_stats
    )
