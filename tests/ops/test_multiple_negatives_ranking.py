"""multiple_negatives_ranking: golden values, the formula in plain torch beside it, lists of negatives, bad input."""

import pytest
import torch
import torch.nn.functional as F

from pairloom import MultipleNegativesRankingLoss
from pairloom.functional import multiple_negatives_ranking
from tests.ops import golden
from tests.ops.peers import SEEDS, assert_equal_peer

HARD = torch.tensor([[0.6, 0.8], [-0.28, 0.96], [0.8, 0.6], [0, 1]], dtype=torch.float64)


def test_golden_values():
    assert multiple_negatives_ranking(golden.A, golden.B).item() == pytest.approx(0.587225, abs=1e-6)
    assert multiple_negatives_ranking(golden.A, golden.B, HARD).item() == pytest.approx(1.383781, abs=1e-6)
    symmetric = MultipleNegativesRankingLoss(symmetric=True)(golden.A, golden.B)
    assert symmetric.item() == pytest.approx(0.823990, abs=1e-6)


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_equals_cross_entropy(seed, symmetric):
    torch.manual_seed(seed)
    inputs = [torch.randn(n, 6, dtype=torch.float64) for n in (9, 9, 9, 4)]
    target = torch.arange(9)

    def dense(anchor, positive, *negatives):
        scores = 7 * F.normalize(anchor) @ F.normalize(torch.cat([positive, *negatives])).T
        loss = F.cross_entropy(scores, target)
        return (loss + F.cross_entropy(scores[:, :9].T, target)) / 2 if symmetric else loss

    ours = MultipleNegativesRankingLoss(7.0, symmetric=symmetric)
    assert_equal_peer(lambda a, p, *negatives: ours(a, p, list(negatives)), dense, *inputs)
    torch.testing.assert_close(ours(*inputs[:2], inputs[2]), dense(*inputs[:3]))
    torch.testing.assert_close(ours(*inputs[:2], []), dense(*inputs[:2]))


def test_texts_that_occur_twice():
    ids = torch.tensor([3, 5, 5, 8])
    loss = multiple_negatives_ranking(golden.A, golden.B, ids=ids, reduction="none")
    scores = 20 * golden.A @ golden.B.T
    scores[1, 2] = scores[2, 1] = -torch.inf
    torch.testing.assert_close(loss, F.cross_entropy(scores, torch.arange(4), reduction="none"))


def test_one_pair_and_bad_input():
    one = golden.A[:1].clone().requires_grad_()
    loss = multiple_negatives_ranking(one, golden.B[:1], symmetric=True)
    loss.backward()
    assert loss.item() == 0
    assert not one.grad.any()
    with pytest.raises(ValueError, match="positive has 3 rows and anchor has 4"):
        multiple_negatives_ranking(golden.A, golden.B[:3])
    with pytest.raises(ValueError, match=r"negatives\[1\] has 4 dimensions"):
        multiple_negatives_ranking(golden.A, golden.B, [HARD, torch.eye(4)])
    with pytest.raises(ValueError, match="scale is -1"):
        MultipleNegativesRankingLoss(-1)
    assert repr(MultipleNegativesRankingLoss()).startswith("MultipleNegativesRankingLoss(scale=20.0, symmetric=False")
