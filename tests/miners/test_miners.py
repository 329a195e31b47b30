"""Miners return the sets of pytorch-metric-learning's, feed every loss, and choose the same inside a loss; random ones
draw what they say they draw."""

import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_metric_learning import distances
from pytorch_metric_learning import losses as peer_losses
from pytorch_metric_learning import miners as peer_miners

import pairloom
from pairloom import _stream, miners
from pairloom.testing import using_threads

COSINE, EUCLIDEAN = distances.CosineSimilarity(), distances.LpDistance()
DISTANCES = [COSINE, EUCLIDEAN, distances.LpDistance(power=2), distances.LpDistance(normalize_embeddings=False)]
DISTANCES += [distances.DotProductSimilarity(normalize_embeddings=False)]
PAIR_MINERS = {
    "MultiSimilarityMiner": [{}, {"epsilon": 0.5}, {"epsilon": -0.2}],
    "PairMarginMiner": [{}, {"pos_margin": 0.6, "neg_margin": 0.9}],
    "BatchHardMiner": [{}],
}
TRIPLET_MINERS = {
    "TripletMarginMiner": [
        {"margin": margin, "type_of_triplets": kind}
        for margin in (0.2, 0.0, -0.3)
        for kind in ("all", "hard", "semihard", "easy")
    ]
}
CASES = [(name, keywords) for name, many in {**PAIR_MINERS, **TRIPLET_MINERS}.items() for keywords in many]


def batch(n=30, classes=7, seed=0, dim=5):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, dim, generator=generator, dtype=torch.float64)
    return x, torch.randint(0, classes, (n,), generator=generator)


def as_set(indices):
    """What a tuple names: pairs of either kind, or triplets."""
    if len(indices) == 3:
        return {("triplet", *t) for t in zip(*(i.tolist() for i in indices), strict=True)}
    return {("positive", *t) for t in zip(*(i.tolist() for i in indices[:2]), strict=True)} | {
        ("negative", *t) for t in zip(*(i.tolist() for i in indices[2:]), strict=True)
    }


@pytest.mark.parametrize("distance", DISTANCES, ids=lambda d: f"{type(d).__name__}-{d.power}-{d.normalize_embeddings}")
@pytest.mark.parametrize(("name", "keywords"), CASES, ids=str)
def test_equal_pytorch_metric_learning(name, keywords, distance):
    x, labels = batch()
    ref, ref_labels = batch(n=23, seed=1)
    ours, theirs = (getattr(package, name)(**keywords, distance=distance) for package in (miners, peer_miners))
    for given_refs in ((), (ref, ref_labels)):
        found, wanted = ours(x, labels, *given_refs), theirs(x, labels, *given_refs)
        assert as_set(found) == as_set(wanted)
        assert len(found[0]) == len(wanted[0])
        assert all(indices.dtype == torch.int64 for indices in found)
        assert ours.num_triplets == (len(found[0]) if len(found) == 3 else 0)
        assert (ours.num_pos_pairs, ours.num_neg_pairs) == (len(found[0]), len(found[2])) or len(found) == 3


@pytest.mark.parametrize("name", [*PAIR_MINERS, *TRIPLET_MINERS])
def test_defaults_are_those_of_pytorch_metric_learning(name):
    x, labels = batch(seed=2)
    assert as_set(getattr(miners, name)()(x, labels)) == as_set(getattr(peer_miners, name)()(x, labels))


def every_miner(**seeded):
    yield from (getattr(miners, name)(**keywords[-1]) for name, keywords in {**PAIR_MINERS, **TRIPLET_MINERS}.items())
    yield miners.DistanceWeightedMiner(generator=torch.Generator().manual_seed(3))
    yield miners.UniformTripletMiner(cap=100, generator=torch.Generator().manual_seed(3))


NAMES = [type(miner).__name__ for miner in every_miner()]


