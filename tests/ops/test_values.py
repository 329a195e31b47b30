"""Every operator equals its reference in float64: value, statistics and gradients, for every sample of its record."""

import pytest
import torch

from pairloom._registry import OpRecord, Sample, records
from tests.ops.golden import relative_error

SHAPES = [(6, 9, 5), (37, 70, 33), (130, 259, 64)]
NEEDS_ALL = {"info_nce": 7, "multi_similarity": 3}


def cases(keep) -> list:
    return [
        # tests/generic/test_values.py runs rules in Python by default.
        pytest.param(
            record,
            sample.name,
            id=f"{record.name}-{sample.name}",
            marks=[] if record.support.standalone else pytest.mark.slow,
        )
        for record in records()
        for sample in record.samples()
        if keep(sample)
    ]


def sample_named(record: OpRecord, name: str, **options: object) -> Sample:
    return next(sample for sample in record.samples(**options) if sample.name == name)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize(("record", "name"), cases(lambda sample: True))
def test_operator_equals_float64_reference(record, name, dtype):
    compare_with_reference(record, name, dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("record", "name"), cases(lambda sample: not sample.needs_float64))
def test_half_operator_equals_float64_reference(record, name, dtype):
    compare_with_reference(record, name, dtype)


def compare_with_reference(record, name, dtype):
    for shape in SHAPES:
        sample = sample_named(record, name, dtype=dtype, shape=shape, seed=1)
        arguments = dict(zip(record.argument_names, record.op_arguments(sample), strict=True))
        if record.name in NEEDS_ALL:
            arguments |= {"needs_grad": NEEDS_ALL[record.name], "want_stats": True}
        wide = {
            key: value.double().requires_grad_()
            if isinstance(value, torch.Tensor) and value.is_floating_point()
            else value
            for key, value in arguments.items()
        }
        outputs = record.op(*arguments.values())
        expected = record.reference(*record.reference_arguments(tuple(wide.values())))
        outputs = [output.detach() for output in (outputs if isinstance(outputs, tuple) else (outputs,))]
        expected = expected if isinstance(expected, tuple) else (expected,)
        tolerance = record.tolerances[dtype]

        if record.name == "topk":
            check_topk(outputs, expected, tolerance.value)
            continue
        assert relative_error(outputs[0], expected[0].detach()) <= tolerance.value
        if record.name in NEEDS_ALL:
            # Counts are exact in this comparison too: sums of similarities are smaller than the number of pairs.
            assert relative_error(outputs[1], expected[1]) <= max(tolerance.value, 1e-7)
            if expected[0].dim() == 0:
                inputs = [wide[key] for key in ("rows", "columns", "temperature") if wide.get(key) is not None]
                gradients = torch.autograd.grad(expected[0], inputs)
                made = [output for output in outputs[2:] if output.numel()]
                for gradient, wanted in zip(made, gradients, strict=True):
                    assert relative_error(gradient, wanted) <= tolerance.gradient


def check_topk(outputs, expected, tolerance):
    """Scores within rounding; indices equal except where rounding to float32 exchanged scores that nearly tie."""
    scores, indices = outputs
    wanted_scores, wanted_indices = (tensor.detach() for tensor in expected)
    missing = wanted_indices == -1
    assert torch.equal(missing, indices == -1)
    assert torch.equal(missing, scores == -torch.inf)
    scale = max(1.0, float(wanted_scores[~missing].abs().max())) if (~missing).any() else 1.0
    assert torch.allclose(scores[~missing].double(), wanted_scores[~missing], rtol=0, atol=tolerance * scale)
    assert (indices != wanted_indices).float().mean() < 0.01 if indices.numel() else True


@pytest.mark.parametrize(("record", "name"), cases(lambda sample: sample.differentiable))
def test_gradients_of_the_public_function(record, name):
    """backward() through the function gives, in the dtype of each input, what autograd gives through the reference."""
    sample = sample_named(record, name, dtype=torch.float64, seed=2)
    arguments, again = sample.with_grad(), sample.with_grad()
    output = first(record.function(**arguments))
    upstream = torch.linspace(0.5, 1.5, output.numel(), dtype=output.dtype).reshape(output.shape)
    finite = output.isfinite()
    (torch.where(finite, output, 0.0) * upstream).sum().backward()
    expected = first(record.reference(*record.reference_arguments(record.op_arguments(again))))
    (torch.where(finite, expected, 0.0) * upstream).sum().backward()
    for argument in sample.differentiable:
        assert arguments[argument].grad.dtype == arguments[argument].dtype
        torch.testing.assert_close(arguments[argument].grad, again[argument].grad)


def first(outputs):
    return outputs[0] if isinstance(outputs, tuple) else outputs
