"""Ids of rows as the user gives them, checked: one rule for scorers and for exported files."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

LARGEST_ID = 2**63 - 1


def id_table(ids: Any, count: int) -> np.ndarray:
    """(count,) int64, or objects that are strings; each once, so that an id names one row.

    Raises:
        TypeError: what is neither integers nor strings, or both.
        ValueError: another shape, an id that comes twice, one that stands for what is missing (-1, ""), integers
            that int64 does not hold, strings with a NUL, which arrays of strings lose.
    """
    table = _as_array(ids)
    if table.shape != (count,):
        raise ValueError(f"ids have shape {table.shape}; it must be ({count},), one id for each row")
    if table.size == 0:
        return table.astype(np.int64)
    listed = table.tolist()
    words = isinstance(listed[0], str)
    for one in listed:
        if isinstance(one, bool) or not isinstance(one, str if words else int):
            kinds = "strings" if words else "integers"
            also = f"; the first is {listed[0]!r}, and all must be {kinds}" if isinstance(listed[0], (str, int)) else ""
            raise TypeError(f"ids holds {one!r}{also or '; they must be integers or strings'}")
    missing: Any = "" if words else -1
    unique = set(listed)
    if missing in unique:
        raise ValueError(f"ids holds {missing!r}, which stands for what is missing")
    if len(unique) != count:
        seen: set[Any] = set()
        twice = next(one for one in listed if one in seen or seen.add(one))  # type: ignore[func-returns-value]
        raise ValueError(f"ids holds {twice!r} twice; each row has an id of its own")
    if words:
        cut = next((one for one in listed if "\0" in one), None)
        if cut is not None:
            raise ValueError(f"ids holds {cut!r}, with a NUL, which arrays of strings lose")
        return np.array(listed, dtype=object)
    lowest, highest = min(listed), max(listed)
    if highest > LARGEST_ID or lowest < -LARGEST_ID - 1:
        raise ValueError(f"ids holds {highest if highest > LARGEST_ID else lowest}; integers must fit int64")
    return np.array(listed, dtype=np.int64)


def _as_array(ids: Any) -> np.ndarray:
    """Objects, unless it is an array: NumPy would make one type of a list of several."""
    if isinstance(ids, np.ndarray):
        return ids
    if isinstance(ids, (str, bytes)) or not isinstance(ids, Iterable):
        raise TypeError(f"ids is {ids!r}; pass an array or a list, one id for each row")
    listed = [one.item() if isinstance(one, np.generic) else one for one in ids]
    table = np.empty(len(listed), dtype=object)
    table[:] = listed
    return table
