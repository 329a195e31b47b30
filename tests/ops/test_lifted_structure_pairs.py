"""lifted_structure_pairs: golden value, pytorch-metric-learning beside it, references, reductions, empty cases."""

import pytest
import torch
from pytorch_metric_learning.losses import LiftedStructureLoss as PeerLoss

from pairloom import LiftedStructureLoss
from pairloom.functional import lifted_structure_pairs
from tests.ops import golden
from tests.ops.peers import SEEDS, assert_equal_peer, uneven


def test_golden_value():
    assert lifted_structure_pairs(golden.A, golden.LABELS).item() == pytest.approx(2.099767, abs=1e-6)
    rows = lifted_structure_pairs(golden.A, golden.LABELS, reduction="none")
    assert rows.tolist() == pytest.approx([2.049277**2 / 2] * 4, abs=1e-5)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("settings", [{}, {"neg_margin": 0.6, "pos_margin": 0.3}])
def test_equals_pytorch_metric_learning(seed, settings):
    x, labels = uneven(seed)
    ours, theirs = LiftedStructureLoss(**settings), PeerLoss(**settings)
    assert_equal_peer(lambda x: ours(x, labels), lambda x: theirs(x, labels), x)


def pair_losses(rows, columns, row_labels, column_labels, one_batch, margin=1.0):
    """Every positive pair by itself, in loops: {(i, j): loss}."""
    distance = torch.cdist(rows, columns)
    found = {}
    for i, own in enumerate(row_labels.tolist()):
        for j, other in enumerate(column_labels.tolist()):
            if own != other or (one_batch and i == j):
                continue
            negatives = torch.cat([distance[i][column_labels != own], distance[:, j][row_labels != other]])
            near = torch.logsumexp(margin - negatives, 0)
            found[i, j] = torch.relu(near + distance[i, j]) ** 2 / 2
    return found


@pytest.mark.parametrize("references", [False, True])
def test_every_reduction_of_single_pairs(references):
    x, labels = uneven(7, rows=14, dimensions=3, classes=4)
    x = 2 * x
    ref, ref_labels = uneven(8, rows=11, dimensions=3, classes=4)
    arguments = (x, labels, ref, ref_labels) if references else (x, labels)
    pairs = pair_losses(x, ref if references else x, labels, ref_labels if references else labels, not references, -6.0)
    losses = torch.stack(list(pairs.values()))
    nonzero = losses[losses > 0]
    assert 0 < len(nonzero) < len(losses)
    rows = torch.stack([sum((v for (i, _), v in pairs.items() if i == k), losses.new_zeros(())) for k in range(14)])

    def ours(reduction):
        return lifted_structure_pairs(*arguments, neg_margin=-6.0, normalize=False, reduction=reduction)

    torch.testing.assert_close(ours("mean"), losses.mean())
    torch.testing.assert_close(ours("mean_nonzero"), nonzero.mean())
    torch.testing.assert_close(ours("sum"), losses.sum())
    torch.testing.assert_close(ours("none"), rows)


@pytest.mark.parametrize("references", [False, True])
def test_gradcheck(references):
    x, labels = uneven(9, rows=7, dimensions=3, classes=3)
    ref, ref_labels = uneven(10, rows=6, dimensions=3, classes=3)
    weights = torch.rand(7, dtype=torch.float64, requires_grad=True)

    def loss(x, weights, *ref):
        return lifted_structure_pairs(x, labels, *ref, *([ref_labels] if ref else []), weights=weights)

    inputs = (x.requires_grad_(), weights, *([ref.requires_grad_()] if references else []))
    assert torch.autograd.gradcheck(loss, inputs)


def test_ignored_rows_leave():
    x, labels = uneven(11)
    some = torch.where(torch.arange(40) % 4 == 1, -100, labels)
    torch.testing.assert_close(
        lifted_structure_pairs(x, some), lifted_structure_pairs(x[some != -100], labels[some != -100])
    )


@pytest.mark.parametrize("reduction", ["mean", "mean_nonzero", "sum"])
@pytest.mark.parametrize("labels", [[], [0, 1, 2, 3], [0, 0, 0, 0], [-100] * 4])
def test_nothing_to_learn(labels, reduction):
    x = torch.randn(len(labels), 3, requires_grad=True)
    loss = lifted_structure_pairs(x, torch.tensor(labels, dtype=torch.int64), reduction=reduction)
    loss.backward()
    assert loss.item() == 0
    assert not x.grad.any()


def test_half_precision_far_rows_and_nan():
    x, labels = uneven(12)
    half = (100 * x).to(torch.bfloat16).requires_grad_()
    value = lifted_structure_pairs(half, labels)
    value.backward()
    assert value.isfinite()
    assert half.grad.isfinite().all()
    x[2, 1] = torch.nan
    assert lifted_structure_pairs(x, labels).isnan()
