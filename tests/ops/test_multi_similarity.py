"""multi_similarity: golden values, pytorch-metric-learning beside it, mining, empty and extreme cases, statistics."""

import math

import pytest
import torch
from pytorch_metric_learning.losses import MultiSimilarityLoss as PeerLoss
from pytorch_metric_learning.miners import MultiSimilarityMiner

from pairloom import MultiSimilarityLoss
from pairloom.functional import multi_similarity
from tests.ops import golden
from tests.ops.peers import SEEDS, assert_equal_peer, uneven


def test_golden_values():
    assert multi_similarity(golden.A, golden.LABELS).item() == pytest.approx(golden.MULTI_SIMILARITY, abs=1e-6)
    mined = {"beta": 40.0, "epsilon": 0.1}
    loss = multi_similarity(golden.A, golden.LABELS, **mined)
    assert loss.item() == pytest.approx(golden.MULTI_SIMILARITY_MINED, abs=1e-6)
    rows = multi_similarity(golden.A, golden.LABELS, reduction="none", **mined)
    assert rows.tolist() == pytest.approx(golden.MULTI_SIMILARITY_MINED_ROWS, abs=1e-6)


def test_pair_weights_of_general_pair_weighting():
    """dL/dS of anchor 1: the published weights, found through the gradient of a dot product with unit columns."""
    rows = torch.tensor([[0.6, 1.0, 0.8, 0.0]], dtype=torch.float64, requires_grad=True)  # row 1 of A A^T
    columns = torch.eye(4, dtype=torch.float64)
    labels = torch.tensor([0, -100, 1, 1])  # column 1 is the anchor itself
    multi_similarity(rows, torch.tensor([0]), columns, labels, similarity="dot").backward()
    assert rows.grad[0].abs().tolist() == pytest.approx([0.450166, 0.0, 1.0, 0.0], abs=1e-6)
    assert rows.grad[0].sign().tolist() == [-1.0, 0.0, 1.0, 1.0]


@pytest.mark.parametrize("references", [False, True])
@pytest.mark.parametrize("beta", [4.0, 50.0])
def test_equals_pytorch_metric_learning(references, beta):
    torch.manual_seed(0)
    x, labels = torch.randn(24, 8, dtype=torch.float64), torch.randint(0, 5, (24,))
    ref = torch.randn(31, 8, dtype=torch.float64) if references else None
    ref_labels = torch.randint(0, 5, (31,)) if references else None
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    loss = MultiSimilarityLoss(beta=beta)(ours, labels, ref_emb=ref, ref_labels=ref_labels)
    peer = PeerLoss(alpha=2, beta=beta, base=0.5)(theirs, labels, ref_emb=ref, ref_labels=ref_labels)
    loss.backward()
    peer.backward()
    torch.testing.assert_close(loss, peer)
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_mining_equals_the_miner_of_pytorch_metric_learning():
    torch.manual_seed(1)
    x, labels = torch.randn(40, 8, dtype=torch.float64), torch.randint(0, 6, (40,))
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    loss, stats = MultiSimilarityLoss(epsilon=0.1).with_stats(ours, labels)
    anchor_p, _, anchor_n, _ = pairs = MultiSimilarityMiner(epsilon=0.1)(theirs.detach(), labels)
    peer = PeerLoss(alpha=2, beta=50, base=0.5)(theirs, labels, pairs)
    loss.backward()
    peer.backward()
    assert (int(stats.mined_positives), int(stats.mined_negatives)) == (len(anchor_p), len(anchor_n))
    assert 0 < len(anchor_n) < int(stats.negatives)
    torch.testing.assert_close(loss, peer)
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_the_gradient_holds_both_roles_of_a_row():
    torch.manual_seed(2)
    x = torch.randn(10, 6, dtype=torch.float64, requires_grad=True)
    labels = torch.arange(10) // 2
    assert torch.autograd.gradcheck(lambda x: multi_similarity(x, labels, beta=5.0), (x,))


