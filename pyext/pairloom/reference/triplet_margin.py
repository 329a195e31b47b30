"""Triplet loss over all triplets (a, p, n), or those of one kind; D = -s is a distance. Its mean runs over triplets.

    L_apn = [ D_ap - D_an + margin ]_+    smooth_loss: log(1 + e^{D_ap - D_an + margin})

    over the triplets with lowest < D_an - D_ap <= highest (None: no bound). No such triplet: 0.

The sum over the triplets of an anchor needs no triplet: with its negatives sorted by distance, those that a positive
meets are a range, and their distances a difference of two prefix sums. O(N^2 log N) work for N^3 triplets; the smooth
form has a value of its own for each triplet and takes positives one after the other.

Source: Schroff, Kalenichenko, Philbin, "FaceNet", CVPR 2015; Hermans, Beyer, Leibe, "In Defense of the Triplet Loss for
Person Re-Identification", 2017; names as in pytorch-metric-learning.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from pairloom._dispatch import in_transform
from pairloom._heap import CLOSE_AFTER, close_holes
from pairloom.reference._rows import Terms, labelled_loss, softplus, terms_by_row


def triplet_margin_rule(
    s: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: float,
    smooth_loss: bool,
    lowest: float | None,
    highest: float | None,
) -> list[Terms]:
    """(R, M) similarities and masks -> one part, over the triplets of each row."""
    if smooth_loss:
        return [_smooth(s, positive, negative, margin, lowest, highest)]
    return [_hinge(s, positive, negative, margin, lowest, highest)]


def _hinge(
    s: Tensor, positive: Tensor, negative: Tensor, margin: float, lowest: float | None, highest: float | None
) -> Terms:
    distance = -s.detach()
    # The nearest negative first; what is no negative comes last.
    near, order = torch.sort(torch.where(negative, distance, torch.inf), dim=1)
    negatives = negative.sum(dim=1, keepdim=True)
    # Float64: a sum of small hinges is a difference of large sums.
    sums = torch.where(negative, -s, 0.0).gather(1, order).to(torch.float64).cumsum(dim=1)
    sums = torch.cat([sums.new_zeros((s.shape[0], 1)), sums], dim=1)

    # In float64: between distances that are large beside them, bounds keep their digits.
    near, distance = near.to(torch.float64), distance.to(torch.float64)

    def beyond(bound: float) -> Tensor:
        return distance + s.new_full((), bound).to(torch.float64)

    first = torch.zeros_like(order) if lowest is None else reached(near, beyond(lowest), right=True)
    last = negatives.expand_as(order)
    if highest is not None:
        last = torch.minimum(reached(near, beyond(highest), right=True), last)
    first = torch.minimum(first, last)
    stop = torch.minimum(reached(near, beyond(margin), right=False), last)
    stop = torch.maximum(stop, first)
    active = torch.where(positive, stop - first, 0)

    hinges = active * (margin - s.to(torch.float64)) - (sums.gather(1, stop) - sums.gather(1, first))
    total = torch.where(positive & (active > 0), hinges, 0.0).sum(dim=1).to(s.dtype)
    # Nothing is sorted by NaN: a row that has one in a triplet is NaN, and one of its triplets counts.
    triplets = positive.any(dim=1) & negative.any(dim=1)
    strange = (positive | negative) & s.isnan() & triplets.unsqueeze(1)
    total = total + torch.where(strange, s, 0.0).sum(dim=1)
    active = torch.maximum(active.sum(dim=1), strange.any(dim=1).to(torch.int64))
    return Terms(total, active, torch.where(positive, last - first, 0).sum(dim=1))


def reached(near: Tensor, bound: Tensor, *, right: bool) -> Tensor:
    """How many entries of each sorted row lie below each bound, or (right) not above it."""
    if torch.onnx.is_in_onnx_export():
        return standard_searchsorted(near, bound, right=right)
    return torch.searchsorted(near, bound.contiguous(), right=right)


def standard_searchsorted(
    sorted_sequence: Tensor,
    values: Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    """`torch.searchsorted` by comparisons, which ONNX has; O(M) memory for each value."""
    row, value = sorted_sequence.unsqueeze(-2), values.unsqueeze(-1)
    return (row <= value if right or side == "right" else row < value).sum(dim=-1)


def _smooth(
    s: Tensor, positive: Tensor, negative: Tensor, margin: float, lowest: float | None, highest: float | None
) -> Terms:
    if in_transform() or torch.onnx.is_in_onnx_export() or s.device.type == "meta":  # no loop of unknown length
        total, active, count = _softplus_terms(s, positive, s, negative, margin, lowest, highest)
        return Terms(total.to(s.dtype), active, count)
    most = int(positive.sum(dim=1).max()) if positive.numel() else 0
    order = positive.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :most]
    every = max(CLOSE_AFTER // max(8 * s.numel(), 1), 1)  # one positive makes some eight tensors like s

    def one(number: int, s_positive: Tensor, valid: Tensor, s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if number % every == every - 1:
            close_holes()
        return _softplus_terms(s_positive.unsqueeze(1), valid.unsqueeze(1), s, negative, margin, lowest, highest)

    # 0, with a live graph; in float64, because an anchor may have millions of triplets.
    total = torch.where(torch.zeros_like(positive), s, 0.0).sum(dim=1, dtype=torch.float64)
    active, count = (torch.zeros(s.shape[0], dtype=torch.int64, device=s.device) for _ in range(2))
    pairs = zip(s.gather(1, order).unbind(1), positive.gather(1, order).unbind(1), strict=True)
    for number, (s_positive, valid) in enumerate(pairs):
        # Nothing of a positive is kept for backward: it is computed again.
        sums, more, counted = checkpoint(
            one, number, s_positive, valid, s, use_reentrant=False, preserve_rng_state=False
        )
        total, active, count = total + sums, active + more, count + counted
    return Terms(total.to(s.dtype), active, count)


def _softplus_terms(
    s_positive: Tensor,
    valid: Tensor,
    s: Tensor,
    negative: Tensor,
    margin: float,
    lowest: float | None,
    highest: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Total, active and count of some positives (R, K) against all negatives; O(R K M) memory."""
    beyond = s_positive.unsqueeze(2) - s.unsqueeze(1)
    chosen = valid.unsqueeze(2) & negative.unsqueeze(1)
    if lowest is not None:
        chosen = chosen & ~(beyond <= lowest)  # "not <=" and "not >", so that NaN is kept
    if highest is not None:
        chosen = chosen & ~(beyond > highest)
    terms = torch.where(chosen, softplus(torch.where(chosen, margin - beyond, 0.0)), 0.0)
    active = chosen & ~(terms.detach() <= 0)
    return terms.sum(dim=(1, 2), dtype=torch.float64), active.sum(dim=(1, 2)), chosen.sum(dim=(1, 2))


