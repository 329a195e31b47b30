"""info_nce: golden values, formulas written another way, ids, temperatures, extreme inputs, empty cases, statistics."""

import math

import pytest
import torch
import torch.nn.functional as F

from pairloom import InfoNCELoss
from pairloom.functional import info_nce
from tests.ops import golden


def by_hand(query, key, negatives, temperature, ids=None, negative_ids=None, same_id="ignore"):
    """Row by row with Python lists: the loss of each query."""
    query, key, negatives = (F.normalize(x.double(), dim=1) for x in (query, key, negatives))
    columns = [*key, *negatives]
    known = [] if ids is None else [*ids.tolist(), *([] if negative_ids is None else negative_ids.tolist())]
    losses = []
    for i, row in enumerate(query):
        logits = [float(row @ column) / temperature for column in columns]
        same = [j for j, label in enumerate(known) if label == known[i] and j != i]
        positives = [i, *same] if same_id == "positive" else [i]
        others = [logit for j, logit in enumerate(logits) if j != i and j not in same]
        losses.append(
            sum(math.log(math.fsum(math.exp(other - logits[p]) for other in others) + 1) for p in positives)
            / len(positives)
        )
    return torch.tensor(losses, dtype=torch.float64)


def test_golden_values():
    assert info_nce(golden.A, golden.B, temperature=0.5).item() == pytest.approx(golden.INFO_NCE, abs=1e-6)
    extra = info_nce(golden.A, golden.B, golden.EXTRA, temperature=0.5)
    assert extra.item() == pytest.approx(golden.INFO_NCE_EXTRA, abs=1e-6)


