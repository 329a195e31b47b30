"""Every check of an argument, written once: one sentence with the name, what came, and what is allowed.

Checks of shapes and dtypes are always made. Checks of *values in tensors* would make a compiled graph depend on data,
or wait for a GPU: they are made for plain CPU tensors in eager mode, and elsewhere a wrong value gives what the
formula gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
SIMILARITIES = ("cosine", "dot", "euclidean", "squared_euclidean")
LOSS_SIMILARITIES = ("cosine", "dot")
REDUCTIONS = ("mean", "mean_all", "mean_nonzero", "sum", "none")


def embeddings(first: str, tensor: Tensor, **others: Tensor | None) -> None:
    """Float matrices (rows, D), all with the same D and on the same device."""
    _matrix(first, tensor)
    for name, other in others.items():
        if other is None:
            continue
        _matrix(name, other)
        same_device(name, other, first, tensor)
        same_dimensions(name, other, first, tensor)


def labels(name: str, tensor: Tensor, of: str, rows: Tensor, *, multi_hot: bool = False) -> None:
    """Integer or bool ids, one for each row of the embeddings called ``of``; a row of 0 and 1 each with multi_hot."""
    _tensor(name, tensor)
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        raise TypeError(
            f"{name} has dtype {_short(tensor.dtype)}; labels must be integers or bool "
            f"(pass {name}.long() if the values are whole)"
        )
    count = rows.shape[0]
    several = multi_hot and tensor.dim() == 2 and tensor.shape[1] > 0
    if not (tensor.dim() == 1 or several) or tensor.shape[0] != count:
        or_several = f", or ({count}, number of labels) with entries 0 and 1" if multi_hot else ""
        raise ValueError(
            f"{name} has shape {_shape(tensor)}; it must be ({count},), one id for each row of {of}{or_several}"
        )
    same_device(name, tensor, of, rows)


def same_label_kind(first: str, a: Tensor | None, second: str, b: Tensor | None) -> None:
    """Ids meet ids, multi-hot rows meet rows of their length; uint64 is compared by its bits, so never with signed."""
    if a is None or b is None:
        return
    if (a.dtype == torch.uint64) != (b.dtype == torch.uint64):
        raise TypeError(
            f"{first} has dtype {_short(a.dtype)} and {second} has {_short(b.dtype)}; both must be uint64 or neither"
        )
    if a.shape[1:] != b.shape[1:]:
        raise ValueError(
            f"{first} has shape {_shape(a)} and {second} {_shape(b)}; "
            "both must be ids, or multi-hot with the same number of labels"
        )


def labelled_pairs(
    embeddings_: Tensor,
    labels_: Tensor | None,
    ref_emb: Tensor | None,
    ref_labels: Tensor | None,
    ignore_index: int | None,
    *,
    multi_hot: bool = True,
) -> None:
    """Embeddings with a label each (or several), and reference rows with labels of the same kind or none of both."""
    if labels_ is None:
        raise ValueError("labels is None; pass the class of each embedding, an integer tensor of shape (N,)")
    label_value("ignore_index", ignore_index)
    embeddings("embeddings", embeddings_, ref_emb=ref_emb)
    labels("labels", labels_, "embeddings", embeddings_, multi_hot=multi_hot)
    given_together("ref_emb", ref_emb, "ref_labels", ref_labels, "pass the class of each reference row")
    given_together("ref_labels", ref_labels, "ref_emb", ref_emb, "there is nothing to label")
    if ref_emb is not None and ref_labels is not None:
        labels("ref_labels", ref_labels, "ref_emb", ref_emb, multi_hot=multi_hot)
        same_label_kind("labels", labels_, "ref_labels", ref_labels)
    multi_hot_entries("labels", labels_, ignore_index)
    multi_hot_entries("ref_labels", ref_labels, ignore_index)


def multi_hot_entries(name: str, tensor: Tensor | None, ignore_index: int | None) -> None:
    """Labels (N, L) hold 0 and 1, or a row full of ``ignore_index``."""
    if tensor is None or tensor.dim() == 1 or not values_readable(tensor):
        return
    wide = tensor.to(torch.int64)
    wrong = (wide != 0) & (wide != 1)
    if ignore_index is not None:
        wrong &= ~(wide == ignore_index).all(dim=1, keepdim=True)
    if bool(wrong.any()):
        ignored = "" if ignore_index is None else f", or a whole row is {ignore_index}"
        raise ValueError(f"{name} holds {int(wide[wrong][0])}; entries of multi-hot labels are 0 or 1{ignored}")


def loss_settings(
    similarity: str,
    reduction: str,
    ignore_index: int | None,
    *,
    normalize: bool = False,
    allowed: Sequence[str] = LOSS_SIMILARITIES,
) -> None:
    """The settings that every pair loss has."""
    choice("similarity", similarity, allowed)
    flag("normalize", normalize)
    choice("reduction", reduction, REDUCTIONS)
    label_value("ignore_index", ignore_index)


def no_indices(indices_tuple: Any, instead: str) -> None:
    """Losses are called like those of pytorch-metric-learning, but take no index tuple."""
    if indices_tuple is not None:
        raise ValueError(f"indices_tuple is given, but this loss takes no index tuple: {instead}")


def temperature(value: Tensor | float, of: str, rows: Tensor, name: str = "temperature") -> None:
    """A number above 0, or a float tensor of such: 0-d, or one for each row."""
    if not isinstance(value, Tensor):
        positive_number(name, value)
        return
    _one_or_each(name, value, of, rows)
    if values_readable(value) and not bool(((value > 0) & value.isfinite()).all()):
        raise ValueError(f"{name} holds {_first_not(value, value > 0)}; every value must be finite and above 0")


def learned(name: str, value: Tensor | float | None, of: str, rows: Tensor) -> None:
    """None, a finite number, or a float tensor of such: 0-d, or one for each row."""
    if value is None:
        return
    if not isinstance(value, Tensor):
        finite_number(name, value)
        return
    _one_or_each(name, value, of, rows)
    if values_readable(value) and not bool(value.isfinite().all()):
        raise ValueError(f"{name} holds {_first_not(value, value.isfinite())}; every value must be finite")


def weights(value: Tensor | None, of: str, rows: Tensor) -> None:
    """None, or a float tensor (N,) of values >= 0."""
    if value is None:
        return
    _tensor("weights", value)
    if not value.dtype.is_floating_point:
        raise TypeError(f"weights has dtype {_short(value.dtype)}; it must be a float tensor")
    if value.dim() != 1 or value.shape[0] != rows.shape[0]:
        raise ValueError(
            f"weights has shape {_shape(value)}; it must be ({rows.shape[0]},), one value for each row of {of}"
        )
    same_device("weights", value, of, rows)
    if values_readable(value) and not bool(((value >= 0) & value.isfinite()).all()):
        raise ValueError(f"weights holds {_first_not(value, value >= 0)}; every value must be finite and not negative")


def arguments(name: str, values: Any, of: str, rows: Tensor) -> None:
    """Tensors with an entry for each row of the embeddings called ``of``."""
    if isinstance(values, Tensor):
        raise TypeError(f"{name} is a Tensor; it must be a sequence of tensors")
    for number, value in enumerate(values):
        entry = f"{name}[{number}]"
        _tensor(entry, value)
        if value.dim() == 0 or value.shape[0] != rows.shape[0]:
            raise ValueError(
                f"{entry} has shape {_shape(value)}; it must have {rows.shape[0]} entries, one for each row of {of}"
            )
        same_device(entry, value, of, rows)


def choice(name: str, value: str, allowed: Sequence[str]) -> None:
    """One of a few words."""
    if value not in allowed:
        raise ValueError(f"{name} is {value!r}; allowed: {', '.join(allowed)}")


def row_mask(name: str, mask: Tensor, of: str, rows: Tensor) -> None:
    """(rows,) bool."""
    _tensor(name, mask)
    if mask.dtype != torch.bool or mask.shape != rows.shape[:1]:
        raise ValueError(
            f"{name} is {_short(mask.dtype)} {_shape(mask)}; it must be bool ({rows.shape[0]},), one for each row "
            f"of {of}"
        )
    same_device(name, mask, of, rows)


def row_indices(name: str, value: Any, of: str, rows: Tensor, *, none: bool = False) -> None:
    """(V,) int64 places of rows; with ``none`` also -1."""
    _tensor(name, value)
    if value.dtype != torch.int64:
        raise TypeError(f"{name} has dtype {_short(value.dtype)}; rows of {of} are named by int64")
    if value.dim() != 1:
        raise ValueError(f"{name} has shape {_shape(value)}; expected (mixtures,)")
    same_device(name, value, of, rows)
    if not values_readable(value) or value.numel() == 0:
        return
    lowest, highest = (int(x) for x in value.aminmax())
    if lowest < (-1 if none else 0) or highest >= rows.shape[0]:
        allowed = f"0 to {rows.shape[0] - 1}" if rows.shape[0] else "none, there is no row"
        raise ValueError(
            f"{name} holds {lowest if lowest < (-1 if none else 0) else highest}; rows of {of}: {allowed}"
            + (", and -1 for no partner" if none else "")
        )


def positive_number(name: str, value: float) -> None:
    """A finite number above 0."""
    _number(name, value)
    if not 0 < value < float("inf"):
        raise ValueError(f"{name} is {value}; it must be finite and above 0")


def finite_number(name: str, value: float) -> None:
    """A finite number."""
    _number(name, value)
    if not -float("inf") < value < float("inf"):
        raise ValueError(f"{name} is {value}; it must be finite")


def count(name: str, value: Any, least: int = 0) -> None:
    """An integer, at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, (Integral, torch.SymInt)):
        raise TypeError(f"{name} is {value!r}; it must be an integer")
    if value < least:
        raise ValueError(f"{name} is {value}; it must be {least} or more")
    if isinstance(value, Integral) and int(value) >= 2**31:
        raise ValueError(f"{name} is {value}; it must be below 2**31")


