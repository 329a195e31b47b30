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
    if isinstance(exclude, np.ndarray) and exclude.ndim == 1:
        lists = [[] if one == rows.missing else [one] for one in exclude.tolist()]
    else:
        lists = [list(np.asarray(one).tolist()) if isinstance(one, np.ndarray) else list(one) for one in exclude]
    if len(lists) != queries:
        raise ValueError(f"exclude has {len(lists)} entries for {queries} queries; pass one for each query")
    indptr = np.cumsum([0, *(len(one) for one in lists)], dtype=np.int64)
    return Exclusions(indptr, _rows_of([one for entry in lists for one in entry], rows))


def _rows_of(ids: list[Any], rows: Rows) -> np.ndarray:
    places = rows.places
    try:
        return np.array([places[one] for one in ids], dtype=np.int64)
    except (KeyError, TypeError):
        strange = next(one for one in ids if not (isinstance(one, (int, str)) and one in places))
        raise ValueError(f"exclude holds {strange!r}, which is no id of this scorer") from None
