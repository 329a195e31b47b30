"""Contrastive loss: published values, pytorch-metric-learning beside it, means that are empty, chunks."""

import inspect

import pytest
import torch
from pytorch_metric_learning import distances, losses, reducers

import pairloom
from pairloom import _stream
from pairloom.functional import contrastive
from tests.ops import golden


def test_golden_values():
    assert contrastive(golden.A, golden.LABELS).item() == pytest.approx(1.261972, abs=1e-6)
    squared = contrastive(golden.A, golden.LABELS, form="squared", reduction="mean_all")
    assert squared.item() == pytest.approx(0.144591, abs=1e-6)


def batch():
    torch.manual_seed(0)
    return torch.randn(40, 8, dtype=torch.float64), torch.arange(40).pow(2) % 11


DISTANCES = [
    distances.LpDistance(),
    distances.LpDistance(power=2),
    distances.LpDistance(normalize_embeddings=False),
    distances.CosineSimilarity(),
    distances.DotProductSimilarity(normalize_embeddings=False),
]
REDUCERS = [None, reducers.MeanReducer(), reducers.AvgNonZeroReducer(), reducers.SumReducer()]


@pytest.mark.parametrize("references", [False, True])
@pytest.mark.parametrize("distance", DISTANCES, ids=lambda d: f"{type(d).__name__}-{d.power}-{d.normalize_embeddings}")
@pytest.mark.parametrize("reducer", REDUCERS, ids=lambda r: type(r).__name__)
@pytest.mark.parametrize("entries", [1 << 18, 1])
def test_equals_pytorch_metric_learning(references, distance, reducer, entries, monkeypatch):
    monkeypatch.setattr(_stream, "CHUNK_ENTRIES", entries)
    x, labels = batch()
    torch.manual_seed(1)
    more = (None, torch.randn(25, 8, dtype=torch.float64), torch.randint(0, 11, (25,))) if references else ()
    settings = {"pos_margin": 0.1, "neg_margin": 0.9, "distance": distance, "reducer": reducer}
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    loss, peer = (
        pairloom.ContrastiveLoss(**settings)(a, labels, *more),
        losses.ContrastiveLoss(**settings)(b, labels, *more),
    )
    torch.testing.assert_close(loss, peer)
    loss.backward()
    peer.backward()
    torch.testing.assert_close(a.grad, b.grad)


def test_constructor_of_pytorch_metric_learning():
    ours, theirs = inspect.signature(pairloom.ContrastiveLoss), inspect.signature(losses.ContrastiveLoss)
    wanted = [(p.name, p.default) for p in theirs.parameters.values() if p.kind is not p.VAR_KEYWORD]
    assert [(p.name, p.default) for p in list(ours.parameters.values())[: len(wanted)]] == wanted
    with pytest.raises(ValueError, match="ClassWeightedReducer, but the means of this loss run over pairs"):
        pairloom.ContrastiveLoss(reducer=reducers.ClassWeightedReducer(torch.ones(3)))


@pytest.mark.parametrize("reduction", ["mean", "mean_all", "mean_nonzero", "sum", "none"])
@pytest.mark.parametrize("form", ["linear", "squared"])
def test_inside_its_margins_the_loss_is_zero(reduction, form):
    """Every pair inside its margin: exactly 0 and no gradient, also for means over what is above 0."""
    x = torch.eye(3).repeat(2, 1).requires_grad_()
    labels = torch.arange(3).repeat(2)
    loss = contrastive(x, labels, reduction=reduction, form=form)
    loss.sum().backward()
    assert not loss.any()
    assert not x.grad.any()


def test_nobody_has_a_positive():
    """Only the negative mean is left: labels that never meet are seen in the statistics."""
    x, _ = batch()
    loss, stats = contrastive(x, torch.arange(40), return_stats=True)
    torch.testing.assert_close(loss, losses.ContrastiveLoss()(x, torch.arange(40)))
    assert int(stats.positives) == 0
    assert int(stats.anchors_without_positive) == 40


@pytest.mark.parametrize("reduction", ["mean", "mean_all", "sum", "none"])
def test_weights_get_their_gradient(reduction):
    x, labels = batch()
    x, labels = x[:8, :3].requires_grad_(), torch.arange(8) // 2
    weights = torch.rand(8, dtype=torch.float64, requires_grad=True)

    def loss(x, weights):
        return contrastive(x, labels, neg_margin=1.5, weights=weights, reduction=reduction)

    assert torch.autograd.gradcheck(loss, (x, weights))
    assert torch.autograd.gradgradcheck(loss, (x, weights))


def test_settings_are_checked():
    with pytest.raises(ValueError, match="form is 'cubic'; allowed: linear, squared"):
        pairloom.ContrastiveLoss(form="cubic")
    with pytest.raises(ValueError, match="neg_margin is inf"):
        contrastive(torch.eye(2), torch.arange(2), neg_margin=float("inf"))
    with pytest.raises(TypeError, match="pos_margin is 'wide'"):
        pairloom.ContrastiveLoss("wide")
