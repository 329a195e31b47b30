"""Sums over all mixtures of every anchor, streamed by chunks of whole classes: no mixture is formed, no matrix kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pairloom import _library, reference
from pairloom._dispatch import in_transform
from pairloom._stream import CHUNK_ENTRIES, ChunkedSimilarity
from pairloom.reference.mixture_sums import term_sum
from pairloom.reference.similarity import compute_dtype, unit_rows
from pairloom.streaming import no_autocast

PAIRS = ("positive_negative", "anchor_negative", "both")
BOTH_SIDES = 3  # bits of GRADIENT_BITS: rows and columns

_library.load()


class MixtureTerm(NamedTuple):
    """How the similarity s of a mixture counts, with t = scale (s - offset)."""

    term: str
    """"linear" t, "hinge" max(t, 0), "softplus" log(1 + e^t) or "exponential" e^t"""
    scale: float
    offset: float

    def sum(self, s: Tensor, weight: Tensor, mask: Tensor) -> Tensor:
        """Of similarities (R, V), with a weight each, where the mask says so: (R,)."""
        return term_sum(s, weight, mask, *self)


class MixtureTerms(NamedTuple):
    """The positive half, whose terms weigh lam, and the negative half, whose terms weigh 1 - lam."""

    positive: MixtureTerm
    negative: MixtureTerm


def mixture_sums(
    anchors: Tensor,
    anchor_labels: Tensor,
    columns: Tensor | None,
    column_labels: Tensor | None,
    lam: Tensor,
    pairs: str,
    terms: MixtureTerms,
) -> Tensor:
    """(N, D), (N,), (M, D) or None, (M,) -> (N, 2) sums of the two halves; of exponential terms their logarithms.

    Without columns the anchors themselves are mixed. ``lam``: 0-d, (N,), or (M, M) by the two columns of a pair, (N, M)
    with "anchor_negative". Gradients for anchors and columns. Formula: `pairloom.reference.mixture_sums`.
    """
    order = anchor_labels.argsort(stable=True)
    sorted_labels = anchor_labels[order]
    if columns is None or column_labels is None:
        columns, among_labels, column_order = None, sorted_labels, order
        own = torch.arange(len(order))
    else:
        column_order = column_labels.argsort(stable=True)
        columns, among_labels = columns[column_order], column_labels[column_order]
        own = torch.full_like(order, -1)
    if lam.dim() == 1:
        lam = lam[order]
    elif lam.dim() == 2:
        lam = lam[order if pairs == "anchor_negative" else column_order][:, column_order]
    places = _Places(
        begin=torch.searchsorted(among_labels, sorted_labels),
        end=torch.searchsorted(among_labels, sorted_labels, right=True),
        own=own,
    )
    call = _Call(places, pairs, terms)
    if torch.compiler.is_compiling() or in_transform() or anchors.device.type != "cpu":
        sums = call.dense(anchors[order], columns, lam)
    else:
        sums = _MixtureSums.apply(call, anchors[order], columns, lam)
    return torch.empty_like(sums).index_copy(0, order, sums)


class _Places(NamedTuple):
    """(N,) int64 each: columns [begin, end) have the anchor's class, ``own`` is the anchor itself."""

    begin: Tensor
    end: Tensor
    own: Tensor

    def of(self, chunk: slice) -> _Places:
        return _Places(*(place[chunk] for place in self))


