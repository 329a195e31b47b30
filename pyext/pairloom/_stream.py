"""Pair losses whose rule is plain torch, over chunks of rows: O((N + M) D) memory, autograd inside a chunk.

A rule is a function ``rule(s, positive, negative, **settings) -> (R,)``: the losses of some rows from their
similarities with all columns and the masks of their pairs. It is the same function that the dense reference applies to
the whole matrix. The products before and after it are the engine's, so results do not depend on the number of threads.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from pairloom import _checks
from pairloom._autograd import GRADIENT_BITS
from pairloom._registry import Support
from pairloom.reference._rows import NUM_STATS, labels_equal, pair_masks, reduce_rows, statistics
from pairloom.reference.similarity import compute_dtype, unit_rows
from pairloom.similarity import distance_pull, through_unit_rows

CHUNK_ENTRIES = 1 << 18
"""Entries of S in one chunk, 1 MiB: its tensors stay in the cache and are taken from the heap again and again."""

STREAMED = Support(aoti=False, torchscript=False, standalone=False)
"""What records of these operators promise: they exist in Python only."""

LABELLED = ("Tensor rows", "Tensor? columns", "Tensor row_labels", "Tensor? column_labels", "Tensor? weights")
COMMON = ("str similarity", "str reduction", "int? ignore_index", "int needs_grad", "bool want_stats")

_library = torch.library.Library("pairloom", "FRAGMENT")


def define_streamed(name: str, rule: Callable[..., Tensor], settings: Sequence[str]) -> None:
    """Make ``torch.ops.pairloom.<name>`` of a rule; ``settings`` are its schema entries, e.g. ("float margin",).

    Settings that are tensors named in `pairloom._autograd.GRADIENT_BITS` get a gradient.
    """
    learned = [entry.split()[1] for entry in settings if entry.startswith("Tensor")]
    outputs = ["loss", "stats", "d_rows", "d_columns", *(f"d_{setting}" for setting in learned)]
    returns = ", ".join(f"Tensor {output}" for output in outputs)
    _library.define(f"{name}({', '.join((*LABELLED, *settings, *COMMON))}) -> ({returns})")
    names = [entry.split()[1] for entry in settings]

    def kernel(*arguments: Any) -> tuple[Tensor, ...]:
        rows, columns, row_labels, column_labels, weights = arguments[:5]
        similarity, reduction, ignore_index, needs_grad, want_stats = arguments[5 + len(names) :]
        return _streamed(
            rule, rows, columns, row_labels, column_labels, weights,
            dict(zip(names, arguments[5:], strict=False)), learned,
            similarity, reduction, ignore_index, needs_grad, want_stats,
        )  # fmt: skip

    _library.impl(name, kernel, "CPU")


def chunks(rows: int, columns: int) -> Iterator[slice]:
    """Slices of rows; where they end depends on the sizes alone."""
    count = min(max(CHUNK_ENTRIES // max(columns, 1), 16), 4096)
    for first in range(0, rows, count):
        yield slice(first, min(first + count, rows))


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
        # A frozen side (a queue) costs no product.
        self.wants_rows = self.one_batch or bool(needs_grad & GRADIENT_BITS["rows"])
        self.wants_columns = self.one_batch or bool(needs_grad & GRADIENT_BITS["columns"])
        if needs_grad:
            self.transposed = self.unit_columns.T.contiguous()
            self.d_rows = torch.zeros_like(self.rows)
            self.d_columns = torch.zeros_like(self.columns)

    def block(self, chunk: slice) -> Tensor:
        """(R, M) similarities of the rows of a chunk."""
        similarity = "dot" if self.similarity == "cosine" else self.similarity
        return _similarities(self.unit_rows[chunk], self.unit_columns, similarity)

    def add(self, chunk: slice, s: Tensor, d_s: Tensor) -> None:
        """Take in the gradient of one block."""
        product = self.similarity in ("cosine", "dot")
        pull = d_s if product else distance_pull(d_s, s, self.similarity)
        rows = self.unit_rows[chunk]
        if self.wants_rows:
            to_rows = _similarities(pull, self.transposed, "dot")
            self.d_rows[chunk] = to_rows if product else pull.sum(1, keepdim=True) * rows - to_rows
        if self.wants_columns:
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
    for key in (keys.AutogradCPU, keys.AutogradCUDA, keys.AutogradOther, keys.AutogradFunctionality):
        excluded = excluded.remove(key)
    guard = torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded)
    with guard, torch.enable_grad():
        yield


def value_and_gradients(
    rule: Callable[..., Tensor], s: Tensor, upstream: Callable[[Tensor], Tensor], leaves: Sequence[Tensor]
) -> tuple[Tensor, list[Tensor]]:
    """``rule(s, *leaves)`` of one chunk, and the gradients of s and of every leaf for the upstream vector."""
    with autograd_inside():
        inputs = [x.detach().requires_grad_() for x in (s, *leaves)]
        row_loss = rule(*inputs)
        if not row_loss.requires_grad:  # constant: no pair has a say
            return row_loss, [torch.zeros_like(x) for x in inputs]
        found = torch.autograd.grad(row_loss, inputs, upstream(row_loss.detach()), allow_unused=True)
    gradients = [torch.zeros_like(x) if g is None else g for x, g in zip(inputs, found, strict=True)]
    return row_loss.detach(), gradients


def _streamed(
    rule: Callable[..., Tensor],
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
    """The operator of a rule: loss, statistics, gradients of rows, columns and learned settings."""
    _check(rows, columns, row_labels, column_labels, weights, [settings[name] for name in learned])
    for word, allowed in ((similarity, _checks.SIMILARITIES), (reduction, _checks.REDUCTIONS)):
        if word not in allowed:
            raise RuntimeError(f"'{word}' is none of {', '.join(allowed)}")
    gradients = bool(needs_grad) and reduction != "none"
    matrix = ChunkedSimilarity(rows, columns, similarity, needs_grad=needs_grad if gradients else 0)
    n, m, dtype = matrix.rows.shape[0], matrix.columns.shape[0], matrix.rows.dtype
    known = row_labels if column_labels is None else column_labels
    keep = ~labels_equal(row_labels, ignore_index, rows)
    weight = torch.where(keep, 1.0 if weights is None else weights.to(dtype), 0.0).to(dtype)
    nonzero = reduction == "mean_nonzero"
    columns_index = torch.arange(m, device=rows.device)
    # Written in place: small results kept between the large temporaries of the chunks would fragment the heap.
    all_losses = matrix.rows.new_zeros(n)
    stats = torch.zeros(NUM_STATS, dtype=torch.float64, device=rows.device)
    d_learned = {name: torch.zeros_like(settings[name], dtype=dtype) for name in learned}
    for chunk in chunks(n, m):
        own = columns_index[chunk].unsqueeze(1) == columns_index.unsqueeze(0) if matrix.one_batch else None
        positive, negative = pair_masks(row_labels[chunk], known, ignore_index, own)
        s = matrix.block(chunk)
        given = {k: v[chunk] if k in learned and v.dim() == 1 else v for k, v in settings.items()}
        leaves = [given[name].to(dtype) for name in learned]

        def on_chunk(
            block: Tensor, *values: Tensor, p: Tensor = positive, n: Tensor = negative, given: dict[str, Any] = given
        ) -> Tensor:
            return rule(block, p, n, **{**given, **dict(zip(learned, values, strict=True))})

        if gradients:

            def upstream(row_loss: Tensor, share: Tensor = weight[chunk]) -> Tensor:
                return torch.where(row_loss <= 0, 0.0, share) if nonzero else share

            row_loss, (d_s, *d_leaves) = value_and_gradients(on_chunk, s, upstream, leaves)
            matrix.add(chunk, s, d_s)
            for name, d_leaf in zip(learned, d_leaves, strict=True):
                if d_learned[name].dim() == 1:
                    d_learned[name][chunk] = d_leaf
                else:
                    d_learned[name] += d_leaf
        else:
            row_loss = on_chunk(s, *leaves)
        all_losses[chunk] = row_loss
        stats += statistics(s, positive, negative, positive, negative, row_loss, keep[chunk], want_stats)
    loss = reduce_rows(all_losses, keep, weights, reduction)

    def output(name: str, value: Tensor | None, like: Tensor | None) -> Tensor:
        if value is None or like is None or not gradients or not needs_grad & GRADIENT_BITS[name]:
            return rows.new_empty((0, rows.shape[1]) if name in ("rows", "columns") else (0,), dtype=dtype)
        return (value * scale).contiguous()

    if n > CHUNK_ENTRIES // max(m, 1):
        _close_holes()
    scale = _inverse_divisor(all_losses, weight, reduction)
    d_rows, d_columns = matrix.gradients() if gradients else (None, None)
    return (
        loss, stats, output("rows", d_rows, rows), output("columns", d_columns, columns),
        *(output(name, d_learned[name], settings[name]) for name in learned),
    )  # fmt: skip


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
        if labels.dtype != torch.int64 or labels.shape != side.shape[:1]:
            raise RuntimeError(
                f"labels are {labels.dtype} {tuple(labels.shape)}; expected int64 ({side.shape[0]},), one for each row"
            )
    for values in (weights, *learned):
        if values is None:
            continue
        if not values.dtype.is_floating_point or (values.dim() > 0 and values.shape != rows.shape[:1]):
            raise RuntimeError(
                f"weights or temperatures are {values.dtype} {tuple(values.shape)}; expected floats ({rows.shape[0]},)"
            )


@functools.cache
def _malloc_trim() -> Callable[[int], int] | None:
    return getattr(ctypes.CDLL(None), "malloc_trim", None)


def _close_holes() -> None:
    """Give freed memory back to the system, where glibc is the allocator.

    Without this a process grew by some 50 MiB with every call of 6,144 x 6,144 pairs (glibc 2.36): thousands of aligned
    blocks that come and go leave holes it does not fill again. With it the size stays.
    """
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


def _inverse_divisor(row_loss: Tensor, weight: Tensor, reduction: str) -> Tensor:
    """What gradients of the weighted sum are multiplied with."""
    if reduction in ("sum", "none"):
        return torch.ones((), dtype=row_loss.dtype, device=row_loss.device)
    if reduction == "mean_nonzero":
        weight = torch.where(row_loss <= 0, 0.0, weight)
    total = weight.sum()
    return torch.where(total == 0, 0.0, 1.0 / torch.where(total == 0, 1.0, total))