def test_references_that_are_the_batch_pair_a_row_with_itself():
    torch.manual_seed(3)
    x, labels = torch.randn(6, 4), torch.arange(6)
    _, alone = multi_similarity(x, labels, return_stats=True)
    _, with_self = multi_similarity(x, labels, x, labels, return_stats=True)
    assert (int(alone.positives), int(with_self.positives)) == (0, 6)


def test_weights_and_reductions():
    torch.manual_seed(4)
    x, labels = torch.randn(8, 4), torch.tensor([0, 0, 1, 1, 2, 3, 4, -100])
    weights = torch.rand(8)
    kept = labels != -100
    rows = multi_similarity(x, labels, epsilon=0.1, reduction="none")
    nonzero = rows > 0
    assert 0 < nonzero.sum() < kept.sum()

    def ours(reduction, weights=None):
        return multi_similarity(x, labels, epsilon=0.1, reduction=reduction, weights=weights)

    torch.testing.assert_close(ours("mean"), rows.sum() / kept.sum())
    torch.testing.assert_close(ours("mean_all"), rows.sum() / kept.sum())
    torch.testing.assert_close(ours("mean_nonzero"), rows.sum() / nonzero.sum())
    torch.testing.assert_close(ours("sum", weights), (weights * rows).sum())
    torch.testing.assert_close(ours("mean", weights), (weights * rows).sum() / weights[kept].sum())
    torch.testing.assert_close(ours("mean_nonzero", weights), (weights * rows).sum() / weights[nonzero].sum())


@pytest.mark.parametrize("reduction", ["mean", "mean_all", "mean_nonzero", "sum"])
@pytest.mark.parametrize(
    ("labels", "epsilon"),
    [([], None), ([3], None), ([-100] * 4, None), ([0, 1, 2, 3], 0.1), ([0, 0, 0, 0], 0.1)],
    ids=["empty", "one", "ignored", "no-positive", "no-negative"],
)
def test_nothing_to_learn_is_exactly_zero_with_a_live_graph(labels, epsilon, reduction):
    torch.manual_seed(5)
    x = torch.randn(len(labels), 4, requires_grad=True)
    loss = multi_similarity(x, torch.tensor(labels, dtype=torch.int64), epsilon=epsilon, reduction=reduction)
    loss.backward()
    assert loss.item() == 0.0
    assert x.grad.shape == x.shape
    assert not x.grad.any()


def test_no_positive_without_mining_leaves_the_negative_term():
    x = torch.tensor([[1.0, 0.0], [0.6, 0.8]])
    expected = math.log1p(math.exp(50 * 0.1)) / 50
    assert multi_similarity(x, torch.tensor([0, 1])).item() == pytest.approx(expected, rel=1e-5)


