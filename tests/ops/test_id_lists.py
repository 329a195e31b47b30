"""Lists of ids per query: every accepted form means the same, and what is wrong is said in one sentence."""

import numpy as np
import pytest
import torch

from pairloom._id_lists import IdLists, id_lists

LISTS = [[4, 1], [], [7], [0, 2, 5]]
INDPTR, INDICES = [0, 2, 2, 3, 6], [1, 4, 7, 0, 2, 5]


def read(value, queries=4, rows=8):
    return id_lists("exclude", value, queries, rows, of="gallery")


def as_python(lists: IdLists):
    assert lists.indptr.dtype == lists.indices.dtype == torch.int64
    return lists.indptr.tolist(), lists.indices.tolist()


@pytest.mark.parametrize(
    "value",
    [
        LISTS,
        [torch.tensor(ids, dtype=torch.int32) for ids in LISTS],
        [np.array(ids, dtype=np.uint8) for ids in LISTS],
        [set(ids) for ids in LISTS],
        [ids + ids for ids in LISTS],
        (torch.tensor(INDPTR), torch.tensor([4, 1, 7, 5, 0, 2])),
        (np.array(INDPTR), np.array(INDICES, dtype=np.int16)),
    ],
)
def test_forms(value):
    assert as_python(read(value)) == (INDPTR, INDICES)


@pytest.mark.parametrize("make", [torch.tensor, np.array, list])
def test_one_each(make):
    assert as_python(read(make([3, -1, 0, 7]))) == ([0, 1, 1, 2, 3], [3, 0, 7])


def test_empty():
    assert as_python(read([], queries=0)) == ([0], [])
    assert as_python(read([[], []], queries=2, rows=0)) == ([0, 0, 0], [])
    assert as_python(read(torch.tensor([-1, -1]), queries=2, rows=0)) == ([0, 0, 0], [])


def test_parts():
    lists = read(LISTS)
    assert as_python(lists.of_queries(2, 4)) == ([0, 1, 4], [7, 0, 2, 5])
    assert as_python(lists.of_rows(2, 6)) == ([0, 1, 1, 1, 3], [2, 0, 3])
    assert lists.query_of_each().tolist() == [0, 0, 2, 3, 3, 3]


@pytest.mark.parametrize(
    ("value", "exception", "message"),
    [
        (
            [[1], [2], [8], [9]],
            ValueError,
            "exclude holds id 8 for query 2; ids must be in [0, 8), the rows of gallery",
        ),
        ([[1], [-1], [], []], ValueError, "exclude holds id -1 for query 1"),
        (torch.tensor([0, 1, 2, -2]), ValueError, "exclude holds id -2 for query 3"),
        (np.array([0, 1, 2, 2**64 - 1], dtype=np.uint64), ValueError, "holds id 9223372036854775807 for query 3"),
        ((torch.tensor(INDPTR), torch.tensor([1, 4, 7, 0, 2, 99])), ValueError, "exclude holds id 99 for query 3"),
        ([[1], [2]], ValueError, "exclude has 2 entries; it must have 4"),
        (torch.tensor([1, 2]), ValueError, "exclude has shape (2,); it must be (4,)"),
        (torch.zeros(4, 1, dtype=torch.int64), ValueError, "exclude has shape (4, 1)"),
        ((torch.tensor([0, 1]), torch.tensor([1])), ValueError, "has 2 entries; it must have 5"),
        (
            (torch.tensor([1, 2, 2, 3, 6]), torch.tensor(INDICES)),
            ValueError,
            "goes from 1 to 6; it must rise from 0 to 6",
        ),
        (
            (torch.tensor([0, 2, 2, 3, 5]), torch.tensor(INDICES)),
            ValueError,
            "goes from 0 to 5; it must rise from 0 to 6",
        ),
        ((torch.tensor([0, 3, 2, 3, 6]), torch.tensor(INDICES)), ValueError, "falls after query 1"),
        ((torch.tensor(INDPTR),), ValueError, "exclude is a tuple of 1"),
        ((torch.tensor(INDPTR), torch.zeros(6)), TypeError, "exclude[1] has dtype float32; ids must be integers"),
        ((torch.zeros(5, 1, dtype=torch.int64), torch.tensor(INDICES)), ValueError, "exclude[0] has shape (5, 1)"),
        (torch.zeros(4), TypeError, "exclude has dtype float32; ids must be integers"),
        (torch.zeros(4, dtype=torch.bool), TypeError, "exclude has dtype bool; ids must be integers"),
        (np.zeros(4), TypeError, "exclude has dtype float64; ids must be integers"),
        ([[1], [2.0], [3], []], TypeError, "exclude[1] holds 2.0; ids must be integers"),
        ([[True], [2], [3], []], TypeError, "exclude[0] holds True; ids must be integers"),
        ([[], 2, 3, 4], TypeError, "exclude[1] is 2; it must be a list of ids"),
        (["12", [], [], []], TypeError, "exclude[0] is '12'; it must be a list of ids"),
        ([np.zeros((2, 2), int), [], [], []], ValueError, "exclude[0] has shape (2, 2)"),
        ({0: [1]}, TypeError, "exclude is a dict"),
        (3, TypeError, "exclude is a int"),
    ],
    ids=str,
)
def test_errors(value, exception, message):
    with pytest.raises(exception) as caught:
        read(value)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
