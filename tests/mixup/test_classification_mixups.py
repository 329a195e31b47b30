"""RegMixup, RankMixup, SelMix, SelecMix and Intra-Cluster Mixup: golden numbers, formulas written out, draws, edges."""

import copy
import itertools
import math
import pickle

import pytest
import torch
from torch.nn.functional import cross_entropy, normalize

from pairloom.mixup import (
    BatchMixup,
    IntraClusterMixup,
    RegMixup,
    SelecMix,
    SelMix,
    biased_contrastive,
    complementary_mixup,
    coverage_gradient,
    coverage_multipliers,
    intra_cluster_partners,
    mean_recall_gradient,
    rankmixup_mrl,
    rankmixup_ndcg,
    regmixup,
    selecmix_partners,
    selmix_gain,
    selmix_probabilities,
    worst_recall_gradient,
    worst_recall_weights,
)
from pairloom.testing import peak_memory_mb
from tests.ops.golden import LABELS, A

CLEAN = torch.tensor([[2, 0.5, -1], [0.2, 0.1, 0.4]], dtype=torch.float64)
MIXED = torch.tensor([[1, 0.3, 0.2], [0.3, 0.2, 0.9]], dtype=torch.float64)
SECOND = torch.tensor([[0.8, 0.1, 0.6], [0.6, 0.2, 0.8]], dtype=torch.float64)
CLASSES = torch.tensor([0, 2])


def logits(batch=9, classes=4, seed=0, dtype=torch.float64):
    return torch.randn(batch, classes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def classes(batch=9, count=4, seed=0):
    return torch.randint(count, (batch,), generator=torch.Generator().manual_seed(seed))


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


# --- golden numbers ---------------------------------------------------------------------------------------------------
def test_golden():
    other = CLASSES.flip(0)
    assert cross_entropy(CLEAN, CLASSES).item() == pytest.approx(0.590571, abs=1e-6)
    found = {
        1.596233: regmixup(CLEAN, MIXED, CLASSES, other, 0.55),
        0.798117: regmixup(CLEAN, MIXED, CLASSES, other, 0.55, public_code=True),
        0.765571: rankmixup_mrl(CLEAN, MIXED, CLASSES, other, margin=2.0, weight=0.1),
        0.630712: rankmixup_ndcg(CLEAN, [MIXED, SECOND], CLASSES, [0.9, 0.6], weight=0.1),
        0.281797: complementary_mixup(MIXED[:1], torch.tensor([1]), torch.tensor([2]), 0.6),
    }
    for expected, value in found.items():
        assert value.item() == pytest.approx(expected, abs=1e-6)


def test_golden_selmix():
    confusion, identity = torch.tensor([[0.4, 0.1], [0.2, 0.3]], dtype=torch.float64), torch.eye(2)
    gain = selmix_gain(mean_recall_gradient(confusion), identity, identity, lam=0.8)
    wanted = torch.tensor([[0.043031, 0.068347], [0.096695, 0.064546]], dtype=torch.float64)
    torch.testing.assert_close(gain, wanted, rtol=0, atol=1e-6)
    wanted = torch.tensor([[0.190898, 0.245895], [0.326484, 0.236723]], dtype=torch.float64)
    torch.testing.assert_close(selmix_probabilities(gain, temperature=0.1), wanted, rtol=0, atol=1e-6)


def test_golden_selecmix():
    assert selecmix_partners(A, LABELS, "inter", public_code=True).tolist() == [0, 2, 1, 1]
    assert selecmix_partners(A, LABELS, "inter").tolist() == [2, 2, 1, 1]
    for public_code in (False, True):
        assert selecmix_partners(A, LABELS, "intra", public_code=public_code).tolist() == [1, 0, 3, 2]


# --- RegMixup ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("lam", [0.3, torch.rand(9, dtype=torch.float64)], ids=["one", "each"])
def test_regmixup_is_the_formula(lam):
    clean, mixed = logits(seed=1).requires_grad_(), logits(seed=2).requires_grad_()
    y, other = classes(seed=3), classes(seed=4)
    found = regmixup(clean, mixed, y, other, lam, eta=0.7)
    own, away = (cross_entropy(mixed, target, reduction="none") for target in (y, other))
    expected = cross_entropy(clean, y) + 0.7 * (lam * own + (1 - lam) * away).mean()
    torch.testing.assert_close(found, expected)
    assert torch.autograd.gradcheck(lambda a, b: regmixup(a, b, y, other, lam, eta=0.7), (clean, mixed))
    halves = regmixup(clean, mixed, y, other, lam, public_code=True)
    torch.testing.assert_close(2 * halves, regmixup(clean, mixed, y, other, lam))


def test_what_has_no_weight_has_no_say():
    """Infinite losses of a class that is masked out, where the share of it is 0."""
    masked = torch.tensor([[-torch.inf, 0.0, 1.0]], requires_grad=True)
    zero, one = torch.tensor([0]), torch.tensor([1])
    loss = regmixup(torch.zeros(1, 3), masked, zero, one, 0.0)
    loss.backward()
    assert loss.isfinite()
    assert masked.grad[0, 1:].isfinite().all()
    assert complementary_mixup(torch.tensor([[0.0, -torch.inf, -torch.inf]]), zero, one, 0.0) == 0


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.uint16, torch.int32])
def test_labels_of_any_integer_type(dtype):
    y = torch.tensor([0, 1, 1, 0])
    x = logits(4, 3)
    assert torch.equal(regmixup(x, x, y.to(dtype), y.to(dtype), 0.3), regmixup(x, x, y, y, 0.3))
    assert torch.equal(intra_cluster_partners(y.to(dtype), generator(0)), intra_cluster_partners(y, generator(0)))


