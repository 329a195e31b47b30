"""Triplet loss on the hardest positive and the hardest negative of every anchor; D = -s is a distance.

    L_i = [ max_{p in P_i} D_ip - min_{n in N_i} D_in + margin ]_+      margin None: log(1 + e^{max D_ip - min D_in})

    No positives or no negatives: L_i = 0. Which pairs are hardest has no gradient; of equal ones the first counts.

Source: Hermans, Beyer, Leibe, "In Defense of the Triplet Loss for Person Re-Identification", 2017.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pairloom.reference._rows import labelled_loss, softplus


def batch_hard_triplet_rule(s: Tensor, positive: Tensor, negative: Tensor, margin: float | None) -> Tensor:
    """(R, M) similarities and masks -> (R,) losses."""
    if s.shape[1] == 0:
        return s.sum(dim=1)
    some = positive.any(dim=1) & negative.any(dim=1)
    farthest = torch.where(positive, s.detach(), torch.inf).argmin(dim=1, keepdim=True)
    nearest = torch.where(negative, s.detach(), -torch.inf).argmax(dim=1, keepdim=True)
    behind = torch.where(some, (s.gather(1, nearest) - s.gather(1, farthest)).squeeze(1), 0.0)
    if margin is None:
        return torch.where(some, softplus(behind), 0.0)
    total = behind + margin
    return torch.where(some & ~(total <= 0), total, 0.0)  # "not <= 0", so that NaN is kept


def batch_hard_triplet(
    rows: Tensor,
    columns: Tensor | None,
    row_labels: Tensor,
    column_labels: Tensor | None,
    weights: Tensor | None,
    margin: float | None = 0.2,
    similarity: str = "euclidean",
    reduction: str = "mean",
    ignore_index: int | None = -100,
    want_stats: bool = False,
) -> tuple[Tensor, Tensor]:
    """(N, D), (M, D) or None -> loss (0-d, or (N,) for "none") in the compute dtype, statistics (13,) float64."""

    def rule(s: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        return batch_hard_triplet_rule(s, positive, negative, margin)

    return labelled_loss(
        rule, rows, columns, row_labels, column_labels, weights, similarity, reduction, ignore_index, want_stats
    )
