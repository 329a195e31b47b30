"""Cases on mining: many triplets, labels of small dtypes, half precision, sets of labels, semi-hard triplets."""

import itertools
import subprocess
import sys

import pytest
import torch

import pairloom
from pairloom import miners
from pairloom.functional import triplet_margin


class TestL02ManyTriplets:
    """Indices are int64 whatever the labels are, and nothing has a place for every (i, j, k)."""

    def test_every_triplet_of_1400_rows_without_a_cube(self):
        program = """
import torch
from pairloom import miners
from pairloom.testing import peak_memory_mb
x, labels = torch.randn(1400, 8), torch.arange(1400) % 700
before = peak_memory_mb()
a, p, n = miners.TripletMarginMiner(margin=1e9)(x, labels)
assert len(a) == 1400 * 1398
assert (labels[a] == labels[p]).all() and (labels[a] != labels[n]).all() and (a != p).all()
print(peak_memory_mb() - before)
"""
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=True
        )
        assert float(done.stdout) < 500  # the tuple is 47 MB; the cube has 2.7e9 places

    @pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.bool])
    def test_small_labels(self, dtype):
        x, labels = torch.randn(300, 8), torch.arange(300) % (2 if dtype == torch.bool else 100)
        for miner in (
            miners.TripletMarginMiner(0.1, "semihard"),
            miners.BatchHardMiner(),
            miners.MultiSimilarityMiner(),
        ):
            found, wanted = miner(x, labels.to(dtype)), miner(x, labels)
            assert all(indices.dtype == torch.int64 for indices in found)
            assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
            assert int(found[0].max()) > 255 or dtype != torch.uint8


class TestL06HalfPrecision:
    """Nothing that half precision cannot hold stands for "no pair"."""

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_autocast_and_half_rows_give_the_same_pairs(self, dtype):
        x, labels = torch.randn(60, 16, generator=torch.Generator().manual_seed(0)), torch.arange(60) // 4
        for miner in (miners.BatchHardMiner(), miners.MultiSimilarityMiner(), miners.PairMarginMiner(0.9, 1.1)):
            wanted = miner(x, labels)
            with torch.autocast("cpu", dtype=dtype):
                assert all(torch.equal(a, b) for a, b in zip(miner(x, labels), wanted, strict=True))
            half = x.to(dtype)
            found, wanted = miner(half, labels), miner(half.float(), labels)
            assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


class TestL14SetsOfLabels:
    """[[1, 0, 1], [0, 1, 1]]: whoever shares any label is a positive, for losses and for miners."""

    labels = torch.tensor([[1, 0, 1], [0, 1, 1], [0, 1, 0], [1, 0, 0]])
    positive = torch.tensor([[0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 0], [1, 0, 0, 0]]).bool()

    def test_miners(self):
        found = miners.PairMarginMiner(pos_margin=-1.0, neg_margin=1e9)(torch.randn(4, 3), self.labels)
        assert torch.equal(torch.stack(found[:2], 1), self.positive.nonzero())
        assert torch.equal(torch.stack(found[2:], 1), (~self.positive & ~torch.eye(4, dtype=torch.bool)).nonzero())

    def test_losses(self):
        x = torch.randn(4, 3)
        indices = (*self.positive.nonzero().unbind(1), *(~self.positive & ~torch.eye(4).bool()).nonzero().unbind(1))
        for loss in (pairloom.SupConLoss(), pairloom.MultiSimilarityLoss(), pairloom.TripletMarginLoss()):
            torch.testing.assert_close(loss(x, self.labels), loss(x, indices_tuple=indices))


class TestL17SemiHard:
    """At most N^2 log N work, the lowest index among equals, loss and gradient of brute force."""

    def test_equals_brute_force(self):
        torch.manual_seed(0)
        x, labels = torch.randn(48, 6, dtype=torch.float64, requires_grad=True), torch.arange(48) // 4
        unit = torch.nn.functional.normalize(x)
        terms = []
        for a, p, n in itertools.product(range(48), repeat=3):
            if a != p and labels[a] == labels[p] and labels[a] != labels[n]:
                near, far = (unit[a] - unit[p]).norm(), (unit[a] - unit[n]).norm()
                if near < far <= near + 0.2:
                    terms.append((near - far + 0.2).clamp(min=0))
        wanted = sum(terms) / sum(bool(term > 0) for term in terms)
        loss = triplet_margin(x, labels, margin=0.2, triplets="semihard")
        torch.testing.assert_close(loss, wanted)
        torch.testing.assert_close(torch.autograd.grad(loss, x), torch.autograd.grad(wanted, x))

    def test_the_lowest_index_among_equals(self):
        x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [-1.0, 0.0], [-1.0, 0.0]])
        labels = torch.tensor([0, 0, 0, 1, 1])
        a, p, n = miners.BatchHardMiner()(x, labels)
        assert (a[0], p[0], n[0]) == (0, 1, 3)