@pytest.mark.parametrize("number", range(len(NAMES)), ids=NAMES)
def test_chunks_and_threads_change_nothing(number, monkeypatch):
    x, labels = batch(n=90, classes=12)
    whole = list(every_miner())[number](x, labels)
    monkeypatch.setattr(_stream, "CHUNK_ENTRIES", 1)
    for threads in (1, 7):
        with using_threads(threads):
            chunked = list(every_miner())[number](x, labels)
        assert all(torch.equal(a, b) for a, b in zip(whole, chunked, strict=True))
    assert len(whole[0]) > 16


@pytest.mark.parametrize("number", range(len(NAMES)), ids=NAMES)
def test_ignored_rows_sets_of_labels_and_every_dtype(number):
    x, labels = batch(n=40, classes=6)
    ignored = torch.where(torch.arange(40) % 4 == 1, -100, labels)
    rest = (ignored != -100).nonzero().squeeze(1)
    fewer = list(every_miner())[number](x[rest], labels[rest])
    with_ignored = list(every_miner())[number](torch.where((ignored == -100)[:, None], torch.nan, x), ignored)
    assert as_set(with_ignored) == as_set([rest[indices] for indices in fewer])
    multi_hot = torch.nn.functional.one_hot(labels)
    assert as_set(list(every_miner())[number](x, multi_hot)) == as_set(list(every_miner())[number](x, labels))
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        found = list(every_miner())[number](x.to(dtype), labels)
        assert as_set(found) == as_set(list(every_miner())[number](x.to(dtype).double(), labels)) or dtype.itemsize < 4
    assert all(len(indices) == 0 for indices in list(every_miner())[number](x[:0], labels[:0]))
    for nothing in (torch.arange(40), torch.zeros(40).long(), torch.full((40,), -100)):
        found = list(every_miner())[number](x, nothing)
        if len(found) == 3:
            assert all(len(indices) == 0 for indices in found)


LOSSES = ["ContrastiveLoss", "MultiSimilarityLoss", "SupConLoss", "NTXentLoss", "CircleLoss", "MarginLoss"]
LOSSES += ["TripletMarginLoss", "GeneralizedLiftedStructureLoss", "DCLLoss", "BinomialDevianceLoss"]


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", PAIR_MINERS)
def test_a_miner_inside_a_loss_is_the_two_steps_in_one(name, loss):
    (x, labels), (ref, ref_labels) = batch(), batch(n=23, seed=1)
    module = getattr(pairloom, loss)(similarity="cosine")
    miner = getattr(miners, name)(similarity="cosine")
    for given_refs in ((), (ref, ref_labels)):
        leaves = [x.clone().requires_grad_() for _ in range(2)]
        indices = miner(x, labels, *given_refs)
        if loss in ("MarginLoss", "TripletMarginLoss") and len(indices) == 3:
            indices = (*indices[:2], indices[0], indices[2])
        two_steps, stats_there = module.with_stats(leaves[0], labels, indices, *given_refs)
        one, stats = module.with_stats(leaves[1], labels, miner, *given_refs)
        torch.testing.assert_close(one, two_steps)
        two_steps.backward()
        one.backward()
        torch.testing.assert_close(leaves[1].grad, leaves[0].grad)
        assert leaves[0].grad.any()
        assert stats.mined_positives == stats_there.mined_positives
        assert stats.mined_negatives == stats_there.mined_negatives
        assert stats.positives > stats.mined_positives or name == "PairMarginMiner"


@pytest.mark.parametrize("loss", ["TripletMarginLoss", "MarginLoss"])
@pytest.mark.parametrize("keywords", TRIPLET_MINERS["TripletMarginMiner"], ids=str)
@pytest.mark.parametrize("references", [False, True])
def test_losses_of_triplets_equal_pytorch_metric_learning(loss, keywords, references):
    (x, labels), given_refs = batch(), batch(n=23, seed=1) if references else ()
    indices = miners.TripletMarginMiner(**keywords)(x, labels, *given_refs)
    settings_of = {"smooth_loss": True} if loss == "TripletMarginLoss" and keywords["margin"] == 0 else {}
    leaves = [x.clone().requires_grad_() for _ in range(2)]
    values = [
        getattr(package, loss)(**settings_of)(leaf, labels, indices, *given_refs)
        for package, leaf in ((pairloom, leaves[0]), (peer_losses, leaves[1]))
    ]
    torch.testing.assert_close(values[0], values[1])
    for value in values:
        value.backward()
    torch.testing.assert_close(*(leaf.grad for leaf in leaves))


