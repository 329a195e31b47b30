"""Inputs that find mistakes: sizes where tiles end, rows of every kind, tensors in any layout, labels of any dtype."""

from __future__ import annotations

import torch
from torch import Tensor

TILE_EDGES = (1, 2, 5, 6, 7, 15, 16, 17, 31, 32, 33, 63, 64, 65, 126, 127, 252, 253, 511, 512, 513)
"""Sizes at and beside the borders of register tiles, packed panels, vectors, row blocks and column blocks."""

ROW_KINDS = ("normal", "unit", "log_normal", "cauchy", "clusters", "duplicates", "zero_rows", "parallel")
"""Kinds of rows that `embedding_rows` makes."""

LAYOUTS = ("contiguous", "transposed", "every_second_row", "every_second_column", "shifted", "wide", "expanded")
"""Memory layouts that `laid_out` makes."""

LABEL_DTYPES = (
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.uint16,
    torch.int16,
    torch.uint32,
    torch.int32,
    torch.uint64,
    torch.int64,
)
"""Every dtype a label may have."""


def embedding_rows(
    kind: str, rows: int, dim: int, *, dtype: torch.dtype = torch.float32, seed: int = 0, device: str = "cpu"
) -> Tensor:
    """(rows, dim) of one of `ROW_KINDS`.

    normal       independent normal entries
    unit         the same, normalised
    log_normal   norms from very short to very long
    cauchy       a few entries dominate everything
    clusters     five directions and little noise: large similarities, low loss
    duplicates   each row three times
    zero_rows    every third row is exactly zero
    parallel     all rows on one line through the origin, of both signs
    """
    if kind not in ROW_KINDS:
        raise ValueError(f"kind is {kind!r}; allowed: {', '.join(ROW_KINDS)}")
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, dim, generator=generator, dtype=torch.float64)
    number = torch.arange(rows)
    if kind == "unit":
        x = x / x.norm(dim=1, keepdim=True).clamp(min=1e-12)
    elif kind == "log_normal":
        x = x * torch.exp(3 * torch.randn(rows, 1, generator=generator, dtype=torch.float64)).clamp(1e-3, 1e3)
    elif kind == "cauchy":
        x = (x / torch.randn(rows, dim, generator=generator, dtype=torch.float64)).clamp(-1e3, 1e3)
    elif kind == "clusters":
        x = torch.randn(5, dim, generator=generator, dtype=torch.float64)[number % 5] + 0.1 * x
    elif kind == "duplicates":
        x = x[number // 3]
    elif kind == "zero_rows":
        x = torch.where((number % 3 == 0).unsqueeze(1), 0.0, x)
    elif kind == "parallel" and rows:
        x = x[:1] * torch.where(number % 2 == 0, 1.0, -0.5).unsqueeze(1)
    return x.to(dtype=dtype, device=device)


def laid_out(x: Tensor, layout: str) -> Tensor:
    """The same values as ``x`` (2-D or 1-D) in one of `LAYOUTS`.

    What lies between and around the values is NaN (or the smallest integer): reading it shows. "expanded" repeats the
    first row with stride 0, so it is the one layout that changes the values; it keeps the shape.
    """
    if layout not in LAYOUTS:
        raise ValueError(f"layout is {layout!r}; allowed: {', '.join(LAYOUTS)}")
    x = x.detach()
    if layout == "expanded":
        return x[:1].expand(x.shape) if x.shape[0] else x
    if layout == "contiguous" or x.dim() == 0:
        return x.contiguous()
    if layout == "transposed":
        return x.T.contiguous().T if x.dim() == 2 else x.contiguous()
    if layout == "every_second_row":
        return _inside(x, slice(1, 2 * x.shape[0], 2), (2 * x.shape[0] + 1, *x.shape[1:]))
    if layout == "shifted":
        return _inside(x, slice(3, 3 + x.shape[0]), (x.shape[0] + 5, *x.shape[1:]))
    if x.dim() == 1:
        return x.contiguous()
    if layout == "every_second_column":
        columns = slice(1, 2 * x.shape[1], 2)
        return _inside(x, (slice(None), columns), (x.shape[0], 2 * x.shape[1] + 1))
    return _inside(x, (slice(None), slice(2, 2 + x.shape[1])), (x.shape[0], x.shape[1] + 7))


def _inside(x: Tensor, place: slice | tuple[slice, slice], shape: tuple[int, ...]) -> Tensor:
    """A view of a larger tensor full of poison."""
    if x.dtype == torch.bool:
        around = torch.ones(shape, dtype=x.dtype)
    else:
        poison = torch.nan if x.dtype.is_floating_point else torch.iinfo(x.dtype).min
        around = torch.full(shape, poison, dtype=x.dtype)
    view = around[place]
    view.copy_(x)
    return view


def relabelled(labels: Tensor, dtype: torch.dtype, *, seed: int = 0) -> Tensor:
    """The same partition with other names: every class gets a random value of ``dtype``, no two the same.

    In 64-bit dtypes the values are neighbours at the very ends of the range, which a comparison through float64 would
    merge. bool has room for two classes: class numbers beyond are taken modulo 2.
    """
    _, classes = labels.unique(return_inverse=True)
    count = int(classes.max()) + 1 if classes.numel() else 0
    if dtype == torch.bool:
        return classes % 2 == 1
    generator = torch.Generator().manual_seed(seed)
    limits = torch.iinfo(dtype)
    if dtype.itemsize == 8:
        low = list(range(limits.min, limits.min + count // 2))
        values = low + list(range(limits.max - (count - len(low)) + 1, limits.max + 1))
    else:
        span = min(limits.max - limits.min + 1, 1 << 20)
        if count > span:
            raise ValueError(f"labels hold {count} classes and {dtype} has {span} values")
        values = (torch.randperm(span, generator=generator)[:count] + limits.min).tolist()
    names = torch.tensor([values[i] for i in torch.randperm(count, generator=generator).tolist()], dtype=dtype)
    # Indexing is not implemented for the wide unsigned dtypes.
    signed = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}.get(dtype, dtype)
    return names.view(signed)[classes].view(dtype)