@dataclass(frozen=True, eq=False)
class _Call:
    places: _Places
    pairs: str
    terms: MixtureTerms

    def dense(self, anchors: Tensor, columns: Tensor | None, lam: Tensor) -> Tensor:
        """All at once, in plain torch."""
        dtype = compute_dtype(anchors) if columns is None else compute_dtype(anchors, columns)
        with no_autocast(anchors.device.type):
            rows = unit_rows(anchors.to(dtype))
            others = rows if columns is None else unit_rows(columns.to(dtype))
            s = rows @ others.T
            among = s if columns is None else others @ others.T
            return reference.mixture_sums(s, among, 0, *self.places, lam.to(dtype), *self.settings)

    @property
    def settings(self) -> tuple[Any, ...]:
        """What the operators take after lam."""
        return (self.pairs, *self.terms.positive, *self.terms.negative)

    def chunks(self, columns: int) -> Iterator[tuple[slice, slice]]:
        """Anchors of whole classes, and the columns of these classes; as many as fit the cache, but one class."""
        begin, end, _ = self.places
        if not len(begin):
            return
        most = max(CHUNK_ENTRIES // max(columns, 1), 1)
        border = torch.cat([begin.new_zeros(1), (begin.diff() != 0).nonzero().flatten() + 1]).tolist()
        border.append(len(begin))
        first = 0
        for last, following in zip(border[1:], [*border[2:], border[-1]], strict=True):
            if following - first > most or last == len(begin):
                yield slice(first, last), slice(int(begin[first]), int(end[last - 1]))
                first = last


class _Blocks:
    """The similarities of a chunk, and its gradients."""

    def __init__(self, call: _Call, anchors: Tensor, columns: Tensor | None, lam: Tensor, needs_grad: bool) -> None:
        bits = BOTH_SIDES if needs_grad else 0
        self.call = call
        self.rows = ChunkedSimilarity(anchors, columns, "cosine", needs_grad=bits)
        self.one_batch = columns is None
        self.mixes_columns = call.pairs != "anchor_negative"
        self.among = None
        if columns is not None and self.mixes_columns:
            self.among = ChunkedSimilarity(columns.to(self.rows.columns.dtype), None, "cosine", needs_grad=bits)
        self.lam = lam.to(self.rows.rows.dtype)

    def arguments(self, chunk: slice, classes: slice) -> tuple[Any, ...]:
        """Of the operators."""
        s = self.rows.block(chunk)
        if not self.mixes_columns:
            among, first = s.new_empty(0, s.shape[1]), 0
        else:
            among, first = (s, chunk.start) if self.among is None else (self.among.block(classes), classes.start)
        lam = self.lam
        if lam.dim() == 1 or (lam.dim() == 2 and not self.mixes_columns):
            lam = lam[chunk].contiguous()
        elif lam.dim() == 2:
            lam = lam[chunk if self.one_batch else classes].contiguous()
        return s, among, first, *self.call.places.of(chunk), lam, *self.call.settings

    def add(self, chunk: slice, classes: slice, arguments: tuple[Any, ...], d_sums: Tensor) -> None:
        """Take in the gradient of one chunk."""
        d_s, d_among = torch.ops.pairloom.mixture_gradients(*arguments, d_sums)
        if self.among is not None:
            self.among.add(classes, arguments[1], d_among)
        elif self.mixes_columns:
            d_s = d_s + d_among
        self.rows.add(chunk, arguments[0], d_s)

    def gradients(self) -> tuple[Tensor, Tensor | None]:
        """Of anchors and columns."""
        d_rows, d_columns = self.rows.gradients()
        if self.one_batch:
            return d_rows, None
        return d_rows, d_columns if self.among is None else d_columns + self.among.gradients()[0]


class _MixtureSums(torch.autograd.Function):
    """Anchors and columns come sorted by class."""

    @staticmethod
    def forward(ctx: Any, call: _Call, anchors: Tensor, columns: Tensor | None, lam: Tensor) -> Tensor:
        ctx.call = call
        ctx.save_for_backward(anchors, columns, lam)
        blocks = _Blocks(call, anchors, columns, lam, needs_grad=False)
        found = [
            torch.ops.pairloom.mixture_sums(*blocks.arguments(chunk, classes))
            for chunk, classes in call.chunks(len(blocks.rows.columns))
        ]
        return torch.cat(found) if found else blocks.rows.rows.new_empty(0, 2)

    @staticmethod
    def backward(ctx: Any, *upstreams: Tensor) -> Any:
        (upstream,) = upstreams
        anchors, columns, lam = ctx.saved_tensors
        if torch.is_grad_enabled():
            return None, *_second_order(ctx.call, anchors, columns, lam, upstream), None
        blocks = _Blocks(ctx.call, anchors, columns, lam, needs_grad=True)
        for chunk, classes in ctx.call.chunks(len(blocks.rows.columns)):
            blocks.add(chunk, classes, blocks.arguments(chunk, classes), upstream[chunk].contiguous())
        d_anchors, d_columns = blocks.gradients()
        return (
            None,
            d_anchors.to(anchors.dtype),
            None if columns is None or d_columns is None else d_columns.to(columns.dtype),
            None,
        )


def _second_order(
    call: _Call, anchors: Tensor, columns: Tensor | None, lam: Tensor, upstream: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients as a differentiable function, on the whole matrix."""
    rows, others = anchors.view_as(anchors), None if columns is None else columns.view_as(columns)
    inputs = [x for x in (rows, others) if x is not None and x.requires_grad]
    sums = call.dense(rows, others, lam)
    found = iter(torch.autograd.grad(sums, inputs, upstream, create_graph=True, allow_unused=True))
    first, second = (next(found) if x is not None and x.requires_grad else None for x in (rows, others))
    return first, second
