"""Any loss that is a function of the rows of the similarity matrix, without the matrix: `stream_rows`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from pairloom import _checks
from pairloom._autograd import GRADIENT_BITS
from pairloom._dispatch import in_transform
from pairloom._stream import ChunkedSimilarity, chunks
from pairloom.similarity import pairwise_similarity


@dataclass(frozen=True, eq=False)
class RowContext:
    """What a rule knows of its rows besides their similarities."""

    rows: Tensor
    """(R,) int64, the numbers of these rows in ``a``."""
    row_args: tuple[Tensor, ...]
    """Entries (R, ...) of each of the row arguments."""
    column_args: tuple[Tensor, ...]
    """The column arguments, (M, ...) each."""
    columns: int
    """M."""
    one_batch: bool
    """Whether the columns are the rows of ``a``."""

    @property
    def self_mask(self) -> Tensor:
        """(R, M) bool, where a row meets itself: i == j without ``b``, nowhere with it. Made when asked for."""
        if not self.one_batch:
            return torch.zeros(self.rows.shape[0], self.columns, dtype=torch.bool, device=self.rows.device)
        return self.rows.unsqueeze(1) == torch.arange(self.columns, device=self.rows.device)


Rule = Callable[[Tensor, RowContext], Tensor]


def stream_rows(
    rule: Rule,
    a: Tensor,
    b: Tensor | None = None,
    *,
    similarity: str = "cosine",
    row_args: Sequence[Tensor] = (),
    column_args: Sequence[Tensor] = (),
    chunk_bytes: int | None = None,
) -> Tensor:
    """Losses of the rows of ``a`` by any rule in plain torch, a few rows of the similarity matrix at a time.

        L_i = rule( s(a_i, b_1), ..., s(a_i, b_M) )

    The rule gets a block of whole rows and returns one value for each of them. It is an ordinary function: autograd
    differentiates it inside a block, and every tensor that it uses gets its gradient, given as an argument or not.

    Args:
        rule: ``rule(s, ctx) -> (R,)`` floats, from similarities s (R, M) and ``ctx``: ``ctx.rows`` (numbers of the
            rows), ``ctx.row_args`` (their entries), ``ctx.column_args``, ``ctx.self_mask`` ((R, M) bool: a row meets
            itself). Each result must depend on its own row of s only. Backward runs the rule again: it must return the
            same again (no random numbers) and use the same outer tensors for every block.
        a: (N, D) float32, float64, float16 or bfloat16, any strides. Half inputs are summed in float32.
        b: (M, D); ``a`` itself when None. The diagonal is in s then: the rule decides what it is.
        similarity: "cosine", "dot", "euclidean" or "squared_euclidean" (larger is more alike, as everywhere).
        row_args: tensors (N, ...), handed to the rule by rows.
        column_args: tensors (M, ...), handed to the rule whole.
        chunk_bytes: largest size of one block of s; about 1 MiB by default. The rule's own tensors come on top.

    Returns:
        (N,) in the dtype of what the rule returns. Gradients for a, b, arguments and tensors that the rule closes over.

    Raises:
        TypeError: something that is no tensor, or not float where it must be.
        ValueError: shapes or devices that do not fit, an unknown word, a rule that returns another shape.
        RuntimeError: the rule uses a tensor that requires a gradient where it cannot be seen (inside the ``apply`` of
            an autograd function), or in some blocks only; give it as an argument. Exceptions of the rule come through.

    N = 0: empty. M = 0: what the rule makes of (R, 0). NaN in a row: what the rule makes of NaN.

    Cost: 2 N M D flops forward, 6 N M D more with both gradients, and the rule twice; O((N + M) D) memory. Second
    derivatives, torch.compile, torch.export and `torch.func` apply the rule to the whole matrix, with O(N M) memory.

    Example:
        >>> import torch, pairloom
        >>> x = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-0.8, 0.6]], requires_grad=True)
        >>> scale = torch.tensor(2.0, requires_grad=True)
        >>> def nearest(s, ctx):
        ...     return scale * s.masked_fill(ctx.self_mask, -1.0).amax(1)
        >>> losses = pairloom.stream_rows(nearest, x)
        >>> losses.tolist()
        [1.2000000476837158, 1.600000023841858, 1.600000023841858, 1.2000000476837158]
        >>> losses.sum().backward()
        >>> f"{scale.grad.item():.4f}"
        '2.8000'
    """
    if not callable(rule):
        raise TypeError(f"rule is a {type(rule).__name__}; it must be a function rule(s, ctx)")
    _checks.embeddings("a", a, b=b)
    _checks.choice("similarity", similarity, _checks.SIMILARITIES)
    m = a.shape[0] if b is None else b.shape[0]
    _checks.arguments("row_args", row_args, "a", a)
    _checks.arguments("column_args", column_args, "a" if b is None else "b", a if b is None else b)
    if chunk_bytes is not None:
        _checks.count("chunk_bytes", chunk_bytes)
    call = _Call(rule, similarity, b is None, a.shape[0], m, len(row_args), len(column_args), chunk_bytes)
    tensors = [a, *(() if b is None else (b,)), *row_args, *column_args]
    if torch.compiler.is_compiling() or in_transform():
        return call.dense(tensors)
    outer = call.outer_tensors(tensors) if torch.is_grad_enabled() else []
    losses: Tensor = _StreamRows.apply(call, outer, *tensors, *outer)
    return losses


@dataclass(frozen=True, eq=False)
class _Call:
    """One call without its tensors; these are a list: a, b if there is one, row arguments, column arguments."""

    rule: Rule
    similarity: str
    one_batch: bool
    n: int
    m: int
    row_count: int
    column_count: int
    chunk_bytes: int | None

    @property
    def sides(self) -> int:
        """How many of the tensors are embeddings."""
        return 1 if self.one_batch else 2

    def matrix(self, tensors: Sequence[Tensor], needs_grad: int = 0) -> ChunkedSimilarity:
        """S by blocks."""
        columns = None if self.one_batch else tensors[1]
        return ChunkedSimilarity(tensors[0], columns, self.similarity, needs_grad=needs_grad)

    def chunks(self, s: torch.dtype) -> Iterator[slice]:
        """Slices of rows, for blocks of this dtype."""
        count = None if self.chunk_bytes is None else max(self.chunk_bytes // max(self.m * s.itemsize, 1), 1)
        return chunks(self.n, self.m, count)

    def arguments(self, tensors: Sequence[Tensor], chunk: slice) -> list[Tensor]:
        """Row arguments of a chunk, and column arguments."""
        rows = tensors[self.sides : self.sides + self.row_count]
        return [*(x[chunk] for x in rows), *tensors[self.sides + self.row_count :]]

    def apply(self, s: Tensor, chunk: slice, arguments: Sequence[Tensor]) -> Tensor:
        """The rule on a block."""
        rows = torch.arange(self.n, device=s.device)[chunk]
        of_rows, of_columns = tuple(arguments[: self.row_count]), tuple(arguments[self.row_count :])
        losses = self.rule(s, RowContext(rows, of_rows, of_columns, self.m, self.one_batch))
        if not isinstance(losses, Tensor):
            raise TypeError(f"rule returned a {type(losses).__name__}; it must return a tensor, one value for each row")
        if losses.shape != s.shape[:1]:
            raise ValueError(
                f"rule returned shape {tuple(losses.shape)} for s of shape {tuple(s.shape)}; "
                f"it must be ({s.shape[0]},), one value for each row"
            )
        if not losses.dtype.is_floating_point:
            raise TypeError(f"rule returned dtype {losses.dtype}; it must be floating-point")
        return losses

    def dense(self, tensors: Sequence[Tensor]) -> Tensor:
        """The rule on the whole matrix."""
        other = tensors[0] if self.one_batch else tensors[1]
        with no_autocast(tensors[0].device.type):
            s = pairwise_similarity(tensors[0], other, similarity=self.similarity)
            return self.apply(s, slice(0, self.n), tensors[self.sides :])

    def block(self, matrix: ChunkedSimilarity, tensors: Sequence[Tensor], chunk: slice) -> tuple[Tensor, list[Tensor]]:
        """s and arguments of a chunk as leaves that take gradients."""
        arguments = [_leaf(x) if x.dtype.is_floating_point else x for x in self.arguments(tensors, chunk)]
        return _leaf(matrix.block(chunk)), arguments

    def outer_tensors(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Tensors that take gradients and that the rule uses without being given them, found on one row."""
        row = slice(0, min(self.n, 1))
        columns = tensors[0] if self.one_batch else tensors[1]
        matrix = ChunkedSimilarity(tensors[0][row], columns, self.similarity, needs_grad=0)
        found: list[Tensor] = []
        stand_ins: list[Tensor] = []

        def note(x: Tensor) -> Tensor:
            found.append(x)
            stand_ins.append(_leaf(x))
            return stand_ins[-1]

        s, arguments = self.block(matrix, tensors, row)
        outside = _Outside(found, stand_ins, (s, *arguments), note)
        outside.check_graph(self.inside(s, row, arguments, outside))
        return found

    def inside(self, s: Tensor, chunk: slice, arguments: Sequence[Tensor], outside: _Outside) -> Tensor:
        """The rule with a graph of its own, cut off from everything outside."""
        with torch.enable_grad(), no_autocast(s.device.type), outside:
            return self.apply(s, chunk, arguments)


