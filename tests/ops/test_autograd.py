"""The one gradient formula: made in forward or asked for later, second derivatives, transforms, autocast."""

import pytest
import torch

import pairloom
from pairloom import _autograd
from pairloom._registry import records
from pairloom.functional import info_nce, multi_similarity

LOSSES = [record for record in records() if record.backward is None]
EVERY = {record.name: record for record in records()}


def loss_call(record, needs_grad, **changed):
    """The operator on leaves that require gradients: (leaves, loss)."""
    sample = next(iter(record.samples(dtype=torch.float64, seed=5)))
    arguments = dict(zip(record.argument_names, record.op_arguments(sample), strict=True))
    arguments |= {"needs_grad": needs_grad, **changed}
    leaves = {}
    for name in ("rows", "columns", "temperature", "weights"):
        if arguments.get(name) is not None:
            arguments[name] = leaves[name] = arguments[name].detach().clone().double().requires_grad_()
    return (
        leaves,
        record.op(*arguments.values())[0],
        record.reference(*record.reference_arguments(tuple(arguments.values())))[0],
    )


@pytest.mark.parametrize("record", LOSSES, ids=lambda record: record.name)
@pytest.mark.parametrize("needs_grad", [0, 1, 2, 7])
def test_gradients_not_made_in_forward_are_made_in_backward(record, needs_grad):
    weights = torch.linspace(0.5, 2.0, 6, dtype=torch.float64)
    for reduction in ("mean", "mean_nonzero", "sum", "none"):
        leaves, loss, expected = loss_call(record, needs_grad, reduction=reduction, weights=weights)
        upstream = torch.linspace(-1.0, 2.0, loss.numel(), dtype=loss.dtype).reshape(loss.shape)
        gradients = torch.autograd.grad(loss, list(leaves.values()), upstream)
        wanted = torch.autograd.grad(expected, list(leaves.values()), upstream)
        for name, gradient, want in zip(leaves, gradients, wanted, strict=True):
            torch.testing.assert_close(gradient, want, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("record", LOSSES, ids=lambda record: record.name)
def test_forward_makes_no_gradient_that_nobody_needs(record, monkeypatch):
    sample = next(iter(record.samples()))
    position = record.argument_names.index("needs_grad")
    assert record.op_arguments(sample)[position] == 0
    assert record.op_arguments(sample.with_grad())[position] & 1
    with torch.no_grad():
        assert record.op_arguments(sample.with_grad())[position] == 0


@pytest.mark.parametrize("name", ["info_nce", "multi_similarity"])
def test_second_derivative_is_that_of_the_reference(name):
    """Hessian-vector product through saved gradients: never silently zero."""
    leaves, loss, expected = loss_call(EVERY[name], 7)
    inputs = list(leaves.values())
    vectors = [torch.linspace(-1, 1, x.numel(), dtype=x.dtype).reshape(x.shape) for x in inputs]

    def product(loss):
        gradients = torch.autograd.grad(loss, inputs, create_graph=True)
        return torch.autograd.grad(gradients, inputs, vectors)

    for ours, wanted in zip(product(loss), product(expected), strict=True):
        assert wanted.abs().max() > 1e-3
        torch.testing.assert_close(ours, wanted)


@pytest.mark.parametrize("name", ["info_nce", "multi_similarity"])
def test_third_derivative(name):
    leaves, loss, expected = loss_call(EVERY[name], 7)
    inputs = list(leaves.values())

    def third(value):
        for _ in range(2):
            value = sum(g.square().sum() for g in torch.autograd.grad(value, inputs, create_graph=True))
        return torch.autograd.grad(value, inputs[0])[0]

    torch.testing.assert_close(third(loss), third(expected))


def test_second_derivative_when_one_tensor_has_both_roles():
    x = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x: info_nce(x, x, temperature=0.5), (x,))
    assert torch.autograd.gradgradcheck(lambda x: info_nce(x, x, temperature=0.5, reduction="none"), (x,))
    labels = torch.arange(5) // 2
    assert torch.autograd.gradgradcheck(lambda x: multi_similarity(x, labels, x, labels, beta=5.0), (x,))


@pytest.mark.parametrize("record", records(), ids=lambda record: record.name)
def test_func_transforms(record):
    sample = next(iter(record.samples(dtype=torch.float64)))
    names = sample.differentiable
    inputs = [sample.arguments[name] for name in names]

    def value(*tensors):
        output = record.function(**{**sample.arguments, **dict(zip(names, tensors, strict=True))})
        return (output[0] if isinstance(output, tuple) else output).square().sum()

    leaves = sample.with_grad()
    value(*(leaves[name] for name in names)).backward()
    gradients = torch.func.grad(value, argnums=tuple(range(len(names))))(*inputs)
    for name, gradient in zip(names, gradients, strict=True):
        torch.testing.assert_close(gradient, leaves[name].grad)
    pairs = [torch.stack([x, 2 * x + 0.1]) for x in inputs]
    mapped = torch.func.vmap(value)(*pairs)
    torch.testing.assert_close(mapped, torch.stack([value(*(pair[i] for pair in pairs)) for i in range(2)]))
    _, slope = torch.func.jvp(value, tuple(inputs), tuple(inputs))
    torch.testing.assert_close(slope, sum((g * x).sum() for g, x in zip(gradients, inputs, strict=True)))


def test_second_derivative_of_a_linear_loss_is_zero():
    """One query against its key alone, dot product: the gradient does not depend on the query."""
    query, key = torch.randn(1, 3, requires_grad=True), torch.randn(1, 3)
    loss = multi_similarity(query, torch.tensor([0]), key, torch.tensor([-100]), similarity="dot")
    (gradient,) = torch.autograd.grad(loss, query, create_graph=True)
    second = torch.autograd.grad(gradient.sum(), query, allow_unused=True)[0]
    assert second is None or not second.any()


def test_devices_without_a_kernel_compute_the_reference():
    query, key = torch.empty(6, 4, device="meta", requires_grad=True), torch.empty(6, 4, device="meta")
    loss = info_nce(query, key, ids=torch.empty(6, dtype=torch.int64, device="meta"))
    loss.backward()
    assert query.grad.device.type == "meta"
    assert pairloom.topk(query, key, 9)[1].shape == (6, 9)


def test_half_gradients_are_scaled_before_they_are_rounded():
    """A gradient of 1e-8 is 0 in float16; loss scaling must reach it in float32."""
    query = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float16, requires_grad=True)
    key = torch.tensor([[1.0, 1e-2], [1e-2, 1.0]], dtype=torch.float16)
    loss = info_nce(query, key, temperature=0.05)
    assert loss.dtype == torch.float32
    (plain,) = torch.autograd.grad(loss, query, retain_graph=True)
    (scaled,) = torch.autograd.grad(loss, query, torch.tensor(2.0**16))
    assert not plain.any()
    assert scaled.any()


def test_autocast_takes_embeddings_as_they_come():
    query, key = torch.randn(6, 4), torch.randn(6, 4)
    plain = info_nce(query, key)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(info_nce(query, key), plain)
        torch.testing.assert_close(torch.func.vmap(info_nce)(query[None], key[None])[0], plain)


def test_a_frozen_tower_gets_no_gradient():
    query, key = torch.randn(6, 4, requires_grad=True), torch.randn(6, 4)
    info_nce(query, key).backward()
    assert key.grad is None


def test_bits_are_named_once():
    bits = {"rows": 1, "columns": 2, "temperature": 4, "bias": 8, "boundary": 16, "weights": 32}
    assert bits == _autograd.GRADIENT_BITS
