"""DCL with weighted positives (DCLW): golden values, the dense formula beside it, index tuples, second derivatives."""

import pytest
import torch

import pairloom
from pairloom.functional import dcl
from tests.ops import golden

VIEWS, SAMPLES = torch.cat([golden.A, golden.B]), torch.arange(4).repeat(2)


def test_golden_values():
    rows = dcl(VIEWS, SAMPLES, temperature=0.5, sigma=0.5, reduction="none")
    assert rows[:4].mean().item() == pytest.approx(0.881880, abs=1e-6)
    added = (rows - dcl(VIEWS, SAMPLES, temperature=0.5, reduction="none"))[:4]
    similarity = (golden.A * golden.B).sum(1)
    weights = 1 - added * 0.5 / similarity
    assert weights.tolist() == pytest.approx([1.147070, 0.880455, 0.825406, 1.147070], abs=1e-5)


def dense(s, positive, negative, temperature, sigma, weights):
    """Anchors without a positive or a negative are 0."""
    counted = positive.any(1) & negative.any(1)
    s, positive, negative = s[counted], positive[counted], negative[counted]
    mean = (s * positive).sum(1) / positive.sum(1)
    w = 2 - len(s) * (mean / sigma).softmax(0)
    z = s / temperature
    losses = z.masked_fill(~negative, -torch.inf).logsumexp(1) - w * mean / temperature
    return (losses * weights[counted]).sum() / weights.sum()


@pytest.mark.parametrize("similarity", ["cosine", "euclidean"])
@pytest.mark.parametrize("references", [False, True])
def test_equals_the_dense_formula(references, similarity):
    torch.manual_seed(0)
    x = torch.randn(30, 5, dtype=torch.float64, requires_grad=True)
    y = torch.randn(21, 5, dtype=torch.float64, requires_grad=True)
    temperature = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
    weights = torch.rand(30, dtype=torch.float64)
    labels, others = torch.randint(0, 9, (30,)), torch.randint(0, 9, (21,))
    labels[3] = 77  # without positives
    other, other_labels = (y, others) if references else (x, labels)
    a, b = (torch.nn.functional.normalize(rows) for rows in (x, other))
    s = a @ b.T
    if similarity == "euclidean":
        s = -(a.unsqueeze(1) - b.unsqueeze(0)).pow(2).sum(-1).clamp(min=1e-30).sqrt()
    same = labels.unsqueeze(1) == other_labels
    own = torch.zeros_like(same) if references else torch.eye(30, dtype=torch.bool)
    wanted = dense(s, same & ~own, ~same, temperature, 0.7, weights)
    given = (y, others) if references else ()
    loss, stats = dcl(
        x, labels, *given, temperature=temperature, sigma=0.7, similarity=similarity, weights=weights, return_stats=True
    )
    torch.testing.assert_close(loss, wanted)
    assert stats.positives == (same & ~own).sum()
    leaves = [x, temperature, *([y] if references else [])]
    for ours, exact in zip(torch.autograd.grad(loss, leaves), torch.autograd.grad(wanted, leaves), strict=True):
        torch.testing.assert_close(ours, exact)


def test_index_tuples_ignored_rows_and_sets_of_labels_say_the_same():
    torch.manual_seed(1)
    x, labels = torch.randn(20, 4, dtype=torch.float64), torch.arange(20) % 5
    wanted = dcl(x, labels, sigma=0.5)
    pairs = torch.arange(20)
    same = labels.unsqueeze(1) == labels
    indices = (*(same & (pairs.unsqueeze(1) != pairs)).nonzero().unbind(1), *(~same).nonzero().unbind(1))
    torch.testing.assert_close(dcl(x, indices_tuple=indices, sigma=0.5), wanted)
    torch.testing.assert_close(dcl(x, torch.nn.functional.one_hot(labels), sigma=0.5), wanted)
    more = torch.cat([x, torch.full((2, 4), torch.nan, dtype=torch.float64)])
    ignored = torch.cat([labels, torch.tensor([-100, -100])])
    torch.testing.assert_close(dcl(more, ignored, sigma=0.5), wanted)
    torch.testing.assert_close(pairloom.DCLLoss(sigma=0.5)(x, labels), wanted)


@pytest.mark.parametrize("labels", [torch.arange(6), torch.zeros(6, dtype=torch.int64), torch.full((6,), -100)])
def test_nothing_to_weigh(labels):
    x = torch.randn(6, 3, requires_grad=True)
    loss = dcl(x, labels, sigma=0.5)
    loss.backward()
    assert loss == 0
    assert not x.grad.any()


def test_derivatives_and_one_graph():
    torch.manual_seed(2)
    x, labels = torch.randn(6, 3, dtype=torch.float64, requires_grad=True), torch.arange(6) // 2
    assert torch.autograd.gradcheck(lambda x: dcl(x, labels, sigma=0.5), (x,))
    assert torch.autograd.gradgradcheck(lambda x: dcl(x, labels, sigma=0.5), (x,), atol=1e-4)
    compiled = torch.compile(dcl, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, labels, sigma=0.5), dcl(x, labels, sigma=0.5))


@pytest.mark.parametrize(("sigma", "error"), [(0.0, ValueError), (-1.0, ValueError), ("wide", TypeError)])
def test_settings_are_checked(sigma, error):
    with pytest.raises(error, match="sigma"):
        dcl(VIEWS, SAMPLES, sigma=sigma)
    with pytest.raises(error, match="sigma"):
        pairloom.DCLLoss(sigma=sigma)