@pytest.mark.parametrize("lam", [0.0, 1.0])
def test_regmixup_at_the_ends(lam):
    y, other = classes(seed=3), classes(seed=4)
    expected = cross_entropy(logits(seed=1), y) + cross_entropy(logits(seed=2), y if lam else other)
    torch.testing.assert_close(regmixup(logits(seed=1), logits(seed=2), y, other, lam), expected)


# --- RankMixup --------------------------------------------------------------------------------------------------------
def test_mrl_is_the_formula():
    clean, mixed, y, other = (
        logits(seed=1).requires_grad_(),
        logits(seed=2).requires_grad_(),
        classes(),
        classes(seed=5),
    )
    found = rankmixup_mrl(clean, mixed, y, other, margin=0.5, weight=0.3)
    terms = [
        max(0.0, (mixed[i].max() - clean[i].max()).item() + 0.5) if y[i] != other[i] else 0.0 for i in range(len(clean))
    ]
    assert found.item() == pytest.approx(cross_entropy(clean, y).item() + 0.3 * sum(terms) / 9)
    assert any(terms)
    assert not all(terms)
    assert torch.autograd.gradcheck(lambda a, b: rankmixup_mrl(a, b, y, other, margin=0.5), (clean, mixed))
    assert rankmixup_mrl(clean, mixed, y, y).item() == pytest.approx(cross_entropy(clean, y).item())


@pytest.mark.parametrize("copies", [0, 1, 4])
@pytest.mark.parametrize("each", [False, True])
def test_ndcg_is_the_formula(copies, each):
    clean, y = logits(seed=1).requires_grad_(), classes()
    mixed = [logits(seed=2 + j).requires_grad_() for j in range(copies)]
    lam = torch.rand((copies, 9) if each else (copies,), generator=generator(7), dtype=torch.float64)
    found = rankmixup_ndcg(clean, mixed, y, lam, weight=0.4)
    total = 0.0
    for i in range(9):
        own = [float(lam[j, i] if each else lam[j]) for j in range(copies)]
        order = sorted(range(copies), key=lambda j: -max(own[j], 1 - own[j]))
        p = [float(one[i].softmax(0).max()) for one in (clean, *(mixed[j] for j in order))]
        relevance = [1.0, *(max(own[j], 1 - own[j]) for j in order)]
        dcg, ideal = (sum(v / math.log2(r + 2) for r, v in enumerate(values)) for values in (p, relevance))
        total += 1 - min(dcg / ideal, ideal / dcg)
    assert found.item() == pytest.approx(cross_entropy(clean, y).item() + 0.4 * total / 9)
    assert torch.autograd.gradcheck(lambda *given: rankmixup_ndcg(given[0], given[1:], y, lam), (clean, *mixed))
    if copies:
        torch.testing.assert_close(rankmixup_ndcg(clean, torch.stack(mixed), y, lam, weight=0.4), found)