class _Outside(TorchFunctionMode):
    """Replaces tensors that were made before and require a gradient, in whatever is computed from them.

    Otherwise a tensor and another one computed from it, both used by the rule, would be counted twice.
    """

    def __init__(
        self,
        outer: Sequence[Tensor],
        stand_ins: Sequence[Tensor],
        own: Sequence[Tensor],
        unknown: Callable[[Tensor], Tensor],
    ) -> None:
        super().__init__()
        self.outer = outer
        self.stand_ins = stand_ins
        self.own = own
        self.unknown = unknown
        # Nodes are numbered in the order in which they are made.
        self.first_inside: int = torch._C._autograd._get_sequence_nr()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map_only(Tensor, self.replaced, (args, kwargs or {}))
        return func(*args, **kwargs)

    def replaced(self, x: Tensor) -> Tensor:
        """What the rule computes with in place of x."""
        if not x.requires_grad or self.is_own(x):
            return x
        for outer, stand_in in zip(self.outer, self.stand_ins, strict=True):
            if x is outer:
                return stand_in
        inside = x.grad_fn is not None and x.grad_fn._sequence_nr() >= self.first_inside
        return x if inside else self.unknown(x)

    def is_own(self, x: Tensor) -> bool:
        """Whether the rule was given x."""
        return any(x is own for own in (*self.own, *self.stand_ins))

    def check_graph(self, losses: Tensor) -> None:
        """Nothing was computed from a tensor that could not be replaced."""
        seen, rest = set(), [losses.grad_fn]
        while rest:
            node = rest.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            leaf = getattr(node, "variable", None)
            if not (self.is_own(leaf) if leaf is not None else node._sequence_nr() >= self.first_inside):
                raise RuntimeError(
                    f"rule uses a tensor{'' if leaf is None else f' of shape {tuple(leaf.shape)}'} that requires a "
                    "gradient where it cannot be seen; give it in row_args or column_args, or detach it"
                )
            rest += [following for following, _ in node.next_functions]


