"""Triplet margin loss: every triplet written out beside it, pytorch-metric-learning and its miner, sizes, memory."""

import inspect
import subprocess
import sys

import pytest
import torch
from pytorch_metric_learning import distances, losses, miners, reducers

import pairloom
from pairloom import _stream
from pairloom.functional import triplet_margin
from pairloom.testing import isa_levels, using_isa
from tests.ops import golden

KINDS = ["all", "hard", "semihard", "easy"]


def test_golden_values():
    call = {"embeddings": golden.A, "labels": golden.LABELS, "margin": 0.2}
    assert triplet_margin(**call).item() == pytest.approx(0.461972, abs=1e-6)
    assert triplet_margin(**call, reduction="mean_all").item() == pytest.approx(0.115493, abs=1e-6)
    squared = triplet_margin(**call, similarity="squared_euclidean", normalize=False)
    assert squared.item() == pytest.approx(0.6, abs=1e-6)
    semihard = triplet_margin(golden.A, golden.LABELS, margin=0.6, triplets="semihard")
    assert semihard.item() == pytest.approx(0.080214, abs=1e-6)


def batch(n=40, classes=11):
    torch.manual_seed(0)
    return torch.randn(n, 8, dtype=torch.float64), torch.arange(n).pow(2) % classes


DISTANCES = [
    distances.LpDistance(),
    distances.LpDistance(power=2, normalize_embeddings=False),
    distances.CosineSimilarity(),
]
REDUCERS = [None, reducers.MeanReducer(), reducers.SumReducer()]


@pytest.mark.parametrize("references", [False, True])
@pytest.mark.parametrize("distance", DISTANCES, ids=lambda d: f"{type(d).__name__}-{d.power}")
@pytest.mark.parametrize("smooth_loss", [False, True])
@pytest.mark.parametrize("reducer", REDUCERS, ids=lambda r: type(r).__name__)
@pytest.mark.parametrize("triplets", [None, *KINDS])
def test_equals_pytorch_metric_learning(references, distance, smooth_loss, reducer, triplets, monkeypatch):
    monkeypatch.setattr(_stream, "CHUNK_ENTRIES", 1)
    x, labels = batch()
    torch.manual_seed(1)
    ref = (torch.randn(25, 8, dtype=torch.float64), torch.randint(0, 11, (25,))) if references else ()
    settings = {"margin": 0.3, "smooth_loss": smooth_loss, "distance": distance, "reducer": reducer}
    kind = {} if triplets is None else {"triplets": triplets, "mining_margin": 0.25}
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    loss = pairloom.TripletMarginLoss(**settings, **kind)(a, labels, None, *ref)
    found = None
    if triplets is not None:
        found = miners.TripletMarginMiner(margin=0.25, type_of_triplets=triplets, distance=distance)(b, labels, *ref)
    peer = losses.TripletMarginLoss(**settings)(b, labels, found, *ref)
    torch.testing.assert_close(loss, peer)
    loss.backward()
    peer.backward()
    torch.testing.assert_close(a.grad, b.grad)


def written_out(x, labels, margin, low, high, reduction):
    """Every triplet in a loop, with the rows as they are."""
    distance = (x.unsqueeze(1) - x.unsqueeze(0)).pow(2).sum(2)
    total, active, count = 0.0, 0, 0
    for a in range(len(x)):
        for p in range(len(x)):
            for n in range(len(x)):
                if a == p or labels[a] != labels[p] or labels[a] == labels[n] or -100 in (labels[a], labels[n]):
                    continue
                gap = distance[a, n] - distance[a, p]
                if low < gap <= high:
                    total, count = total + max(0.0, float(margin - gap)), count + 1
                    active += float(margin - gap) > 0
    if reduction == "sum":
        return total
    return total / max(count if reduction == "mean_all" else active, 1)