def test_extreme_exponents_are_finite():
    x = torch.cat([torch.ones(3, 4), -torch.ones(3, 4)]).requires_grad_()
    loss = multi_similarity(x, torch.arange(6) % 2, alpha=200.0, beta=1000.0)
    loss.backward()
    assert loss.isfinite()
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("epsilon", [None, 0.1])
def test_nan_is_never_hidden(epsilon):
    x = torch.randn(6, 4)
    x[2, 1] = torch.nan
    for reduction in ("mean", "mean_nonzero", "sum"):
        assert multi_similarity(x, torch.arange(6) // 2, epsilon=epsilon, reduction=reduction).isnan()


def test_statistics():
    x = golden.A.float()
    _, stats = multi_similarity(x, golden.LABELS, beta=40.0, epsilon=0.1, return_stats=True)
    assert (int(stats.anchors), int(stats.positives), int(stats.negatives)) == (4, 4, 8)
    assert (int(stats.mined_positives), int(stats.mined_negatives)) == (2, 2)
    assert int(stats.active_anchors) == 2
    assert stats.top1_accuracy.item() == 0.5
    assert stats.mean_positive_similarity.item() == pytest.approx(0.6)
    assert stats.mean_negative_similarity.item() == pytest.approx(0.0, abs=1e-6)


def test_statistics_name_anchors_without_a_positive():
    _, stats = multi_similarity(torch.randn(5, 4), torch.tensor([0, 0, 1, 2, -100]), return_stats=True)
    assert (int(stats.anchors), int(stats.anchors_without_positive), int(stats.anchors_without_negative)) == (4, 2, 0)


def test_module_refuses_contradictions_and_missing_labels():
    loss = MultiSimilarityLoss()
    with pytest.raises(ValueError, match=r"indices_tuple names the pair \(0, 0\) as positive and as negative"):
        loss(golden.A, golden.LABELS, (torch.tensor([0]),) * 4)
    with pytest.raises(ValueError, match="labels is None"):
        loss(golden.A)
    assert "epsilon=0.2" in repr(MultiSimilarityLoss(epsilon=0.2))


def official(x, labels, epsilon, alpha=2.0, beta=40.0, base=0.5):
    """The authors' loop over anchors, written down again; it drops positives that equal their anchor."""
    rows = []
    for i, own in enumerate(labels.tolist()):
        s = x @ x[i]
        positive = s[(labels == own) & (s < 1 - 1e-5)]
        negative = s[labels != own]
        kept_negative = negative[negative + epsilon > positive.min()]
        kept_positive = positive[positive - epsilon < negative.max()]
        if len(kept_negative) == 0 or len(kept_positive) == 0:
            rows.append(s.sum() * 0)
            continue
        rows.append(
            torch.log1p(torch.exp(-alpha * (kept_positive - base)).sum()) / alpha
            + torch.log1p(torch.exp(beta * (kept_negative - base)).sum()) / beta
        )
    return torch.stack(rows)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("epsilon", [-0.8, 0.0, 0.1])
def test_mining_equals_the_code_of_the_authors(seed, epsilon):
    """Its anchors that lose one kind of pair are skipped; min P - epsilon < max N keeps both kinds or none here too."""
    torch.manual_seed(seed)
    x = torch.nn.functional.normalize(torch.randn(24, 3, dtype=torch.float64))
    labels = torch.arange(24) % 7
    rows = multi_similarity(x, labels, beta=40.0, epsilon=epsilon, reduction="none")
    torch.testing.assert_close(rows, official(x, labels, epsilon))
    if epsilon < 0:
        assert not rows.all()  # some anchors are skipped


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("references", [False, True])
def test_mining_equals_the_miner_for_classes_of_any_size(seed, references):
    """Anchors without a positive keep nothing there either."""
    x, labels = uneven(seed)
    inputs, given = (x,), {}
    if references:
        ref, given["ref_labels"] = uneven(seed + 10, rows=31)
        inputs = (x, ref)
    miner, peer = MultiSimilarityMiner(epsilon=0.1), PeerLoss(alpha=2, beta=50, base=0.5)

    def theirs(x, ref=None):
        pairs = miner(x.detach(), labels, None if ref is None else ref.detach(), given.get("ref_labels"))
        return peer(x, labels, pairs, ref, given.get("ref_labels"))

    ours = MultiSimilarityLoss(epsilon=0.1)
    assert_equal_peer(lambda x, ref=None: ours(x, labels, ref_emb=ref, **given), theirs, *inputs)


def test_duplicates_stay_positives():
    """The one difference: the authors' code takes a duplicate for the anchor itself."""
    x = golden.A[[0, 0, 1, 2, 3]]
    labels = torch.tensor([0, 0, 0, 1, 1])
    rows = multi_similarity(x, labels, beta=40.0, epsilon=1.1, reduction="none")
    without = official(x, labels, 1.1)
    assert (rows > without).tolist() == [True, True, False, False, False]
    torch.testing.assert_close(rows[2:], without[2:])
