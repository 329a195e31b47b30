"""proxy_nca, normalized_softmax: golden values, pytorch-metric-learning beside them, proxies that learn, bad labels."""

import pytest
import torch
from pytorch_metric_learning.losses import NormalizedSoftmaxLoss as PeerSoftmax
from pytorch_metric_learning.losses import ProxyNCALoss as PeerNCA

from pairloom import NormalizedSoftmaxLoss, ProxyNCALoss
from pairloom.functional import normalized_softmax, proxy_nca
from tests.ops import golden
from tests.ops.peers import SEEDS, uneven

PROXIES = torch.tensor([[1, 0], [-0.6, 0.8]], dtype=torch.float64)
THREE = torch.cat([PROXIES, torch.tensor([[0, -1]])])


def test_golden_values():
    for proxies in (PROXIES, THREE):
        loss = proxy_nca(golden.A, golden.LABELS, proxies, softmax_scale=9.0)
        assert loss.item() == pytest.approx(0.000787, abs=1e-6)
    classic = proxy_nca(golden.A, golden.LABELS, PROXIES, softmax_scale=9.0, form="classic")
    assert classic.item() == pytest.approx(-20.16)
    same = normalized_softmax(golden.A, golden.LABELS, PROXIES, temperature=1 / 18)
    assert same.item() == pytest.approx(0.000787, abs=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("loss", "peer", "settings"),
    [
        (ProxyNCALoss, PeerNCA, {}),
        (ProxyNCALoss, PeerNCA, {"softmax_scale": 9.0}),
        (NormalizedSoftmaxLoss, PeerSoftmax, {}),
        (NormalizedSoftmaxLoss, PeerSoftmax, {"temperature": 0.5}),
    ],
)
def test_equals_pytorch_metric_learning(loss, peer, settings, seed):
    """Value, gradients of the embeddings and of the proxies."""
    x, labels = uneven(seed)
    ours, theirs = loss(11, 8, **settings).double(), peer(11, 8, **settings).double()
    own, transposed = (theirs.W, True) if peer is PeerSoftmax else (theirs.proxies, False)
    own.data = (ours.proxies.T if transposed else ours.proxies).detach().clone()
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    values = ours(a, labels), theirs(b, labels)
    torch.testing.assert_close(*values)
    for value in values:
        value.backward()
    torch.testing.assert_close(a.grad, b.grad)
    torch.testing.assert_close(ours.proxies.grad, own.grad.T if transposed else own.grad)


def test_classic_form_leaves_the_positive_out_of_the_denominator():
    x, labels = uneven(5)
    proxies = torch.randn(10, 8, dtype=torch.float64)
    distance = torch.cdist(torch.nn.functional.normalize(x), torch.nn.functional.normalize(proxies)) ** 2
    rows = []
    for i, label in enumerate(labels.tolist()):
        others = [c for c in range(10) if c != label]
        rows.append(distance[i, label] + torch.logsumexp(-distance[i, others], 0))
    torch.testing.assert_close(proxy_nca(x, labels, proxies, form="classic", reduction="none"), torch.stack(rows))


def test_proxies_learn_the_classes():
    torch.manual_seed(0)
    centres = torch.randn(4, 8)
    labels = torch.arange(200) % 4
    x = centres[labels] + 0.1 * torch.randn(200, 8)
    loss = NormalizedSoftmaxLoss(4, 8)
    assert loss.with_stats(x, labels)[1].top1_accuracy < 1
    optimiser = torch.optim.SGD(loss.parameters(), lr=0.5)
    for _ in range(30):
        optimiser.zero_grad()
        loss(x, labels).backward()
        optimiser.step()
    _, stats = loss.with_stats(x, labels)
    assert stats.top1_accuracy == 1


def test_ignored_labels_and_state():
    x, labels = uneven(6)
    loss = ProxyNCALoss(10, 8).double()
    some = torch.where(torch.arange(40) % 3 == 0, -100, labels)
    torch.testing.assert_close(loss(x, some), loss(x[some >= 0], labels[some >= 0]))
    value = loss(x, torch.full_like(labels, -100))
    value.backward()
    assert value.item() == 0
    assert not loss.proxies.grad.any()
    again = ProxyNCALoss(10, 8).double()
    again.load_state_dict(loss.state_dict())
    assert torch.equal(again(x, labels), loss(x, labels))


def test_inputs_are_checked():
    x, labels = uneven(0)
    loss = ProxyNCALoss(9, 8).double()
    with pytest.raises(ValueError, match="labels holds 9; with 9 proxies labels must lie between 0 and 8"):
        loss(x, labels)
    with pytest.raises(ValueError, match="labels holds -100"):
        proxy_nca(x, torch.full_like(labels, -100), torch.eye(8).double(), ignore_index=None)
    with pytest.raises(ValueError, match="proxies has 7 dimensions"):
        proxy_nca(x, labels, torch.eye(7).double())
    with pytest.raises(ValueError, match="num_classes is 0"):
        ProxyNCALoss(0, 8)
    with pytest.raises(ValueError, match="form is 'plus'; allowed: softmax, classic"):
        ProxyNCALoss(3, 8, form="plus")
    with pytest.raises(ValueError, match="indices_tuple"):
        loss(x, labels, (labels, labels, labels))
    assert repr(loss).startswith("ProxyNCALoss(num_classes=9, embedding_size=8, softmax_scale=1.0")