# --- SelMix -----------------------------------------------------------------------------------------------------------
def naive_gain(d, z, w, lam, label_term):
    k = len(z)
    gain = torch.zeros(k, k, dtype=torch.float64)
    for i, j in itertools.product(range(k), range(k)):
        v = lam * z[i] + (1 - lam) * z[j]
        p = (w @ v).softmax(0)
        target = v if label_term == "mixture" else z[i]
        for q, c in itertools.product(range(k), range(k)):
            gain[i, j] += d[q, c] * (-(v @ z[q]) * p[c] + (target @ z[q] if c == i else 0))
    return gain


@pytest.mark.parametrize("label_term", ["prototype", "mixture"])
def test_gain_is_the_formula(label_term):
    d, z, w = logits(4, 4, seed=1), logits(4, 6, seed=2), logits(4, 6, seed=3)
    found = selmix_gain(d, z, w, lam=0.7, label_term=label_term)
    torch.testing.assert_close(found, naive_gain(d, z, w, 0.7, label_term))


def confusion_of(free):
    """Classes of equal size, whose predictions are the softmax of free numbers."""
    return free.softmax(1) / len(free)


def test_metric_gradients_are_derivatives():
    free = logits(5, 5, seed=1).requires_grad_()
    c = confusion_of(free)
    weights, multipliers = torch.rand(5, dtype=torch.float64).softmax(0), torch.rand(5, dtype=torch.float64)
    recall = c.diagonal() / c.sum(1)
    for metric, found in (
        (recall.mean(), mean_recall_gradient(c)),
        ((weights * recall).sum(), worst_recall_gradient(c, weights)),
        ((multipliers * c.sum(0)).sum(), coverage_gradient(c, multipliers)),
    ):
        torch.testing.assert_close(found, torch.autograd.grad(metric, free, retain_graph=True)[0])
    moved = worst_recall_weights(c.detach(), weights, 3.0)
    torch.testing.assert_close(moved, weights * (-3 * recall).exp() / (weights * (-3 * recall).exp()).sum())
    covered = coverage_multipliers(c.detach(), least=1.0, largest=2.0, temperature=0.1)
    expected = (2 * (1 - ((c.sum(0) - 1 / 5) / 0.1).exp())).clamp(min=0)
    torch.testing.assert_close(covered, expected.detach())


def test_nothing_to_win_is_uniform():
    found = selmix_probabilities(torch.full((3, 3), -1.0))
    torch.testing.assert_close(found, torch.full((3, 3), 1 / 9, dtype=torch.float64))
    assert selmix_probabilities(torch.tensor([[1.0, -1.0], [0.5, 0.0]]))[0, 1] < 1e-9


def selmix_data():
    features = torch.randn(60, 5, generator=generator(1))
    labels = torch.arange(60) % 3
    return features + torch.eye(5)[labels], labels, torch.randn(3, 5, generator=generator(2))


@pytest.mark.parametrize("metric", ["mean_recall", "worst_recall"])
def test_selmix_refreshes_and_goes_on_from_its_state(metric):
    features, labels, classifier = selmix_data()
    one = SelMix(3, metric=metric, generator=generator(3))
    one.refresh(features, labels, classifier)
    predicted = (features @ classifier.T).argmax(1)
    counted = torch.zeros(3, 3, dtype=torch.float64)
    for label, guess in zip(labels.tolist(), predicted.tolist(), strict=True):
        counted[label, guess] += 1 / 60
    torch.testing.assert_close(one.confusion, counted, rtol=0, atol=1e-6)
    again = SelMix(3, metric=metric, generator=generator(3))
    again.load_state_dict(copy.deepcopy(one.state_dict()))
    for module in (one, again):
        module.refresh(features, labels, classifier)
    for name, buffer in one.state_dict().items():
        assert torch.equal(buffer, again.state_dict()[name]), name
    for a, b in zip(one.draw(labels, labels, 20), again.draw(labels, labels, 20), strict=True):
        assert torch.equal(a, b)