def test_is_cross_entropy_of_the_logits():
    torch.manual_seed(0)
    query, key, extra = torch.randn(20, 7), torch.randn(20, 7), torch.randn(11, 7)
    logits = F.normalize(query) @ F.normalize(torch.cat([key, extra])).T / 0.07
    for reduction in ("mean", "sum", "none"):
        expected = F.cross_entropy(logits, torch.arange(20), reduction=reduction)
        torch.testing.assert_close(info_nce(query, key, extra, reduction=reduction), expected, rtol=1e-5, atol=1e-5)
    dot = F.cross_entropy(query @ key.T, torch.arange(20))
    torch.testing.assert_close(info_nce(query, key, temperature=1.0, similarity="dot"), dot, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("same_id", ["ignore", "positive"])
@pytest.mark.parametrize("with_negative_ids", [False, True])
def test_ids_row_by_row(same_id, with_negative_ids):
    torch.manual_seed(1)
    query, key, extra = torch.randn(12, 5), torch.randn(12, 5), torch.randn(9, 5)
    ids = torch.randint(0, 4, (12,))
    negative_ids = torch.randint(0, 4, (9,)) if with_negative_ids else None
    keywords = {"ids": ids, "negative_ids": negative_ids, "same_id": same_id}
    losses = info_nce(query, key, extra, temperature=0.3, reduction="none", **keywords)
    expected = by_hand(query, key, extra, 0.3, **keywords)
    torch.testing.assert_close(losses.double(), expected, rtol=1e-5, atol=1e-5)


def test_ids_with_one_query_each_change_nothing():
    torch.manual_seed(2)
    query, key = torch.randn(9, 4), torch.randn(9, 4)
    plain = info_nce(query, key)
    for same_id in ("ignore", "positive"):
        assert torch.equal(info_nce(query, key, ids=torch.arange(9), same_id=same_id), plain)


@pytest.mark.parametrize("name", ["bool", "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_ids_of_any_integer_dtype(name):
    torch.manual_seed(3)
    query, key, ids = torch.randn(8, 4), torch.randn(8, 4), torch.tensor([0, 1, 1, 0, 1, 0, 0, 1])
    assert torch.equal(info_nce(query, key, ids=ids.to(getattr(torch, name))), info_nce(query, key, ids=ids))


def test_ids_are_compared_exactly():
    torch.manual_seed(4)
    query, key = torch.randn(4, 3), torch.randn(4, 3)
    plain = info_nce(query, key)
    assert torch.equal(info_nce(query, key, ids=2**53 + torch.arange(4)), plain)
    assert torch.equal(info_nce(query, key, ids=-(2**63) + torch.arange(4)), plain)


def test_temperature_as_number_scalar_and_row():
    torch.manual_seed(5)
    query, key = torch.randn(7, 4), torch.randn(7, 4)
    number = info_nce(query, key, temperature=0.2)
    for temperature in (torch.tensor(0.2), torch.tensor(0.2, dtype=torch.float64), torch.full((7,), 0.2)):
        torch.testing.assert_close(info_nce(query, key, temperature=temperature), number)


def test_learned_temperature_is_the_exponential_of_the_scale():
    torch.manual_seed(6)
    query, key = torch.randn(7, 4), torch.randn(7, 4)
    module = InfoNCELoss(0.2, learn_temperature=True)
    module(query, key).backward()
    log_scale = torch.tensor(-math.log(0.2), requires_grad=True)
    logits = F.normalize(query) @ F.normalize(key).T * log_scale.exp()
    F.cross_entropy(logits, torch.arange(7)).backward()
    torch.testing.assert_close(module.log_scale.grad, log_scale.grad, rtol=1e-4, atol=1e-6)
    assert dict(module.named_parameters()).keys() == {"log_scale"}
    assert not dict(InfoNCELoss().named_parameters())
    assert "learn_temperature=True" in repr(module)


def test_weights_and_reductions():
    torch.manual_seed(7)
    query, key = torch.randn(6, 4), torch.randn(6, 4)
    weights = torch.tensor([0.0, 1.0, 2.0, 0.5, 0.0, 3.0])
    rows = info_nce(query, key, reduction="none")
    torch.testing.assert_close(info_nce(query, key, weights=weights), (weights * rows).sum() / weights.sum())
    torch.testing.assert_close(info_nce(query, key, weights=weights, reduction="sum"), (weights * rows).sum())
    torch.testing.assert_close(info_nce(query, key, weights=weights, reduction="none"), weights * rows)
    torch.testing.assert_close(info_nce(query, key, reduction="mean_all"), rows.mean())


def test_ignored_queries_leave_everything():
    torch.manual_seed(8)
    query, key = torch.randn(6, 4), torch.randn(6, 4)
    ids = torch.tensor([0, -100, 1, 2, -100, 3])
    keep = ids != -100
    torch.testing.assert_close(info_nce(query, key, ids=ids), info_nce(query[keep], key[keep]))
    rows = info_nce(query, key, ids=ids, reduction="none")
    assert rows[~keep].tolist() == [0.0, 0.0]
    as_ids = info_nce(query, key, ids=ids, ignore_index=None)
    torch.testing.assert_close(as_ids, info_nce(query, key, ids=ids + 1000))


@pytest.mark.parametrize("temperature", [1e-3, 0.07])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_finite_at_low_temperature_and_equal_rows(dtype, temperature):
    x = torch.ones(6, 4, dtype=dtype, requires_grad=True)
    loss = info_nce(x, x.detach(), temperature=temperature)
    loss.backward()
    assert loss.item() == pytest.approx(math.log(6), rel=1e-5)
    assert x.grad.isfinite().all()


def test_large_logits_are_finite():
    query = torch.tensor([[1000.0, 0.0], [0.0, 1000.0]], requires_grad=True)
    wrong = info_nce(query, torch.tensor([[0.0, 1.0], [1.0, 0.0]]), temperature=1.0, similarity="dot")
    wrong.backward()
    assert wrong.item() == 1000.0
    assert query.grad.isfinite().all()


def test_zero_row_has_similarity_and_gradient_zero():
    for dtype in golden.DTYPES:
        query = torch.zeros(2, 4, dtype=dtype, requires_grad=True)
        loss = info_nce(query, torch.eye(2, 4, dtype=dtype))
        loss.backward()
        assert loss.item() == pytest.approx(math.log(2))
        assert not query.grad.any()


def test_half_rows_of_large_norm():
    """300 * ones(4) has a norm that float16 cannot square."""
    x = 300 * torch.ones(2, 4, dtype=torch.float16)
    assert info_nce(x, x, temperature=1.0).item() == pytest.approx(math.log(2))


def test_nan_is_never_hidden():
    query, key = torch.eye(3), torch.eye(3)
    query[1, 1] = torch.nan
    for reduction in ("mean", "mean_nonzero", "sum"):
        assert info_nce(query, key, reduction=reduction).isnan()


@pytest.mark.parametrize(
    ("rows", "ids"),
    [(0, None), (1, None), (3, [-100, -100, -100]), (3, [5, 5, 5])],
    ids=["empty", "one", "ignored", "same"],
)
@pytest.mark.parametrize("reduction", ["mean", "mean_all", "mean_nonzero", "sum"])
def test_nothing_to_learn_is_exactly_zero_with_a_live_graph(rows, ids, reduction):
    query = torch.randn(rows, 4, requires_grad=True)
    ids = None if ids is None else torch.tensor(ids)
    loss = info_nce(query, torch.randn(rows, 4), ids=ids, reduction=reduction)
    loss.backward()
    assert loss.item() == 0.0
    assert query.grad.shape == (rows, 4)
    assert not query.grad.any()


def test_statistics():
    query, key = golden.A.float(), golden.B.float()
    loss, stats = info_nce(query, key, temperature=0.5, return_stats=True)
    assert loss.item() == info_nce(query, key, temperature=0.5).item()
    s = query @ key.T
    assert (int(stats.anchors), int(stats.positives), int(stats.negatives)) == (4, 4, 12)
    assert (int(stats.mined_positives), int(stats.mined_negatives)) == (4, 12)
    assert (int(stats.anchors_without_positive), int(stats.anchors_without_negative)) == (0, 0)
    assert int(stats.active_anchors) == 4
    assert stats.top1_accuracy.item() == 0.25
    assert stats.mean_positive_similarity.item() == pytest.approx(s.diagonal().mean().item())
    assert stats.mean_negative_similarity.item() == pytest.approx((s.sum() - s.trace()).item() / 12)


def test_statistics_of_nothing_are_nan():
    _, stats = InfoNCELoss().with_stats(torch.zeros(0, 4), torch.zeros(0, 4))
    assert int(stats.anchors) == 0
    assert stats.top1_accuracy.isnan()
    assert stats.mean_positive_similarity.isnan()
