"""Index tuples of miners in the losses: equal to pytorch-metric-learning with the same miner, value and gradients; all
pairs named are the loss without a tuple; chunks, statistics, weights, ignored rows, no labels, one graph, errors."""

import pytest
import torch
from pytorch_metric_learning import losses, miners, reducers
from pytorch_metric_learning.utils import loss_and_miner_utils as peer_utils

import pairloom
from pairloom import _stream
from pairloom.testing import peak_memory_mb
from tests.ops.peers import SEEDS, assert_equal_peer

MINERS = [
    miners.MultiSimilarityMiner(0.2),
    miners.BatchHardMiner(),
    miners.TripletMarginMiner(0.1, type_of_triplets="semihard"),
    miners.PairMarginMiner(0.3, 0.9),
]
PEERS = {
    "SupConLoss": {"temperature": 0.3},
    "NTXentLoss": {"temperature": 0.3},
    "MultiSimilarityLoss": {"beta": 20},
    "GeneralizedLiftedStructureLoss": {},
    "LiftedStructureLoss": {},
    "CircleLoss": {"gamma": 8},
    "ContrastiveLoss": {},
}
LOSSES = [*PEERS, "DCLLoss", "HCLLoss", "BinomialDevianceLoss", "BatchHardTripletLoss"]


def batch(seed=0, n=40, m=31):
    """Every class has several members."""
    generator = torch.Generator().manual_seed(seed)
    x, ref = (torch.randn(rows, 6, generator=generator, dtype=torch.float64) for rows in (n, m))
    return x, torch.arange(n) % 6, ref, torch.arange(m) % 6


def once(found):
    """The tuple without repetitions: triplets name their pairs again and again."""
    a1, p, a2, n = found if len(found) == 4 else (found[0], found[1], found[0], found[2])
    return *torch.unique(torch.stack([a1, p]), dim=1), *torch.unique(torch.stack([a2, n]), dim=1)


def complete(found):
    """Without anchors that lack one kind of pairs: for these the lifted structure losses differ on purpose."""
    a1, p, a2, n = once(found)
    return a1[torch.isin(a1, a2)], p[torch.isin(a1, a2)], a2[torch.isin(a2, a1)], n[torch.isin(a2, a1)]