def test_selmix_draws_the_classes_it_chose():
    features, labels, classifier = selmix_data()
    module = SelMix(3, generator=generator(4))
    module.refresh(features, labels, classifier)
    pairs = module.draw(labels, labels.flip(0), 30_000)
    drawn = torch.zeros(3, 3, dtype=torch.float64).index_put_(
        (labels[pairs.first], labels.flip(0)[pairs.second]),
        torch.tensor(1 / 30_000, dtype=torch.float64),
        accumulate=True,
    )
    torch.testing.assert_close(drawn, module.probabilities, rtol=0, atol=0.015)
    assert set(pairs.first.tolist()) == set(range(60)) - {
        row for row in range(60) if module.probabilities.sum(1)[labels[row]] < 1e-6
    }
    assert pairs.lam.min() >= 0.6
    assert pairs.lam.max() < 1
    only = module.draw(torch.tensor([1]), labels, 50)  # a batch with one class
    assert (only.first == 0).all()
    mixed = module.mix(features, features.flip(0), pairs)
    part = pairs.lam.float().unsqueeze(1)
    torch.testing.assert_close(mixed, part * features[pairs.first] + (1 - part) * features.flip(0)[pairs.second])


def test_selmix_with_many_classes():
    """torch.multinomial ends at 2^24 pairs, 4,096 classes."""
    module = SelMix(5_000, generator=generator(0))
    labels = torch.tensor([7, 4_999, 4_999])
    pairs = module.draw(labels, labels, 100)
    assert set(pairs.first.tolist()) == {0, 1, 2}


def test_selmix_stops_when_gains_do():
    features, labels, classifier = selmix_data()
    module = SelMix(3, patience=3)
    for step in range(4):
        assert not module.finished
        module.refresh(features, labels, classifier)
        assert module.finished == (step == 3)
    module.refresh(features, labels, 3 * classifier)
    assert not module.finished


# --- SelecMix ---------------------------------------------------------------------------------------------------------
def naive_partner(s, labels, i, kind, public_code):
    if public_code:
        values = [
            float(s[i, j]) if ((labels[j] != labels[i]) if kind == "inter" else (labels[j] == labels[i] and j != i))
            else (0.0 if kind == "inter" else 1.0)
            for j in range(len(labels))
        ]  # fmt: skip
        return values.index(max(values) if kind == "inter" else min(values))
    sign = 1 if kind == "inter" else -1
    found = [
        (-sign * float(s[i, j]), j)
        for j in range(len(labels))
        if j != i and (labels[j] != labels[i]) == (kind == "inter") and not math.isnan(s[i, j])
    ]
    return min(found)[1] if found else -1


@pytest.mark.parametrize("public_code", [False, True])
@pytest.mark.parametrize("kind", ["intra", "inter"])
@pytest.mark.parametrize(("count", "names"), [(1, 1), (12, 1), (15, 4), (9, 30)])
def test_partners_are_the_definition(kind, public_code, count, names, monkeypatch):
    x, y = logits(count, 5, seed=count), classes(count, names, seed=names)
    s = normalize(x) @ normalize(x).T
    expected = [naive_partner(s, y.tolist(), i, kind, public_code) for i in range(count)]
    for entries in (1 << 18, 3):
        monkeypatch.setattr("pairloom._stream.CHUNK_ENTRIES", entries)
        assert selecmix_partners(x, y, kind, public_code=public_code).tolist() == expected


def test_partners_pass_nan_over():
    x = torch.tensor([[1.0, 0.0], [torch.nan, 0.0], [0.8, 0.6], [0.0, 1.0]])
    assert selecmix_partners(x, torch.tensor([0, 0, 0, 1]), "intra").tolist() == [2, -1, 0, -1]
    assert selecmix_partners(x, torch.tensor([0, 1, 0, 0]), "inter").tolist() == [-1, -1, -1, -1]


