"""Losses over the pairs of an index tuple: the same rules, with the pairs that a miner named instead of all.

They run through `pairloom.stream_rows`: O((N + M) D) memory and that of the tuple; gradients are made in backward.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from pairloom._dispatch import in_transform
from pairloom._index_tuples import PairMasks, checked_pairs
from pairloom._labels import operator_labels
from pairloom._stats import pair_stats
from pairloom._stream import ChunkedSimilarity, chunks
from pairloom.reference._rows import (
    NUM_STATS,
    RowLosses,
    Terms,
    as_terms,
    labels_equal,
    pair_masks,
    reduce_rows,
    row_totals,
    statistics,
)
from pairloom.streaming import RowContext, stream_rows

if TYPE_CHECKING:
    from typing import TypeAlias


class NamedPairs:
    """Which pairs an index tuple names, without those of ignored rows; a pair that is named twice is one pair."""

    are_triplets = False

    def __init__(
        self,
        indices_tuple: Any,
        rows: Tensor,
        columns: Tensor | None,
        labels: Tensor | None,
        ref_labels: Tensor | None,
        ignore_index: int | None,
    ) -> None:
        self.pairs = checked_pairs(indices_tuple, rows, columns)
        other = rows if columns is None else columns
        column_labels = labels if columns is None else ref_labels
        self.keep = ~_ignored(labels, ignore_index, rows)
        self.column_keep = ~_ignored(column_labels, ignore_index, other)
        self.rows, self.columns = rows.shape[0], other.shape[0]
        # A graph must not depend on how many pairs there are for one row: it gets the whole masks.
        self.whole = torch.compiler.is_compiling() or in_transform()
        self.masks = None if self.whole else PairMasks(self.pairs, self.rows)

    def chunk(self, chunk: slice) -> tuple[Tensor, Tensor]:
        """Bool (R, M) each: positive and negative pairs of some rows."""
        if self.masks is not None:
            positive, negative = self.masks.chunk(chunk, self.columns)
        else:
            nothing = torch.zeros(self.rows, self.columns, dtype=torch.bool, device=self.keep.device)
            yes = torch.ones((), dtype=torch.bool, device=self.keep.device)
            anchors, positives, negative_anchors, negatives = self.pairs
            positive = nothing.index_put((anchors, positives), yes)[chunk]
            negative = nothing.index_put((negative_anchors, negatives), yes)[chunk]
        return positive & self.column_keep, negative & self.column_keep

    def of(self, ctx: RowContext, s: Tensor) -> tuple[Tensor, ...]:
        """What a rule of `stream_rows` is given of its rows besides their similarities: both masks."""
        return self.chunk(self.slice_of(ctx))

    def slice_of(self, ctx: RowContext) -> slice:
        """The rows that a rule of `stream_rows` is given."""
        if self.whole:
            return slice(None)
        first = int(ctx.rows[0]) if ctx.rows.shape[0] else 0
        return slice(first, first + ctx.rows.shape[0])

    def counted(self, chunk: slice, s: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """For statistics: the masks of all pairs of some rows, and of those that were chosen."""
        named = self.chunk(chunk)
        return (*named, *named)

    def positives(self) -> Tensor:
        """float64 (N,): how many positive pairs each anchor has."""
        if self.whole:
            return self.chunk(slice(None))[0].sum(1).to(torch.float64)
        anchors, others = torch.unique(torch.stack(self.pairs[:2]), dim=1)
        taken = (self.keep[anchors] & self.column_keep[others]).to(torch.float64)
        return torch.zeros(self.rows, dtype=torch.float64, device=taken.device).index_add(0, anchors, taken)


class LabelledPairs:
    """The pairs that labels make, for rules of `stream_rows`, as `NamedPairs` has those of an index tuple."""

    def __init__(
        self,
        rows: Tensor,
        labels: Tensor,
        ref_labels: Tensor | None,
        ignore_index: int | None,
    ) -> None:
        self.ignore_index = ignore_index
        self.row_labels = operator_labels(labels, ignore_index)
        self.one_batch = ref_labels is None
        self.column_labels = self.row_labels if ref_labels is None else operator_labels(ref_labels, ignore_index)
        self.keep = ~labels_equal(self.row_labels, ignore_index, rows)
        self.rows, self.columns = self.row_labels.shape[0], self.column_labels.shape[0]

    def of(self, ctx: RowContext, s: Tensor) -> tuple[Tensor, ...]:
        """What a rule of `stream_rows` is given of its rows besides their similarities: both masks."""
        return self.of_rows(ctx.rows)

    def of_rows(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Bool (R, M) each: positive and negative pairs of some rows; ignored ones have none."""
        every = torch.arange(self.columns, device=rows.device)
        own = rows.unsqueeze(1) == every if self.one_batch else None
        positive, negative = pair_masks(self.row_labels[rows], self.column_labels, self.ignore_index, own)
        keep = self.keep[rows].unsqueeze(1)
        return positive & keep, negative & keep