def test_a_triplet_that_is_named_twice_counts_twice():
    x, labels = batch()
    a, p, n = miners.TripletMarginMiner(margin=0.5)(x, labels)
    twice = [torch.cat([indices, indices[:3]]) for indices in (a, p, n)]
    ours, theirs = (package.TripletMarginLoss(margin=0.5) for package in (pairloom, peer_losses))
    torch.testing.assert_close(ours(x, labels, tuple(twice)), theirs(x, labels, tuple(twice)))
    assert ours(x, labels, tuple(twice)) != ours(x, labels, (a, p, n))


def test_weights_of_distances():
    """FORMULAS B12: five negatives of one anchor in 8 dimensions."""
    miner = miners.DistanceWeightedMiner()
    d = torch.tensor([[0.3, 0.6, 1.0, 1.3, 1.5]])
    weights = miner.weights(d, torch.ones_like(d, dtype=torch.bool), 8)
    assert (weights / weights.sum()).tolist()[0] == pytest.approx(
        [0.714826, 0.257892, 0.019512, 0.007770, 0.0], abs=1e-6
    )
    wide = miners.DistanceWeightedMiner(nonzero_loss_cutoff=3.0).weights(d, torch.ones_like(d, dtype=torch.bool), 8)
    expected = [0.710146, 0.256203, 0.019384, 0.007719, 0.006548]
    assert (wide / wide.sum()).tolist()[0] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("dimension", [2, 3, 128, 2048])
def test_distance_weights_are_finite_in_any_dimension(dimension):
    x, labels = torch.randn(50, dimension), torch.arange(50) // 5
    x[7] = x[3]
    x[9] = -x[3]
    a, p, n = miners.DistanceWeightedMiner(generator=torch.Generator().manual_seed(0))(x, labels)
    assert len(a) == 200
    assert (labels[a] == labels[p]).all()
    assert (a != p).all()
    assert (labels[a] != labels[n]).all()


def test_negatives_are_drawn_with_their_weights():
    """40,000 draws: within five standard deviations of the probabilities."""
    angles = torch.tensor([0.0, 0.01, 0.6, 0.9, 1.3, 2.5])
    x = torch.stack([angles.cos(), angles.sin()], dim=1)
    labels = torch.tensor([0, 0, 1, 2, 3, 4])
    miner = miners.DistanceWeightedMiner(generator=torch.Generator().manual_seed(1))
    drawn = torch.zeros(6)
    for _ in range(200):
        a, _, n = miner(x.repeat(1, 1), labels)
        drawn += torch.bincount(n[a == 0], minlength=6)
    d = (x[:1] - x).norm(dim=1).unsqueeze(0)
    probabilities = miner.weights(d, (labels != 0).unsqueeze(0), 2)[0]
    probabilities = probabilities / probabilities.sum()
    error = (drawn / drawn.sum() - probabilities).abs()
    assert (error < 5 * (probabilities * (1 - probabilities) / drawn.sum()).sqrt() + 1e-9).all()
    assert drawn[[0, 1, 5]].sum() == 0


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    st.integers(0, 12), st.integers(1, 4), st.integers(0, 200), st.sampled_from([None, 0.1, 0.7, 1.0]), st.booleans()
)
def test_uniform_triplets_are_different_valid_and_as_many_as_wanted(n, classes, cap, fraction, references):
    x, labels = batch(n=n, classes=classes)
    refs = batch(n=7, classes=classes, seed=5) if references else ()
    every = as_set(peer_all(labels, refs[1] if references else None))
    miner = miners.UniformTripletMiner(cap, fraction, generator=torch.Generator().manual_seed(0))
    found = miner(x, labels, *refs)
    wanted = len(every) if fraction is None else round(fraction * len(every))
    assert len(found[0]) == min(cap, wanted) == miner.num_triplets
    assert as_set(found) <= every
    assert len(as_set(found)) == len(found[0])