def naive_biased(x, y, q, t):
    s = normalize(x) @ normalize(x).T / t
    losses = []
    for i in range(len(x)):
        others = [j for j in range(len(x)) if j != i]
        positives = [j for j in others if y[j] == y[i]]
        if not positives:
            losses.append(0 * s[i, i])
            continue
        log_p = {j: s[i, j] - torch.logsumexp(s[i, others], 0) for j in positives}
        losses.append(-sum(q * (q * value.detach()).exp() * value for value in log_p.values()) / len(positives))
    return torch.stack(losses)


@pytest.mark.parametrize(("count", "names"), [(1, 1), (12, 1), (12, 4), (9, 30)])
def test_biased_contrastive_is_the_formula(count, names):
    x, y = logits(count, 5, seed=1).requires_grad_(), classes(count, names, seed=2)
    found = biased_contrastive(x, y, q=0.6, temperature=0.3, reduction="none")
    expected = naive_biased(x, y, 0.6, 0.3)
    torch.testing.assert_close(found, expected)
    ours, wanted = (torch.autograd.grad(value.square().sum() + value.sum(), x)[0] for value in (found, expected))
    torch.testing.assert_close(ours, wanted)


def test_biased_contrastive_holds_no_matrix():
    """12,000 x 12,000 similarities are 549 MiB."""
    x, y = torch.randn(12_000, 8, requires_grad=True), torch.arange(12_000) // 4
    biased_contrastive(x[:4_000], y[:4_000]).backward()
    before = peak_memory_mb()
    biased_contrastive(x, y).backward()
    assert peak_memory_mb() - before < 270


def test_selecmix_mixes_with_partners_that_contradict():
    items, y, x = torch.randn(40, 3, 2), classes(40, 3), torch.randn(40, 4)
    one, again = (SelecMix(generator=generator(5)) for _ in range(2))
    kinds = set()
    for _ in range(8):
        mixed, targets, partner = one(items, y, x)
        same = again(items, y, x)
        assert torch.equal(mixed, same.items)
        assert torch.equal(partner, same.partner)
        kind = next(kind for kind in ("intra", "inter") if torch.equal(partner, selecmix_partners(x, y, kind)))
        kinds.add(kind)
        assert torch.equal(targets, y[partner])
        own = (mixed - items[partner]).flatten(1).norm(dim=1) / (items - items[partner]).flatten(1).norm(dim=1)
        assert own.max() <= 0.5 + 1e-5  # the partner is the larger part
    assert kinds == {"intra", "inter"}


def test_selecmix_leaves_items_without_partner_alone():
    items, y = torch.randn(3, 2), torch.tensor([0, 1, 2])
    module = SelecMix(generator=generator(0))
    seen = set()
    for _ in range(8):
        mixed, targets, partner = module(items, y, torch.eye(3))
        if (partner == -1).all():
            assert torch.equal(mixed, items)
            assert torch.equal(targets, y)
            seen.add("intra")
        else:
            seen.add("inter")
    assert seen == {"intra", "inter"}


# --- Intra-Cluster Mixup ----------------------------------------------------------------------------------------------
def test_intra_cluster_partners():
    clusters = torch.randint(6, (50,), generator=generator(1)) - 3
    clusters[7] = 100
    seen = set()
    for seed in range(5):
        partner = intra_cluster_partners(clusters, generator(seed))
        assert torch.equal(partner, intra_cluster_partners(clusters, generator(seed)))
        assert partner[7] == -1
        has = partner >= 0
        assert (clusters[partner[has]] == clusters[has]).all()
        assert (partner[has] != has.nonzero().flatten()).all()
        assert sorted(partner[has].tolist()) == has.nonzero().flatten().tolist()  # each is the partner of one
        seen.add(tuple(partner.tolist()))
    assert len(seen) == 5
    assert intra_cluster_partners(torch.empty(0, dtype=torch.int64)).tolist() == []


def test_complementary_is_the_formula_and_keeps_its_digits():
    given, y, other = logits().requires_grad_(), classes(seed=1), classes(seed=2)
    lam = torch.rand(9, dtype=torch.float64)
    p = given.softmax(1)
    rows = torch.arange(9)
    expected = (-lam * (1 - p[rows, y]).log() - (1 - lam) * (1 - p[rows, other]).log()).mean()
    torch.testing.assert_close(complementary_mixup(given, y, other, lam), expected)
    assert torch.autograd.gradcheck(lambda x: complementary_mixup(x, y, other, lam), given)
    sure = torch.tensor([[100.0, 0.0]])
    assert complementary_mixup(sure, torch.tensor([0]), torch.tensor([0]), 0.5).item() == pytest.approx(100)