class PairChooser(Protocol):
    """A miner that says of every pair of some rows whether it is taken (`pairloom.miners`)."""

    similarity: str
    normalize: bool

    def masks(self, s: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
        """Bool (R, M) each, parts of ``positive`` and ``negative``."""


class ChosenPairs(LabelledPairs):
    """The pairs that a miner takes while the loss is made, from the similarities that both look at."""

    are_triplets = False

    def __init__(
        self,
        miner: PairChooser,
        rows: Tensor,
        columns: Tensor | None,
        labels: Tensor | None,
        ref_labels: Tensor | None,
        ignore_index: int | None,
        similarity: str,
        normalize: bool,
    ) -> None:
        if labels is None:
            raise ValueError("labels is None; a miner as indices_tuple needs the class of each embedding")
        distance = similarity in ("euclidean", "squared_euclidean")
        if miner.similarity != similarity or (distance and miner.normalize != normalize):
            raise ValueError(
                f"indices_tuple is a miner by similarity={miner.similarity!r}, normalize={miner.normalize}, but this "
                f"loss is by similarity={similarity!r}, normalize={normalize}; make them the same, or call the miner"
            )
        super().__init__(rows, labels, ref_labels, ignore_index)
        self.miner, self.similarity = miner, similarity
        self.whole = torch.compiler.is_compiling() or in_transform()
        self.embeddings = rows.detach(), None if columns is None else columns.detach()

    def of(self, ctx: RowContext, s: Tensor) -> tuple[Tensor, ...]:
        """The masks of the pairs that are taken of the rows that a rule of `stream_rows` is given."""
        return self.miner.masks(s.detach(), *self.of_rows(ctx.rows))

    def counted(self, chunk: slice, s: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """For statistics: the masks of all pairs of some rows, and of those that were taken."""
        every = self.of_rows(torch.arange(self.rows, device=s.device)[chunk])
        return (*every, *self.miner.masks(s, *every))

    def positives(self) -> Tensor:
        """float64 (N,): how many positive pairs of each anchor are taken; in a pass of its own."""
        with torch.no_grad():
            return stream_rows(
                lambda s, ctx: self.of(ctx, s)[0].sum(1).to(torch.float64), *self.embeddings, similarity=self.similarity
            )


class NamedTriplets(NamedPairs):
    """Triplets (a, p, n) one by one, for rules about triplets; one that is named twice counts twice.

    As pairs they are those of `NamedPairs`.
    """

    are_triplets = True

    def __init__(
        self,
        indices_tuple: Any,
        rows: Tensor,
        columns: Tensor | None,
        labels: Tensor | None,
        ref_labels: Tensor | None,
        ignore_index: int | None,
    ) -> None:
        super().__init__(indices_tuple, rows, columns, labels, ref_labels, ignore_index)
        anchors, positives, _, negatives = self.pairs
        order = torch.argsort(anchors, stable=True)
        self.triplets = anchors[order], positives[order], negatives[order]
        self.valid = self.keep[anchors[order]] & self.column_keep[positives[order]] & self.column_keep[negatives[order]]
        self.first: list[int] | None = None
        if not self.whole:
            every_row = torch.arange(self.rows + 1, device=anchors.device)
            self.first = torch.searchsorted(self.triplets[0], every_row).tolist()

    def of(self, ctx: RowContext, s: Tensor) -> tuple[Tensor, ...]:
        """(T,) each: the anchor as a row of s, the positive, the negative, and whether none of them is ignored."""
        rows = self.slice_of(ctx)
        mine = slice(None) if self.first is None else slice(self.first[rows.start], self.first[rows.stop])
        anchors, positives, negatives = (indices[mine] for indices in self.triplets)
        return anchors - (rows.start or 0), positives, negatives, self.valid[mine]


MinedPairs: TypeAlias = "NamedPairs | ChosenPairs"


def is_miner(indices_tuple: Any) -> bool:
    """Whether a miner itself stands in the place of what it would return."""
    return callable(getattr(indices_tuple, "masks", None))


def mined_pairs(
    indices_tuple: Any,
    rows: Tensor,
    columns: Tensor | None,
    labels: Tensor | None,
    ref_labels: Tensor | None,
    ignore_index: int | None,
    similarity: str,
    normalize: bool,
    *,
    as_triplets: bool = False,
) -> MinedPairs:
    """Those of an index tuple or of a miner in its place; three tensors are triplets one by one, if asked for."""
    if is_miner(indices_tuple):
        return ChosenPairs(indices_tuple, rows, columns, labels, ref_labels, ignore_index, similarity, normalize)
    triplets = as_triplets and isinstance(indices_tuple, (tuple, list)) and len(indices_tuple) == 3
    kind = NamedTriplets if triplets else NamedPairs  # which says what is wrong with anything else
    return kind(indices_tuple, rows, columns, labels, ref_labels, ignore_index)


def mined_loss(
    rule: Callable[..., RowLosses],
    settings: Mapping[str, Any],
    pairs: MinedPairs,
    rows: Tensor,
    columns: Tensor | None,
    *,
    similarity: str,
    reduction: str,
    weights: Tensor | None,
    return_stats: bool,
    mean: str = "all",
) -> Any:
    """Loss, or (loss, `PairStats`), of a rule about rows and of the pairs that were chosen.

    A rule about triplets returns `Terms`. Settings that are tensors (N,) are handed to the rule by rows.
    """
    by_row = [name for name, value in settings.items() if isinstance(value, Tensor) and value.dim() == 1]
    fixed = {name: value for name, value in settings.items() if name not in by_row}

    def apply(s: Tensor, ctx: RowContext) -> RowLosses:
        given = {**fixed, **dict(zip(by_row, ctx.row_args, strict=True))}
        cast = {name: value.to(s.dtype) if isinstance(value, Tensor) else value for name, value in given.items()}
        return rule(s, *pairs.of(ctx, s), **cast)

    def streamed(rule_of_rows: Callable[[Tensor, RowContext], Tensor]) -> Tensor:
        return stream_rows(
            rule_of_rows, rows, columns, similarity=similarity, row_args=[settings[name] for name in by_row]
        )

    losses: RowLosses = streamed(lambda s, ctx: row_totals(as_terms(apply(s, ctx))))
    assert isinstance(losses, Tensor)
    totals = losses
    number = 1 if pairs.are_triplets else _number_of_parts(rule, fixed, by_row, losses)
    if number > 0:
        losses = [_part(streamed, apply, i) for i in range(number)]
    loss = reduce_rows(losses, pairs.keep, weights, reduction, mean)
    if not return_stats:
        return loss
    return loss, pair_stats(_statistics(pairs, rows, columns, similarity, totals.detach()))


def _number_of_parts(rule: Callable[..., RowLosses], fixed: Mapping[str, Any], by_row: list[str], like: Tensor) -> int:
    """How many parts (`Terms`) the rule has; 0 for one loss for each row. Tried out on no rows."""
    nothing = like.new_zeros(0, 1)
    mask = torch.zeros(0, 1, dtype=torch.bool, device=like.device)
    found = rule(nothing, mask, mask, **fixed, **dict.fromkeys(by_row, like.new_zeros(0)))
    return 0 if isinstance(found, Tensor) else len(found)


def _part(
    streamed: Callable[[Callable[[Tensor, RowContext], Tensor]], Tensor],
    apply: Callable[[Tensor, RowContext], RowLosses],
    number: int,
) -> Terms:
    def part(s: Tensor, ctx: RowContext) -> Terms:
        return as_terms(apply(s, ctx))[number]

    total = streamed(lambda s, ctx: part(s, ctx).total)
    with torch.no_grad():
        active = streamed(lambda s, ctx: part(s, ctx).active.to(s.dtype))
        count = streamed(lambda s, ctx: part(s, ctx).count.to(s.dtype))
    return Terms(total, active, count)


def _statistics(pairs: MinedPairs, rows: Tensor, columns: Tensor | None, similarity: str, losses: Tensor) -> Tensor:
    """The vector that `PairStats` names, in a pass of its own."""
    matrix = ChunkedSimilarity(rows, columns, similarity, needs_grad=0)
    stats = torch.zeros(NUM_STATS, dtype=torch.float64, device=rows.device)
    for chunk in [slice(0, pairs.rows)] if pairs.whole else chunks(pairs.rows, pairs.columns):
        s = matrix.block(chunk)
        stats = stats + statistics(s, *pairs.counted(chunk, s), losses[chunk], pairs.keep[chunk], True)
    return stats


def _ignored(labels: Tensor | None, ignore_index: int | None, rows: Tensor) -> Tensor:
    known = None if labels is None else operator_labels(labels, ignore_index)
    return labels_equal(known, ignore_index, rows)