def _refuse(x: Tensor) -> Tensor:
    raise RuntimeError(
        f"rule uses a tensor of shape {tuple(x.shape)} that requires a gradient in some blocks of rows only, or makes "
        "one itself; give it in row_args or column_args, or detach it"
    )


def _leaf(x: Tensor) -> Tensor:
    return x.detach().requires_grad_()


@contextmanager
def no_autocast(device: str) -> Iterator[None]:
    """Sums stay in float32, as in the operators."""
    if not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
        yield
        return
    with torch.autocast(device, enabled=False):
        yield


class _StreamRows(torch.autograd.Function):
    """Forward without a graph; backward block by block. Arguments: a `_Call`, outer tensors, and all tensors."""

    @staticmethod
    def forward(ctx: Any, call: _Call, outer: list[Tensor], *tensors: Tensor) -> Tensor:
        ctx.call, ctx.outer = call, outer
        ctx.save_for_backward(*tensors)
        given = tensors[: len(tensors) - len(outer)]
        matrix = call.matrix(given)
        losses: Tensor | None = None
        with no_autocast(tensors[0].device.type):
            for chunk in call.chunks(matrix.rows.dtype):
                found = call.apply(matrix.block(chunk), chunk, call.arguments(given, chunk))
                if losses is None:
                    losses = found.new_empty(call.n)
                losses[chunk] = found
            if losses is None:  # no rows: what the rule makes of them decides the dtype
                nothing = slice(0, 0)
                losses = call.apply(matrix.block(nothing), nothing, call.arguments(given, nothing)).clone()
        return losses

    @staticmethod
    def backward(ctx: Any, *upstreams: Tensor) -> Any:
        tensors = ctx.saved_tensors
        wanted = ctx.needs_input_grad[2:]
        sweep = _second_order if torch.is_grad_enabled() else _first_order
        return None, None, *sweep(ctx.call, ctx.outer, tensors, wanted, upstreams[0])