def flag(name: str, value: Any) -> None:
    """True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}; it must be True or False")


def label_value(name: str, value: Any) -> None:
    """An integer, or None."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, Integral)):
        raise TypeError(f"{name} is {value!r}; it must be an integer, or None to switch it off")
    if value is not None and not -(2**63) <= int(value) < 2**63:
        raise ValueError(f"{name} is {value}; it must lie between -2**63 and 2**63 - 1, as labels do")


def given_together(name: str, value: Any, needed: str, other: Any, why: str) -> None:
    """``name`` has no meaning without ``needed``."""
    if value is not None and other is None:
        raise ValueError(f"{name} is given without {needed}; {why}")


def same_device(name: str, tensor: Tensor, first: str, other: Tensor) -> None:
    """Two tensors on one device."""
    if tensor.device != other.device:
        raise ValueError(f"{name} is on {tensor.device} and {first} on {other.device}; they must be on one device")


def same_dimensions(name: str, matrix: Any, first: str, other: Any) -> None:
    """Two matrices, tensors or arrays, with rows of the same length."""
    if matrix.shape[1] != other.shape[1]:
        raise ValueError(
            f"{name} has {matrix.shape[1]} dimensions per row and {first} has {other.shape[1]}; they must be equal"
        )


def values_readable(tensor: Tensor) -> bool:
    """Whether looking at values costs nothing and breaks nothing: a plain CPU tensor in eager mode."""
    return (
        not torch.compiler.is_compiling()
        and type(tensor) in (Tensor, torch.nn.Parameter)
        and tensor.device.type == "cpu"
        and torch._C._functorch.peek_interpreter_stack() is None  # inside a transform values are symbolic
    )