def peer_all(labels, ref_labels):
    other = labels if ref_labels is None else ref_labels
    same = labels.unsqueeze(1) == other
    own = torch.zeros_like(same) if ref_labels is not None else torch.eye(len(labels), dtype=torch.bool)
    return ((same & ~own).unsqueeze(2) & ~same.unsqueeze(1)).nonzero().unbind(1)


def test_every_triplet_is_equally_likely():
    x, labels = torch.zeros(5, 1), torch.tensor([0, 0, 0, 1, 1])
    miner = miners.UniformTripletMiner(cap=3, generator=torch.Generator().manual_seed(0))
    counts = torch.zeros(5, 5, 5)
    for _ in range(3000):
        counts.index_put_(miner(x, labels), torch.ones(3), accumulate=True)
    every = counts[counts > 0]
    assert len(every) == 18
    assert every.sum() == 9000
    assert ((every - 500).abs() < 5 * 500**0.5).all()


def test_no_matrix_and_no_list_of_all_triplets():
    """12,000 x 12,000 similarities are 549 MiB; all triplets are 4e8. What a chunk needs is there after 4,000 rows."""
    program = """
import torch
from pairloom import miners
from pairloom.testing import peak_memory_mb
x, labels = torch.randn(12_000, 8), torch.arange(12_000) // 4
every = [miners.MultiSimilarityMiner(epsilon=-1.7), miners.BatchHardMiner(), miners.TripletMarginMiner(margin=-1.9)]
every += [miners.DistanceWeightedMiner(), miners.UniformTripletMiner(cap=1000)]
for miner in every:
    miner(x[:4_000], labels[:4_000])
before = peak_memory_mb()
for miner in every:
    miner(x, labels)
print(peak_memory_mb() - before)
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 270


def test_what_is_refused():
    x, labels = batch()
    with pytest.raises(ValueError, match="cap and fraction are both None"):
        miners.UniformTripletMiner()
    with pytest.raises(ValueError, match=r"fraction is 1.5; it must be above 0 and at most 1"):
        miners.UniformTripletMiner(fraction=1.5)
    with pytest.raises(TypeError, match=r"cap is 2\.5"):
        miners.UniformTripletMiner(cap=2.5)
    with pytest.raises(ValueError, match="type_of_triplets is 'soft'; allowed: all, hard"):
        miners.TripletMarginMiner(type_of_triplets="soft")
    with pytest.raises(ValueError, match="epsilon is nan"):
        miners.MultiSimilarityMiner(float("nan"))
    with pytest.raises(ValueError, match="normalize is False"):
        miners.DistanceWeightedMiner(normalize=False)
    with pytest.raises(ValueError, match=r"distance is LpDistance\(p=2, power=2\)"):
        miners.DistanceWeightedMiner(distance=distances.LpDistance(power=2))
    with pytest.raises(ValueError, match="labels is None"):
        miners.BatchHardMiner()(x, None)
    with pytest.raises(ValueError, match=r"indices_tuple is a miner by similarity='euclidean'.* but this loss is by"):
        pairloom.MultiSimilarityLoss()(x, labels, miners.BatchHardMiner())
    with pytest.raises(ValueError, match="labels is None; a miner as indices_tuple needs the class"):
        pairloom.MultiSimilarityLoss()(x, None, miners.MultiSimilarityMiner())
    for loss in (pairloom.ContrastiveLoss(), pairloom.TripletMarginLoss(), pairloom.MarginLoss()):
        for wrong in (miners.TripletMarginMiner(), 3, "abc"):
            with pytest.raises(TypeError, match=f"indices_tuple is a {type(wrong).__name__}; it must be a tuple of 3"):
                loss(x, labels, wrong)