def _first_order(
    call: _Call, outer: Sequence[Tensor], tensors: Sequence[Tensor], wanted: Sequence[bool], upstream: Tensor
) -> list[Tensor | None]:
    """Gradients of all tensors for an upstream vector (N,), block by block."""
    given = tensors[: len(tensors) - len(outer)]
    bits = GRADIENT_BITS["rows"] * wanted[0] + GRADIENT_BITS["columns"] * (not call.one_batch and wanted[1])
    matrix = call.matrix(given, bits)
    first_column = call.sides + call.row_count
    # Sums over blocks: in float32 for halves.
    sums = [
        torch.zeros_like(x, dtype=torch.promote_types(x.dtype, torch.float32)) if needed and i >= call.sides else None
        for i, (x, needed) in enumerate(zip(tensors, wanted, strict=True))
    ]
    for chunk in call.chunks(matrix.rows.dtype):
        s, arguments = call.block(matrix, given, chunk)
        stand_ins = [_leaf(x) for x in outer]
        losses = call.inside(s, chunk, arguments, _Outside(outer, stand_ins, (s, *arguments), _refuse))
        if not losses.requires_grad:
            continue
        leaves = [s, *arguments, *stand_ins]
        taken = [x for x in leaves if x.requires_grad]
        found = iter(torch.autograd.grad(losses, taken, upstream[chunk], allow_unused=True))
        d_s, *gradients = [next(found) if x.requires_grad else None for x in leaves]
        if bits and d_s is not None:
            matrix.add(chunk, s.detach(), d_s)
        for number, gradient in enumerate(gradients, start=call.sides):
            total = sums[number]
            if total is None or gradient is None:
                continue
            if number < first_column:
                total[chunk] = gradient
            else:
                total += gradient
    results: list[Tensor | None] = list(sums)
    if bits:
        results[: call.sides] = matrix.gradients()[: call.sides]
    return [
        None if gradient is None or not needed else gradient.to(x.dtype)
        for x, gradient, needed in zip(tensors, results, wanted, strict=True)
    ]


def _second_order(
    call: _Call, outer: Sequence[Tensor], tensors: Sequence[Tensor], wanted: Sequence[bool], upstream: Tensor
) -> list[Tensor | None]:
    """The same as a differentiable function of all tensors, on the whole matrix."""
    # Views: a tensor may have several roles, and each needs its own derivative.
    views = [x.view_as(x) for x in tensors]
    given, stand_ins = views[: len(views) - len(outer)], views[len(views) - len(outer) :]
    with _Outside(outer, stand_ins, given, _refuse):
        losses = call.dense(given)
    inputs = [x for x, needed in zip(views, wanted, strict=True) if needed]
    if not losses.requires_grad:
        return [None] * len(views)
    found = iter(torch.autograd.grad(losses, inputs, upstream, create_graph=True, allow_unused=True))
    return [next(found) if needed else None for needed in wanted]