def test_intra_cluster_mixup_of_lonely_items_is_the_clean_loss():
    module = IntraClusterMixup(generator=generator(0))
    items, y = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    mixed, partner, lam = module.mix(items, torch.arange(4))
    assert torch.equal(mixed, items)
    expected = complementary_mixup(items, y, y, 1.0)
    torch.testing.assert_close(module(mixed, y, partner, lam), expected)
    paired = module.mix(items, torch.zeros(4, dtype=torch.int64))
    expected = complementary_mixup(items, y, y[paired.partner], paired.lam)
    torch.testing.assert_close(module(items, y, paired.partner, paired.lam), expected)


# --- all --------------------------------------------------------------------------------------------------------------
def test_batch_mixup():
    items = torch.randn(500, 2, 3)
    one, again = (BatchMixup(2.0, draw="item", generator=generator(1)) for _ in range(2))
    mixed, partner, lam = one(items)
    assert torch.equal(mixed, again(items).items)
    assert lam.shape == (500,)
    assert lam.mean() == pytest.approx(0.5, abs=0.05)
    assert lam.var() == pytest.approx(1 / 20, abs=0.02)  # of Beta(2, 2)
    part = lam.view(-1, 1, 1).float()
    torch.testing.assert_close(mixed, part * items + (1 - part) * items[partner])
    assert BatchMixup().shares(7).dim() == 0
    assert BatchMixup(0.1, draw="item", larger_first=True).shares(100).min() >= 0.5
    assert torch.equal(one(items, torch.full((500,), -1)).items, items)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_dtypes(dtype):
    clean, mixed = logits(seed=1, dtype=dtype), logits(seed=2, dtype=dtype)
    y, other = classes(seed=3), classes(seed=4)
    for call in (
        lambda a, b: regmixup(a, b, y, other, 0.3),
        lambda a, b: rankmixup_mrl(a, b, y, other),
        lambda a, b: rankmixup_ndcg(a, [b], y, [0.3]),
        lambda a, b: complementary_mixup(a, y, other, 0.3),
        lambda a, b: biased_contrastive(a, y),
    ):
        found = call(clean, mixed)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double(), call(clean.double(), mixed.double()), rtol=1e-5, atol=1e-5)


def test_nothing_is_zero():
    none, y = torch.empty(0, 3, requires_grad=True), torch.empty(0, dtype=torch.int64)
    for loss in (
        regmixup(none, none, y, y, 0.5),
        rankmixup_mrl(none, none, y, y),
        rankmixup_ndcg(none, [none], y, [0.5]),
        complementary_mixup(none, y, y, 0.5),
        biased_contrastive(none, y),
    ):
        assert loss == 0
        loss.backward()
    assert selecmix_partners(none, y, "intra").tolist() == []


@pytest.mark.parametrize(
    "module", [RegMixup(3.0, 0.5), SelMix(3), SelecMix(2.0), IntraClusterMixup(2.0), BatchMixup(0.3, draw="item")]
)
def test_modules_are_copied_and_pickled(module):
    for again in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert repr(again) == repr(module)
        for name, buffer in module.state_dict().items():
            assert torch.equal(buffer, again.state_dict()[name])


LOSSES = {
    "regmixup": lambda a, b, y: regmixup(a, b, y, y.flip(0), 0.3),
    "mrl": lambda a, b, y: rankmixup_mrl(a, b, y, y.flip(0)),
    "ndcg": lambda a, b, y: rankmixup_ndcg(a, (b, a + b), y, torch.tensor([0.4, 0.8])),
    "complementary": lambda a, b, y: complementary_mixup(a * b, y, y.flip(0), 0.3),
}


