"""Rows of a scorer at one moment: what searches read, never changed once it is made."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from pairloom import _native
from pairloom._codes import Codes, code_rows


class Exclusions(NamedTuple):
    """What each query excludes; None for nothing."""

    indptr: np.ndarray | None
    """(Q + 1,)"""
    rows: np.ndarray | None
    """(E,) row numbers"""


@dataclass(frozen=True, eq=False)
class Rows:
    """Embeddings with their ids, and what is known of them for searches."""

    embeddings: np.ndarray | None
    """(M, D), or None: codes alone."""
    codes: Codes | None
    ids: np.ndarray
    """(M,) int64 or strings, each once."""
    dim: int
    space: dict[str, _Space] = field(default_factory=dict)
    """What the arrays lie in, with room behind them."""
    cached: dict[str, Any] = field(default_factory=dict)
    """Found when first asked for; two threads may find it twice."""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def missing(self) -> Any:
        """The id of what is missing."""
        return "" if self.ids.dtype == object else -1

    @property
    def names(self) -> np.ndarray:
        """(M + 1,): the ids and, at the end, that of what is missing: row -1."""
        if "names" not in self.cached:
            self.cached["names"] = np.append(self.ids, np.array([self.missing], self.ids.dtype))
        return self.cached["names"]

    def place(self, one: Any) -> int | None:
        """The row of an id. Rows to come are in the same table, behind these."""
        if "places" not in self.cached:
            self.cached["places"] = {name: row for row, name in enumerate(self.ids.tolist())}
        row = self.cached["places"].get(one)
        return None if row is None or row >= len(self) else row

    def search(
        self, queries: np.ndarray, k: int, similarity: str, exclude: Exclusions, threads: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Scores and row numbers, as `pairloom.topk`."""
        if self.embeddings is None:
            assert self.codes is not None
            return _native.coded_topk(queries, *self.codes, k, similarity, *exclude, threads)
        if self.codes is not None:
            gallery = (self.embeddings, *self.codes)
            return _native.screened_topk(queries, *gallery, k, similarity, *exclude, threads)[:2]
        norms = None
        if similarity == "cosine":
            wide = np.float64 in (queries.dtype, self.embeddings.dtype)
            key = _norms_key(wide)
            if key not in self.cached:
                self.cached[key] = _native.inverse_norms(self.embeddings, wide, threads)
            norms = self.cached[key]
        return _native.topk(queries, self.embeddings, k, similarity, *exclude, norms, threads)

    def without(self, rows: np.ndarray) -> Rows:
        """All others, in order."""
        keep = np.ones(len(self), bool)
        keep[rows] = False
        codes = (
            None
            if self.codes is None
            else Codes(self.codes.codes[keep], np.ascontiguousarray(self.codes.records[:, keep]))
        )
        embeddings = None if self.embeddings is None else self.embeddings[keep]
        return replace(self, embeddings=embeddings, codes=codes, ids=self.ids[keep], space={}, cached={})

    def joined(self, embeddings: np.ndarray, ids: np.ndarray, screen: str | None, threads: int) -> Rows:
        """With more rows behind these. Room is taken in advance: many small additions copy each row a few times."""
        assert self.embeddings is not None
        space = dict(self.space)
        codes = None
        if self.codes is not None and screen is not None:
            more = code_rows(embeddings, screen, False, threads)
            space["codes"], extended = _extended(self.codes.codes, more.codes, space.get("codes"))
            codes = Codes(extended, np.concatenate([self.codes.records, more.records], axis=1))
        space["embeddings"], extended = _extended(self.embeddings, embeddings, space.get("embeddings"))
        cached: dict[str, Any] = {}
        for wide in (False, True):
            if (norms := self.cached.get(_norms_key(wide))) is not None:
                key = _norms_key(wide)
                found = _native.inverse_norms(embeddings, wide, threads)
                space[key], cached[key] = _extended(norms, found, space.get(key))
        all_ids = np.concatenate([self.ids, ids]) if len(self) else ids
        if "places" in self.cached:  # last, when nothing can fail any more: the table is that of these rows too
            cached["places"] = self.cached["places"]
            cached["places"].update({one: len(self) + row for row, one in enumerate(ids.tolist())})
        return replace(self, embeddings=extended, codes=codes, ids=all_ids, space=space, cached=cached)


def _norms_key(wide: bool) -> str:
    return f"inverse norms, {'wide' if wide else 'narrow'}"


@dataclass(eq=False)
class _Space:
    """Rows of a buffer, and how many of them were given away."""

    rows: np.ndarray
    used: int


def _extended(array: np.ndarray, more: np.ndarray, space: _Space | None) -> tuple[_Space, np.ndarray]:
    """(M, ...) and (n, ...) -> (M + n, ...): in the room behind the array, if nobody took it yet."""
    first, last = len(array), len(array) + len(more)
    if space is None or space.used != first or len(space.rows) < last:
        space = _Space(np.empty((max(last, first + first // 2, 16), *array.shape[1:]), array.dtype), first)
        space.rows[:first] = array
    space.rows[first:last] = more
    space.used = last
    return space, space.rows[:last]
