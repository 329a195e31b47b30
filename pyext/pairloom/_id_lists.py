"""Lists of ids per query - what `exclude` and `positives` are - in the one form that operators take: CSR.

    query q has the ids   indices[indptr[q] : indptr[q + 1]]      rising, each once

Accepted: integers (Q,), one id each, -1 for none; a list with the ids of each query; CSR as a tuple.
A tuple is always CSR, a list never.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor


class IdLists(NamedTuple):
    """Ids of Q queries."""

    indptr: Tensor
    """(Q + 1,) int64, from 0 to the number of ids."""
    indices: Tensor
    """(number of ids,) int64; rising within a query, none twice."""

    def of_queries(self, first: int, last: int) -> IdLists:
        """The lists of some queries."""
        indptr = self.indptr[first : last + 1]
        return IdLists(indptr - indptr[0], self.indices[int(indptr[0]) : int(indptr[-1])])

    def of_rows(self, first: int, last: int) -> IdLists:
        """What the lists hold of rows ``first`` to ``last - 1``, counted from ``first``."""
        inside = (self.indices >= first) & (self.indices < last)
        before = torch.cat([inside.new_zeros(1, dtype=torch.int64), inside.cumsum(0)])
        return IdLists(before[self.indptr], self.indices[inside] - first)

    def to(self, device: torch.device | str) -> IdLists:
        """The same on a device."""
        return IdLists(self.indptr.to(device), self.indices.to(device))

    def query_of_each(self) -> Tensor:
        """(number of ids,) int64: the query that an id belongs to."""
        counts = self.indptr.diff()
        return torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)


def id_lists(name: str, value: Any, queries: int, rows: int, *, of: str) -> IdLists:
    """The argument called ``name``, checked: ids of ``queries`` queries in a matrix called ``of`` that has ``rows``.

    Raises:
        TypeError: what is no list of integers.
        ValueError: another number of queries, an id that is no row, an indptr that does not rise from 0 to the end.
    """
    if isinstance(value, tuple):
        given = _from_csr(name, value, queries)
    elif isinstance(value, (Tensor, np.ndarray)):
        given = _from_one_each(name, value, queries)
    elif isinstance(value, list) and value and all(map(_is_integer, value)):
        given = _from_one_each(name, np.array(value), queries)
    elif isinstance(value, list):
        given = _from_lists(name, value, queries)
    else:
        raise TypeError(
            f"{name} is a {type(value).__name__}; it must be an integer tensor with one id for each query, a list with "
            "the ids of each query, or a tuple (indptr, indices)"
        )
    return _in_order(_inside(name, given, rows, of), rows)


def id_lists_in_graph(name: str, value: Any, queries: int) -> IdLists:
    """The same inside a compiled graph, where nobody looks at values: dtypes and sizes are checked, nothing else."""
    if isinstance(value, Tensor):
        _check_integers(name, value)
        if value.dim() != 1 or value.shape[0] != queries:
            raise ValueError(f"{name} has shape {tuple(value.shape)}; it must be ({queries},), one id for each query")
        return IdLists(torch.arange(queries + 1, device=value.device), value.to(torch.int64))  # -1 is no row
    if isinstance(value, tuple) and all(isinstance(part, Tensor) for part in value):
        return _csr(name, value, queries)
    raise TypeError(
        f"{name} is a {type(value).__name__}; in a compiled or exported graph it must be an integer tensor with one id "
        "for each query, or a tuple of two (indptr, indices)"
    )


def _from_csr(name: str, value: tuple[Any, ...], queries: int) -> IdLists:
    given = _csr(name, tuple(_integers(f"{name}[{i}]", part) for i, part in enumerate(value)), queries)
    indptr, count = given.indptr, len(given.indices)
    if int(indptr[0]) != 0 or int(indptr[-1]) != count or bool((indptr.diff() < 0).any()):
        falls = (indptr.diff() < 0).nonzero().flatten().tolist()
        what = f"falls after query {falls[0]}" if falls else f"goes from {int(indptr[0])} to {int(indptr[-1])}"
        raise ValueError(f"{name}[0], the indptr, {what}; it must rise from 0 to {count}, the number of ids")
    return given


def _csr(name: str, value: tuple[Tensor, ...], queries: int) -> IdLists:
    if len(value) != 2:
        raise ValueError(f"{name} is a tuple of {len(value)}; a tuple must be (indptr, indices), a list one per query")
    for number, part in enumerate(value):
        _check_integers(f"{name}[{number}]", part)
        if part.dim() != 1:
            raise ValueError(f"{name}[{number}] has shape {tuple(part.shape)}; it must have one dimension")
    indptr, indices = value
    if indptr.shape[0] != queries + 1:
        raise ValueError(
            f"{name}[0], the indptr, has {indptr.shape[0]} entries; it must have {queries + 1}, one more than queries"
        )
    return IdLists(indptr.to(torch.int64), indices.to(torch.int64))


def _from_one_each(name: str, value: Any, queries: int) -> IdLists:
    ids = _integers(name, value)
    if ids.shape != (queries,):
        raise ValueError(f"{name} has shape {tuple(ids.shape)}; it must be ({queries},), one id for each query")
    some = ids != -1
    zero = ids.new_zeros(1)
    return IdLists(torch.cat([zero, some.cumsum(0)]), ids[some])


def _from_lists(name: str, value: list[Any], queries: int) -> IdLists:
    if len(value) != queries:
        raise ValueError(f"{name} has {len(value)} entries; it must have {queries}, one list of ids for each query")
    lists = [_ids_of(f"{name}[{number}]", entry) for number, entry in enumerate(value)]
    counts = np.fromiter(map(len, lists), np.int64, queries)
    indptr = np.concatenate([np.zeros(1, np.int64), counts.cumsum()])
    return IdLists(torch.from_numpy(indptr), torch.tensor(list(chain.from_iterable(lists)), dtype=torch.int64))


def _ids_of(entry_name: str, entry: Any) -> list[int]:
    if isinstance(entry, (Tensor, np.ndarray)):
        if entry.ndim != 1:
            raise ValueError(f"{entry_name} has shape {tuple(entry.shape)}; it must have one dimension")
        return _integers(entry_name, entry).tolist() if len(entry) else []
    if isinstance(entry, (str, bytes)) or not isinstance(entry, Iterable):
        raise TypeError(f"{entry_name} is {entry!r}; it must be a list of ids")
    ids = list(entry)
    for one in ids:
        if not _is_integer(one):
            raise TypeError(f"{entry_name} holds {one!r}; ids must be integers")
    return [int(one) for one in ids]


def _is_integer(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _integers(name: str, value: Any) -> Tensor:
    """int64; what is above its range becomes its largest value, which is no row either."""
    if not isinstance(value, Tensor):
        array = np.asarray(value)
        if array.dtype.kind not in "iu":
            raise TypeError(f"{name} has dtype {array.dtype}; ids must be integers")
        if array.dtype.kind == "u":
            array = np.minimum(array.astype(np.uint64), np.uint64(np.iinfo(np.int64).max))
        return torch.from_numpy(array.astype(np.int64))
    _check_integers(name, value)
    if value.dtype == torch.uint64:
        return _integers(name, value.numpy())
    return value.detach().to(torch.int64)


def _inside(name: str, given: IdLists, rows: int, of: str) -> IdLists:
    wrong = ((given.indices < 0) | (given.indices >= rows)).nonzero().flatten()
    if len(wrong):
        at = wrong[0]
        query = int(torch.searchsorted(given.indptr, at, right=True)) - 1
        raise ValueError(
            f"{name} holds id {int(given.indices[at])} for query {query}; ids must be in [0, {rows}), the rows of {of}"
        )
    return given


def _in_order(given: IdLists, rows: int) -> IdLists:
    """Ids of a query rising, each once."""
    key = given.query_of_each() * rows + given.indices
    if bool((key.diff() > 0).all()):
        return given
    key = key.unique()  # sorted
    counts = torch.bincount(torch.div(key, rows, rounding_mode="floor"), minlength=len(given.indptr) - 1)
    return IdLists(torch.cat([counts.new_zeros(1), counts.cumsum(0)]), key % rows)


def _check_integers(name: str, tensor: Tensor) -> None:
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex or tensor.dtype == torch.bool:
        raise TypeError(f"{name} has dtype {str(tensor.dtype).removeprefix('torch.')}; ids must be integers")
