"""proxy_anchor: golden values, pytorch-metric-learning beside it (embeddings and proxies), absent classes, several
proxies of a class, weights of proxies, extremes, empty cases."""

import pytest
import torch
from pytorch_metric_learning import distances, reducers
from pytorch_metric_learning.losses import ProxyAnchorLoss as PeerLoss

from pairloom import ProxyAnchorLoss
from pairloom.functional import proxy_anchor
from tests.ops import golden
from tests.ops.peers import SEEDS, uneven

PROXIES = torch.tensor([[1, 0], [-0.6, 0.8]], dtype=torch.float64)
THREE = torch.cat([PROXIES, torch.tensor([[0, -1]])])


def test_golden_values():
    assert proxy_anchor(golden.A, golden.LABELS, PROXIES).item() == pytest.approx(7.699979, abs=1e-6)
    assert proxy_anchor(golden.A, golden.LABELS, THREE).item() == pytest.approx(6.213304, abs=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("classes", [10, 25])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"margin": 0.3, "alpha": 4},
        {"reducer": reducers.AvgNonZeroReducer()},
        {"reducer": reducers.SumReducer(), "alpha": 8},
        {"distance": distances.LpDistance(), "margin": 0.8, "alpha": 6},
        {"distance": distances.LpDistance(power=2, normalize_embeddings=False), "alpha": 2},
    ],
)
def test_equals_pytorch_metric_learning(seed, classes, settings):
    """Value, gradients of embeddings and of proxies; most of 25 classes are absent."""
    x, labels = uneven(seed)
    ours, theirs = ProxyAnchorLoss(classes, 8, **settings).double(), PeerLoss(classes, 8, **settings).double()
    theirs.proxies.data = ours.proxies.detach().clone()
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    values = ours(a, labels), theirs(b, labels)
    torch.testing.assert_close(*values)
    assert values[0] > 0
    for value in values:
        value.backward()
    torch.testing.assert_close(a.grad, b.grad)
    torch.testing.assert_close(ours.proxies.grad, theirs.proxies.grad)


def test_proxies_begin_as_there():
    torch.manual_seed(0)
    ours = ProxyAnchorLoss(300, 40)
    torch.manual_seed(0)
    assert torch.equal(ours.proxies, PeerLoss(300, 40).proxies)


def terms(x, labels, proxies, proxy_labels, margin=0.1, alpha=32.0):
    """Both terms of every proxy, one by one."""
    s = torch.nn.functional.normalize(proxies) @ torch.nn.functional.normalize(x).T
    zero = s.new_zeros(1)
    found = []
    for c, own in enumerate(proxy_labels.tolist()):
        pull = torch.logsumexp(torch.cat([zero, -alpha * (s[c, labels == own] - margin)]), 0)
        push = torch.logsumexp(torch.cat([zero, alpha * (s[c, labels != own] + margin)]), 0)
        found.append((pull, push, bool((labels == own).any())))
    return found


def test_labels_of_proxies_weights_and_reductions():
    x, labels = uneven(3)
    proxies, proxy_labels = torch.randn(6, 8, dtype=torch.float64), torch.tensor([0, 0, 4, 7, 77, 1])
    parts = terms(x, labels, proxies, proxy_labels)
    assert sum(present for *_, present in parts) == 5
    weights = torch.rand(6, dtype=torch.float64)

    def ours(**options):
        return proxy_anchor(x, labels, proxies, proxy_labels, **options)

    pull, push = (torch.stack([part[i] for part in parts]) for i in (0, 1))
    present = torch.tensor([part[2] for part in parts]).double()
    torch.testing.assert_close(ours(), pull.sum() / 5 + push.mean())
    torch.testing.assert_close(ours(reduction="none"), pull + push)
    torch.testing.assert_close(ours(reduction="sum", weights=weights), (weights * (pull + push)).sum())
    wanted = (weights * pull).sum() / (weights * present).sum() + (weights * push).sum() / weights.sum()
    torch.testing.assert_close(ours(weights=weights), wanted)
    order = torch.randperm(40)
    torch.testing.assert_close(proxy_anchor(x[order], labels[order], proxies, proxy_labels), ours())


def test_gradcheck():
    x, labels = uneven(4, rows=6, dimensions=3, classes=3)
    leaves = [x.requires_grad_(), torch.randn(5, 3, dtype=torch.float64, requires_grad=True)]
    weights = torch.rand(5, dtype=torch.float64, requires_grad=True)

    def loss(x, proxies, weights):
        return proxy_anchor(x, labels, proxies, weights=weights, alpha=4.0)

    assert torch.autograd.gradcheck(loss, (*leaves, weights))
    assert torch.autograd.gradgradcheck(loss, (*leaves, weights))


@pytest.mark.parametrize("alpha", [1e-3, 32.0, 1e4])
def test_finite_at_every_scale_and_nothing_to_learn(alpha):
    x, labels = uneven(5)
    loss = ProxyAnchorLoss(11, 8, alpha=alpha)
    value = loss(x.float().requires_grad_(), labels)
    value.backward()
    assert value.isfinite()
    assert loss.proxies.grad.isfinite().all()
    for labels_ in (torch.full_like(labels, -100), labels[:0]):
        loss.zero_grad()
        value = loss(x[: len(labels_)].float(), labels_)
        value.backward()
        assert value.item() == 0
        assert not loss.proxies.grad.any()
    torch.testing.assert_close(
        loss(x.float(), torch.where(labels == 0, -100, labels)), loss(x[labels != 0].float(), labels[labels != 0])
    )
    x[2, 1] = torch.nan
    assert loss(x.float(), labels).isnan()


def test_inputs_are_checked():
    x, labels = uneven(0)
    with pytest.raises(ValueError, match="labels holds 9; with 9 proxies labels must lie between 0 and 8"):
        ProxyAnchorLoss(9, 8)(x.float(), labels)
    with pytest.raises(ValueError, match="alpha is 0; it must be finite and above 0"):
        ProxyAnchorLoss(9, 8, alpha=0)
    with pytest.raises(
        ValueError, match=r"weights has shape \(40,\); it must be \(11,\), one value for each row of prox"
    ):
        ProxyAnchorLoss(11, 8)(x.float(), labels, weights=torch.ones(40))
    with pytest.raises(ValueError, match="reducer is a MeanReducer, but this loss has two terms for each proxy"):
        ProxyAnchorLoss(9, 8, reducer=reducers.MeanReducer())
    assert ProxyAnchorLoss(9, 8, reducer=reducers.DivisorReducer()).reduction == "mean"
    with pytest.raises(ValueError, match="takes no index tuple: it compares every embedding with all proxies"):
        ProxyAnchorLoss(11, 8)(x.float(), labels, (labels, labels, labels))
