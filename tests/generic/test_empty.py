"""Nothing to compute is not an error: empty batches and galleries, only ignored rows, no positives, no negatives.
The value is defined, the graph is alive, and the gradient is exactly 0 where there is nothing to learn."""

import pytest
import torch

from pairloom._registry import Sample
from pairloom.testing import assert_within, evaluate_record, evaluate_reference, rounding_bounds
from tests.generic.common import DTYPES, every_record, labels_of, outputs_of, pair_losses, some_samples

EMPTY = [(0, 9, 5), (6, 0, 5), (0, 0, 5), (1, 1, 1), (1, 0, 1)]


def loss_samples(record, **options):
    for sample in some_samples(record, **options):
        for reduction in ("mean", "mean_all", "mean_nonzero", "sum", "none"):
            yield Sample(sample.name, {**sample.arguments, "reduction": reduction}, sample.differentiable)


def assert_nothing_to_learn(record, sample):
    """Exactly 0, connected to every input, gradient exactly 0 in the shape and dtype of the input."""
    arguments = sample.with_grad()
    loss = record.function(**arguments)
    assert not loss.detach().any(), (sample.name, loss)
    loss.sum().backward()
    for name in sample.differentiable:
        gradient = arguments[name].grad
        assert gradient is not None, (sample.name, name)
        assert gradient.shape == arguments[name].shape
        assert gradient.dtype == arguments[name].dtype
        assert not gradient.any(), (sample.name, name)


@pytest.mark.parametrize("shape", EMPTY, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("record", every_record())
def test_empty_inputs_equal_the_reference(record, dtype, shape):
    for sample in some_samples(record, shape=shape, dtype=dtype):

        def exact(sample=sample, **arguments):
            return evaluate_reference(record, Sample(sample.name, arguments, sample.differentiable))

        ours = evaluate_record(record, sample)
        assert_within(ours, *rounding_bounds(exact, sample.arguments, depth=shape[2], terms=sum(shape[:2])))
        for name in sample.differentiable:
            assert f"d_{name}" in ours, f"{sample.name}: no graph"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("record", pair_losses())
def test_empty_batch(record, dtype):
    for sample in loss_samples(record, shape=(0, 4, 5), dtype=dtype):
        assert_nothing_to_learn(record, sample)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("record", pair_losses())
def test_all_rows_ignored(record, dtype):
    for sample in loss_samples(record, shape=(7, 10, 5), dtype=dtype):
        names = [name for name in labels_of(sample) if len(sample.arguments[name]) == 7]
        for name in names:
            sample.arguments[name] = torch.full((7,), -100)
        if names:
            assert_nothing_to_learn(record, sample)


@pytest.mark.parametrize("record", pair_losses())
def test_all_weights_zero(record):
    for sample in loss_samples(record, shape=(7, 10, 5)):
        weights = torch.zeros(7, dtype=torch.float32)
        arguments = {**sample.arguments, "weights": weights}
        inputs = tuple(name for name in sample.differentiable if name != "weights")
        assert_nothing_to_learn(record, Sample(sample.name, arguments, inputs))


@pytest.mark.parametrize("label", ["distinct", "equal"])
@pytest.mark.parametrize("record", pair_losses())
def test_no_positives_or_no_negatives(record, label):
    """What the docstring's table says is what the reference computes; here: equal to it, finite, with a live graph."""
    for sample in loss_samples(record, shape=(7, 10, 5), dtype=torch.float64):
        start = 0
        for name in labels_of(sample):
            size = len(sample.arguments[name])
            sample.arguments[name] = (
                torch.arange(start, start + size) if label == "distinct" else torch.zeros(size).long()
            )
            start += size
        ours, wanted = evaluate_record(record, sample), evaluate_reference(record, sample)
        for name, value in ours.items():
            assert value.isfinite().all()
            torch.testing.assert_close(value, wanted[name], msg=f"{sample.name}: {name}")
        assert {f"d_{name}" for name in sample.differentiable} <= ours.keys()


@pytest.mark.parametrize("shape", EMPTY, ids=str)
@pytest.mark.parametrize("record", pair_losses())
def test_statistics_of_little(record, shape):
    for sample in some_samples(record, shape=shape):
        _, stats = record.function(**sample.arguments, return_stats=True)
        assert all(value.dtype == torch.float64 for value in stats)
        assert not any(value.isnan() for value in stats[:8])
        both_ways = 2 if record.name == "clip" else 1
        assert outputs_of(stats.anchors)[0] <= both_ways * shape[0]
