"""Pair losses on a GPU: the chunk loop of the engine, with products by the vendor's library and rows by our kernels.

    for each chunk of rows:  S = rows @ columns.T               torch.mm on the current stream
                             losses, S -> dL/dS                 pair_rows, one block of threads for each row (csrc/cuda)
                             d_rows = dS @ columns,  d_columns += dS.T @ rows

Nothing is read back and nothing is atomic: a call is asynchronous, can be captured in a CUDA graph, and has the same
bits on every run. Float32 products follow torch's settings for TF32; those of bfloat16 rows are bfloat16 products with
sums in float32, as long as the similarity is one of products.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pairloom import _library
from pairloom._autograd import GRADIENT_BITS
from pairloom._dispatch import DEVICE_KERNELS
from pairloom._stream import ChunkedSimilarity, device_chunks
from pairloom.reference._rows import (
    NUM_STATS,
    as_terms,
    inverse_divisor,
    labels_equal,
    reduce_rows,
    reduction_of,
    row_weights,
)


def pair_loss_on_device(
    rule: str,
    settings: dict[str, Any],
    pairs: dict[str, bool],
    rows: Tensor,
    columns: Tensor | None,
    temperature: Tensor | None,
    row_labels: Tensor | None,
    column_labels: Tensor | None,
    weights: Tensor | None,
    similarity: str,
    reduction: str,
    ignore_index: int | None,
    needs_grad: int,
    want_stats: bool,
) -> tuple[Tensor, ...]:
    """Loss, statistics, and the gradients of rows, columns and temperature, as the operators return them."""
    reduction = reduction_of(reduction, "all")
    gradients = bool(needs_grad) and reduction != "none"
    wanted = {name: gradients and bool(needs_grad & bit) for name, bit in GRADIENT_BITS.items()}
    self_pairs = columns is None
    keep = ~labels_equal(row_labels, ignore_index, rows)
    of_columns = row_labels if self_pairs else column_labels
    # What takes no part is zero: its weights are too, but 0 times NaN or infinity would reach the gradients of others.
    kept_rows = torch.where(keep.unsqueeze(1), rows, 0.0)
    kept_columns = columns
    if columns is not None:
        used = ~labels_equal(of_columns, ignore_index, columns)
        kept_columns = torch.where(used.unsqueeze(1), columns, 0.0)
    matrix = ChunkedSimilarity(kept_rows, kept_columns, similarity, needs_grad=needs_grad if gradients else 0)
    n, m, dtype = matrix.rows.shape[0], matrix.columns.shape[0], matrix.rows.dtype
    weight = row_weights(matrix.rows.new_empty(n), keep, weights)
    scale = None if temperature is None else temperature.detach().to(dtype).contiguous()
    labels = None if row_labels is None else row_labels.contiguous()
    others = None if of_columns is None else of_columns.contiguous()
    losses = matrix.rows.new_zeros(n)
    along = matrix.rows.new_zeros(n)
    stats = torch.zeros(NUM_STATS, dtype=torch.float64, device=rows.device)
    for chunk in device_chunks(n, m):
        s = matrix.block(chunk)
        slopes = None
        if gradients:
            # In place, unless distances go on being needed for the direction of their gradient.
            kept = matrix.products.half or similarity not in ("cosine", "dot")
            slopes = torch.empty_like(s, dtype=torch.bfloat16 if matrix.products.half else s.dtype) if kept else s
        found, found_along, found_stats = torch.ops.pairloom.pair_rows(
            s, slopes, rule,
            settings.get("alpha", 0.0), settings.get("beta", 0.0), settings.get("base", 0.0), settings.get("epsilon"),
            settings.get("inside", False), chunk.start, labels, others, self_pairs,
            pairs["target_is_row"], pairs["same_label_is_positive"], ignore_index, scale, weight,
            wanted["temperature"], want_stats,
        )  # fmt: skip
        losses[chunk] = found
        if wanted["temperature"]:
            along[chunk] = found_along
        if want_stats:
            stats += found_stats.sum(0)
        if slopes is not None:
            matrix.add(chunk, s, slopes)
    (terms,) = as_terms(losses)
    loss = reduce_rows(losses, keep, weights, reduction)
    inverse = inverse_divisor(terms, weight, reduction)
    d_rows, d_columns = matrix.gradients() if gradients else (None, None)

    def output(name: str, like: Tensor | None, value: Tensor | None) -> Tensor:
        if value is None or like is None or not wanted[name]:
            return rows.new_empty((0, rows.shape[1]) if name != "temperature" else (0,), dtype=dtype)
        return (value * inverse).contiguous()

    d_temperature = None
    if wanted["temperature"] and scale is not None:
        d_temperature = -along / scale
        d_temperature = d_temperature if scale.dim() else d_temperature.sum()
    return (
        loss,
        stats,
        output("rows", rows, d_rows),
        output("columns", columns, d_columns),
        output("temperature", temperature, d_temperature),
    )


def info_nce(
    rows: Tensor, columns: Tensor | None, temperature: Tensor, row_labels: Tensor | None, column_labels: Tensor | None,
    weights: Tensor | None, similarity: str, reduction: str, same_id: str, *rest: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The operator of this name."""
    pairs = {"target_is_row": same_id != "only", "same_label_is_positive": same_id != "ignore"}
    given = (rows, columns, temperature, row_labels, column_labels, weights, similarity, reduction, *rest)
    return pair_loss_on_device("info_nce", {}, pairs, *given)