@pytest.mark.parametrize("name", LOSSES)
def test_exported(name):
    class Loss(torch.nn.Module):
        def forward(self, a, b, y):
            return LOSSES[name](a, b, y)

    batch = torch.export.Dim("batch")
    example = (logits(6, seed=1), logits(6, seed=2), classes(6))
    program = torch.export.export(Loss(), example, dynamic_shapes=({0: batch}, {0: batch}, {0: batch}))
    given = (logits(11, seed=3), logits(11, seed=4), classes(11, seed=5))
    torch.testing.assert_close(program.module()(*given), LOSSES[name](*given))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x, y: regmixup(x, x[:3], y, y, 0.5), ValueError, r"mixed_logits has shape \(3, 4\)"),
        (lambda x, y: regmixup(x, x, y + 1, y, 0.5), ValueError, "labels holds 4; clean_logits has 4 classes, 0 to 3"),
        (lambda x, y: regmixup(x, x, y, y - 5, 0.5), ValueError, "partner_labels holds -"),
        (lambda x, y: regmixup(x, x, y, y, 1.5), ValueError, "lam is 1.5"),
        (lambda x, y: regmixup(x, x, y, y, 0.5, eta=-1), ValueError, "eta is -1; it must be 0 or more"),
        (lambda x, y: rankmixup_mrl(x, x, y, y, weight=-1), ValueError, "weight is -1"),
        (lambda x, y: rankmixup_ndcg(x, [x, x[:2]], y, [0.5, 0.5]), ValueError, r"mixed_logits\[1\] has shape"),
        (
            lambda x, y: rankmixup_ndcg(x, [x], y, [0.5, 0.5]),
            ValueError,
            r"lam has shape \(2,\); allowed: \(1,\), \(1, 4\)",
        ),
        (lambda x, y: complementary_mixup(x[:, :1], y * 0, y * 0, 0.5), ValueError, "logits has one class"),
        (lambda x, y: intra_cluster_partners(x), TypeError, "clusters has dtype float32"),
        (lambda x, y: intra_cluster_partners([1]), TypeError, "clusters is a list"),
        (lambda x, y: intra_cluster_partners(y.unsqueeze(1)), ValueError, "clusters has shape"),
        (lambda x, y: selecmix_partners(x, y, "both"), ValueError, "kind is 'both'; allowed: intra, inter"),
        (lambda x, y: biased_contrastive(x, y, q=1.5), ValueError, "q is 1.5"),
        (lambda x, y: mean_recall_gradient(x[:2]), ValueError, r"confusion has shape \(2, 4\)"),
        (lambda x, y: mean_recall_gradient(torch.eye(2)), ValueError, "confusion has the sum 2"),
        (lambda x, y: mean_recall_gradient(y), TypeError, "confusion has dtype int64"),
        (
            lambda x, y: selmix_gain(x, x[:2], x[:2]),
            ValueError,
            r"metric_gradient has shape \(4, 4\); it must be \(2, 2\)",
        ),
        (lambda x, y: selmix_gain(x, x, x[:, :2]), ValueError, "classifier has 2 dimensions per row"),
        (lambda x, y: SelMix(1), ValueError, "classes is 1; it must be 2 or more"),
        (lambda x, y: SelMix(3, metric="f1"), ValueError, "metric is 'f1'"),
        (lambda x, y: SelMix(4).refresh(x, y * 0, x), ValueError, "labels holds no item of class 1"),
        (lambda x, y: SelMix(4).refresh(x, y + 9, x), ValueError, "labels holds 9 to 12; classes are 0 to 3"),
        (lambda x, y: SelMix(3).refresh(x, y, x), ValueError, "classifier has 4 rows; it must have 3"),
        (lambda x, y: SelMix(4).refresh(x * torch.nan, y, x), ValueError, "features holds numbers that are not finite"),
        (lambda x, y: coverage_gradient(torch.eye(4) / 4, x), ValueError, r"multipliers has shape \(4, 4\)"),
        (lambda x, y: SelMix(4).draw(y[:0], y, 3), ValueError, "labels is empty"),
        (lambda x, y: BatchMixup(draw="pair"), ValueError, "draw is 'pair'"),
        (lambda x, y: BatchMixup(0), ValueError, "alpha is 0"),
    ],
)
def test_errors(call, error, message):
    with pytest.raises(error, match=message):
        call(logits(4, 4, dtype=torch.float32), torch.arange(4))
