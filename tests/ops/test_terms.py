"""Means over pairs: a rule of two parts, streamed, against the formula written out over all pairs."""

import pytest
import torch

from pairloom import _stream
from pairloom._autograd import PairLossFormula
from pairloom.reference._rows import Terms, labelled_loss

REDUCTIONS = ["mean", "mean_all", "mean_nonzero", "sum", "none"]


def hinge_rule(s, positive, negative, temperature):
    """Positives below 0.5 and negatives above 0, each with a mean of its own."""
    parts = []
    for mask, cost in ((positive, 0.5 - s), (negative, s * temperature)):
        active = mask & ~(cost <= 0)
        parts.append(Terms(torch.where(active, cost, 0.0).sum(1), active.sum(1), mask.sum(1)))
    return parts


def hinge(rows, columns, row_labels, column_labels, weights, temperature, *options):
    def rule(s, positive, negative):
        return hinge_rule(s, positive, negative, temperature)

    return labelled_loss(rule, rows, columns, row_labels, column_labels, weights, *options, mean="nonzero")


@pytest.fixture(scope="module")
def operator():
    _stream.define_streamed("two_parts_of_a_test", hinge_rule, ("Tensor temperature",), parts=2, mean="nonzero")
    op = torch.ops.pairloom.two_parts_of_a_test.default
    PairLossFormula(op, hinge).register()
    return op


def written_out(x, labels, weights, temperature, reduction):
    """The same loss, pair by pair in Python."""
    unit = x / x.norm(dim=1, keepdim=True)
    rows = [x.new_zeros(()) for _ in x]
    value = x.new_zeros(())
    for positive in (True, False):
        total, divisor = x.new_zeros(()), x.new_zeros(())
        for i in range(len(x)):
            for j in range(len(x)):
                if i == j or -100 in (labels[i], labels[j]) or (labels[i] == labels[j]) != positive:
                    continue
                s = unit[i] @ unit[j]
                cost = (0.5 - s if positive else s * temperature).clamp(min=0)
                rows[i] = rows[i] + cost * weights[i]
                total = total + cost * weights[i]
                if reduction == "mean_all" or cost > 0:
                    divisor = divisor + weights[i]
        if divisor > 0:
            value = value + total / divisor
    if reduction == "none":
        return torch.stack(rows)
    return sum(rows) if reduction == "sum" else value


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("entries", [1 << 18, 1])
def test_value_and_every_gradient(operator, reduction, entries, monkeypatch):
    monkeypatch.setattr(_stream, "CHUNK_ENTRIES", entries)
    torch.manual_seed(0)
    x = torch.randn(20, 3, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(0, 4, (20,))
    labels[3] = -100
    weights = torch.rand(20, dtype=torch.float64, requires_grad=True)
    temperature = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    leaves = [x, weights, temperature]
    wanted = written_out(x, labels, weights, temperature, reduction)
    upstream = torch.linspace(-1, 2, wanted.numel(), dtype=x.dtype).reshape(wanted.shape)
    expected = torch.autograd.grad(wanted, leaves, upstream)
    for bits in (0, 1 + 4 + 32):
        arguments = (x, None, labels, None, weights, temperature, "cosine", reduction, -100)
        loss = operator(*arguments, bits, True)[0]
        reference = hinge(*arguments, True)[0]
        for value in (loss, reference):
            torch.testing.assert_close(value, wanted)
            for found, want in zip(torch.autograd.grad(value, leaves, upstream), expected, strict=True):
                torch.testing.assert_close(found, want)


@pytest.mark.parametrize("reduction", ["mean", "mean_all", "sum", "none"])
def test_derivatives_by_finite_differences(operator, reduction):
    torch.manual_seed(1)
    x = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    labels, weights = torch.arange(6) // 2, torch.rand(6, dtype=torch.float64, requires_grad=True)
    temperature = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)

    def loss(x, weights, temperature):
        bits = 1 + 4 + 32
        return operator(x, None, labels, None, weights, temperature, "cosine", reduction, -100, bits, False)[0]

    assert torch.autograd.gradcheck(loss, (x, weights, temperature))
    assert torch.autograd.gradgradcheck(loss, (x, weights, temperature))


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_an_empty_divisor_gives_zero_and_no_gradient(operator, reduction):
    x = torch.eye(4, requires_grad=True)
    weights = torch.ones(4, requires_grad=True)
    temperature = torch.ones((), requires_grad=True)
    for labels in (torch.arange(4), torch.full((4,), -100)):
        arguments = (x, None, labels, None, weights, temperature, "cosine", reduction, -100)
        for loss in (operator(*arguments, 37, False)[0], hinge(*arguments, False)[0]):
            assert not loss.any()
            for gradient in torch.autograd.grad(loss.sum(), [x, weights, temperature]):
                assert not gradient.any()


def test_nan_is_kept(operator):
    x = torch.eye(4)
    x[1, 1] = torch.nan
    arguments = (x, None, torch.arange(4) // 2, None, None, torch.ones(()), "cosine", "mean", None)
    assert operator(*arguments, 0, False)[0].isnan()
    assert hinge(*arguments, False)[0].isnan()
