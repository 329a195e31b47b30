"""Cases small enough to work out by hand, and what each metric says about missing answers.

All points lie on a line and are compared with similarity "euclidean", so that ranks can be read off.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from pairloom.metrics import map_at_r, precision_at_1, recall_at_k


def line(*points: float) -> Tensor:
    return torch.tensor(points, dtype=torch.float32).unsqueeze(1)


def ids(*labels: int) -> Tensor:
    return torch.tensor(labels, dtype=torch.int64)


def test_against_a_gallery() -> None:
    gallery, labels = line(0, 1, 2, 3, 4), ids(7, 8, 7, 8, 7)
    # From -1 the labels come as 7 8 7 8 7: R = 3, hits at ranks 1 and 3 of the first three: (1/1 + 2/3) / 3.
    # From  5 they come as 7 8 7 8 7 as well; the query wants 8, R = 2, one hit, at rank 2: (1/2) / 2.
    queries, wanted = line(-1, 5), ids(7, 8)
    both = (queries, wanted, gallery, labels)
    assert map_at_r(*both, similarity="euclidean") == pytest.approx((5 / 9 + 1 / 4) / 2, abs=1e-15)
    assert recall_at_k(*both, k=1, similarity="euclidean") == 0.5
    assert recall_at_k(*both, k=2, similarity="euclidean") == 1.0
    assert precision_at_1(*both, similarity="euclidean") == 0.5


def test_leave_one_out() -> None:
    points, labels = line(0, 1, 3, 7), ids(0, 0, 1, 0)
    # R = 2. Point 0 finds 1 and 3: hit, miss: (1/1) / 2. Point 1 finds 0 and 3: hit, miss: the same.
    # Point 7 finds 3 and 1: miss, hit: (1/2) / 2. Point 3 is alone in its class and is not asked.
    assert map_at_r(points, labels, similarity="euclidean") == pytest.approx((0.5 + 0.5 + 0.25) / 3, abs=1e-15)
    assert recall_at_k(points, labels, similarity="euclidean") == pytest.approx(2 / 3, abs=1e-15)
    assert recall_at_k(points, labels, k=2, similarity="euclidean") == 1.0


def test_perfect_and_worst() -> None:
    points = line(0, 1, 2, 100, 101, 102)
    assert map_at_r(points, ids(0, 0, 0, 1, 1, 1), similarity="euclidean") == 1.0
    # Pairs at opposite ends: nobody's nearest item is of the own class.
    assert map_at_r(line(0, 1, 9, 10), ids(0, 1, 0, 1), similarity="euclidean") == 0.0
    assert recall_at_k(line(0, 1, 9, 10), ids(0, 1, 0, 1), similarity="euclidean") == 0.0


def test_the_query_is_left_out_by_position_not_by_score() -> None:
    """Exact duplicates of the query are answers, and one with a lower index comes before the query itself."""
    duplicates = torch.ones(4, 3)
    labels = ids(0, 1, 1, 0)
    # All scores tie, so answers come by index: 0: 1 2 3, 1: 0 2 3, 2: 0 1 3, 3: 0 1 2; R = 1 for all.
    assert map_at_r(duplicates, labels) == pytest.approx(1 / 4, abs=1e-15)  # only item 3 finds item 0 first
    assert recall_at_k(duplicates, labels, k=2) == pytest.approx(3 / 4, abs=1e-15)  # 1: 0 2, 2: 0 1, 3: 0 1
    assert recall_at_k(duplicates, labels, k=3) == 1.0


def test_a_query_that_is_not_among_its_own_answers() -> None:
    """With a dot product a longer row is more similar to the query than the query itself."""
    rows = torch.tensor([[1.0, 0.0], [5.0, 0.0], [4.0, 0.0], [3.0, 0.0]])
    labels = ids(0, 1, 0, 1)
    # 0: 5 4 3 -> miss, hit.  1: 4 3 1 -> miss, hit.  2: 5 3 1 -> miss, miss.  3: 5 4 1 -> hit.
    assert recall_at_k(rows, labels, k=1, similarity="dot") == pytest.approx(1 / 4)
    assert recall_at_k(rows, labels, k=2, similarity="dot") == pytest.approx(3 / 4)


def test_missing_answers_are_no_hits() -> None:
    """A NaN row is never returned and finds nothing, but it is still relevant: R counts it."""
    points, labels = line(0, 1, math.nan), ids(0, 0, 0)
    # 0: answer 1 of R = 2 -> 1/2;  1: the same;  NaN: no answer at all -> 0.
    assert map_at_r(points, labels, similarity="euclidean") == pytest.approx(1 / 3, abs=1e-15)
    assert recall_at_k(points, labels, k=2, similarity="euclidean") == pytest.approx(2 / 3, abs=1e-15)


@pytest.mark.parametrize(
    ("queries", "labels", "gallery"),
    [
        (line(0, 1, 2), ids(0, 1, 2), None),  # leave-one-out, everybody alone in its class
        (line(), ids(), None),  # no query
        (line(5), ids(5), None),  # one item has nobody to find
        (line(0, 1), ids(0, 1), (line(0, 1), ids(2, 3))),  # classes the gallery does not have
        (line(0, 1), ids(0, 1), (line(), ids())),  # empty gallery
    ],
)
def test_nothing_to_judge_is_nan(queries: Tensor, labels: Tensor, gallery: tuple[Tensor, Tensor] | None) -> None:
    for metric in (recall_at_k, precision_at_1, map_at_r):
        assert math.isnan(metric(queries, labels, *(gallery or ()), similarity="euclidean"))


def test_k_beyond_the_gallery_counts_all_items() -> None:
    points, labels = line(0, 1, 2), ids(0, 1, 0)
    assert recall_at_k(points, labels, k=10**6, similarity="euclidean") == 1.0
