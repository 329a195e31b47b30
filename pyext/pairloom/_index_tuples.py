"""Pairs chosen by a miner: index tuples of pytorch-metric-learning as masks of a few rows at a time.

A miner returns pairs ``(a1, p, a2, n)`` or triplets ``(a, p, n)``: numbers of anchors (rows) and of columns. A loss on
pairs takes triplets as the positive pairs (a, p) and the negative pairs (a, n). A pair that is named twice is one pair.

`checked_pairs` looks at what the user gave; `PairMasks` holds it sorted by anchor, so that the masks of a chunk of rows
cost what the chunk and its pairs cost: O(pairs) memory in all, and one chunk of each mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pairloom import _checks

NAMES = {3: ("anchors", "positives", "negatives"), 4: ("anchors", "positives", "anchors of negatives", "negatives")}


def checked_pairs(indices_tuple: Any, rows: Tensor, columns: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """int64 (P,), (P,), (Q,), (Q,): anchors and columns of the positive pairs, and of the negative pairs.

    Args:
        indices_tuple: 3 or 4 integer tensors (P,) as a miner returns them.
        rows: (N, D) the anchors.
        columns: (M, D), or None when the batch is compared with itself.

    Raises:
        TypeError: no tuple or list, entries that are no integer tensors.
        ValueError: another number of entries, shapes or devices that do not fit; on the CPU in eager mode, numbers that
            name no row, and a pair that is positive and negative.
    """
    if not isinstance(indices_tuple, (tuple, list)):
        raise TypeError(
            f"indices_tuple is a {type(indices_tuple).__name__}; "
            "it must be a tuple of 3 (triplets) or 4 (pairs) index tensors"
        )
    if len(indices_tuple) not in NAMES:
        raise ValueError(
            f"indices_tuple has {len(indices_tuple)} entries; it must have 3, (anchors, positives, negatives), "
            "or 4, (anchors, positives, anchors of negatives, negatives)"
        )
    m = rows.shape[0] if columns is None else columns.shape[0]
    for number, (name, value) in enumerate(zip(NAMES[len(indices_tuple)], indices_tuple, strict=True)):
        size = rows.shape[0] if name.startswith("anchors") else m
        _check_indices(f"indices_tuple[{number}] ({name})", value, size, rows)
    pairs = tuple(value.to(torch.int64) for value in indices_tuple)
    if len(pairs) == 3:
        pairs = (pairs[0], pairs[1], pairs[0], pairs[2])
    anchors, positives, negative_anchors, negatives = pairs
    _check_lengths(anchors, positives, "positives")
    _check_lengths(negative_anchors, negatives, "negatives")
    if _checks.values_readable(rows):
        both = torch.isin(anchors * m + positives, negative_anchors * m + negatives).nonzero()
        if len(both):
            anchor, column = int(anchors[both[0]]), int(positives[both[0]])
            raise ValueError(
                f"indices_tuple names the pair ({anchor}, {column}) as positive and as negative; it must be one of them"
            )
    return anchors, positives, negative_anchors, negatives


class PairMasks:
    """Masks of positive and negative pairs, a chunk of rows at a time.

    Args:
        pairs: what `checked_pairs` returned.
        rows: number of anchors N.

    Example:
        >>> import torch
        >>> masks = PairMasks((torch.tensor([2, 0]), torch.tensor([1, 3]), torch.tensor([2]), torch.tensor([0])), 3)
        >>> positive, negative = masks.chunk(slice(1, 3), columns=4)
        >>> positive.int().tolist(), negative.int().tolist()
        ([[0, 0, 0, 0], [0, 1, 0, 0]], [[0, 0, 0, 0], [1, 0, 0, 0]])
    """

    def __init__(self, pairs: Sequence[Tensor], rows: int) -> None:
        anchors, positives, negative_anchors, negatives = pairs
        self.positive = _ByAnchor(anchors, positives, rows)
        self.negative = _ByAnchor(negative_anchors, negatives, rows)

    def chunk(self, chunk: slice, columns: int) -> tuple[Tensor, Tensor]:
        """Bool (R, columns) each: the positive and the negative pairs of the rows of a chunk."""
        return self.positive.mask(chunk, columns), self.negative.mask(chunk, columns)


class _ByAnchor:
    """Pairs sorted by anchor, and where those of each anchor begin."""

    def __init__(self, anchors: Tensor, others: Tensor, rows: int) -> None:
        self.anchors, order = torch.sort(anchors)
        self.others = others[order]
        every_row = torch.arange(rows + 1, device=anchors.device)
        self.first = torch.searchsorted(self.anchors, every_row).tolist()

    def mask(self, chunk: slice, columns: int) -> Tensor:
        mine = slice(self.first[chunk.start], self.first[chunk.stop])
        mask = torch.zeros(chunk.stop - chunk.start, columns, dtype=torch.bool, device=self.anchors.device)
        mask[self.anchors[mine] - chunk.start, self.others[mine]] = True
        return mask


def _check_indices(name: str, value: Any, size: int, rows: Tensor) -> None:
    """Whole numbers (P,) from 0 to size - 1, on the device of the embeddings."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} is a {type(value).__name__}; it must be a torch.Tensor")
    dtype = str(value.dtype).removeprefix("torch.")
    if value.dtype.is_floating_point or value.dtype.is_complex or value.dtype == torch.bool:
        if value.numel() == 0:  # torch.tensor([]) is float: a miner that found nothing
            return
        raise TypeError(f"{name} has dtype {dtype}; it must hold integers")
    if value.dim() != 1:
        raise ValueError(f"{name} has shape {tuple(value.shape)}; it must be 1-D, one index for each pair")
    _checks.same_device(name, value, "embeddings", rows)
    if value.numel() and _checks.values_readable(value):
        lowest, highest = (int(found) for found in torch.aminmax(value))
        if lowest < 0 or highest >= size:
            wrong = lowest if lowest < 0 else highest
            raise ValueError(f"{name} holds {wrong}; every index must be from 0 to {size - 1}")


def _check_lengths(anchors: Tensor, others: Tensor, name: str) -> None:
    if anchors.shape != others.shape:
        raise ValueError(
            f"indices_tuple has {anchors.numel()} anchors for {others.numel()} {name}; there must be one for each"
        )