@pytest.mark.parametrize("references", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("miner", MINERS, ids=lambda miner: type(miner).__name__)
@pytest.mark.parametrize("name", PEERS)
def test_equals_pytorch_metric_learning(name, miner, seed, references):
    if name == "LiftedStructureLoss" and references:
        pytest.skip("there the negatives of a reference are those of another row")
    x, labels, ref, ref_labels = batch(seed)
    more = (ref, ref_labels) if references else ()
    found = miner(x, labels, *more)
    assert all(len(indices) > 1 for indices in found)
    named = complete(found) if "Lifted" in name else once(found)
    ours, theirs = (getattr(library, name)(**PEERS[name]) for library in (pairloom, losses))
    given = found if "Lifted" not in name else named

    def call(loss, indices):
        if references:
            return lambda x, ref: loss(x, labels, indices, ref, ref_labels)
        return lambda x: loss(x, labels, indices)

    assert_equal_peer(call(ours, given), call(theirs, named), x, *more[:1])


@pytest.mark.parametrize("references", [False, True])
@pytest.mark.parametrize("name", LOSSES)
def test_all_pairs_are_the_loss_without_a_tuple(name, references):
    """Value, statistics and gradients; no labels are needed."""
    if name == "LiftedStructureLoss" and references:
        with pytest.raises(ValueError, match="index tuples of one batch only"):
            pairloom.LiftedStructureLoss()(*batch()[:2], (batch()[1],) * 3, *batch()[2:])
        return
    x, labels, ref, ref_labels = batch()
    leaves = [x.requires_grad_(), *([ref.requires_grad_()] if references else [])]
    every = peer_utils.get_all_pairs_indices(labels, ref_labels if references else None)
    loss = getattr(pairloom, name)()
    wanted, wanted_stats = loss.with_stats(x, labels, None, *((ref, ref_labels) if references else ()))
    for given in ((labels, ref_labels), (None, None)):
        value, stats = loss.with_stats(x, given[0], every, *((ref, given[1]) if references else ()))
        torch.testing.assert_close(value, wanted)
        torch.testing.assert_close(stats, wanted_stats, equal_nan=True)
        for a, b in zip(
            torch.autograd.grad(value, leaves), torch.autograd.grad(wanted, leaves, retain_graph=True), strict=True
        ):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("name", LOSSES)
def test_chunks_change_nothing(name, monkeypatch):
    x, labels, *_ = batch(n=60)
    found = miners.MultiSimilarityMiner(0.2)(x, labels)

    def results():
        leaf = x.clone().requires_grad_()
        value, stats = getattr(pairloom, name)().with_stats(leaf, labels, found)
        return [value, *stats, torch.autograd.grad(value, leaf)[0]]

    whole = results()
    monkeypatch.setattr(_stream, "CHUNK_ENTRIES", 1)
    torch.testing.assert_close(results(), whole, equal_nan=True)


@pytest.mark.parametrize("reduction", ["mean", "mean_all", "mean_nonzero", "sum", "none"])
@pytest.mark.parametrize("name", LOSSES)
def test_ignored_rows_leave_and_weights_weigh(name, reduction):
    """As if they had never been in the batch; the numbers of the rows that stay change."""
    x, labels, *_ = batch()
    weights = torch.rand(40, dtype=torch.float64)
    a1, p, a2, n = once(miners.MultiSimilarityMiner(0.2)(x, labels))
    stays = torch.arange(40) % 5 != 2
    number = torch.cumsum(stays, 0) - 1
    left, right = stays[a1] & stays[p], stays[a2] & stays[n]
    fewer = (number[a1][left], number[p][left], number[a2][right], number[n][right])
    loss = getattr(pairloom, name)(reduction=reduction)
    value = loss(x, torch.where(stays, labels, -100), (a1, p, a2, n), weights=weights)
    wanted = loss(x[stays], labels[stays], fewer, weights=weights[stays])
    torch.testing.assert_close(value[stays] if reduction == "none" else value, wanted)
    if reduction == "none":
        assert not value[~stays].any()


@pytest.mark.parametrize("name", LOSSES)
def test_nothing_named_is_zero_with_a_live_graph(name):
    x, labels, *_ = batch()
    nothing = (torch.tensor([]),) * 3
    leaf = x.clone().requires_grad_()
    value = getattr(pairloom, name)()(leaf, labels, nothing)
    value.backward()
    assert value.item() == 0
    assert not leaf.grad.any()
    x[3, 1] = torch.nan
    named = tuple(torch.tensor([i]) for i in (3, 9, 4))
    assert getattr(pairloom, name)(reduction="sum")(x, labels, named).isnan()


def test_one_named_pair_counts():
    """A tuple of length one gives 0 there."""
    x, labels, *_ = batch()
    one = tuple(torch.tensor([i]) for i in (0, 6, 1))
    for name in ("SupConLoss", "NTXentLoss", "MultiSimilarityLoss"):
        assert getattr(losses, name)()(x, labels, one) == 0
        assert getattr(pairloom, name)()(x, labels, one) > 0


@pytest.mark.parametrize("name", ["SupConLoss", "NTXentLoss", "DCLLoss", "HCLLoss"])
def test_temperatures_learn(name):
    x, labels, *_ = batch(n=14)
    found = once(peer_utils.get_all_pairs_indices(labels))
    found = (found[0][::2], found[1][::2], found[2][::3], found[3][::3])
    function = getattr(
        pairloom.functional, {"SupConLoss": "sup_con", "NTXentLoss": "nt_xent"}.get(name, name[:3].lower())
    )
    for temperature in (torch.tensor(0.5).double(), torch.linspace(0.3, 1.0, 14).double()):
        leaves = x.clone().requires_grad_(), temperature.requires_grad_()
        assert torch.autograd.gradcheck(
            lambda x, t: function(x, labels, temperature=t, indices_tuple=found), leaves, fast_mode=True
        )


def test_reducers_see_the_named_pairs():
    x, labels, *_ = batch()
    found = once(miners.PairMarginMiner(0.3, 0.9)(x, labels))
    weights = torch.linspace(0.2, 2.0, 6, dtype=torch.float64)
    for name in ("SupConLoss", "NTXentLoss"):
        for reducer in (reducers.ClassWeightedReducer(weights), reducers.SumReducer(), reducers.PerAnchorReducer()):
            ours, theirs = (getattr(library, name)(reducer=reducer) for library in (pairloom, losses))
            torch.testing.assert_close(ours(x, labels, found), theirs(x, labels, found))


@pytest.mark.parametrize("name", ["SupConLoss", "NTXentLoss", "MultiSimilarityLoss", "ContrastiveLoss"])
def test_one_graph_gives_the_same(name):
    torch._dynamo.reset()
    loss = getattr(pairloom, name)()
    compiled = torch.compile(loss, fullgraph=True, dynamic=True, backend="aot_eager")
    for n in (18, 27):
        x, labels, *_ = batch(n=n)
        found = once(miners.MultiSimilarityMiner(0.2)(x, labels))
        leaves = [x.clone().requires_grad_() for _ in range(2)]
        values = loss(leaves[0], labels, found), compiled(leaves[1], labels, found)
        torch.testing.assert_close(*values)
        torch.testing.assert_close(*(torch.autograd.grad(v, leaf)[0] for v, leaf in zip(values, leaves, strict=True)))


def test_memory_grows_with_rows_not_with_pairs():
    """3,000 x 3,000 similarities are 36 MB, and the dense formula keeps ten such tensors and more."""
    x, labels = torch.randn(3_000, 8), torch.arange(3_000) // 4
    anchors = torch.arange(3_000)
    found = (anchors, anchors ^ 1, anchors, (anchors + 4) % 3_000)

    def run(count):
        leaf = x[:count].clone().requires_grad_()
        inside = tuple(
            indices[:count].clamp(max=count - 1) if i != 3 else (anchors[:count] + 4) % count
            for i, indices in enumerate(found)
        )
        pairloom.SupConLoss()(leaf, labels[:count], inside).backward()

    run(64)
    before = peak_memory_mb()
    run(3_000)
    assert peak_memory_mb() - before < 100


def test_losses_without_a_use_say_so():
    x, labels, *_ = batch()
    found = miners.BatchHardMiner()(x, labels)
    for loss, why in (
        (pairloom.NPairsLoss(), "it takes one pair of every class itself"),
        (pairloom.NormalizedSoftmaxLoss(6, 6), "it compares every embedding with all proxies"),
    ):
        with pytest.raises(ValueError, match=f"takes no index tuple: {why}"):
            loss(x, labels, found)
    with pytest.raises(ValueError, match="labels is None; pass the class"):
        pairloom.SupConLoss()(x)
    with pytest.raises(ValueError, match="labels is None; the reducer of this loss needs the class"):
        pairloom.SupConLoss(reducer=reducers.ClassWeightedReducer(torch.ones(6)))(x, None, found)
    with pytest.raises(ValueError, match=r"holds 40; every index must be from 0 to 39"):
        pairloom.SupConLoss()(x, labels, tuple(indices + 1 for indices in found))
