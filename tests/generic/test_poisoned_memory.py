"""No result depends on what memory held before: the same calls give the same bits after blocks of many sizes were
filled with NaN and given back to the allocator, which hands them out again."""

import pytest
import torch

from pairloom.testing import evaluate_record, using_isa
from tests.generic.common import every_level, some_samples

SHAPES = [(0, 9, 5), (6, 0, 5), (0, 0, 3), (1, 1, 1), (7, 10, 5), (33, 18, 17)]


def poison() -> None:
    """Fill and free some blocks of every size up to 4 KiB, and of some beyond."""
    sizes = [*range(4, 1024, 4), *(1 << power for power in range(10, 18))] * 3
    blocks = [torch.full((size,), torch.nan) for size in sizes]
    del blocks


@pytest.mark.parametrize(("record", "level"), every_level())
def test_same_bits_in_poisoned_memory(record, level):
    with using_isa(level):
        for shape in SHAPES:
            for sample in some_samples(record, shape=shape):
                expected = evaluate_record(record, sample)
                poison()
                for name, value in evaluate_record(record, sample).items():
                    assert torch.equal(value, expected[name]), (shape, sample.name, name)
