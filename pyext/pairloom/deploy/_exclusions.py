"""Ids that are no answer to a query, as the kernels take them: row numbers in CSR."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from pairloom.deploy._rows import Exclusions, Rows


def exclusions(exclude: Any, queries: int, rows: Rows) -> Exclusions:
    """(indptr (Q + 1,), row numbers) of one id for each query, a list for each query, or CSR; (None, None) for none."""
    if exclude is None:
        return Exclusions(None, None)
    if isinstance(exclude, tuple) and len(exclude) == 2:
        indptr, ids = np.asarray(exclude[0]), exclude[1]
        if indptr.shape != (queries + 1,) or indptr.dtype.kind not in "iu":
            raise ValueError(
                f"exclude has an indptr {indptr.dtype} {indptr.shape}; it must be integers ({queries + 1},)"
            )
        return Exclusions(indptr.astype(np.int64), rows_of("exclude", ids, rows))
    if not isinstance(exclude, (np.ndarray, list, tuple)):
        raise TypeError(f"exclude is a {type(exclude).__name__}; pass ids (Q,), a list for each query, or CSR")
    if len(exclude) != queries:
        raise ValueError(f"exclude has {len(exclude)} entries for {queries} queries; pass one for each query")
    lists = [_ids_of_query(entry, rows.missing) for entry in exclude]
    indptr = np.cumsum([0, *(len(one) for one in lists)], dtype=np.int64)
    return Exclusions(indptr, rows_of("exclude", [one for entry in lists for one in entry], rows))


def _ids_of_query(entry: Any, missing: Any) -> list[Any]:
    """One id or several; that of what is missing is none."""
    entries = list(entry) if isinstance(entry, (list, tuple, set, frozenset, np.ndarray)) else [entry]
    return [one for one in entries if one is None or type(one) is bool or one != missing]


def rows_of(name: str, ids: Any, rows: Rows) -> np.ndarray:
    """Row numbers of ids.

    Raises:
        TypeError: an id that is no integer and no string (a mask is neither).
        ValueError: an id that is not there.
    """
    if isinstance(ids, (str, bytes)) or not isinstance(ids, Iterable):
        raise TypeError(f"{name} is {ids!r}; pass an array or a list of ids")
    found = []
    for one in ids:
        if isinstance(one, (bool, np.bool_)) or not isinstance(one, (str, int, np.integer)):
            raise TypeError(f"{name} holds {one!r}; ids are integers or strings")
        place = rows.place(one)
        if place is None:
            raise ValueError(f"{name} holds {one!r}, which is no id of this scorer")
        found.append(place)
    return np.array(found, dtype=np.int64)
