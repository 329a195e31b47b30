"""Which candidates become negatives: ranks, bounds of the score, the draw."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

NO_PLACE = torch.iinfo(torch.int64).max


class Chosen(NamedTuple):
    """Negatives of some queries."""

    scores: Tensor
    """(B, k), -inf where there is none."""
    indices: Tensor
    """(B, k) int64, best first, -1 where there is none."""
    counts: Counter[str]
    """Parts of the report."""


@dataclass(frozen=True)
class Rules:
    """The settings of `mine_hard_negatives` that decide about a candidate."""

    k: int
    range_min: int
    range_max: int
    absolute_margin: float | None
    relative_margin: float | None
    max_score: float | None
    min_score: float | None
    seed: int | None
    """Of the draw; None takes the best."""

    def too_extreme(self, scores: Tensor, lowest: Tensor) -> dict[str, Tensor]:
        """Masks of what each filter removes, in order; ``lowest`` is NaN, which nothing is above, without positives."""
        lowest = lowest.unsqueeze(1)
        masks = {}
        if self.absolute_margin is not None:
            masks["absolute_margin"] = scores > lowest - self.absolute_margin
        if self.relative_margin is not None:
            masks["relative_margin"] = scores > lowest - self.relative_margin * lowest.abs()
        if self.max_score is not None:
            masks["max_score"] = scores > self.max_score
        if self.min_score is not None:
            masks["min_score"] = scores < self.min_score
        return masks

    def choose(self, first_query: int, scores: Tensor, indices: Tensor, lowest: Tensor) -> Chosen:
        """From the ``range_max`` best non-positives of some queries (B, R), and their lowest positive's score (B,)."""
        counts: Counter[str] = Counter(skipped=int((indices[:, : self.range_min] >= 0).sum()))
        missing = max(self.k - max(scores.shape[1] - self.range_min, 0), 0)  # a small corpus fills no window
        scores = F.pad(scores[:, self.range_min :], (0, missing), value=-torch.inf)
        indices = F.pad(indices[:, self.range_min :], (0, missing), value=-1)
        passed = indices >= 0
        counts["candidates"] = int(passed.sum())
        for name, removed in self.too_extreme(scores.double(), lowest).items():
            counts[f"removed {name}"] = int((passed & removed).sum())
            passed &= ~removed

        places = self.places(first_query, passed, indices)
        empty = places == NO_PLACE
        places = places.masked_fill(empty, 0)
        per_query = self.k - empty.sum(1)
        counts["negatives"] = int(per_query.sum())
        counts["left_over"] = int(passed.sum()) - counts["negatives"]
        counts["with_none"] = int((per_query == 0).sum())
        counts["with_fewer"] = int((per_query < self.k).sum()) - counts["with_none"]
        counts["without_positive"] = int(lowest.isnan().sum())
        return Chosen(
            scores.gather(1, places).masked_fill(empty, -torch.inf),
            indices.gather(1, places).masked_fill(empty, -1),
            counts,
        )

    def places(self, first_query: int, passed: Tensor, indices: Tensor) -> Tensor:
        """(B, k): columns of what is taken, rising, then NO_PLACE."""
        if self.seed is None:
            order = torch.arange(passed.shape[1]).expand_as(passed)
        else:
            order = draw_keys(self.seed, first_query, indices)
        first = torch.where(passed, order, NO_PLACE).argsort(dim=1, stable=True)[:, : self.k]
        return torch.where(passed.gather(1, first), first, NO_PLACE).sort(dim=1).values


def draw_keys(seed: int, first_query: int, indices: Tensor) -> Tensor:
    """(B, R) int64 >= 0, random: a function of the seed, the number of the query and the id, and of nothing else.

    So a draw depends neither on the queries that are looked at together nor on threads.
    """
    queries = np.arange(first_query, first_query + len(indices), dtype=np.uint64)[:, None]
    state = _mix(_mix(np.array([seed % 2**64], dtype=np.uint64)) + queries)
    return torch.from_numpy((_mix(state + indices.numpy().astype(np.uint64)) >> np.uint64(1)).astype(np.int64))


def _mix(x: np.ndarray) -> np.ndarray:
    """SplitMix64: Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
