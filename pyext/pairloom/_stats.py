"""Statistics of the pairs of one loss call: what the operators return as a vector, by name."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class PairStats(NamedTuple):
    """Counts and means over the pairs of one call, taken in the same pass as the loss; all 0-d float64 tensors.

    Anchors are the rows whose label is not ``ignore_index``. Ratios are NaN when there is nothing to divide by. Values
    stay tensors: reading one (``float(stats.positives)``) is the only step that waits for the device.

    Example:
        >>> import torch, pairloom
        >>> x = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-0.8, 0.6]])
        >>> loss, stats = pairloom.functional.multi_similarity(x, torch.tensor([0, 0, 1, 2]), return_stats=True)
        >>> int(stats.anchors), int(stats.positives), int(stats.negatives), int(stats.anchors_without_positive)
        (4, 2, 10, 2)
    """

    anchors: Tensor
    """Rows that take part."""
    positives: Tensor
    """Positive pairs of all anchors, before mining."""
    negatives: Tensor
    """Negative pairs of all anchors, before mining; pairs left out (``same_id="ignore"``) are none."""
    mined_positives: Tensor
    """Positive pairs the loss was made of; equals ``positives`` without mining."""
    mined_negatives: Tensor
    """Negative pairs the loss was made of; equals ``negatives`` without mining."""
    anchors_without_positive: Tensor
    anchors_without_negative: Tensor
    active_anchors: Tensor
    """Anchors with a loss above 0."""
    top1_accuracy: Tensor
    """Share of the anchors with a positive whose best positive scores strictly above their best negative."""
    mean_positive_similarity: Tensor
    """Mean similarity (before temperature) of the positive pairs."""
    mean_negative_similarity: Tensor
    """Mean similarity (before temperature) of the negative pairs."""
    live_tiles: Tensor
    """Share of the tiles of pair weights that are not all 0: what the gradient costs, beside one without mining. NaN
    where nothing is skipped: no mining, no gradient, or the plain-torch formula. Tile sizes depend on the processor."""


def pair_stats(vector: Tensor) -> PairStats:
    """Names for the (13,) vector of an operator; its order is fixed in csrc/rules and `reference/_rows.py`."""
    anchors, positives, negatives, mined_positives, mined_negatives = vector[:5].unbind()
    without_positive, without_negative, top1_hits, positive_sum, negative_sum, active, tiles, live = vector[5:].unbind()
    return PairStats(
        anchors=anchors,
        positives=positives,
        negatives=negatives,
        mined_positives=mined_positives,
        mined_negatives=mined_negatives,
        anchors_without_positive=without_positive,
        anchors_without_negative=without_negative,
        active_anchors=active,
        top1_accuracy=top1_hits / (anchors - without_positive),
        mean_positive_similarity=positive_sum / positives,
        mean_negative_similarity=negative_sum / negatives,
        live_tiles=live / tiles,
    )
