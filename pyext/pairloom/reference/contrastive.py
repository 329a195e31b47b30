"""Contrastive loss on pairs; D = -s is a distance. Its means run over pairs.

    linear     mean of [D_ij - pos_margin]_+ over positive pairs + mean of [neg_margin - D_ij]_+ over negative pairs
    squared    mean over all pairs of 1/2 [D_ij - pos_margin]_+^2 (positive), 1/2 [neg_margin - D_ij]_+^2 (negative)

    Pairs are ordered: without columns every pair counts from both sides. No pairs to average: 0.

Source: Hadsell, Chopra, LeCun, "Dimensionality Reduction by Learning an Invariant Mapping", CVPR 2006 (squared); the
linear form of pytorch-metric-learning.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pairloom.reference._rows import Terms, labelled_loss


def contrastive_rule(
    s: Tensor, positive: Tensor, negative: Tensor, pos_margin: float, neg_margin: float, squared: bool
) -> list[Terms]:
    """(R, M) similarities and masks -> positive and negative pairs, or all pairs and an empty part."""
    parts = [_terms(-s - pos_margin, positive, squared), _terms(neg_margin + s, negative, squared)]
    if not squared:
        return parts
    together = Terms(*(sum(numbers) for numbers in zip(*((p.total, p.active, p.count) for p in parts), strict=True)))
    return [together, Terms(*(torch.zeros_like(together.total) for _ in range(3)))]


def _terms(over: Tensor, mask: Tensor, squared: bool) -> Terms:
    """What pairs are over their margin, in each row."""
    active = mask & ~(over <= 0)  # "not <= 0", so that NaN is kept
    cost = torch.where(active, over, 0.0)
    return Terms((0.5 * cost * cost if squared else cost).sum(dim=1), active.sum(dim=1), mask.sum(dim=1))


def contrastive(
    rows: Tensor,
    columns: Tensor | None,
    row_labels: Tensor,
    column_labels: Tensor | None,
    weights: Tensor | None,
    pos_margin: float = 0.0,
    neg_margin: float = 1.0,
    squared: bool = False,
    similarity: str = "euclidean",
    reduction: str = "mean",
    ignore_index: int | None = -100,
    want_stats: bool = False,
) -> tuple[Tensor, Tensor]:
    """(N, D), (M, D) or None -> loss (0-d, or (N,) for "none") in the compute dtype, statistics (11,) float64."""

    def rule(s: Tensor, positive: Tensor, negative: Tensor) -> list[Terms]:
        return contrastive_rule(s, positive, negative, pos_margin, neg_margin, squared)

    return labelled_loss(
        rule, rows, columns, row_labels, column_labels, weights, similarity, reduction, ignore_index, want_stats,
        mean="nonzero",
    )  # fmt: skip