@pytest.mark.parametrize("reduction", ["mean", "mean_all", "sum"])
@pytest.mark.parametrize("triplets", KINDS)
def test_equal_distances(reduction, triplets):
    """Points of a grid: most distances are equal to others, and many gaps are exactly 0 or exactly the margin."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randint(0, 3, (15, 2), generator=generator).double()
    labels = torch.randint(0, 4, (15,), generator=generator)
    labels[2] = -100
    bounds = {"all": (-1e9, 1e9), "hard": (-1e9, 0), "semihard": (0, 1), "easy": (1, 1e9)}[triplets]
    for margin in (1.0, 2.0):
        loss = triplet_margin(
            x, labels, margin=margin, triplets=triplets, mining_margin=None if triplets == "all" else 1.0,
            similarity="squared_euclidean", normalize=False, reduction=reduction,
        )  # fmt: skip
        assert loss.item() == pytest.approx(written_out(x, labels, margin, *bounds, reduction), abs=1e-12)


@pytest.mark.parametrize("smooth_loss", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "mean_all", "none"])
def test_derivatives_by_finite_differences(smooth_loss, reduction):
    x, labels = batch(8, 3)
    x.requires_grad_()
    weights = torch.rand(8, dtype=torch.float64, requires_grad=True)

    def loss(x, weights):
        return triplet_margin(
            x, labels, margin=0.4, smooth_loss=smooth_loss, weights=weights, reduction=reduction, triplets="semihard"
        )

    assert torch.autograd.gradcheck(loss, (x, weights))
    assert torch.autograd.gradgradcheck(loss, (x, weights))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int64])
def test_many_triplets_and_small_labels(dtype):
    """700 classes of two (256 for bytes): the cube of the batch is beyond 2^31 cells."""
    x = torch.randn(1400, 4, generator=torch.Generator().manual_seed(0))
    classes = 256 if dtype == torch.uint8 else 700
    labels = (torch.arange(1400) % classes).to(dtype)
    loss, stats = triplet_margin(x, labels, margin=0.1, return_stats=True)
    wide = triplet_margin(x.double(), labels.long(), margin=0.1)
    assert loss.item() == pytest.approx(wide.item(), rel=1e-5)
    assert int(stats.positives) == int((torch.bincount(labels.long()) ** 2).sum()) - 1400


@pytest.mark.parametrize("smooth_loss", [False, True])
def test_large_margins_are_finite(smooth_loss):
    x, labels = torch.randn(30, 4), torch.arange(30) // 3
    for margin in (1000.0, -1000.0):
        leaf = x.clone().requires_grad_()
        loss = triplet_margin(leaf, labels, margin=margin, smooth_loss=smooth_loss)
        loss.backward()
        assert loss.isfinite()
        assert leaf.grad.isfinite().all()
        assert loss.item() == pytest.approx(max(margin, 0.0), abs=2.0)


@pytest.mark.parametrize("smooth_loss", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_sums_in_float32(smooth_loss, dtype):
    """Also where the triplets are more than float16 can count."""
    half = torch.randn(150, 4, generator=torch.Generator().manual_seed(0)).to(dtype)
    labels = torch.arange(150) // 25
    a, b = half.clone().requires_grad_(), half.float().requires_grad_()
    loss, wanted = (triplet_margin(x, labels, margin=0.3, smooth_loss=smooth_loss) for x in (a, b))
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, wanted)
    loss.backward()
    wanted.backward()
    torch.testing.assert_close(a.grad, b.grad.to(dtype), rtol=2 * torch.finfo(dtype).eps, atol=1e-6)


def test_small_hinges_between_large_distances():
    """In float32 the sum of the hinges is a difference of sums 10^6 times as large: it must not be lost."""
    torch.manual_seed(0)
    x = torch.randn(600, 2, dtype=torch.float64)
    x = x + torch.tensor([1000.0, 0.0]) * (torch.arange(600) % 2 == 0).double().unsqueeze(1)
    labels = torch.arange(600) // 2  # positives are 1000 apart, half of the negatives too
    options = {"margin": -0.5, "normalize": False, "reduction": "mean_nonzero"}
    exact = triplet_margin(x, labels, **options)
    assert triplet_margin(x.float(), labels, **options).item() == pytest.approx(exact.item(), rel=1e-5)


@pytest.mark.parametrize("level", isa_levels())
@pytest.mark.parametrize("triplets", KINDS)
@pytest.mark.parametrize("smooth_loss", [False, True])
def test_margins_between_distances_that_swallow_them(smooth_loss, triplets, level):
    """Gaps of 0 between distances of 10^8, beside which a margin of 0.05 is less than float32 can tell."""
    far = 1e4 * torch.eye(7)[1:]
    x = torch.cat([torch.zeros(1, 7), far])  # of row 0 all distances are equal
    labels = torch.tensor([0, 0, 0, 1, 1, 2, -100])
    options = {"margin": 0.05, "smooth_loss": smooth_loss, "triplets": triplets, "similarity": "squared_euclidean"}
    options |= {"normalize": False, "reduction": "none"}
    leaf, wide = x.clone().requires_grad_(), x.double().requires_grad_()
    exact = triplet_margin(wide, labels, **options)
    bounds = {"all": (None, None), "hard": (None, 0.0), "semihard": (0.0, 0.05), "easy": (0.05, None)}
    dense = pairloom.reference.triplet_margin(
        leaf, None, labels, None, None, 0.05, smooth_loss, *bounds[triplets], "squared_euclidean", "none"
    )[0]
    with using_isa(level):
        loss = triplet_margin(leaf, labels, **options)
        for found in (loss, dense):
            torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-12)
            (gradient,) = torch.autograd.grad(found.sum(), leaf)
            (wanted,) = torch.autograd.grad(exact.sum(), wide, retain_graph=True)
            torch.testing.assert_close(gradient.double(), wanted, rtol=1e-5, atol=1e-2)
    if triplets in ("all", "hard"):
        assert loss[0] > 0.2  # two positives, three negatives


@pytest.mark.parametrize("level", isa_levels())
@pytest.mark.parametrize("smooth_loss", [False, True])
def test_long_rows_and_many_positives(smooth_loss, level):
    """Longer than the blocks in which terms are summed, with some hundred positives of each anchor."""
    torch.manual_seed(0)
    x, ref = torch.randn(9, 6, dtype=torch.float64), torch.randn(2300, 6, dtype=torch.float64)
    labels, ref_labels = torch.arange(9) % 5, torch.randint(0, 12, (2300,))
    ref_labels[:50] = -100
    weights = torch.rand(9, dtype=torch.float64)

    def gradients(dtype, call):
        leaves = [t.to(dtype).requires_grad_() for t in (x, ref, weights)]
        loss = call(leaves[0], leaves[1], leaves[2])
        return loss, torch.autograd.grad(loss, leaves)

    def kernel(a, b, w):
        return triplet_margin(
            a, labels, b, ref_labels, margin=0.3, smooth_loss=smooth_loss, similarity="cosine", weights=w
        )

    def dense(a, b, w):
        return pairloom.reference.triplet_margin(
            a, b, labels, ref_labels, w, 0.3, smooth_loss, None, None, "cosine", "mean"
        )[0]

    expected, expected_gradients = gradients(torch.float64, dense)
    with using_isa(level):
        for dtype, tolerance in ((torch.float64, 1e-11), (torch.float32, 2e-5)):
            loss, found = gradients(dtype, kernel)
            assert loss.item() == pytest.approx(expected.item(), rel=tolerance)
            for gradient, wanted in zip(found, expected_gradients, strict=True):
                error = (gradient.double() - wanted).abs().max()
                assert error <= 5 * tolerance * wanted.abs().max()  # a hinge near 0 may change sides


@pytest.mark.parametrize("smooth_loss", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "mean_all", "sum"])
def test_no_triplets(smooth_loss, reduction):
    for labels in (torch.arange(6), torch.zeros(6, dtype=torch.int64), torch.full((6,), -100)):
        x = torch.randn(6, 3, requires_grad=True)
        for call in (triplet_margin, without_operator):
            loss = call(x, labels, smooth_loss=smooth_loss, reduction=reduction)
            (gradient,) = torch.autograd.grad(loss, x)
            assert loss.item() == 0
            assert not gradient.any()
    x = torch.eye(3).repeat(2, 1).requires_grad_()
    inactive = triplet_margin(x, torch.arange(3).repeat(2), reduction=reduction)
    assert inactive.item() == 0
    assert not torch.autograd.grad(inactive, x)[0].any()


def without_operator(x, labels, *, smooth_loss, reduction):
    reference = pairloom.reference.triplet_margin
    return reference(x, None, labels, None, None, 0.05, smooth_loss, None, None, "cosine", reduction)[0]


@pytest.mark.parametrize("smooth_loss", [False, True])
@pytest.mark.parametrize("where", ["anchor", "column"])
def test_nan_is_kept(smooth_loss, where):
    x, labels = batch(12, 5)
    ref = x.clone()
    (x if where == "anchor" else ref)[3] = torch.nan
    rows = triplet_margin(x, labels, ref, labels, smooth_loss=smooth_loss, reduction="none")
    assert rows.isnan().sum() >= 1
    for reduction in ("mean", "mean_all", "sum"):
        assert triplet_margin(x, labels, ref, labels, smooth_loss=smooth_loss, reduction=reduction).isnan()


def test_memory_of_the_smooth_form():
    """Two classes of 200: 16 million triplets; autograd keeps some five tensors of that size unless told otherwise."""
    program = """
