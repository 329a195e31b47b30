"""Value and gradient of every operator equal the float64 reference: gradcheck in float64, a bound from D, N and the
inputs in float32, and in half precision at most twice (gradients three times) the error of the same formula in plain
torch of that dtype."""

import pytest
import torch

from pairloom.testing import (
    ROW_KINDS,
    UNITS,
    assert_within,
    computed_in,
    embedding_rows,
    evaluate,
    evaluate_record,
    evaluate_reference,
    rounding_bounds,
    using_isa,
)
from tests.generic.common import embeddings_of, every_level, every_sample, outputs_of, sample_named, some_samples

SHAPES = [(7, 10, 5), (70, 37, 33), (131, 260, 64)]


def exact(record, sample):
    """The float64 reference as a function of the sample's arguments."""

    def function(**arguments):
        wide = type(sample)(sample.name, arguments, sample.differentiable)
        return evaluate_reference(record, wide)

    return function


def assert_right(record, sample, unit, depth, terms):
    ours = evaluate_record(record, sample)
    assert_within(ours, *rounding_bounds(exact(record, sample), sample.arguments, depth=depth, terms=terms, unit=unit))


@pytest.mark.parametrize(("record", "name"), every_sample(differentiable=True, true_gradient=True))
def test_gradcheck(record, name):
    sample = sample_named(record, name, shape=(4, 6, 3), dtype=torch.float64, seed=1)

    def function(*tensors):
        outputs = outputs_of(
            record.function(**{**sample.arguments, **dict(zip(sample.differentiable, tensors, strict=True))})
        )
        return outputs[0][outputs[0].isfinite()]

    inputs = [sample.arguments[name].clone().requires_grad_() for name in sample.differentiable]
    assert torch.autograd.gradcheck(function, inputs, fast_mode=False)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize(("record", "name"), every_sample())
def test_within_what_rounding_explains(record, name, dtype):
    for n, m, d in SHAPES:
        sample = sample_named(record, name, shape=(n, m, d), dtype=dtype, seed=2)
        # The float64 reference rounds as much as a float64 kernel does.
        assert_right(record, sample, UNITS[dtype] * (2 if dtype == torch.float64 else 1), d, max(n, m))


@pytest.mark.parametrize("kind", ROW_KINDS)
@pytest.mark.parametrize(("record", "level"), every_level())
def test_every_kind_of_rows_on_every_level(record, kind, level):
    with using_isa(level):
        for sample in some_samples(record, shape=(33, 50, 20), dtype=torch.float32, seed=3):
            for seed, name in enumerate(embeddings_of(sample)):
                x = sample.arguments[name]
                sample.arguments[name] = embedding_rows(kind, *x.shape, dtype=x.dtype, seed=seed)
            if sample.needs_float64:
                continue  # ties and near ties: other tests
            assert_right(record, sample, UNITS[torch.float32], 20, 50)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("record", "name"), every_sample(needs_float64=False))
def test_half_precision_beats_plain_torch_of_that_dtype(record, name, dtype):
    for n, m, d in SHAPES:
        sample = sample_named(record, name, shape=(n, m, d), dtype=dtype, seed=4)
        ours = evaluate_record(record, sample)
        with computed_in(dtype):
            plain = evaluate_reference(record, sample)
        wanted, bounds = rounding_bounds(exact(record, sample), sample.arguments, depth=d, terms=max(n, m))
        for key in bounds:
            assert ours[key].shape == wanted[key].shape
            size = float(wanted[key].abs().max()) if wanted[key].numel() else 0.0
            # Plain torch may be right by luck: float32 sums and one rounding of the gradient are always allowed.
            once = UNITS[ours[key].dtype] * size
            times = 3 if key.startswith("d_") else 2
            assert error(ours[key], wanted[key]) <= max(times * error(plain[key], wanted[key]), bounds[key] + once), key


def error(value, wanted):
    difference = (value.double() - wanted.double())[wanted.isfinite()]
    return float(difference.abs().max()) if difference.numel() else 0.0


def test_the_bound_sees_rounding_to_bfloat16():
    """The error model is not so wide that it would pass a kernel that rounds its sums to half precision."""
    call = {"a": torch.randn(20, 64), "b": torch.randn(30, 64)}

    def dot(**call):
        return evaluate(lambda a, b: a @ b.T, call, ["a", "b"])

    wanted, bounds = rounding_bounds(dot, call, depth=64, terms=30)
    assert_within(dot(**call), wanted, bounds)
    coarse = {name: value.bfloat16().float() for name, value in dot(**call).items()}
    with pytest.raises(AssertionError, match="rounding explains"):
        assert_within(coarse, wanted, bounds)
