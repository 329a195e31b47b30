"""Index tuples of miners: masks equal those of pytorch-metric-learning in every chunk; linear memory; errors."""

import pytest
import torch
from pytorch_metric_learning import miners
from pytorch_metric_learning.utils import loss_and_miner_utils as peer

from pairloom._index_tuples import PairMasks, checked_pairs
from pairloom.testing import peak_memory_mb


def batch(n=60, classes=7):
    torch.manual_seed(0)
    return torch.randn(n, 6), torch.randint(0, classes, (n,))


def peer_masks(indices_tuple, labels, rows, columns):
    """The masks that losses of pytorch-metric-learning make of a tuple."""
    a1, p, a2, n = peer.convert_to_pairs(indices_tuple, labels)
    masks = torch.zeros(2, rows, columns, dtype=torch.bool)
    masks[0, a1, p] = True
    masks[1, a2, n] = True
    return masks


def all_chunks(masks, rows, columns, size):
    parts = [masks.chunk(slice(i, min(i + size, rows)), columns) for i in range(0, rows, size)]
    return torch.stack([torch.cat([part[kind] for part in parts]) for kind in (0, 1)])


MINERS = [
    miners.MultiSimilarityMiner(),
    miners.BatchHardMiner(),
    miners.TripletMarginMiner(type_of_triplets="semihard"),
    miners.PairMarginMiner(),
    miners.BatchEasyHardMiner(pos_strategy="easy", neg_strategy="semihard"),
]


@pytest.mark.parametrize("miner", MINERS, ids=lambda miner: type(miner).__name__)
@pytest.mark.parametrize("size", [1, 7, 60, 64])
def test_equals_the_masks_of_pytorch_metric_learning(miner, size):
    x, labels = batch()
    found = miner(x, labels)
    assert all(len(indices) for indices in found)
    masks = PairMasks(checked_pairs(found, x, None), 60)
    assert torch.equal(all_chunks(masks, 60, 60, size), peer_masks(found, labels, 60, 60))


@pytest.mark.parametrize("size", [3, 60])
def test_references_have_their_own_numbers(size):
    x, labels = batch()
    ref, ref_labels = torch.randn(90, 6), torch.randint(0, 7, (90,))
    found = miners.MultiSimilarityMiner()(x, labels, ref, ref_labels)
    assert max(int(indices.max()) for indices in (found[1], found[3])) >= 60
    masks = PairMasks(checked_pairs(found, x, ref), 60)
    assert torch.equal(all_chunks(masks, 60, 90, size), peer_masks(found, labels, 60, 90))


def test_all_pairs_are_those_of_the_labels():
    x, labels = batch()
    positive, negative = PairMasks(checked_pairs(peer.get_all_pairs_indices(labels), x, None), 60).chunk(
        slice(0, 60), 60
    )
    same = labels.unsqueeze(1) == labels
    assert torch.equal(positive, same & ~torch.eye(60, dtype=torch.bool))
    assert torch.equal(negative, ~same)


def test_a_pair_named_twice_is_one_and_nothing_is_no_pair():
    x = torch.randn(4, 2)
    twice, nothing = torch.tensor([1, 1], dtype=torch.int32), torch.tensor([])
    positive, negative = PairMasks(checked_pairs((twice, twice + 1, nothing, nothing), x, None), 4).chunk(
        slice(0, 4), 4
    )
    assert positive.nonzero().tolist() == [[1, 2]]
    assert not negative.any()
    empty = PairMasks(checked_pairs((nothing,) * 3, x[:0], None), 0)
    assert empty.chunk(slice(0, 0), 0)[0].shape == (0, 0)


def test_memory_is_that_of_the_tuple():
    """A full mask of 60,000 x 60,000 pairs would take 3.6 GB."""
    rows, columns = 60_000, 60_000
    anchors, x = torch.arange(rows), torch.zeros(rows, 1)
    found = (anchors, (anchors + 1) % rows, anchors, (anchors + 2) % rows)
    before = peak_memory_mb()
    masks = PairMasks(checked_pairs(found, x, None), rows)
    total = sum(int(masks.chunk(slice(i, i + 16), columns)[0].sum()) for i in range(0, rows, 6000))
    assert total == 160
    assert peak_memory_mb() - before < 100


INDICES = torch.tensor([0, 1])


@pytest.mark.parametrize(
    ("indices_tuple", "error", "words"),
    [
        ("all", TypeError, r"indices_tuple is a str; it must be a tuple of 3"),
        ((INDICES,) * 2, ValueError, r"has 2 entries; it must have 3"),
        ((INDICES, [1], INDICES), TypeError, r"\[1\] \(positives\) is a list"),
        ((INDICES, INDICES / 2, INDICES), TypeError, r"\[1\] \(positives\) has dtype float32"),
        (
            (INDICES, INDICES, INDICES.unsqueeze(0)),
            ValueError,
            r"\[2\] \(negatives\) has shape \(1, 2\)",
        ),
        ((INDICES, INDICES - 1, INDICES), ValueError, r"holds -1; every index must be from 0 to 2"),
        ((INDICES + 2, INDICES, INDICES), ValueError, r"\[0\] \(anchors\) holds 3; every index must be from 0 to 2"),
        ((INDICES, INDICES[:1], INDICES), ValueError, r"2 anchors for 1 positives"),
        ((INDICES, INDICES, INDICES, INDICES[:0]), ValueError, r"2 anchors for 0 negatives"),
        ((INDICES, INDICES, INDICES), ValueError, r"the pair \(0, 0\) as positive and as negative"),
        ((INDICES, INDICES.to("meta"), INDICES), ValueError, r"is on meta and embeddings on cpu"),
    ],
)
def test_errors_name_what_came(indices_tuple, error, words):
    with pytest.raises(error, match=words):
        checked_pairs(indices_tuple, torch.randn(3, 2), None)