import torch
from pairloom.functional import triplet_margin
from pairloom.testing import isa_levels, using_isa
from pairloom.testing import peak_memory_mb
x, labels = torch.randn(400, 8, requires_grad=True), torch.arange(400) % 2
triplet_margin(x[:40], labels[:40], smooth_loss=True).backward()
before = peak_memory_mb()
triplet_margin(x, labels, smooth_loss=True).backward()
print(peak_memory_mb() - before)
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 150


def test_constructor_of_pytorch_metric_learning():
    ours, theirs = inspect.signature(pairloom.TripletMarginLoss), inspect.signature(losses.TripletMarginLoss)
    wanted = [(p.name, p.default) for p in theirs.parameters.values() if p.kind is not p.VAR_KEYWORD]
    assert [(p.name, p.default) for p in list(ours.parameters.values())[: len(wanted)]] == wanted


def test_settings_are_checked():
    with pytest.raises(ValueError, match="triplets is 'soft'; allowed: all, hard, semihard, easy"):
        pairloom.TripletMarginLoss(triplets="soft")
    with pytest.raises(ValueError, match="swap is True; it must be False"):
        pairloom.TripletMarginLoss(swap=True)
    with pytest.raises(ValueError, match="triplets_per_anchor is 100; it must be 'all'"):
        pairloom.TripletMarginLoss(triplets_per_anchor=100)
    with pytest.raises(ValueError, match="mining_margin is nan"):
        triplet_margin(torch.eye(2), torch.arange(2), mining_margin=float("nan"))


@pytest.mark.parametrize("triplets", ["all", "semihard"])
def test_the_module_compiles_to_torchscript(triplets):
    x, labels = torch.randn(12, 6), torch.arange(12) % 3
    loss = pairloom.TripletMarginLoss(margin=0.2, triplets=triplets, similarity="squared_euclidean", normalize=False)
    assert torch.equal(torch.jit.script(loss)(x, labels), loss(x, labels))
