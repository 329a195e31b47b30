"""Ids that are no answer to a query, as the kernels take them: row numbers in CSR."""

from __future__ import annotations

from typing import Any

import numpy as np

from pairloom.deploy._rows import Exclusions, Rows


def exclusions(exclude: Any, queries: int, rows: Rows) -> Exclusions:
    """(indptr (Q + 1,), row numbers) of one id for each query, a list for each query, or CSR; (None, None) for none."""
    if exclude is None:
        return Exclusions(None, None)
    if isinstance(exclude, tuple) and len(exclude) == 2:
        indptr, ids = (np.asarray(part) for part in exclude)
        if indptr.shape != (queries + 1,) or indptr.dtype.kind not in "iu":
            raise ValueError(
                f"exclude has an indptr {indptr.dtype} {indptr.shape}; it must be integers ({queries + 1},)"
            )
        return Exclusions(indptr.astype(np.int64), _rows_of(ids.tolist(), rows))
    entries = exclude.tolist() if isinstance(exclude, np.ndarray) else list(exclude)
    lists = [_ids_of_query(entry, rows.missing) for entry in entries]
    if len(lists) != queries:
        raise ValueError(f"exclude has {len(lists)} entries for {queries} queries; pass one for each query")
    indptr = np.cumsum([0, *(len(one) for one in lists)], dtype=np.int64)
    return Exclusions(indptr, _rows_of([one for entry in lists for one in entry], rows))


def _ids_of_query(entry: Any, missing: Any) -> list[Any]:
    """One id, that of what is missing for none, or several."""
    if isinstance(entry, (str, int, np.integer)):
        return [] if entry == missing else [entry]
    return list(entry.tolist()) if isinstance(entry, np.ndarray) else list(entry)


def _rows_of(ids: list[Any], rows: Rows) -> np.ndarray:
    places = rows.places
    found = []
    for one in ids:
        if isinstance(one, (bool, np.bool_)) or not isinstance(one, (str, int, np.integer)):
            raise TypeError(f"exclude holds {one!r}; ids are integers or strings")
        if one not in places:
            raise ValueError(f"exclude holds {one!r}, which is no id of this scorer")
        found.append(places[one])
    return np.array(found, dtype=np.int64)
