"""Cases on mining: many triplets, labels of small dtypes, half precision, sets of labels, semi-hard triplets, and a
whole corpus: its size, several positives, nothing to return, ties, many negatives."""

import itertools
import subprocess
import sys

import numpy as np
import pytest
import torch

import pairloom
from pairloom import mine_hard_negatives, miners
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


class TestL18AWholeCorpus:
    """N x N is never held: blocks of a file, within a budget."""

    @pytest.mark.parametrize("n", [20_000, pytest.param(100_000, marks=pytest.mark.slow)])
    def test_memory(self, n, tmp_path):
        np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((n, 8), np.float32))
        program = """
import sys
import numpy as np
import pairloom
from pairloom.testing import peak_memory_mb
x = np.load(sys.argv[1], mmap_mode="r")
pairloom.mine_hard_negatives(x[:10], x[:100], list(range(10)), k=2)
before = peak_memory_mb()
mined = pairloom.mine_hard_negatives(x, x, list(range(len(x))), k=5, memory_mib=64)
assert mined.report.negatives == 5 * len(x)
print(peak_memory_mb() - before)
"""
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", program, str(tmp_path / "x.npy")],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert float(done.stdout) < 250  # the scores of 20,000 alone are 1.6 GB, of 100,000 40 GB


class TestL19SeveralPositives:
    """Positives take no ranks: k negatives come whenever the corpus holds them."""

    corpus = torch.tensor([[9.0], [8.0], [7.0], [6.0], [5.0], [4.0]])

    def test_three_positives_on_top(self):
        mined = mine_hard_negatives(torch.ones(1, 1), self.corpus, [[0, 1, 2]], k=3, similarity="dot")
        assert mined.indices.tolist() == [[3, 4, 5]]
        _, indices = pairloom.topk(torch.ones(1, 1), self.corpus, 3, similarity="dot", exclude=[[0, 1, 2]])
        assert indices.tolist() == [[3, 4, 5]]

    def test_ranks_count_what_is_not_positive(self):
        mined = mine_hard_negatives(
            torch.ones(1, 1), self.corpus, [[1, 3]], k=2, range_min=1, range_max=3, similarity="dot"
        )
        assert mined.indices.tolist() == [[2, 4]]


@pytest.mark.filterwarnings("ignore:.*have fewer than k")
@pytest.mark.parametrize("array", [False, True], ids=["tensor", "array"])
class TestL21NothingToReturn:
    """An empty corpus, more than there are, NaN on either side: -1 and -inf."""

    def mine(self, queries, corpus, positives, array, **options):
        matrices = (queries.numpy(), corpus.numpy()) if array else (queries, corpus)
        return mine_hard_negatives(*matrices, positives, **options)

    def test_empty_corpus_and_no_query(self, array):
        mined = self.mine(torch.ones(2, 3), torch.ones(0, 3), [[], []], array, k=2)
        assert mined.indices.tolist() == [[-1, -1]] * 2
        assert mined.scores.tolist() == [[-torch.inf] * 2] * 2
        assert self.mine(torch.ones(0, 3), torch.ones(5, 3), [], array, k=2).indices.shape == (0, 2)

    def test_more_than_there_are(self, array):
        mined = self.mine(torch.ones(1, 3), torch.ones(4, 3), [[1]], array, k=5, absolute_margin=-1.0)
        assert mined.indices.tolist() == [[0, 2, 3, -1, -1]]

    def test_nan(self, array):
        corpus, queries = torch.ones(5, 3), torch.ones(2, 3)
        corpus[[0, 3], 1], queries[1, 0] = torch.nan, torch.nan
        mined = self.mine(queries, corpus, [[0], [1]], array, k=4, relative_margin=0.5)
        assert mined.indices.tolist() == [[1, 2, 4, -1], [-1] * 4]  # a positive without a score sets no margin
        assert not mined.scores.isnan().any()


class TestL22FiveEqualScores:
    """The lowest id first, over the borders of blocks."""

    def test_lowest_id_first(self):
        for memory_mib in (1e-5, 256.0):
            mined = mine_hard_negatives(
                np.ones((3, 4), np.float32), np.ones((6, 4), np.float32), [1, 1, 1], k=3, memory_mib=memory_mib
            )
            assert mined.indices.tolist() == [[0, 2, 3]] * 3


class TestL28ManyNegatives:
    """k of 200 and more, in half precision too."""

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
    @pytest.mark.parametrize("k", [200, 1000])
    def test_equals_a_stable_sort(self, k, dtype):
        generator = torch.Generator().manual_seed(0)
        queries, corpus = (torch.randint(-3, 4, (n, 6), generator=generator).to(dtype) for n in (4, 1500))
        mined = mine_hard_negatives(queries, corpus, [7] * 4, k=k, similarity="dot")
        scores = queries.double() @ corpus.double().T
        scores[:, 7] = -torch.inf
        assert torch.equal(mined.indices, scores.sort(dim=1, descending=True, stable=True).indices[:, :k])
