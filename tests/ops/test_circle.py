"""circle: golden value, pytorch-metric-learning beside it, the gradient with constant weights, extremes, no pairs."""

import pytest
import torch
from pytorch_metric_learning.losses import CircleLoss as PeerLoss

from pairloom import CircleLoss, reference
from pairloom.functional import circle
from pairloom.reference.circle import circle_of_weights, circle_weights
from tests.ops import golden
from tests.ops.peers import SEEDS, assert_equal_peer, uneven


def test_golden_value():
    assert circle(golden.A, golden.LABELS, m=0.25).item() == pytest.approx(30.903561, abs=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("settings", [{}, {"m": 0.25, "gamma": 256.0}, {"m": -0.2, "gamma": 2.0}])
def test_equals_pytorch_metric_learning(seed, settings):
    """Anchors without a positive count in neither mean."""
    x, labels = uneven(seed)
    ref, ref_labels = uneven(seed + 10, rows=31)
    ours, theirs = CircleLoss(**settings), PeerLoss(**settings)
    assert_equal_peer(lambda x: ours(x, labels), lambda x: theirs(x, labels), x)
    assert_equal_peer(
        lambda x, ref: ours(x, labels, ref_emb=ref, ref_labels=ref_labels),
        lambda x, ref: theirs(x, labels, ref_emb=ref, ref_labels=ref_labels),
        x,
        ref,
    )


def test_gradient_is_the_derivative_for_constant_weights():
    """Central differences of the loss whose weights stay at those of the point, along every entry of x."""
    x, labels = uneven(3, rows=12, dimensions=4, classes=4)
    m, gamma = 0.25, 5.0

    def similarities(x):
        return reference.pairwise_similarity(x, x)

    frozen = circle_weights(similarities(x), m)
    same, own = labels.unsqueeze(0) == labels.unsqueeze(1), torch.eye(12, dtype=torch.bool)

    def with_frozen_weights(x):
        return circle_of_weights(similarities(x), same & ~own, ~same, *frozen, m, gamma).sum()

    leaf = x.clone().requires_grad_()
    value = circle(leaf, labels, m=m, gamma=gamma, reduction="sum")
    assert value.item() == pytest.approx(with_frozen_weights(x).item())
    value.backward()
    step = 1e-6
    differences = torch.zeros_like(x)
    for i in range(x.numel()):
        change = torch.zeros_like(x).view(-1)
        change[i] = step
        change = change.view_as(x)
        differences.view(-1)[i] = (with_frozen_weights(x + change) - with_frozen_weights(x - change)) / (2 * step)
    torch.testing.assert_close(leaf.grad, differences, rtol=1e-6, atol=1e-7)
    moving = x.clone().requires_grad_()
    same_weights = circle_weights(similarities(moving), m)
    circle_of_weights(similarities(moving), same & ~own, ~same, *same_weights, m, gamma).sum().backward()
    assert not torch.allclose(moving.grad, leaf.grad, rtol=0.1)  # weights with a gradient would be another loss


@pytest.mark.parametrize("gamma", [1e-3, 80.0, 1e4])
def test_finite_at_every_scale(gamma):
    x, labels = uneven(4)
    narrow = x.float().requires_grad_()
    value = circle(narrow, labels, gamma=gamma)
    value.backward()
    assert narrow.grad.isfinite().all()
    assert value.item() == pytest.approx(circle(x, labels, gamma=gamma).item(), rel=1e-4)


def test_empty_cases_and_nan():
    x = torch.randn(4, 3, requires_grad=True)
    for labels in (torch.arange(4), torch.zeros(4).long(), torch.full((4,), -100)):
        value = circle(x, labels)
        assert value.item() == 0
        assert not torch.autograd.grad(value, x)[0].any()
    spoilt = x.detach().clone()
    spoilt[2, 1] = torch.nan
    assert circle(spoilt, golden.LABELS).isnan()


def test_settings_are_checked():
    with pytest.raises(ValueError, match="gamma is 0; it must be finite and above 0"):
        CircleLoss(gamma=0)
    with pytest.raises(ValueError, match="similarity is 'euclidean'"):
        circle(torch.eye(4), golden.LABELS, similarity="euclidean")
    assert "gamma=80.0" in repr(CircleLoss())
