"""Lifted structure loss, generalised form, of every anchor; D = -s is a distance.

    L_i = [ lse_{p in P_i} (D_ip - pos_margin) + lse_{n in N_i} (neg_margin - D_in) ]_+

    No positives or no negatives: L_i = 0.

Source: Oh Song et al., "Deep Metric Learning via Lifted Structured Feature Embedding", CVPR 2016; the form per anchor
of Hermans et al., "In Defense of the Triplet Loss for Person Re-Identification", 2017.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pairloom.reference._rows import labelled_loss, log_sum_exp


def lifted_structure_rule(
    s: Tensor, positive: Tensor, negative: Tensor, neg_margin: float, pos_margin: float
) -> Tensor:
    """(R, M) similarities and masks -> (R,) losses."""
    far, no_positive = log_sum_exp(-s - pos_margin, positive)
    near, no_negative = log_sum_exp(neg_margin + s, negative)
    total = torch.where(no_positive | no_negative, 0.0, far + near)
    return torch.where(total <= 0, 0.0, total)  # "not <= 0", so that NaN is kept


def lifted_structure(
    rows: Tensor,
    columns: Tensor | None,
    row_labels: Tensor,
    column_labels: Tensor | None,
    weights: Tensor | None,
    neg_margin: float = 1.0,
    pos_margin: float = 0.0,
    similarity: str = "euclidean",
    reduction: str = "mean",
    ignore_index: int | None = -100,
    want_stats: bool = False,
) -> tuple[Tensor, Tensor]:
    """(N, D), (M, D) or None -> loss (0-d, or (N,) for "none") in the compute dtype, statistics (13,) float64."""

    def rule(s: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        return lifted_structure_rule(s, positive, negative, neg_margin, pos_margin)

    return labelled_loss(
        rule, rows, columns, row_labels, column_labels, weights, similarity, reduction, ignore_index, want_stats
    )
