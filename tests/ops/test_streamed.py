"""Losses whose rule is plain torch, streamed: golden values, public code beside them, chunks, memory, temperatures."""

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from pytorch_metric_learning.distances import LpDistance
from pytorch_metric_learning.losses import GeneralizedLiftedStructureLoss as PeerLifted
from pytorch_metric_learning.losses import TripletMarginLoss as PeerTriplet
from pytorch_metric_learning.miners import BatchHardMiner

import pairloom
from pairloom import _stream
from pairloom.functional import batch_hard_triplet, binomial_deviance, dcl, hcl, lifted_structure
from pairloom.testing import peak_memory_mb, using_threads
from tests.ops import golden

VIEWS, SAMPLES = torch.cat([golden.A, golden.B]), torch.arange(4).repeat(2)


def test_golden_values():
    assert batch_hard_triplet(golden.A, golden.LABELS).item() == pytest.approx(0.230986, abs=1e-6)
    rows = batch_hard_triplet(golden.A, golden.LABELS, reduction="none")
    assert rows.tolist() == pytest.approx([0, 0.461972, 0.461972, 0], abs=1e-6)
    assert binomial_deviance(golden.A, golden.LABELS).item() == pytest.approx(4.348139, abs=1e-6)
    assert 2 * dcl(VIEWS, SAMPLES, temperature=0.5).item() == pytest.approx(1.666957, abs=1e-6)
    assert hcl(VIEWS, SAMPLES).item() == pytest.approx(1.466200, abs=1e-6)
    assert hcl(VIEWS, SAMPLES, concentration=0.0).item() == pytest.approx(1.075305, abs=1e-6)
    assert hcl(VIEWS, SAMPLES, concentration=0.0, tau_plus=0.0).item() == pytest.approx(1.220251, abs=1e-6)


def test_pair_weights_of_general_pair_weighting():
    """dL/dS of anchor 1: the published weights of the binomial deviance."""
    rows = torch.tensor([[0.6, 1.0, 0.8, 0.0]], dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, -100, 1, 1])
    binomial_deviance(rows, torch.tensor([0]), torch.eye(4).double(), labels, similarity="dot").backward()
    assert rows.grad[0].abs().tolist() == pytest.approx([0.900332, 0.0, 24.999992, 0.0], abs=1e-5)


def balanced():
    torch.manual_seed(0)
    return torch.randn(40, 8, dtype=torch.float64), torch.arange(40) % 8


def assert_equal_peer(ours, theirs, x, labels):
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    loss, peer = ours(a, labels), theirs(b, labels)
    torch.testing.assert_close(loss, peer)
    loss.backward()
    peer.backward()
    torch.testing.assert_close(a.grad, b.grad)


def test_lifted_structure_equals_pytorch_metric_learning():
    loss = pairloom.GeneralizedLiftedStructureLoss(neg_margin=0.7, pos_margin=0.1)
    assert_equal_peer(loss, PeerLifted(neg_margin=0.7, pos_margin=0.1), *balanced())


@pytest.mark.parametrize("reduction", ["mean", "mean_nonzero"])
def test_batch_hard_triplet_equals_miner_and_loss_of_pytorch_metric_learning(reduction):
    distance = LpDistance(normalize_embeddings=True)
    miner, peer = BatchHardMiner(distance=distance), PeerTriplet(margin=0.3, distance=distance)

    def theirs(x, labels):
        if reduction == "mean":  # every anchor has a triplet here
            from pytorch_metric_learning.reducers import MeanReducer

            peer.reducer = MeanReducer()
        return peer(x, labels, miner(x, labels))

    assert_equal_peer(pairloom.BatchHardTripletLoss(margin=0.3, reduction=reduction), theirs, *balanced())


@pytest.mark.parametrize("loss", [lifted_structure, batch_hard_triplet])
@pytest.mark.parametrize("similarity", ["euclidean", "squared_euclidean"])
def test_distances_are_those_of_rows_of_length_one(loss, similarity):
    """Unless told otherwise; a row of zeros stays one, with gradient 0; cosine and dot are what they always are."""
    x, labels = balanced()
    x[3] = 0
    x.requires_grad_()
    options = {"similarity": similarity}
    torch.testing.assert_close(loss(x, labels, **options), loss(F.normalize(x), labels, normalize=False, **options))
    assert not torch.allclose(loss(x, labels, **options), loss(x, labels, normalize=False, **options))
    (gradient,) = torch.autograd.grad(loss(x, labels, **options), x)
    assert gradient.isfinite().all()
    assert not gradient[3].any()
    assert gradient[4].any()
    torch.testing.assert_close((gradient * x).sum(1), torch.zeros(40, dtype=torch.float64))  # lengths do not matter
    for product in ("cosine", "dot"):
        values = [loss(x, labels, similarity=product, normalize=normalize) for normalize in (True, False)]
        assert values[0] == values[1]
    with pytest.raises(TypeError, match="normalize is 'yes'; it must be True or False"):
        loss(x, labels, normalize="yes")


