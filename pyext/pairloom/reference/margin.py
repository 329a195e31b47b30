"""Margin loss: positives nearer than a boundary, negatives farther, by a margin; D = -s is a distance.

    the mean, over both halves of all triplets (i, p, n) that are above 0, of
    [D_ip - boundary_i + margin]_+    and    [boundary_i - D_in + margin]_+

    Triplets are not listed: a positive pair is in one triplet for each negative of its anchor, and the other way round.

Source: Wu et al., "Sampling Matters in Deep Embedding Learning", ICCV 2017, over all triplets as in
pytorch-metric-learning.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pairloom.reference._rows import Terms, by_row, labelled_loss, terms_by_row


def margin_rule(s: Tensor, positive: Tensor, negative: Tensor, boundary: Tensor | float, margin: float) -> list[Terms]:
    """(R, M) similarities and masks -> the halves of all triplets of each row."""
    at = by_row(boundary, s)
    near = _over(-s - at + margin, positive, negative.sum(1))
    far = _over(at + s + margin, negative, positive.sum(1))
    return [Terms(*(a + b for a, b in zip(near, far, strict=True)))]


def margin_of_triplets(
    s: Tensor,
    anchors: Tensor,
    positives: Tensor,
    negatives: Tensor,
    valid: Tensor,
    boundary: Tensor | float,
    margin: float,
) -> list[Terms]:
    """(R, M) similarities and (T,) triplets of these rows -> their halves, by rows."""
    at = boundary[anchors] if isinstance(boundary, Tensor) and boundary.dim() == 1 else boundary
    near, far = -s[anchors, positives] - at + margin, at + s[anchors, negatives] + margin
    return [terms_by_row(s, anchors, torch.cat([near, far]), valid)]


def _over(over: Tensor, mask: Tensor, times: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Total, active and count of one half, whose pairs are in so many triplets."""
    active = mask & ~(over <= 0)  # "not <= 0", so that NaN is kept
    # An anchor whose pairs are in no triplet has nothing to say; 0 times infinity would be NaN.
    active = active & (times > 0).unsqueeze(1)
    total = torch.where(active, over, 0.0).sum(dim=1)
    return total * times, active.sum(dim=1) * times, mask.sum(dim=1) * times


def margin(
    rows: Tensor,
    columns: Tensor | None,
    row_labels: Tensor,
    column_labels: Tensor | None,
    weights: Tensor | None,
    boundary: Tensor | float = 1.2,
    margin: float = 0.2,
    similarity: str = "euclidean",
    reduction: str = "mean",
    ignore_index: int | None = -100,
    want_stats: bool = False,
) -> tuple[Tensor, Tensor]:
    """(N, D), (M, D) or None -> loss (0-d, or (N,) for "none") in the compute dtype, statistics (13,) float64."""

    def rule(s: Tensor, positive: Tensor, negative: Tensor) -> list[Terms]:
        return margin_rule(s, positive, negative, boundary, margin)

    return labelled_loss(
        rule, rows, columns, row_labels, column_labels, weights, similarity, reduction, ignore_index, want_stats,
        mean="nonzero",
    )  # fmt: skip
