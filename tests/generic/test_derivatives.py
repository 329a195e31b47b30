"""Second derivatives, torch.func transforms and torch.library.opcheck, for every sample of every operator."""

import pytest
import torch
from torch.library import opcheck

from tests.generic.common import (
    embeddings_of,
    every_record,
    every_sample,
    outputs_of,
    pair_losses,
    sample_named,
    some_samples,
)


def function_of(record, sample):
    """The public function of its differentiable arguments: one tensor of finite values."""

    def function(*tensors):
        given = dict(zip(sample.differentiable, tensors, strict=True))
        first = outputs_of(record.function(**{**sample.arguments, **given}))[0]
        return torch.where(first.isinf(), 0.0, first)

    return function, [sample.arguments[name].clone() for name in sample.differentiable]


@pytest.mark.parametrize(("record", "name"), every_sample(differentiable=True, double_backward=True))
def test_gradgradcheck(record, name):
    function, inputs = function_of(record, sample_named(record, name, shape=(4, 5, 3), dtype=torch.float64, seed=1))
    assert torch.autograd.gradgradcheck(function, [x.requires_grad_() for x in inputs], atol=1e-4)


@pytest.mark.parametrize(("record", "name"), every_sample(differentiable=True, func_transforms=True))
def test_func_transforms(record, name):
    function, inputs = function_of(record, sample_named(record, name, dtype=torch.float64, seed=2))

    def total(*tensors):
        return (function(*tensors) * torch.linspace(1, 2, function(*inputs).numel()).view_as(function(*inputs))).sum()

    numbers = tuple(range(len(inputs)))
    leaves = [x.clone().requires_grad_() for x in inputs]
    expected = torch.autograd.grad(total(*leaves), leaves)
    for ours, wanted in zip(torch.func.grad(total, numbers)(*inputs), expected, strict=True):
        torch.testing.assert_close(ours, wanted)
    pairs = [torch.stack([x, x.flip(0) * 1.5]) for x in inputs]
    one_by_one = torch.stack([function(*(pair[i] for pair in pairs)) for i in range(2)])
    torch.testing.assert_close(torch.func.vmap(function)(*pairs), one_by_one)
    jacobian = torch.func.jacrev(function, 0)(*inputs)
    wanted = torch.autograd.functional.jacobian(lambda x: function(x, *inputs[1:]), inputs[0])
    torch.testing.assert_close(jacobian, wanted)
    per_sample = torch.func.vmap(torch.func.grad(total))(*pairs)
    torch.testing.assert_close(per_sample[0], torch.func.grad(total)(*(pair[0] for pair in pairs)))


@pytest.mark.parametrize(("record", "name"), every_sample(quick=2, most=4))
def test_opcheck(record, name):
    sample = sample_named(record, name)
    opcheck(record.op, record.op_arguments(sample))
    opcheck(record.op, record.op_arguments(sample.with_grad()))


@pytest.mark.parametrize("record", pair_losses())
def test_every_subset_of_inputs_may_need_gradients(record):
    for sample in some_samples(record, dtype=torch.float64):
        everything = sample.with_grad()
        outputs_of(record.function(**everything))[0].sum().backward()
        for name in sample.differentiable:
            leaves = {**sample.arguments, name: sample.with_grad()[name]}
            record.function(**leaves).sum().backward()
            torch.testing.assert_close(leaves[name].grad, everything[name].grad, msg=f"{sample.name}: {name}")


@pytest.mark.parametrize("record", pair_losses())
def test_bits_of_needs_grad_say_what_is_made_and_nothing_else(record):
    """The operator itself: shapes of gradients for every value of the bits, and what was made does not depend on it."""
    for sample in some_samples(record, dtype=torch.float64):
        arguments = dict(zip(record.argument_names, record.op_arguments(sample), strict=True))
        made = {}
        for bits in range(8):
            loss, _, *gradients = record.op(*{**arguments, "needs_grad": bits}.values())
            for position, gradient in enumerate(gradients):
                if gradient.numel():
                    assert bits >> position & 1, (sample.name, bits)
                    torch.testing.assert_close(gradient, made.setdefault(position, gradient), rtol=0, atol=0)
            assert torch.equal(loss, made.setdefault("loss", loss))


@pytest.mark.parametrize("record", every_record())
def test_backward_twice_inference_mode_and_autocast(record):
    for sample in some_samples(record):
        first = outputs_of(record.function(**sample.arguments))[0]
        with torch.inference_mode():
            assert torch.equal(outputs_of(record.function(**sample.arguments))[0], first), sample.name
        for dtype in (torch.bfloat16, torch.float16):
            with torch.autocast("cpu", dtype=dtype):
                inside = outputs_of(record.function(**sample.arguments))[0]
                assert torch.equal(inside, first), sample.name
        if not sample.differentiable:
            continue
        leaves = sample.with_grad()
        output = outputs_of(record.function(**leaves))[0]
        total = torch.where(output.isinf(), 0.0, output).sum()
        total.backward(retain_graph=True)
        once = [leaves[name].grad.clone() for name in sample.differentiable]
        total.backward()
        for name, gradient in zip(sample.differentiable, once, strict=True):
            torch.testing.assert_close(leaves[name].grad, 2 * gradient)
        with pytest.raises(RuntimeError, match="second time"):
            total.backward()
        assert embeddings_of(sample)
