"""nt_xent: golden value, pytorch-metric-learning beside it, averages, empty cases, graphs."""

import pytest
import torch
from pytorch_metric_learning.losses import NTXentLoss as PeerLoss

from pairloom import NTXentLoss
from pairloom.functional import nt_xent, sup_con
from tests.ops import golden

VIEWS = torch.cat([golden.A, golden.B])


def test_golden_value():
    loss = nt_xent(VIEWS, torch.arange(4).repeat(2), temperature=0.5)
    assert loss.item() == pytest.approx(1.220251, abs=1e-6)


@pytest.mark.parametrize("references", [False, True])
@pytest.mark.parametrize("classes", [3, 9, 40])
def test_equals_pytorch_metric_learning(references, classes):
    """Classes of very different size: the mean is over positive pairs."""
    torch.manual_seed(0)
    x, labels = torch.randn(40, 8, dtype=torch.float64), torch.randint(0, classes, (40,)).pow(2) % classes
    ref = torch.randn(31, 8, dtype=torch.float64) if references else None
    ref_labels = torch.randint(0, classes, (31,)) if references else None
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    loss = NTXentLoss(temperature=0.2)(ours, labels, ref_emb=ref, ref_labels=ref_labels)
    peer = PeerLoss(temperature=0.2)(theirs, labels, ref_emb=ref, ref_labels=ref_labels)
    loss.backward()
    peer.backward()
    torch.testing.assert_close(loss, peer)
    torch.testing.assert_close(ours.grad, theirs.grad)


def dense(x, labels, temperature, ignore_index=-100):
    """Per anchor: the losses of its positive pairs, one by one."""
    x = torch.nn.functional.normalize(x)
    z = (x @ x.T / temperature).tolist()
    rows = []
    for i, own in enumerate(labels.tolist()):
        others = [j for j in range(len(labels)) if j != i and int(labels[j]) != ignore_index]
        negatives = torch.tensor([z[i][j] for j in others if int(labels[j]) != own], dtype=torch.float64)
        positives = [z[i][j] for j in others if int(labels[j]) == own]
        losses = [torch.logsumexp(torch.cat([negatives, torch.tensor([p]).double()]), 0) - p for p in positives]
        rows.append([] if own == ignore_index else [float(one) for one in losses])
    return rows


def test_averages_and_ignored_labels():
    torch.manual_seed(3)
    x, labels = torch.randn(30, 5, dtype=torch.float64), torch.randint(0, 6, (30,))
    labels[::4] = -100
    rows = dense(x, labels, 0.3)
    pairs = [one for row in rows for one in row]
    assert nt_xent(x, labels, temperature=0.3).item() == pytest.approx(sum(pairs) / len(pairs))
    anchors = [sum(row) / len(row) if row else 0.0 for row in rows]
    kept = [value for value, label in zip(anchors, labels.tolist(), strict=True) if label != -100]
    loss = nt_xent(x, labels, temperature=0.3, average="anchors")
    assert loss.item() == pytest.approx(sum(kept) / len(kept))
    sums = nt_xent(x, labels, temperature=0.3, reduction="none")
    assert sums.tolist() == pytest.approx([sum(row) for row in rows])
    weights = torch.rand(30, dtype=torch.float64)
    weighted = nt_xent(x, labels, temperature=0.3, weights=weights)
    share = sum(w * sum(row) for w, row in zip(weights.tolist(), rows, strict=True))
    assert weighted.item() == pytest.approx(
        share / sum(w * len(r) for w, r in zip(weights.tolist(), rows, strict=True))
    )


def test_other_positives_are_in_no_denominator():
    torch.manual_seed(4)
    x, labels = torch.randn(20, 5), torch.arange(20) // 4
    assert nt_xent(x, labels) < sup_con(x, labels, temperature=0.07)


def test_no_positive_pair_is_zero_with_a_live_graph():
    x = torch.randn(5, 3, requires_grad=True)
    loss = nt_xent(x, torch.arange(5))
    loss.backward()
    assert loss.item() == 0
    assert not x.grad.any()


def test_graphs(tmp_path):
    torch.manual_seed(5)
    module = NTXentLoss(temperature=0.2)
    compiled = torch.compile(module, fullgraph=True, dynamic=True, backend="aot_eager")
    torch.jit.save(torch.jit.script(module), tmp_path / "loss.pt")
    scripted = torch.jit.load(tmp_path / "loss.pt")
    for n in (12, 31):
        x, labels = torch.randn(n, 6, requires_grad=True), torch.randint(0, 5, (n,))
        wanted = torch.autograd.grad(module(x, labels), x)[0]
        for other in (compiled, scripted):
            torch.testing.assert_close(other(x, labels), module(x, labels))
            torch.testing.assert_close(torch.autograd.grad(other(x, labels), x)[0], wanted)


def test_statistics_and_gradients_of_the_temperature():
    x, labels = torch.randn(10, 4, dtype=torch.float64), torch.arange(10) // 2
    _, stats = NTXentLoss().with_stats(x, labels)
    assert (int(stats.positives), int(stats.negatives)) == (10, 80)
    temperature = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, t: nt_xent(x, labels, temperature=t), (x.requires_grad_(), temperature))


def test_settings_are_checked():
    with pytest.raises(ValueError, match="average is 'all'; allowed: pairs, anchors"):
        NTXentLoss(average="all")
    with pytest.raises(ValueError, match="labels is None"):
        NTXentLoss()(torch.eye(2))