def sup_con(
    rows: Tensor, columns: Tensor | None, temperature: Tensor, row_labels: Tensor, column_labels: Tensor | None,
    weights: Tensor | None, form: str, *rest: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The operator of this name."""
    pairs = {"target_is_row": False, "same_label_is_positive": True}
    given = (rows, columns, temperature, row_labels, column_labels, weights, *rest)
    return pair_loss_on_device("sup_con", {"inside": form == "in"}, pairs, *given)


def multi_similarity(
    rows: Tensor, columns: Tensor | None, row_labels: Tensor, column_labels: Tensor | None, weights: Tensor | None,
    alpha: float, beta: float, base: float, epsilon: float | None, *rest: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The operator of this name."""
    pairs = {"target_is_row": False, "same_label_is_positive": True}
    settings = {"alpha": alpha, "beta": beta, "base": base, "epsilon": epsilon}
    given = (rows, columns, None, row_labels, column_labels, weights, *rest)
    return pair_loss_on_device("multi_similarity", settings, pairs, *given)[:-1]


def clip(
    rows: Tensor, columns: Tensor, temperature: Tensor, row_labels: Tensor | None, weights: Tensor | None,
    similarity: str, reduction: str, same_id: str, ignore_index: int | None, needs_grad: int, want_stats: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The operator of this name: both ways one after the other, each weighed as the mean of the two wants it."""
    keep = ~labels_equal(row_labels, ignore_index, rows)

    def one_way(a: Tensor, b: Tensor, w: Tensor | None, how: str, bits: int, stats: bool) -> tuple[Tensor, ...]:
        labels = (row_labels, row_labels)
        return info_nce(a, b, temperature, *labels, w, similarity, how, same_id, ignore_index, bits, stats)

    to_columns, stats, *_ = one_way(rows, columns, None, "none", 0, want_stats)
    to_rows, other_stats, *_ = one_way(columns, rows, None, "none", 0, want_stats)
    losses = (to_columns + to_rows) / 2
    loss = reduce_rows(losses, keep, weights, reduction)
    if reduction == "none" or not needs_grad:
        nothing = rows.new_empty((0, rows.shape[1]), dtype=losses.dtype)
        return loss, stats + other_stats, nothing, nothing.clone(), losses.new_empty(0)
    (terms,) = as_terms(losses)
    weight = row_weights(losses, keep, weights)
    counted = weight if reduction_of(reduction, "all") != "mean_nonzero" else torch.where(terms.active, weight, 0.0)
    share = counted * inverse_divisor(terms, weight, reduction_of(reduction, "all")) / 2
    turned = needs_grad & GRADIENT_BITS["temperature"]
    turned |= GRADIENT_BITS["columns"] * bool(needs_grad & GRADIENT_BITS["rows"])
    turned |= GRADIENT_BITS["rows"] * bool(needs_grad & GRADIENT_BITS["columns"])
    first = one_way(rows, columns, share, "sum", needs_grad, False)[2:]
    second = one_way(columns, rows, share, "sum", turned, False)[2:]
    return loss, stats + other_stats, first[0] + second[1], first[1] + second[0], first[2] + second[2]


OPERATORS: dict[str, Callable[..., tuple[Tensor, ...]]] = {
    "info_nce": info_nce,
    "sup_con": sup_con,
    "multi_similarity": multi_similarity,
    "clip": clip,
}


def _fake_pair_rows(s: Tensor, slopes: Tensor | None, *settings: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Shapes and types of the kernel's outputs, for tracing."""
    *_, want_temperature, want_stats = settings
    rows = s.shape[0]
    return (
        s.new_empty(rows),
        s.new_empty(rows if want_temperature else 0),
        s.new_empty((rows if want_stats else 0, NUM_STATS), dtype=torch.float64),
    )


def register_on(key: str = "CUDA") -> torch.library.Library:
    """Make these the operators' implementation for a dispatch key; keep what is returned as long as they shall be."""
    library = torch.library.Library("pairloom", "IMPL")
    for name, function in OPERATORS.items():
        library.impl(name, function, key)
        DEVICE_KERNELS.add(name)
    return library


_library.load()
torch.library.register_fake("pairloom::pair_rows", _fake_pair_rows)
_registration = register_on("CUDA") if _library.load_cuda() == "loaded" else None
