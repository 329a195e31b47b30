"""Pair losses whose rule is plain torch, over chunks of rows: O((N + M) D) memory, autograd inside a chunk.

A rule is a function ``rule(s, positive, negative, **settings)`` that returns the losses of some rows, (R,), from their
similarities with all columns and the masks of their pairs; or, for means over pairs or triplets, parts (`Terms`). It is
the same function that the dense reference applies to the whole matrix. The products before and after it are the
engine's, so results do not depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pairloom import _checks
from pairloom._autograd import GRADIENT_BITS
from pairloom._dispatch import DEVICE_KERNELS
from pairloom._heap import CLOSE_AFTER, close_holes
from pairloom._registry import Support
from pairloom.reference._rows import (
    NUM_STATS,
    RowLosses,
    Terms,
    as_terms,
    counts,
    inverse_divisor,
    labels_equal,
    pair_masks,
    reduce_rows,
    reduction_of,
    row_totals,
    row_weights,
    statistics,
    weights_gradient,
)
from pairloom.reference.similarity import compute_dtype, unit_rows
from pairloom.similarity import distance_pull, through_unit_rows

CHUNK_ENTRIES = 1 << 18
"""Entries of S in one chunk, 1 MiB: its tensors stay in the cache and are taken from the heap again and again."""

DEVICE_CHUNK_ENTRIES = 1 << 23
"""The same on a GPU: 32 MiB in float32, what the second-level cache of a large one holds."""

STREAMED = Support(standalone=False, cuda="chunks")
"""What records of these operators promise: they exist in Python only, so a saved program needs this package."""

LABELLED = ("Tensor rows", "Tensor? columns", "Tensor row_labels", "Tensor? column_labels", "Tensor? weights")
COMMON = ("str similarity", "str reduction", "int? ignore_index", "int needs_grad", "bool want_stats")


class StreamedRule(NamedTuple):
    """The rule of an operator in plain torch, for calls with chosen pairs instead of all."""

    rule: Callable[..., RowLosses]
    settings: list[str]
    """Names, in order."""
    mean: str
    """What the reduction "mean" is over: "all" or "nonzero" terms."""
    triplet_rule: Callable[..., RowLosses] | None
    """The rule about single triplets: (T,) rows of s, positives, negatives, and which are valid, instead of masks."""


RULES: dict[str, StreamedRule] = {}
KERNELS: dict[str, Callable[..., tuple[Tensor, ...]]] = {}
"""What runs for each operator, on the CPU and on CUDA."""

_library = torch.library.Library("pairloom", "FRAGMENT")


def define_streamed(
    name: str,
    rule: Callable[..., RowLosses],
    settings: Sequence[str],
    *,
    parts: int = 1,
    mean: str = "all",
    triplet_rule: Callable[..., RowLosses] | None = None,
) -> None:
    """Make ``torch.ops.pairloom.<name>`` of a rule; ``settings`` are its schema entries, e.g. ("float margin",).

    Settings that are tensors, named in `pairloom._autograd.GRADIENT_BITS`, get a gradient. ``parts`` is how many parts
    the rule returns; their means can only be weighed against each other when all rows are counted, which costs several
    parts a pass more. ``mean`` and ``triplet_rule`` as in `StreamedRule`.
    """
    learned = [entry.split()[1] for entry in settings if entry.startswith("Tensor")]
    outputs = ["loss", "stats", "d_rows", "d_columns", *(f"d_{setting}" for setting in learned), "d_weights"]
    returns = ", ".join(f"Tensor {output}" for output in outputs)
    _library.define(f"{name}({', '.join((*LABELLED, *settings, *COMMON))}) -> ({returns})")
    names = [entry.split()[1] for entry in settings]

    def kernel(*arguments: Any) -> tuple[Tensor, ...]:
        rows, columns, row_labels, column_labels, weights = arguments[:5]
        similarity, reduction, ignore_index, needs_grad, want_stats = arguments[5 + len(names) :]
        return _streamed(
            rule, parts, rows, columns, row_labels, column_labels, weights,
            dict(zip(names, arguments[5:], strict=False)), learned,
            similarity, reduction_of(reduction, mean), ignore_index, needs_grad, want_stats,
        )  # fmt: skip

    RULES[name] = StreamedRule(rule, names, mean, triplet_rule)
    KERNELS[name] = kernel
    _library.impl(name, kernel, "CPU")
    _library.impl(name, kernel, "CUDA")
    DEVICE_KERNELS.add(name)


def is_elsewhere(x: Tensor) -> bool:
    """Whether products are made by the library of another device than the CPU."""
    return x.device.type != "cpu"


def device_chunks(rows: int, columns: int) -> Iterator[slice]:
    """`chunks` for a GPU, whose memory is torch's business."""
    count = max(DEVICE_CHUNK_ENTRIES // max(columns, 1), 1)
    for first in range(0, rows, count):
        yield slice(first, min(first + count, rows))


def chunks(rows: int, columns: int, count: int | None = None) -> Iterator[slice]:
    """Slices of ``count`` rows; where they end depends on the sizes alone."""
    if count is None:
        count = min(max(CHUNK_ENTRIES // max(columns, 1), 16), 4096)
    since_closed = 0
    for first in range(0, rows, count):
        yield slice(first, min(first + count, rows))
        since_closed += count * columns
        if since_closed > CLOSE_AFTER:
            close_holes()
            since_closed = 0
    if rows > count:
        close_holes()


class ChunkedSimilarity:
    """S of a chunk of rows with all columns, and the gradients of both sides from those of its chunks."""

    def __init__(self, rows: Tensor, columns: Tensor | None, similarity: str, *, needs_grad: int) -> None:
        dtype = compute_dtype(rows) if columns is None else compute_dtype(rows, columns)
        self.one_batch = columns is None
        self.similarity = similarity
        self.rows = rows.detach().to(dtype).contiguous()  # norms add up in one order, whatever the layout
        self.columns = self.rows if columns is None else columns.detach().to(dtype).contiguous()
        cosine = similarity == "cosine"
        self.unit_rows = unit_rows(self.rows) if cosine else self.rows
        self.unit_columns = self.unit_rows if self.one_batch else unit_rows(self.columns) if cosine else self.columns
        self.on_device = is_elsewhere(rows)
        self.products = _Products(
            half=self.on_device
            and similarity in ("cosine", "dot")
            and all(x is None or x.dtype == torch.bfloat16 for x in (rows, columns))
        )
        # A frozen side (a queue) costs no product.
        self.wants_rows = self.one_batch or bool(needs_grad & GRADIENT_BITS["rows"])
        self.wants_columns = self.one_batch or bool(needs_grad & GRADIENT_BITS["columns"])
        if needs_grad:
            if not self.on_device:
                self.transposed = self.unit_columns.T.contiguous()
            self.d_rows = torch.zeros_like(self.rows)
            self.d_columns = torch.zeros_like(self.columns)

    def block(self, chunk: slice) -> Tensor:
        """(R, M) similarities of the rows of a chunk."""
        similarity = "dot" if self.similarity == "cosine" else self.similarity
        if self.on_device and similarity == "dot":
            return self.products(self.unit_rows[chunk], self.unit_columns.T)
        return _similarities(self.unit_rows[chunk], self.unit_columns, similarity)

    def add(self, chunk: slice, s: Tensor, d_s: Tensor) -> None:
        """Take in the gradient of one block."""
        product = self.similarity in ("cosine", "dot")
        pull = d_s if product else distance_pull(d_s, s, self.similarity)
        rows = self.unit_rows[chunk]
        if self.wants_rows:
            if self.on_device:
                to_rows = self.products(pull, self.unit_columns)
            else:
                to_rows = _similarities(pull, self.transposed, "dot")
            self.d_rows[chunk] = to_rows if product else pull.sum(1, keepdim=True) * rows - to_rows
        if self.wants_columns:
            if self.on_device:
                to_columns = self.products(pull.T, rows)
            else:
                to_columns = _similarities(pull.T.contiguous(), rows.T.contiguous(), "dot")
            self.d_columns += to_columns if product else pull.sum(0).unsqueeze(1) * self.unit_columns - to_columns

    def gradients(self) -> tuple[Tensor, Tensor]:
        """Of the rows and of the columns; one batch against itself has both roles in the first."""
        d_rows, d_columns = self.d_rows, self.d_columns
        if self.one_batch:
            d_rows = d_rows + d_columns
        if self.similarity == "cosine":
            d_rows = through_unit_rows(self.rows, d_rows)
            d_columns = d_columns if self.one_batch else through_unit_rows(self.columns, d_columns)
        return d_rows, d_columns


@dataclass(frozen=True)
class _Products:
    """Matrix products on a GPU, by the vendor's library: of bfloat16 with sums in float32 where rows are bfloat16."""

    half: bool

    def __call__(self, a: Tensor, b: Tensor) -> Tensor:
        if not self.half:
            return a @ b
        a, b = a.to(torch.bfloat16), b.to(torch.bfloat16)
        if a.device.type == "cuda":
            return torch.mm(a, b, out_dtype=torch.float32)
        return a.float() @ b.float()  # the same numbers elsewhere


def _similarities(a: Tensor, b: Tensor, similarity: str) -> Tensor:
    """The engine's product where it has a kernel."""
    if a.shape[1] == 0:  # sums of nothing
        return a.new_zeros(a.shape[0], b.shape[0])
    if a.device.type == "cpu":
        return torch.ops.pairloom.pairwise_similarity(a, b, similarity)
    if similarity == "dot":
        return a @ b.T
    distance = torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")
    return -distance if similarity == "euclidean" else -distance * distance


@contextmanager
def autograd_inside() -> Iterator[None]:
    """Record operations also where a dispatcher kernel runs, which is below autograd."""
    keys = torch._C.DispatchKey
    excluded = torch._C._dispatch_tls_local_exclude_set()
    devices = (keys.AutogradCPU, keys.AutogradCUDA, keys.AutogradMeta)
    for key in (*devices, keys.AutogradOther, keys.AutogradFunctionality):
        excluded = excluded.remove(key)
    guard = torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded)
    with guard, torch.enable_grad():
        yield


def value_and_gradients(
    rule: Callable[..., RowLosses],
    s: Tensor,
    upstream: Callable[[Sequence[Terms]], Sequence[Tensor]],
    leaves: Sequence[Tensor],
) -> tuple[tuple[Terms, ...], list[Tensor]]:
    """``rule(s, *leaves)`` of one chunk, and the gradients of s and of every leaf for one upstream vector a part."""
    with autograd_inside():
        inputs = [x.detach().requires_grad_() for x in (s, *leaves)]
        parts = as_terms(rule(*inputs))
        detached = tuple(Terms(part.total.detach(), part.active, part.count) for part in parts)
        pairs = [
            (part.total, vector)
            for part, vector in zip(parts, upstream(detached), strict=True)
            if part.total.requires_grad  # else constant: no pair has a say
        ]
        if not pairs:
            return detached, [torch.zeros_like(x) for x in inputs]
        totals, vectors = zip(*pairs, strict=True)
        found = torch.autograd.grad(totals, inputs, vectors, allow_unused=True)
    return detached, [torch.zeros_like(x) if g is None else g for x, g in zip(inputs, found, strict=True)]


def _streamed(
    rule: Callable[..., RowLosses],
    parts: int,
    rows: Tensor,
    columns: Tensor | None,
    row_labels: Tensor,
    column_labels: Tensor | None,
    weights: Tensor | None,
    settings: dict[str, Any],
    learned: Sequence[str],
    similarity: str,
    reduction: str,
    ignore_index: int | None,
    needs_grad: int,
    want_stats: bool,
) -> tuple[Tensor, ...]:
    """The operator of a rule: loss, statistics, gradients of rows, columns, learned settings and weights."""
    _check(rows, columns, row_labels, column_labels, weights, [settings[name] for name in learned])
    for word, allowed in ((similarity, _checks.SIMILARITIES), (reduction, _checks.REDUCTIONS)):
        if word not in allowed:
            raise RuntimeError(f"'{word}' is none of {', '.join(allowed)}")
    gradients = bool(needs_grad) and reduction != "none"
    matrix = ChunkedSimilarity(rows, columns, similarity, needs_grad=needs_grad if gradients else 0)
    n, m, dtype = matrix.rows.shape[0], matrix.columns.shape[0], matrix.rows.dtype
    known = row_labels if column_labels is None else column_labels
    keep = ~labels_equal(row_labels, ignore_index, rows)
    weight = row_weights(matrix.rows.new_empty(n), keep, weights)
    # Written in place: small results kept between the large temporaries of the chunks would fragment the heap.
    all_terms = matrix.rows.new_zeros(parts, 3, n)
    stats = torch.zeros(NUM_STATS, dtype=torch.float64, device=rows.device)
    d_learned = {name: torch.zeros_like(settings[name], dtype=dtype) for name in learned}
    columns_index = torch.arange(m, device=rows.device)

    def masks(chunk: slice) -> tuple[Tensor, Tensor]:
        own = columns_index[chunk].unsqueeze(1) == columns_index.unsqueeze(0) if matrix.one_batch else None
        return pair_masks(row_labels[chunk], known, ignore_index, own)

    def on_chunk(chunk: slice, positive: Tensor, negative: Tensor) -> tuple[Callable[..., RowLosses], list[Tensor]]:
        """The rule as a function of s and of learned settings, and these."""
        given = {k: v[chunk] if k in learned and v.dim() == 1 else v for k, v in settings.items()}

        def apply(block: Tensor, *values: Tensor) -> RowLosses:
            return rule(block, positive, negative, **{**given, **dict(zip(learned, values, strict=True))})

        return apply, [given[name].to(dtype) for name in learned]

    def gradients_of(chunk: slice, s: Tensor, positive: Tensor, negative: Tensor, scales: Tensor) -> Sequence[Terms]:
        """Add what a chunk has to say to all gradients, each part times its scale."""

        def upstream(found: Sequence[Terms]) -> list[Tensor]:
            told = [counts(part, keep[chunk], reduction) for part in found]
            return [torch.where(t, weight[chunk], 0.0) * scale for t, scale in zip(told, scales, strict=True)]

        apply, leaves = on_chunk(chunk, positive, negative)
        found, (d_s, *d_leaves) = value_and_gradients(apply, s, upstream, leaves)
        matrix.add(chunk, s, d_s)
        for name, d_leaf in zip(learned, d_leaves, strict=True):
            if d_learned[name].dim() == 1:
                d_learned[name][chunk] = d_leaf
            else:
                d_learned[name] += d_leaf
        return found

    # The divisor of one part is taken in at the end; those of several parts must be known before their gradients meet.
    two_passes = gradients and parts > 1 and reduction != "sum"
    parts_of_rows = device_chunks if matrix.on_device else chunks
    for chunk in parts_of_rows(n, m):
        positive, negative = masks(chunk)
        s = matrix.block(chunk)
        if gradients and not two_passes:
            found = gradients_of(chunk, s, positive, negative, weight.new_ones(parts))
        else:
            apply, leaves = on_chunk(chunk, positive, negative)
            found = as_terms(apply(s, *leaves))
        for (total, active, count), part in zip(all_terms, found, strict=True):
            total[chunk], active[chunk], count[chunk] = part.total, part.active, part.count
        stats += statistics(s, positive, negative, positive, negative, row_totals(found), keep[chunk], want_stats)
    terms = [Terms(*part) for part in all_terms]
    loss = reduce_rows(terms, keep, weights, reduction)
    inverses = torch.stack([inverse_divisor(part, weight, reduction) for part in terms])
    if two_passes:
        for chunk in parts_of_rows(n, m):
            gradients_of(chunk, matrix.block(chunk), *masks(chunk), inverses)
    scale = 1.0 if two_passes else inverses[0]
    d_rows, d_columns = matrix.gradients() if gradients else (None, None)

    def output(name: str, like: Tensor | None, value: Tensor | None) -> Tensor:
        if value is None or like is None or not gradients or not needs_grad & GRADIENT_BITS[name]:
            return rows.new_empty((0, rows.shape[1]) if name in ("rows", "columns") else (0,), dtype=dtype)
        return value.contiguous()

    return (
        loss,
        stats,
        output("rows", rows, None if d_rows is None else d_rows * scale),
        output("columns", columns, None if d_columns is None else d_columns * scale),
        *(output(name, settings[name], d_learned[name] * scale) for name in learned),
        output("weights", weights, weights_gradient(terms, keep, weight, reduction)),
    )


def _check(
    rows: Tensor,
    columns: Tensor | None,
    row_labels: Tensor,
    column_labels: Tensor | None,
    weights: Tensor | None,
    learned: Sequence[Tensor],
) -> None:
    """What the public functions have checked before; here for those who call the operator itself."""
    other = rows if columns is None else columns
    known = row_labels if column_labels is None else column_labels
    floats = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
    if rows.dim() != 2 or other.dim() != 2 or rows.shape[1] != other.shape[1] or rows.shape[1] == 0:
        raise RuntimeError(f"rows are {tuple(rows.shape)} and columns {tuple(other.shape)}; expected (N, D) and (M, D)")
    if rows.dtype not in floats or other.dtype not in floats:
        raise RuntimeError(f"rows are {rows.dtype} and columns {other.dtype}; expected floating-point numbers")
    if (columns is None) != (column_labels is None):
        raise RuntimeError("columns and column_labels must be given together")
    for labels, side in ((row_labels, rows), (known, other)):
        expected = (side.shape[0], *row_labels.shape[1:2])  # (N,), or (N, W) words of multi-hot labels on both sides
        if labels.dtype != torch.int64 or labels.shape != expected:
            raise RuntimeError(f"labels are {labels.dtype} {tuple(labels.shape)}; expected int64 {expected}")
    for values in (weights, *learned):
        if values is None:
            continue
        if not values.dtype.is_floating_point or (values.dim() > 0 and values.shape != rows.shape[:1]):
            raise RuntimeError(
                f"weights or temperatures are {values.dtype} {tuple(values.shape)}; expected floats ({rows.shape[0]},)"
            )