def _matrix(name: str, tensor: Tensor) -> None:
    _tensor(name, tensor)
    if tensor.dtype not in FLOATS:
        raise TypeError(
            f"{name} has dtype {_short(tensor.dtype)}; "
            f"embeddings must be {', '.join(_short(dtype) for dtype in FLOATS)}"
        )
    if tensor.dim() != 2:
        raise ValueError(f"{name} has shape {_shape(tensor)}; embeddings must be 2-D (rows, dimensions)")
    if tensor.shape[1] == 0:
        raise ValueError(f"{name} has shape {_shape(tensor)}; rows must have at least one dimension")


def _one_or_each(name: str, value: Tensor, of: str, rows: Tensor) -> None:
    if not value.dtype.is_floating_point:
        raise TypeError(f"{name} has dtype {_short(value.dtype)}; it must be a float, or a float tensor")
    if value.dim() > 1 or (value.dim() == 1 and value.shape[0] != rows.shape[0]):
        raise ValueError(
            f"{name} has shape {_shape(value)}; it must be 0-d, or ({rows.shape[0]},), one value for each row of {of}"
        )
    same_device(name, value, of, rows)


def _tensor(name: str, value: Any) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} is a {type(value).__name__}; it must be a torch.Tensor")


def _number(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (Real, torch.SymInt, torch.SymFloat)):
        shown = repr(value)
        if "\n" in shown:  # an array, or what is like it
            shown = f"a {type(value).__name__}"
        raise TypeError(f"{name} is {shown}; it must be a number")


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _shape(tensor: Tensor) -> str:
    return str(tuple(tensor.shape))


def _first_not(tensor: Tensor, allowed: Tensor) -> float:
    """A value that broke the rule, for the message."""
    return float(tensor[~(allowed & tensor.isfinite())].flatten()[0])
