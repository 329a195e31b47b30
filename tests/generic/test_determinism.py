"""The same call gives the same bits: again, with 1, 2 and 7 threads, with statistics, from several threads at once.

Gradients that torch's own matrix products make (similarity, top-k) are left out where the number of threads changes.
"""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from pairloom.testing import evaluate_record, using_isa, using_threads
from tests.generic.common import chunks_of, every_level, every_record, pair_losses, sample_named, some_samples

SHAPES = [(131, 300, 33), (2300, 40, 8), (3, 9000, 8)]
"""Many tiles; several chunks of rows; a gallery that is split over threads."""


def assert_equal_bits(ours, expected, *, kernels_only, what):
    for name, value in expected.items():
        if name.startswith("output") or not kernels_only:
            assert torch.equal(ours[name], value), (what, name)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("record", every_record())
def test_threads_and_reruns(record, shape):
    if not record.support.standalone:  # chunks are as small as wanted there
        shape = tuple(min(size, 600) for size in shape)
    for sample in some_samples(record, shape=shape)[::3]:
        if record.backward is not None and min(shape[:2]) > 500:
            continue
        with using_threads(1), chunks_of(record, 1 << 12):
            expected = evaluate_record(record, sample)
        for threads in (1, 2, 2, 7):
            with using_threads(threads), chunks_of(record, 1 << 12):
                ours = evaluate_record(record, sample)
            kernels_only = record.backward is not None and threads > 1
            assert_equal_bits(ours, expected, kernels_only=kernels_only, what=(sample.name, threads))


@pytest.mark.parametrize(("record", "level"), every_level())
def test_threads_on_every_level(record, level):
    sample = next(iter(record.samples(shape=(257, 300, 17))))
    with using_isa(level):
        with using_threads(1):
            expected = evaluate_record(record, sample)
        for threads in (2, 7):
            with using_threads(threads):
                ours = evaluate_record(record, sample)
            assert_equal_bits(ours, expected, kernels_only=record.backward is not None, what=threads)


@pytest.mark.parametrize("record", pair_losses())
def test_statistics_change_no_bit(record):
    for sample in some_samples(record, shape=(37, 50, 9)):
        loss, _ = record.function(**sample.arguments, return_stats=True)
        assert torch.equal(loss, record.function(**sample.arguments)), sample.name


@pytest.mark.parametrize("record", pair_losses())
def test_wanting_no_gradient_changes_no_bit(record):
    for sample in some_samples(record, shape=(37, 50, 9)):
        expected = record.function(**sample.arguments)
        for chosen in (sample.differentiable, *((name,) for name in sample.differentiable)):
            leaves = sample.with_grad()
            some = {**sample.arguments, **{name: leaves[name] for name in chosen}}
            assert torch.equal(record.function(**some), expected), (sample.name, chosen)


@pytest.mark.parametrize("record", every_record())
def test_calls_from_several_python_threads(record):
    samples = list(record.samples(shape=(70, 90, 16)))[:8]
    expected = [evaluate_record(record, sample) for sample in samples]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            results = list(pool.map(lambda sample: evaluate_record(record, sample), samples))
            for ours, wanted, sample in zip(results, expected, samples, strict=True):
                assert_equal_bits(ours, wanted, kernels_only=record.backward is not None, what=sample.name)


@pytest.mark.parametrize("record", every_record())
def test_deterministic_algorithms_mode(record):
    sample = sample_named(record, next(iter(record.samples())).name)
    expected = evaluate_record(record, sample)
    torch.use_deterministic_algorithms(True)
    try:
        assert_equal_bits(evaluate_record(record, sample), expected, kernels_only=False, what=sample.name)
    finally:
        torch.use_deterministic_algorithms(False)
