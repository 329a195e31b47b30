"""Margin loss: golden value, public code beside it, boundaries that are learned, of each class, of each anchor."""

import pytest
import torch
from pytorch_metric_learning.losses import MarginLoss as PeerMargin

import pairloom
from pairloom.functional import margin
from tests.ops import golden


def test_golden_value():
    assert margin(golden.A, golden.LABELS).item() == pytest.approx(0.767544, abs=1e-6)
    assert margin(golden.A, golden.LABELS, reduction="sum").item() == pytest.approx(2 * 0.767544, abs=1e-6)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("settings", [{}, {"margin": 0.1, "beta": 0.9}, {"beta": 1.0, "num_classes": 6}])
def test_equals_pytorch_metric_learning(seed, settings):
    torch.manual_seed(seed)
    x = torch.randn(21, 5, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(0, 6, (21,))
    ours = pairloom.MarginLoss(**settings, learn_beta=True)
    theirs = PeerMargin(**settings, learn_beta=True)
    ours.double()
    theirs.double()
    a, b = ours(x, labels), theirs(x, labels)
    torch.testing.assert_close(a, b)
    mine, wanted = torch.autograd.grad(a, (x, ours.beta)), torch.autograd.grad(b, (x, theirs.beta))
    torch.testing.assert_close(mine, wanted)


def test_the_boundary_in_the_loss():
    x, labels = torch.randn(12, 4), torch.arange(12) % 4
    plain, weighed = pairloom.MarginLoss(learn_beta=True), pairloom.MarginLoss(learn_beta=True, nu=0.5)
    torch.testing.assert_close(weighed(x, labels), plain(x, labels) + 0.5 * 1.2)


def test_every_pair_inside_its_margin_is_exactly_0():
    x = torch.eye(8).repeat_interleave(2, 0).requires_grad_()
    loss = margin(x, torch.arange(16) // 2, beta=0.7, margin=0.1)
    assert loss == 0
    assert not torch.autograd.grad(loss, x)[0].any()


def test_no_list_of_triplets():
    """2,000 anchors with 20 positives each are 80 million triplets."""
    x, labels = torch.randn(2000, 8, requires_grad=True), torch.arange(2000) // 20
    loss, stats = margin(x, labels, return_stats=True)
    loss.backward()
    assert loss.isfinite()
    assert int(stats.positives) == 2000 * 19


def test_settings_are_checked():
    x, labels = torch.eye(4), torch.arange(4)
    with pytest.raises(ValueError, match="triplets_per_anchor is 5; this loss counts all triplets"):
        pairloom.MarginLoss(triplets_per_anchor=5)
    with pytest.raises(ValueError, match="labels holds 3; with num_classes 3 they must lie between 0 and 2"):
        pairloom.MarginLoss(num_classes=3)(x, labels)
    with pytest.raises(ValueError, match="beta is inf"):
        margin(x, labels, beta=float("inf"))
