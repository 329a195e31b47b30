"""i-Mix, MixCo and MoCHi: golden numbers, the formula written out over every mixture, gradients, draws and edges."""

import copy
import pickle
import sys

import pytest
import torch
from torch.nn.functional import normalize

import pairloom
from pairloom.mixup import (
    HardMixtures,
    IMix,
    MixCo,
    MoCHiLoss,
    draw_hard_mixtures,
    imix,
    imix_byol,
    mix,
    mixco,
    mochi,
)
from pairloom.testing import peak_memory_mb
from tests.ops.golden import EXTRA, A, B


def rows(count, dim=5, seed=0, dtype=torch.float64):
    return torch.randn(count, dim, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def assert_same_gradients(ours, wanted, inputs, **tolerances):
    pairs = zip(
        torch.autograd.grad(ours, inputs, allow_unused=True, materialize_grads=True),
        torch.autograd.grad(wanted, inputs, allow_unused=True, materialize_grads=True),
        strict=True,
    )
    for a, b in pairs:
        torch.testing.assert_close(a, b, **tolerances)


# --- i-Mix ------------------------------------------------------------------------------------------------------------
def naive_imix(query, keys, partner, lam, queue, temperature):
    columns = normalize(keys if queue is None else torch.cat([keys, queue]))
    log_p = (normalize(query) @ columns.T / temperature).log_softmax(1)
    own = torch.arange(len(query))
    return -(lam * log_p[own, own] + (1 - lam) * log_p[own, partner])


def test_imix_golden():
    lam, partner = torch.tensor([0.7, 0.6, 0.9, 0.8], dtype=torch.float64), torch.tensor([2, 3, 0, 1])
    mixed = mix(A, partner, lam, normalize=True)
    assert imix(mixed, B, partner, lam).item() == pytest.approx(1.800566, abs=1e-6)


@pytest.mark.parametrize("queued", [0, 1, 17])
@pytest.mark.parametrize("n", [1, 2, 9])
def test_imix_is_the_formula(n, queued):
    query, keys = rows(n, seed=1).requires_grad_(), rows(n, seed=2).requires_grad_()
    queue = rows(queued, seed=3) if queued else None
    partner = torch.randint(n, (n,), generator=torch.Generator().manual_seed(4))
    lam = torch.rand(n, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    expected = naive_imix(query, keys, partner, lam, queue, 0.3)
    for reduction in ("none", "mean", "sum"):
        found = imix(query, keys, partner, lam, queue=queue, temperature=0.3, reduction=reduction)
        wanted = expected if reduction == "none" else getattr(expected, reduction)()
        torch.testing.assert_close(found, wanted)
    assert_same_gradients((found * 1.0).sum(), expected.sum(), [query, keys])


@pytest.mark.parametrize("lam", [0.0, 1.0])
def test_imix_at_the_ends_is_info_nce(lam):
    """lam = 1: the own key; lam = 0: the partner's. Where nothing is mixed in, a term of it is nothing at all."""
    x, keys, partner = rows(6, seed=1), rows(6, seed=2), torch.tensor([3, 4, 5, 0, 1, 2])
    target = keys if lam == 1 else keys[partner]
    torch.testing.assert_close(imix(x, keys, partner, lam), pairloom.functional.info_nce(x, target, temperature=0.2))


def test_imix_byol():
    predictions, targets = rows(7, seed=1).requires_grad_(), rows(7, seed=2).requires_grad_()
    partner, lam = torch.randperm(7), torch.rand(7, dtype=torch.float64)
    s = normalize(predictions) @ normalize(targets).T
    own = torch.arange(7)
    expected = (2 - 2 * (lam * s[own, own] + (1 - lam) * s[own, partner])).mean()
    found = imix_byol(predictions, targets, partner, lam)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(
        torch.autograd.grad(found, predictions)[0], torch.autograd.grad(expected, predictions)[0]
    )
    imix_byol(predictions, targets, partner, lam).backward()
    assert targets.grad is None


def test_imix_draws():
    images = torch.randn(64, 3, 4, 4)
    one, again = (IMix(generator=torch.Generator().manual_seed(3)) for _ in range(2))
    for _ in range(2):
        mixed, partner, lam = one.mix(images)
        same, other_partner, other_lam = again.mix(images)
        assert torch.equal(mixed, same)
        assert torch.equal(partner, other_partner)
        assert torch.equal(lam, other_lam)
        assert sorted(partner.tolist()) == list(range(64))
        assert bool(((lam >= 0.5) & (lam <= 1)).all())
        part = lam.view(-1, 1, 1, 1).float()
        torch.testing.assert_close(mixed, part * images + (1 - part) * images[partner])


# --- MixCo ------------------------------------------------------------------------------------------------------------
def naive_mixco(query, mixed, keys, queue, lam, t, t_mix, w):
    half = len(query) // 2
    every = keys if queue is None else torch.cat([keys, queue])
    log_p = (normalize(mixed) @ normalize(every).T / t_mix).log_softmax(1)
    b = torch.arange(half)
    soft = -(lam * log_p[b, b] + (1 - lam) * log_p[b, b + half]).mean()
    logits = (normalize(query) * normalize(keys)).sum(1, keepdim=True)
    if queue is not None:
        logits = torch.cat([logits, normalize(query) @ normalize(queue).T], dim=1)
    return -(logits / t).log_softmax(1)[:, 0].mean() + w * soft


def test_mixco_golden():
    mixed = mix(A, torch.tensor([2, 3]), 0.7, first=torch.tensor([0, 1]), normalize=True)
    total = mixco(A, mixed, B, EXTRA, 0.7)
    clean = mixco(A, mixed, B, EXTRA, 0.7, weight=0.0)
    assert total.item() == pytest.approx(6.481418, abs=1e-6)
    assert clean.item() == pytest.approx(0.182991, abs=1e-6)
    assert (total - clean).item() == pytest.approx(6.298427, abs=1e-6)


@pytest.mark.parametrize("queued", [0, 13])
@pytest.mark.parametrize("n", [2, 4, 10])
def test_mixco_is_the_formula(n, queued):
    query, mixed = rows(n, seed=1).requires_grad_(), rows(n // 2, seed=2).requires_grad_()
    keys, queue = rows(n, seed=3).requires_grad_(), rows(queued, seed=4) if queued else None
    lam = torch.rand(n // 2, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    found = mixco(query, mixed, keys, queue, lam, temperature=0.3, mix_temperature=0.1, weight=0.6)
    expected = naive_mixco(query, mixed, keys.detach(), queue, lam, 0.3, 0.1, 0.6)
    torch.testing.assert_close(found, expected)
    assert_same_gradients(found, expected, [query, mixed])
    mixco(query, mixed, keys, queue, lam).backward()
    assert keys.grad is None


def test_mixco_does_not_underflow():
    """At t = 1e-4 the probability of a parent is e^-10000; its logarithm is not."""
    x = torch.eye(4)
    mixed = torch.tensor([[0.0, 0, 0, 1], [0, 0, 1, 0]])
    assert mixco(x, mixed, x, None, 0.5, mix_temperature=1e-4).item() == pytest.approx(10_000, rel=1e-3)


def test_mixco_draws():
    images = torch.randn(6, 3, 4, 4)
    one, again = (MixCo(generator=torch.Generator().manual_seed(3)) for _ in range(2))
    mixed, lam = one.mix(images)
    assert torch.equal(mixed, again.mix(images)[0])
    part = lam.view(-1, 1, 1, 1).float()
    torch.testing.assert_close(mixed, part * images[:3] + (1 - part) * images[3:])
    with pytest.raises(ValueError, match="the batch has 5 items; MixCo mixes the first half with the second"):
        one.mix(images[:5])


# --- MoCHi ------------------------------------------------------------------------------------------------------------
def naive_mochi(query, key, queue, mixtures, t):
    q, k, n = normalize(query), normalize(key), normalize(queue)
    losses = []
    for i in range(len(q)):
        logits = [q[i] @ k[i], *(q[i] @ n.T)]
        for f, g, a in zip(*(field[i].tolist() for field in mixtures[:3]), strict=True):
            if f >= 0:
                logits.append(q[i] @ normalize(a * n[f] + (1 - a) * n[g], dim=0))
        for g, b in zip(*(field[i].tolist() for field in mixtures[3:]), strict=True):
            if g >= 0:
                logits.append(q[i] @ normalize(b * q[i].detach() + (1 - b) * n[g], dim=0))
        losses.append(-(torch.stack(logits) / t).log_softmax(0)[0])
    return torch.stack(losses)


def test_mochi_golden():
    one = torch.tensor([[1]])
    mixtures = HardMixtures(one, one + 1, torch.tensor([[0.5]]), one, torch.tensor([[0.25]]))
    found = mochi(A[:1], B[:1], EXTRA, mixtures)
    assert found.item() == pytest.approx(1.274447, abs=1e-6)


@pytest.mark.parametrize(
    ("b", "m", "synthetic", "harder"), [(5, 9, 7, 3), (3, 1, 4, 2), (2, 6, 0, 5), (4, 6, 5, 0), (3, 4, 0, 0)]
)
def test_mochi_is_the_formula(b, m, synthetic, harder, monkeypatch):
    query, key, queue = rows(b, seed=1).requires_grad_(), rows(b, seed=2).requires_grad_(), rows(m, seed=3)
    drawn = draw_hard_mixtures(
        query, queue, hardest=4, synthetic=synthetic, harder=harder, generator=torch.Generator().manual_seed(6)
    )
    for entries in (1 << 20, 40):  # all queries at a time, and one
        expected = naive_mochi(query, key.detach(), queue, drawn, 0.3)
        monkeypatch.setattr(sys.modules["pairloom.mixup.mochi"], "CHUNK_ENTRIES", entries)
        found = mochi(query, key, queue, drawn, temperature=0.3, reduction="none")
        torch.testing.assert_close(found, expected)
        assert_same_gradients(found.square().sum(), expected.square().sum(), [query])
    mochi(query, key, queue, drawn).backward()
    assert key.grad is None


def test_mochi_draws_from_the_own_hardest():
    """Every query its own rows, the most similar ones; shares in their ranges; the same again from the same seed."""
    query, queue = rows(6, 8, seed=1), rows(50, 8, seed=2)
    drawn, again = (
        draw_hard_mixtures(
            query, queue, hardest=5, synthetic=400, harder=300, generator=torch.Generator().manual_seed(0)
        )
        for _ in range(2)
    )
    for a, b in zip(drawn, again, strict=True):
        assert torch.equal(a, b)
    nearest = (normalize(query) @ normalize(queue).T).topk(5).indices
    for i in range(6):
        for field in (drawn.first, drawn.second, drawn.partner):
            assert set(field[i].tolist()) == set(nearest[i].tolist())
    assert bool(((drawn.share >= 0) & (drawn.share < 1)).all())
    assert bool(((drawn.query_share >= 0) & (drawn.query_share < 0.5)).all())
    assert drawn.share.max() > 0.9
    assert drawn.query_share.max() > 0.45


def test_mochi_without_negatives():
    query, key = rows(3, seed=1).requires_grad_(), rows(3, seed=2)
    empty = torch.empty(0, 5, dtype=torch.float64)
    drawn = draw_hard_mixtures(query, empty, synthetic=4, harder=2)
    assert (drawn.first == -1).all()
    assert mochi(query, key, empty, drawn).item() == 0
    nan = rows(4, seed=3)
    nan[1] = torch.nan
    drawn = draw_hard_mixtures(query, nan, hardest=10, synthetic=50, harder=50)
    assert set(drawn.first.flatten().tolist()) == {0, 2, 3}  # more rows are asked for than there are; NaN is none
    lost = draw_hard_mixtures(torch.full((1, 5), torch.nan, dtype=torch.float64), nan, synthetic=3, harder=2)
    assert (lost.first == -1).all()
    assert (lost.partner == -1).all()
    missing = drawn._replace(first=torch.full_like(drawn.first, -1), partner=torch.full_like(drawn.partner, -1))
    kept = nan[[0, 2, 3]]
    missing = missing._replace(second=missing.second.clamp(max=2))
    expected = pairloom.functional.moco(query, key, kept, temperature=0.2)
    torch.testing.assert_close(mochi(query, key, kept, missing), expected)


def test_mochi_holds_mixtures_some_at_a_time():
    """256 x 1,152 mixtures of 256 numbers are 288 MiB."""
    query, key, queue = (rows(n, 256, seed=n, dtype=torch.float32) for n in (256, 256, 2048))
    query.requires_grad_()
    loss = MoCHiLoss(hardest=64)
    loss(query[:8], key[:8], queue).backward()
    before = peak_memory_mb()
    loss(query, key, queue).backward()
    assert peak_memory_mb() - before < 100


# --- all --------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_dtypes(dtype):
    query, keys, queue = (rows(n, 16, seed=n).to(dtype) for n in (6, 6, 20))
    partner, lam = torch.tensor([1, 2, 3, 4, 5, 0]), torch.rand(6)
    drawn = draw_hard_mixtures(query, queue, hardest=8, synthetic=5, harder=4)
    wide = [x.double() for x in (query, keys, queue)]
    calls = {
        "imix": (lambda q, k, n: imix(q, k, partner, lam, queue=n)),
        "byol": (lambda q, k, n: imix_byol(q, k, partner, lam)),
        "mixco": (lambda q, k, n: mixco(q, q[:3], k, n, lam[:3])),
        "mochi": (lambda q, k, n: mochi(q, k, n, drawn)),
    }
    for call in calls.values():
        found = call(query, keys, queue)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double(), call(*wide), rtol=2e-5, atol=1e-5)


def test_shares_in_half_precision():
    """1 - lam is taken of the share, not rounded with it."""
    x, keys, partner = rows(6, 16, seed=1), rows(6, 16, seed=2), torch.tensor([1, 2, 3, 4, 5, 0])
    lam = torch.rand(6).half()
    for call in (lambda part: imix(x, keys, partner, part), lambda part: mixco(x, x[:3], keys, None, part[:3])):
        torch.testing.assert_close(call(lam), call(lam.double()), rtol=1e-12, atol=1e-12)


def test_mochi_twice_and_in_transforms():
    """Second derivatives, torch.func, and queries without any mixture, which have a finite gradient."""
    query, key, queue = rows(3, 4, seed=1).requires_grad_(), rows(3, 4, seed=2), rows(6, 4, seed=3)
    drawn = draw_hard_mixtures(
        query, queue, hardest=4, synthetic=5, harder=3, generator=torch.Generator().manual_seed(1)
    )
    frozen = query.detach()

    def constant(q):  # the mixtures hold the query as it is here
        k, n = normalize(key), normalize(queue)
        unit, own = normalize(q), normalize(frozen)
        losses = []
        for i in range(3):
            logits = [unit[i] @ k[i], *(unit[i] @ n.T)]
            for f, g, a in zip(*(field[i].tolist() for field in drawn[:3]), strict=True):
                logits.append(unit[i] @ normalize(a * n[f] + (1 - a) * n[g], dim=0))
            for g, b in zip(*(field[i].tolist() for field in drawn[3:]), strict=True):
                logits.append(unit[i] @ normalize(b * own[i] + (1 - b) * n[g], dim=0))
            losses.append(-(torch.stack(logits) / 0.2).log_softmax(0)[0])
        return torch.stack(losses).mean()

    (ours,) = torch.autograd.grad(mochi(query, key, queue, drawn), query, create_graph=True)
    (wanted,) = torch.autograd.grad(constant(query), query, create_graph=True)
    torch.testing.assert_close(ours, wanted)
    for a, b in zip(*(torch.autograd.grad(g.square().sum(), query) for g in (ours, wanted)), strict=True):
        torch.testing.assert_close(a, b)
    torch.testing.assert_close(torch.func.grad(lambda q: mochi(q, key, queue, drawn))(frozen), wanted.detach())
    nobody = MoCHiLoss(hardest=0, synthetic=3, harder=2)(query, key, queue)
    torch.testing.assert_close(nobody, pairloom.functional.moco(query, key, queue, temperature=0.2))
    assert torch.autograd.grad(nobody, query)[0].isfinite().all()


def test_mochi_under_autocast():
    query, key, queue = (rows(n, 16, seed=n, dtype=torch.float32) for n in (4, 4, 30))
    drawn = draw_hard_mixtures(query, queue, hardest=8, synthetic=20, harder=10)
    expected = mochi(query, key, queue, drawn)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(mochi(query, key, queue, drawn), expected)


@pytest.mark.parametrize("module", [IMix(0.3, alpha=2.0), MixCo(0.3, 0.1, weight=0.5), MoCHiLoss(0.3, hardest=7)])
def test_modules_are_copied_and_pickled(module):
    for again in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert repr(again) == repr(module)
        assert again.state_dict() == {}


def test_nothing_is_zero():
    x = torch.empty(0, 4, requires_grad=True)
    none = torch.empty(0, dtype=torch.int64)
    queue = torch.randn(5, 4)
    for loss in (
        imix(x, x, none, 0.5),
        imix_byol(x, x, none, 0.5),
        mixco(x, x, x, queue, 0.5),
        mochi(x, x, queue, draw_hard_mixtures(x, queue, synthetic=3, harder=2)),
    ):
        assert loss == 0
        loss.backward()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: imix(x, x[:3], torch.arange(4), 0.5), ValueError, "keys has 3 rows and query 4"),
        (lambda x: imix(x, x, torch.arange(3), 0.5), ValueError, "partner has 3 values for 4 queries"),
        (lambda x: imix(x, x, torch.arange(4) + 1, 0.5), ValueError, "partner holds 4; rows of keys: 0 to 3"),
        (lambda x: imix(x, x, torch.arange(4), 2.0), ValueError, "lam is 2.0"),
        (lambda x: imix(x, x, torch.arange(4), 0.5, temperature=0), ValueError, "temperature is 0"),
        (lambda x: imix(x, x, torch.arange(4), 0.5, reduction="all"), ValueError, "reduction is 'all'"),
        (lambda x: imix_byol(x, x[:2], torch.arange(4), 0.5), ValueError, "targets has 2 rows and predictions 4"),
        (lambda x: mixco(x[:3], x[:1], x[:3], None, 0.5), ValueError, "the batch has 3 items"),
        (lambda x: mixco(x, x[:1], x, None, 0.5), ValueError, "mixed has 1 rows for 4 queries; it must have 2"),
        (lambda x: mixco(x, x[:2], x, None, 0.5, weight=-1), ValueError, "weight is -1; it must be 0 or more"),
        (lambda x: mochi(x, x, x, None), TypeError, "mixtures is a NoneType; it must be HardMixtures"),
        (
            lambda x: mochi(x, x, x, HardMixtures(*[torch.zeros(4, 2).long()] * 4, torch.zeros(4, 3))),
            ValueError,
            r"mixtures.partner has shape \(4, 2\) and mixtures.query_share \(4, 3\)",
        ),
        (
            lambda x: mochi(x, x, x, HardMixtures(*[torch.full((4, 2), 9)] * 2, *[torch.full((4, 2), 0)] * 3)),
            ValueError,
            "mixtures.first holds 9; rows of queue: 0 to 3",
        ),
        (lambda x: draw_hard_mixtures(x, x, hardest=-1), ValueError, "hardest is -1"),
        (lambda x: draw_hard_mixtures(x, x, synthetic=1.5), TypeError, "synthetic is 1.5"),
        (lambda x: MoCHiLoss(harder=None), TypeError, "harder is None"),
        (lambda x: IMix(alpha=0), ValueError, "alpha is 0"),
        (lambda x: MixCo(weight=-2), ValueError, "weight is -2"),
    ],
)
def test_errors(call, error, message):
    with pytest.raises(error, match=message):
        call(torch.randn(4, 3))
