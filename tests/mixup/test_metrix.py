"""Metrix without mixtures equals Metrix with them: values, gradients, golden numbers, and what happens at the edges."""

import copy
import itertools
import pickle

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

import pairloom
from pairloom.mixup import (
    MetrixLoss,
    binomial_deviance_form,
    contrastive_form,
    lifted_form,
    metrix,
    metrix_of_mixtures,
    metrix_public_code,
    multi_similarity_form,
    proxy_anchor_form,
    proxy_nca_form,
)
from pairloom.testing import isa_levels, using_isa, using_threads
from tests.ops.golden import A, relative_error

FORMS = {
    "contrastive": contrastive_form(0.2),
    "lifted": lifted_form(0.5),
    "binomial_deviance": binomial_deviance_form(2.0, 8.0, 0.3),
    "multi_similarity": multi_similarity_form(),
    "proxy_anchor": proxy_anchor_form(),
    "proxy_nca": proxy_nca_form(3.0),
}
PAIRS = ("positive_negative", "anchor_negative", "both")


def explicit(anchors, anchor_labels, columns, column_labels, form, lam, pairs):
    """Every mixture is formed; ``lam(a, p, n)`` is the share of the positive, or of the anchor itself (p = -1)."""
    own = columns is None
    columns, column_labels = (anchors, anchor_labels) if own else (columns, column_labels)
    unit, others = normalize(anchors), normalize(columns)
    losses = []
    for a, label in enumerate(anchor_labels.tolist()):
        positive, negative = [], []
        firsts = []
        if pairs != "anchor_negative":
            firsts += [p for p in range(len(columns)) if column_labels[p] == label and not (own and p == a)]
        if pairs != "positive_negative":
            firsts.append(-1)
        for p, n in itertools.product(firsts, [n for n in range(len(columns)) if column_labels[n] != label]):
            share = lam(a, p, n)
            v = normalize(share * (unit[a] if p < 0 else others[p]) + (1 - share) * others[n], dim=0)
            s = unit[a] @ v
            positive.append((share, s))
            negative.append((1 - share, s))
        losses.append(
            form.combine(*(total(t, half) for t, half in ((form.positive, positive), (form.negative, negative))))
        )
    return torch.stack(losses)


def total(term, mixtures):
    mixtures = [(weight, s) for weight, s in mixtures if weight > 0 or term.term != "exponential"]
    if not mixtures:
        return torch.tensor(-torch.inf if term.term == "exponential" else 0.0, dtype=torch.float64)
    weights = torch.tensor([float(weight) for weight, _ in mixtures], dtype=torch.float64)
    t = term.scale * (torch.stack([s for _, s in mixtures]) - term.offset)
    if term.term == "exponential":
        return torch.logsumexp(t + weights.log(), 0)
    value = {"linear": t, "hinge": t.clamp(min=0), "softplus": torch.nn.functional.softplus(t)}[term.term]
    return (weights * value).sum()


