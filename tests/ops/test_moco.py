"""moco: golden value, the formula row by row, what has a gradient, an empty queue, half precision."""

import pytest
import torch
import torch.nn.functional as F

from pairloom import MoCoLoss
from pairloom.functional import info_nce, moco
from tests.ops import golden


def test_golden_value():
    assert moco(golden.A, golden.B, golden.EXTRA, temperature=0.5).item() == pytest.approx(0.336938, abs=1e-6)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_equals_cross_entropy_of_the_first_of_its_logits(seed):
    torch.manual_seed(seed)
    query, key, queue = (torch.randn(n, 6, dtype=torch.float64) for n in (9, 9, 31))
    ours, theirs = query.clone().requires_grad_(), query.clone().requires_grad_()
    loss = MoCoLoss(0.2)(ours, key, queue)
    own = F.cosine_similarity(theirs, key).unsqueeze(1)
    logits = torch.cat([own, F.normalize(theirs) @ F.normalize(queue).T], dim=1) / 0.2
    expected = F.cross_entropy(logits, torch.zeros(9).long())
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(*torch.autograd.grad(loss, ours), *torch.autograd.grad(expected, theirs))


def test_other_keys_of_the_batch_are_no_negatives():
    assert moco(golden.A, golden.B, golden.EXTRA) < info_nce(golden.A, golden.B, golden.EXTRA)
    _, stats = MoCoLoss().with_stats(golden.A, golden.B, golden.EXTRA)
    assert (stats.anchors, stats.positives, stats.negatives) == (4, 4, 12)


def test_only_the_query_and_the_temperature_have_a_gradient():
    query, key, queue = (x.clone().requires_grad_() for x in (golden.A, golden.B, golden.EXTRA))
    temperature = torch.tensor(0.5, requires_grad=True)
    moco(query, key, queue, temperature=temperature).backward()
    assert query.grad.any()
    assert temperature.grad.any()
    assert key.grad is None
    assert queue.grad is None


@pytest.mark.parametrize("queue", [None, torch.empty(0, 2, dtype=torch.float64)])
def test_empty_queue(queue):
    query = golden.A.clone().requires_grad_()
    loss = moco(query, golden.B, queue)
    loss.backward()
    assert loss.item() == 0
    assert not query.grad.any()


def test_half_precision_low_temperature_and_nan():
    query, key, queue = (x.half() for x in (golden.A, golden.B, golden.EXTRA))
    loss = moco(query.requires_grad_(), key, queue, temperature=1e-3)
    loss.backward()
    assert loss.isfinite()
    assert query.grad.isfinite().all()
    spoilt = golden.EXTRA.clone()
    spoilt[1, 0] = torch.nan
    assert moco(golden.A, golden.B, spoilt).isnan()


def test_inputs_are_checked():
    with pytest.raises(ValueError, match="queue has 3 dimensions"):
        moco(golden.A, golden.B, torch.eye(3))
    with pytest.raises(ValueError, match="temperature is 0"):
        MoCoLoss(0)
    assert repr(MoCoLoss(0.2)) == "MoCoLoss(temperature=0.2, similarity='cosine', reduction='mean')"