def triplet_margin_of_triplets(
    s: Tensor,
    anchors: Tensor,
    positives: Tensor,
    negatives: Tensor,
    valid: Tensor,
    margin: float,
    smooth_loss: bool,
    lowest: float | None,
    highest: float | None,
) -> list[Terms]:
    """(R, M) similarities and (T,) triplets of these rows -> their losses, by rows."""
    nearer = s[anchors, positives] - s[anchors, negatives]
    over = margin - nearer
    if lowest is not None:
        valid = valid & (nearer > lowest)
    if highest is not None:
        valid = valid & ~(nearer > highest)
    return [terms_by_row(s, anchors, softplus(over) if smooth_loss else over, valid)]


def triplet_margin(
    rows: Tensor,
    columns: Tensor | None,
    row_labels: Tensor,
    column_labels: Tensor | None,
    weights: Tensor | None,
    margin: float = 0.05,
    smooth_loss: bool = False,
    lowest: float | None = None,
    highest: float | None = None,
    similarity: str = "euclidean",
    reduction: str = "mean",
    ignore_index: int | None = -100,
    want_stats: bool = False,
) -> tuple[Tensor, Tensor]:
    """(N, D), (M, D) or None -> loss (0-d, or (N,) for "none") in the compute dtype, statistics (11,) float64."""

    def rule(s: Tensor, positive: Tensor, negative: Tensor) -> list[Terms]:
        return triplet_margin_rule(s, positive, negative, margin, smooth_loss, lowest, highest)

    return labelled_loss(
        rule,
        rows,
        columns,
        row_labels,
        column_labels,
        weights,
        similarity,
        reduction,
        ignore_index,
        want_stats,
        mean="nonzero",
    )