def rows(count, dim=6, seed=0, dtype=torch.float64):
    return torch.randn(count, dim, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def labels(count, classes, seed=0):
    return torch.randint(0, classes, (count,), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("pairs", PAIRS)
@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("shares", ["batch", "anchor", "pair"])
def test_equals_the_explicit_construction(name, pairs, columns, shares):
    form = FORMS[name]
    x, y = rows(11, seed=1).requires_grad_(), labels(11, 4, seed=2)
    c, k = (rows(8, seed=3).requires_grad_(), labels(8, 4, seed=4)) if columns else (None, None)
    m = 8 if columns else 11
    if shares == "batch":
        given = 0.3
        lam = lambda a, p, n: 0.3  # noqa: E731
    elif shares == "anchor":
        given = torch.rand(11, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
        lam = lambda a, p, n: given[a]  # noqa: E731
    else:
        if pairs == "both":
            with pytest.raises(ValueError, match="lam has shape"):
                metrix(x, y, form, lam=torch.rand(m, m), columns=c, column_labels=k, pairs=pairs)
            return
        first = 11 if pairs == "anchor_negative" else m
        given = torch.rand(first, m, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
        lam = lambda a, p, n: given[a if p < 0 else p, n]  # noqa: E731
    found = metrix(x, y, form, lam=given, columns=c, column_labels=k, pairs=pairs)
    expected = explicit(x, y, c, k, form, lam, pairs)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    inputs = [t for t in (x, c) if t is not None]
    weights = rows(11, 1, seed=6).flatten()
    for ours, wanted in zip(
        torch.autograd.grad((found * weights).sum(), inputs),
        torch.autograd.grad((expected * weights).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(ours, wanted, rtol=1e-8, atol=1e-9)


def test_golden_values():
    """One anchor with one mixture: N(0.7 A[1] + 0.3 A[2])."""
    zero, two = torch.tensor([0]), torch.tensor([0, 1])
    ms = metrix(A[:1], zero, multi_similarity_form(), lam=0.7, columns=A[1:3], column_labels=two)
    assert ms.item() == pytest.approx(0.311554, abs=5e-7)
    proxy = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    pa = metrix(proxy, zero, proxy_anchor_form(), lam=0.7, columns=A[1:3], column_labels=two)
    assert pa.item() == pytest.approx(16.038771, abs=5e-7)
    mixed = normalize(0.7 * A[1] + 0.3 * A[2], dim=0).unsqueeze(0)
    np.testing.assert_allclose(mixed[0], [0.438835, 0.898568], atol=5e-7)
    assert metrix_public_code(A[:1], mixed, lam=0.7).item() == pytest.approx(0.741580, abs=5e-7)
    of_mixture = metrix_of_mixtures(A[:1], zero, mixed, zero, torch.tensor([1]), multi_similarity_form(), lam=0.7)
    assert of_mixture.item() == pytest.approx(0.311554, abs=5e-7)


@pytest.mark.parametrize("name", FORMS)
def test_second_derivatives(name):
    x, y = rows(6, 3, seed=1).requires_grad_(), torch.tensor([0, 0, 1, 1, 2, 0])
    c, k = rows(5, 3, seed=2).requires_grad_(), torch.tensor([0, 1, 2, 1, 0])
    both = {"columns": c, "column_labels": k, "pairs": "both"}
    assert torch.autograd.gradcheck(lambda x, c: metrix(x, y, FORMS[name], lam=0.4, **{**both, "columns": c}), (x, c))
    assert torch.autograd.gradgradcheck(lambda x: metrix(x, y, FORMS[name], lam=0.4), (x,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", FORMS)
def test_other_dtypes(name, dtype):
    """Inputs are rounded, sums are float32: the loss is that of the rounded rows."""
    x, y = rows(40, 16, seed=1).to(dtype), labels(40, 6)
    exact, given = x.double().requires_grad_(), x.clone().requires_grad_()
    lam = torch.rand(40, 40, generator=torch.Generator().manual_seed(3))  # one for all makes ProxyNCA constant
    expected = metrix(exact, y, FORMS[name], lam=lam)
    found = metrix(given, y, FORMS[name], lam=lam)
    assert found.dtype == torch.float32
    assert relative_error(found.detach(), expected.detach()) < 2e-5
    expected.sum().backward()
    found.sum().backward()
    assert given.grad.dtype == dtype
    assert relative_error(given.grad, exact.grad) < {torch.float32: 1e-4}.get(dtype, 2e-2)


@pytest.mark.parametrize("level", isa_levels())
def test_levels_and_threads(level):
    """Every level is right, and the number of threads changes no bit."""
    x, y = rows(130, 20, seed=1, dtype=torch.float32), labels(130, 9, seed=2)
    expected = metrix(x.double(), y, FORMS["multi_similarity"], lam=0.6, pairs="both")
    found = []
    with using_isa(level):
        for threads in (1, 2, 7, 2):
            given = x.clone().requires_grad_()
            with using_threads(threads):
                losses = metrix(given, y, FORMS["multi_similarity"], lam=0.6, pairs="both")
                losses.sum().backward()
            found.append((losses.detach(), given.grad))
    assert relative_error(found[0][0], expected) < 1e-5
    for other in found[1:]:
        assert torch.equal(other[0], found[0][0])
        assert torch.equal(other[1], found[0][1])


def test_chunks_of_classes(monkeypatch):
    """Where chunks end changes nothing but roundings of the gradient's sums; a large class is a chunk of its own."""
    from pairloom.mixup import _mixtures

    x, y = rows(60, 7, seed=1), torch.cat([torch.zeros(25, dtype=torch.int64), labels(35, 8, seed=2)])
    c, k = rows(30, 7, seed=3), labels(30, 10, seed=4)
    results = []
    for entries in (1, 300, 1 << 20):
        monkeypatch.setattr(_mixtures, "CHUNK_ENTRIES", entries)
        given, others = x.clone().requires_grad_(), c.clone().requires_grad_()
        losses = metrix(given, y, FORMS["multi_similarity"], lam=0.6)
        losses = losses + metrix(given, y, FORMS["contrastive"], lam=0.6, columns=others, column_labels=k)
        losses.sum().backward()
        results.append((losses.detach(), given.grad, others.grad))
    for other in results[1:]:
        for ours, wanted in zip(other, results[0], strict=True):
            torch.testing.assert_close(ours, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("lam", [0.0, 1.0])
@pytest.mark.parametrize("pairs", ["positive_negative", "anchor_negative"])
def test_ends_of_lam_are_the_clean_terms(lam, pairs):
    """lam = 1: every positive (or the anchor), once for each negative; lam = 0: every negative, for each positive."""
    x, y = rows(9, 5, seed=1), torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 2])
    unit = normalize(x)
    s = unit @ unit.T
    same = y.unsqueeze(1) == y
    positive = same & ~torch.eye(9, dtype=torch.bool)
    negative = ~same
    form = FORMS["binomial_deviance"]
    found = metrix(x, y, form, lam=lam, pairs=pairs)
    softplus = torch.nn.functional.softplus
    firsts = positive if pairs == "positive_negative" else torch.eye(9, dtype=torch.bool)
    if lam == 1.0:
        t = softplus(form.positive.scale * (s - form.positive.offset))
        expected = (t * firsts).sum(1) * negative.sum(1)
    else:
        t = softplus(form.negative.scale * (s - form.negative.offset))
        expected = (t * negative).sum(1) * firsts.sum(1)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize(
    "y",
    [[0, 0, 0, 0], [0, 1, 2, 3], [0, 0, 1, 2], [], [5]],
    ids=["one class", "no positives", "some", "none", "single"],
)
def test_nothing_to_mix_is_zero(name, y):
    y = torch.tensor(y, dtype=torch.int64)
    x = rows(len(y), 3).requires_grad_()
    found = metrix(x, y, FORMS[name], lam=0.5)
    has = torch.tensor([bool((y == label).sum() > 1 and (y != label).any()) for label in y], dtype=torch.bool)
    assert found.isfinite().all()
    assert (found[~has] == 0).all()
    assert len(found) == len(y)
    found.sum().backward()
    assert x.grad.isfinite().all()


def test_parents_that_cancel_and_duplicates():
    """Antipodal parents have no mixture at lam = 1/2: similarity 0, gradient 0; equal ones are a parent again."""
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, -1.0], [0.0, 1.0]], dtype=torch.float64)
    y = torch.tensor([0, 0, 1, 2])
    for dtype in (torch.float32, torch.float64):
        given = x.to(dtype).requires_grad_()
        form = contrastive_form(-1.0)  # every term counts: -s and s + 1
        losses = metrix(given[:1], y[:1], form, lam=0.5, columns=given[1:3], column_labels=y[1:3])
        assert losses.item() == 0.5  # s = 0
        losses.sum().backward()
        assert (given.grad == 0).all()
        equal = metrix(given[:1], y[:1], form, lam=0.3, columns=given[[1, 3]], column_labels=y[[1, 3]])
        torch.testing.assert_close(equal, torch.full((1,), 0.7, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_parents_that_nearly_cancel(dtype):
    """The error is that of a similarity, divided by the squared length of the mixture; never a value beyond that."""
    generator = torch.Generator().manual_seed(0)
    for gap in (1e-1, 1e-2, 1e-3):
        x = rows(3, 16, seed=2)
        x[2] = -x[1] + gap * torch.randn(16, generator=generator, dtype=torch.float64)
        x = x.to(dtype)
        y = torch.tensor([0, 0, 1])
        length = (0.5 * (normalize(x[1], dim=0) + normalize(x[2], dim=0))).norm().item()
        form = contrastive_form(-1.0)
        found = metrix(x[:1], y[:1], form, lam=0.5, columns=x[1:], column_labels=y[1:]).double()
        wide = x.double()
        exact = explicit(wide[:1], y[:1], wide[1:], y[1:], form, lambda a, p, n: 0.5, "positive_negative")
        assert (found - exact).abs().item() <= 4 * torch.finfo(dtype).eps / length**2
        assert found.isfinite().all()


@pytest.mark.parametrize("pairs", ["positive_negative", "anchor_negative"])
def test_shares_by_pair_without_any_positive(pairs):
    """No column has the class of an anchor, so no row of the shares is the anchor's."""
    x, columns = rows(5, seed=1), rows(4, seed=2)
    y, column_labels = torch.arange(5) + 10, torch.tensor([0, 0, 1, 1])
    first = 5 if pairs == "anchor_negative" else 4
    lam = torch.rand(first, 4, dtype=torch.float64)
    given = {"lam": lam, "columns": columns, "column_labels": column_labels, "pairs": pairs}
    for form in FORMS.values():
        found = metrix(x.requires_grad_(), y, form, **given)
        found.sum().backward()
        expected = explicit(x, y, columns, column_labels, form, lambda a, p, n: lam[a if p < 0 else p, n], pairs)
        torch.testing.assert_close(found, expected)
        assert x.grad.isfinite().all()


def test_autocast_leaves_it_alone():
    """Eager and compiled: sums stay in float32, as in the operators."""
    x, y = rows(8, 6, dtype=torch.float32).requires_grad_(), torch.arange(8) // 2

    def loss(x):
        return metrix(x, y, FORMS["multi_similarity"], lam=0.4).mean()

    expected = loss(x)
    torch._dynamo.reset()
    with torch.autocast("cpu", torch.bfloat16):
        both = loss(x), torch.compile(loss, fullgraph=True, backend="eager")(x)
    (wanted,) = torch.autograd.grad(expected, x)
    for found in both:
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(torch.autograd.grad(found, x)[0], wanted)
    torch._dynamo.reset()


def test_zero_rows_and_nan():
    x, y = rows(8, 4, seed=1), torch.arange(8) // 2
    x[0] = 0
    found = metrix(x, y, FORMS["multi_similarity"], lam=0.4, pairs="both")
    assert found.isfinite().all()
    given = x.clone().requires_grad_()
    metrix(given, y, FORMS["multi_similarity"], lam=0.4, pairs="both").sum().backward()
    assert given.grad.isfinite().all()
    assert (given.grad[0] == 0).all()
    x[3] = torch.nan
    assert metrix(x, y, FORMS["multi_similarity"], lam=0.4).isnan().all()  # everybody meets it


def test_steep_terms_stay_finite():
    x, y = rows(30, 8, seed=1, dtype=torch.float32).requires_grad_(), labels(30, 4)
    for scale in (1e-3, 1e3, 1e5):
        loss = metrix(x, y, multi_similarity_form(scale, scale, 0.5), lam=0.5)
        (gradient,) = torch.autograd.grad(loss.sum(), x)
        assert loss.isfinite().all()
        assert gradient.isfinite().all()


LOSSES = {
    "multi_similarity": lambda: pairloom.MultiSimilarityLoss(18.0, 75.0, 0.77, epsilon=0.1),
    "contrastive": lambda: pairloom.ContrastiveLoss(1.0, 0.4, similarity="cosine"),
    "lifted": lambda: pairloom.GeneralizedLiftedStructureLoss(similarity="cosine"),
    "binomial": lambda: pairloom.BinomialDevianceLoss(),
    "proxy_anchor": lambda: pairloom.ProxyAnchorLoss(5, 6),
    "proxy_nca": lambda: pairloom.ProxyNCALoss(5, 6, softmax_scale=3.0),
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("pairs", PAIRS)
def test_module(name, pairs):
    """Clean loss, plus the weighted mean over anchors; ignored rows are not there."""
    torch.manual_seed(0)
    loss = LOSSES[name]().double()
    module = MetrixLoss(loss, pairs=pairs, weight=0.7, lam=0.3)
    x, y = rows(14, seed=1).requires_grad_(), torch.tensor([0, 1, 2, 3, 0, 1, 2, 3, 0, 1, -100, 3, -100, 0])
    total_loss = module(x, y)
    kept = y != -100
    arguments = {"proxy_anchor": "proxies first", "proxy_nca": "proxies second"}.get(name)
    if arguments is None:
        mixed = explicit(x[kept], y[kept], None, None, module.form, lambda a, p, n: 0.3, pairs)
    elif name == "proxy_anchor":
        classes = torch.arange(4)  # class 4 is not in the batch
        mixed = explicit(loss.proxies[:4], classes, x[kept], y[kept], module.form, lambda a, p, n: 0.3, pairs)
    else:
        mixed = explicit(x[kept], y[kept], loss.proxies, torch.arange(5), module.form, lambda a, p, n: 0.3, pairs)
    torch.testing.assert_close(total_loss, loss(x, y) + 0.7 * mixed.mean())
    total_loss.backward()
    assert (x.grad[~kept] == 0).all()


def test_draws_repeat_and_follow_the_generator():
    x, y = rows(12, seed=1), torch.arange(12) // 3

    def module(**settings):
        return MetrixLoss(pairloom.MultiSimilarityLoss(), generator=torch.Generator().manual_seed(7), **settings)

    for draw in ("batch", "anchor", "pair"):
        first, again = module(draw=draw), module(draw=draw)
        values = [first.mixed(x, y).item() for _ in range(3)]
        assert values == [again.mixed(x, y).item() for _ in range(3)]
        assert len(set(values)) == 3
    fixed = MetrixLoss(pairloom.MultiSimilarityLoss(), lam=torch.linspace(0, 1, 12))
    assert fixed.mixed(x, y) == fixed.mixed(x, y)


def test_all_ignored_is_zero_with_a_graph():
    x = rows(4).requires_grad_()
    loss = MetrixLoss(pairloom.MultiSimilarityLoss())(x, torch.full((4,), -100))
    loss.backward()
    assert loss == 0
    assert (x.grad == 0).all()


def test_mixtures_that_exist():
    """Mixed images: an anchor looks at the mixtures with exactly one parent of its class, with that parent's share."""
    x, y = rows(5, seed=1).requires_grad_(), torch.tensor([0, 1, 2, 0, 1])
    mixed = rows(7, seed=2).requires_grad_()
    first, second = torch.tensor([0, 0, 1, 1, 2, 0, 2]), torch.tensor([1, 2, 2, 0, 0, 0, 1])
    lam = torch.linspace(0.1, 0.9, 7, dtype=torch.float64)
    for form in FORMS.values():
        found = metrix_of_mixtures(x, y, mixed, first, second, form, lam=lam)
        s = normalize(x) @ normalize(mixed).T
        expected = []
        for a, label in enumerate(y):
            seen = [v for v in range(7) if (first[v] == label) != (second[v] == label)]
            shares = [lam[v] if first[v] == label else 1 - lam[v] for v in seen]
            pairs = [(share, s[a, v]) for share, v in zip(shares, seen, strict=True)]
            rest = [(1 - share, s[a, v]) for share, v in zip(shares, seen, strict=True)]
            expected.append(form.combine(total(form.positive, pairs), total(form.negative, rest)))
        torch.testing.assert_close(found, torch.stack(expected))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"lam": 1.5}, ValueError, r"lam is 1.5; it is the share"),
        ({"lam": torch.full((6,), 1.5)}, ValueError, "lam holds 1.5; it is the share"),
        ({"lam": torch.rand(3)}, ValueError, r"lam has shape \(3,\); allowed: \(\), \(6,\), \(6, 6\)"),
        ({"lam": torch.tensor(0.5j)}, TypeError, "lam has dtype complex64"),
        ({"lam": torch.tensor(True)}, TypeError, "lam has dtype bool"),
        ({"lam": float("nan")}, ValueError, "lam is nan"),
        ({"form": None}, TypeError, "form is None; it must be a GeneralForm"),
        ({"form": pairloom.MultiSimilarityLoss()}, TypeError, "form is MultiSimilarityLoss"),
        ({"pairs": "all"}, ValueError, "pairs is 'all'; allowed: positive_negative"),
        ({"columns": torch.ones(4, 3)}, ValueError, "columns is given without column_labels"),
        ({"columns": torch.ones(4, 4), "column_labels": torch.ones(4).long()}, ValueError, "columns has 4 dimensions"),
        ({"anchor_labels": torch.ones(6)}, TypeError, "anchor_labels has dtype float32"),
        ({"anchors": torch.ones(6, dtype=torch.int64)}, TypeError, "anchors has dtype int64"),
    ],
)
def test_errors(arguments, error, message):
    given = {"anchors": torch.ones(6, 3), "anchor_labels": torch.arange(6), "lam": 0.5, "form": multi_similarity_form()}
    given |= arguments
    with pytest.raises(error, match=message):
        metrix(given.pop("anchors"), given.pop("anchor_labels"), given.pop("form"), **given)


@pytest.mark.parametrize("make", [multi_similarity_form], ids=["multi_similarity"])
@pytest.mark.parametrize("name", ["alpha", "beta"])
def test_settings_that_are_divided_by(make, name):
    with pytest.raises(ValueError, match=f"{name} is 0; it must be finite and above 0"):
        make(**{name: 0})


@pytest.mark.parametrize("name", LOSSES)
def test_module_survives_pickle_and_deepcopy(name):
    module = MetrixLoss(LOSSES[name](), lam=0.3)
    x, y = rows(8, 6, dtype=torch.float32), torch.arange(8) // 2
    for again in (pickle.loads(pickle.dumps(module)), copy.deepcopy(module)):
        assert again(x, y) == module(x, y)


@pytest.mark.parametrize(
    ("loss", "settings", "error", "message"),
    [
        (pairloom.TripletMarginLoss(), {}, TypeError, "loss is a TripletMarginLoss, which has no general form"),
        (pairloom.ContrastiveLoss(), {}, ValueError, "loss has similarity 'euclidean'"),
        (pairloom.MultiSimilarityLoss(), {"alpha": 0}, ValueError, "alpha is 0"),
        (pairloom.MultiSimilarityLoss(), {"lam": 7.0}, ValueError, "lam is 7.0; it is the share"),
        (pairloom.MultiSimilarityLoss(), {"lam": "a"}, TypeError, "lam is 'a'; it must be a number"),
        (pairloom.MultiSimilarityLoss(), {"weight": -1}, ValueError, "weight is -1; it must be 0 or more"),
        (
            pairloom.MultiSimilarityLoss(),
            {"draw": "pair", "pairs": "both"},
            ValueError,
            "draw is 'pair' with pairs='both'",
        ),
    ],
)
def test_module_errors(loss, settings, error, message):
    with pytest.raises(error, match=message):
        MetrixLoss(loss, **settings)


def test_public_code_with_odd_rows():
    """Rows of any length, rows without one, and NaN, which is not passed over."""
    x = torch.tensor([[3e30, 4e30], [3e-30, 4e-30], [0.0, 0.0]], requires_grad=True)
    unit = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    huge = metrix_public_code(x[:1], unit[:1], lam=0.7)
    torch.testing.assert_close(huge, metrix_public_code(torch.tensor([[0.6, 0.8]]), unit[:1], lam=0.7))
    loss = metrix_public_code(x, unit, lam=0.7)
    loss.backward()
    assert loss.isfinite()
    assert (x.grad[1:] == 0).all()  # shorter than 1e-12: without direction
    assert metrix_public_code(torch.full((2, 2), torch.nan), unit[:2], lam=0.7).isnan()


@pytest.mark.parametrize(("alpha", "beta"), [(1e-4, 1e-4), (0.5, 0.5), (2.0, 2.0), (2.0, 8.0), (20.0, 20.0)])
def test_draws_have_the_moments_of_their_distribution(alpha, beta):
    """Also where both Gamma draws are too small for float64: nearly all shares are then 0 or 1."""
    from pairloom.mixup._draws import beta as draw

    shares = draw(alpha, beta, (40_000,), torch.Generator().manual_seed(0))
    mean, variance = alpha / (alpha + beta), alpha * beta / ((alpha + beta) ** 2 * (alpha + beta + 1))
    assert shares.isfinite().all()
    assert shares.mean().item() == pytest.approx(mean, abs=5 * (variance / 40_000) ** 0.5)
    assert shares.var().item() == pytest.approx(variance, rel=0.05)