LOSSES = [lifted_structure, batch_hard_triplet, binomial_deviance, dcl, hcl]


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("references", [False, True])
def test_chunks_change_nothing(loss, references, monkeypatch):
    """Value, statistics and gradients are those of one chunk when rows come 16 at a time, and of any thread count."""
    torch.manual_seed(1)
    x, labels = torch.randn(70, 6, dtype=torch.float64, requires_grad=True), torch.randint(0, 9, (70,))
    ref = torch.randn(51, 6, dtype=torch.float64, requires_grad=True) if references else None
    ref_labels = torch.randint(0, 9, (51,)) if references else None
    leaves = [x, ref] if references else [x]

    def run():
        value, stats = loss(x, labels, ref, ref_labels, return_stats=True)
        return [value, *stats, *torch.autograd.grad(value, leaves)]

    whole = run()
    monkeypatch.setattr(_stream, "CHUNK_ENTRIES", 1)
    chunked = run()
    for a, b in zip(whole, chunked, strict=True):
        torch.testing.assert_close(a, b, equal_nan=True)
    with using_threads(1):
        for a, b in zip(run(), chunked, strict=True):
            assert torch.equal(a.nan_to_num(), b.nan_to_num())


@pytest.mark.parametrize("loss", [dcl, hcl])
@pytest.mark.parametrize("temperature", [1e-3, 1e-2, 1.0, 100.0])
def test_finite_at_every_temperature(loss, temperature):
    torch.manual_seed(2)
    x = F.normalize(torch.randn(30, 4)).requires_grad_()
    value = loss(x, torch.arange(30) // 3, temperature=temperature)
    value.backward()
    assert value.isfinite()
    assert x.grad.isfinite().all()
    wide = loss(x.detach().double(), torch.arange(30) // 3, temperature=temperature)
    assert value.item() == pytest.approx(wide.item(), rel=1e-4, abs=1e-5)


def test_memory_grows_with_rows_not_with_pairs():
    """6,000 x 6,000 similarities are 144 MB, and autograd keeps some ten such tensors."""
    x, labels = torch.randn(6_000, 8, requires_grad=True), torch.arange(6_000) // 4
    binomial_deviance(x[:64], labels[:64]).backward()
    before = peak_memory_mb()
    binomial_deviance(x, labels).backward()
    assert peak_memory_mb() - before < 200


def test_memory_does_not_grow_from_call_to_call():
    program = """
import torch
from pairloom.functional import lifted_structure
from pairloom.testing import peak_memory_mb
x, labels = torch.randn(6144, 32, requires_grad=True), torch.arange(6144) // 4
for _ in range(7):
    lifted_structure(x, labels).backward()
    print(peak_memory_mb())
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=True)
    peaks = [float(line) for line in done.stdout.split()]
    assert peaks[-1] - peaks[2] < 80, peaks


def test_half_precision_and_autocast_sum_in_float32():
    torch.manual_seed(3)
    x, labels = torch.randn(40, 16), torch.arange(40) // 4
    half = x.to(torch.bfloat16)
    value = lifted_structure(half, labels)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, lifted_structure(half.float(), labels))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(lifted_structure(half, labels), value)


def test_settings_are_checked():
    x, labels = torch.eye(4), torch.arange(4) // 2
    with pytest.raises(ValueError, match=r"tau_plus is 1.0; it must be at least 0 and below 1"):
        pairloom.HCLLoss(tau_plus=1.0)
    with pytest.raises(ValueError, match="temperature is 0"):
        dcl(x, labels, temperature=0)
    with pytest.raises(ValueError, match="similarity is 'l2'; allowed: euclidean"):
        batch_hard_triplet(x, labels, similarity="l2")
    with pytest.raises(TypeError, match="margin is 'wide'"):
        pairloom.BatchHardTripletLoss("wide")
    assert "margin=0.2" in repr(pairloom.BatchHardTripletLoss())
