"""n_pairs: golden value, pytorch-metric-learning beside it, random pairs, one graph for all labels, empty cases."""

import pytest
import torch
from pytorch_metric_learning.distances import DotProductSimilarity
from pytorch_metric_learning.losses import NPairsLoss as PeerLoss

from pairloom import NPairsLoss
from pairloom.functional import n_pairs
from pairloom.losses.n_pairs import _one_pair_per_class
from tests.ops import golden
from tests.ops.peers import SEEDS, assert_equal_peer, uneven


def test_golden_value():
    assert n_pairs(golden.A, golden.LABELS).item() == pytest.approx(0.509278, abs=1e-6)


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("seed", SEEDS)
def test_equals_pytorch_metric_learning(seed, similarity):
    x, labels = uneven(seed)
    theirs = PeerLoss(distance=DotProductSimilarity(normalize_embeddings=similarity == "cosine"))
    ours = NPairsLoss(similarity=similarity)
    assert_equal_peer(lambda x: ours(x, labels), lambda x: theirs(x, labels), x)


def test_random_pairs():
    """Every class of two or more has one pair of two of its members; all pairs occur; a seed fixes them."""
    _, labels = uneven(3)
    labels[5] = -100
    labels[6] = -100
    wanted = {c for c in labels.tolist() if c != -100 and (labels == c).sum() > 1}
    generator = torch.Generator().manual_seed(0)
    seen = set()
    for _ in range(300):
        anchors, positives, ids = _one_pair_per_class(labels, -100, generator)
        used = ids >= 0
        assert anchors.shape == (20,)
        assert torch.equal(labels[anchors][used], labels[positives][used])
        assert (anchors != positives)[used].all()
        assert labels[anchors][used].tolist() == sorted(wanted)
        seen |= set(zip(anchors[used].tolist(), positives[used].tolist(), strict=True))
    smallest = min(wanted, key=lambda c: (labels == c).sum())
    members = (labels == smallest).nonzero().flatten().tolist()
    assert {(a, p) for a in members for p in members if a != p} <= seen
    x, _ = uneven(3)
    first, second = (n_pairs(x, labels, generator=torch.Generator().manual_seed(7)) for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize("labels", [[], [4], [1, 2, 3], [5, 5], [-100, -100, -100, 3]])
def test_nothing_to_tell_apart(labels):
    x = torch.randn(len(labels), 3, requires_grad=True)
    loss = n_pairs(x, torch.tensor(labels, dtype=torch.int64))
    loss.backward()
    assert loss.item() == 0
    assert not x.grad.any()


def test_one_graph_for_all_labels():
    compiled = torch.compile(n_pairs, fullgraph=True, dynamic=True, backend="eager")
    for seed in SEEDS:
        x, labels = uneven(seed)
        torch.testing.assert_close(compiled(x, labels), n_pairs(x, labels))


def test_inputs_are_checked():
    with pytest.raises(ValueError, match="labels is None"):
        n_pairs(golden.A)
    with pytest.raises(TypeError, match="generator is a int"):
        n_pairs(golden.A, golden.LABELS, generator=0)
    assert n_pairs(golden.A, golden.LABELS, reduction="none").shape == (2,)
    assert repr(NPairsLoss()) == (
        "NPairsLoss(normalize=True, generator=None, similarity='cosine', reduction='mean', ignore_index=-100)"
    )
