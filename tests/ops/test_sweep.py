"""The shorter way through the pairs (csrc/engine/pair_sweep.h) equals the dense formula where it is taken: batches of
many squares and of odd sizes, every reduction, weights with zeros, ignored rows, all levels; and it is left where it
does not fit."""

import pytest
import torch

from pairloom import reference
from pairloom._stats import pair_stats
from pairloom.functional import clip, nt_xent, sup_con
from pairloom.testing import assert_within, isa_levels, using_isa, using_threads

SIZES = [(1153, 5), (1537, 40)]  # from three squares of 384 rows on; last squares, strips and vectors partly filled
LIMITS = {torch.float64: 1e-11, torch.float32: 3e-5}


def labels_of(kind, n):
    generator = torch.Generator().manual_seed(n)
    labels = torch.arange(n) // 2 if kind == "pairs" else torch.randint(0, 90, (n,), generator=generator)
    labels = labels[torch.randperm(n, generator=generator)]
    return torch.where(torch.arange(n) % 5 == 0, -100, labels) if kind == "ignored" else labels


def assert_equal(function, exact, arguments, reduction, dtype):
    """Value and gradients of a loss; ``exact`` gets the same tensors in float64."""
    n = arguments[0].shape[0]
    upstream = torch.linspace(-1, 2, n, dtype=torch.float64) if reduction == "none" else torch.tensor(1.3).double()

    def run(loss, to):
        leaves = [x.detach().to(to).requires_grad_() for x in arguments]
        value = loss(*leaves)
        return [value.detach(), *torch.autograd.grad(value, leaves, upstream.to(value.dtype))]

    ours, wanted = run(function, dtype), run(exact, torch.float64)
    names = ["value", *(f"gradient {i}" for i in range(len(arguments)))]
    # The gradient of the temperature is a difference: relative to its terms, which are as large as the logits.
    scale = {
        name: max(w.abs().max().item(), 10.0 if w.dim() == 0 else 0.0) for name, w in zip(names, wanted, strict=True)
    }
    assert_within(
        dict(zip(names, ours, strict=True)),
        dict(zip(names, wanted, strict=True)),
        {name: LIMITS[dtype] * size for name, size in scale.items()},
    )


@pytest.mark.parametrize("level", isa_levels())
@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize(("reduction", "kind"), [("mean", "many"), ("none", "pairs"), ("mean_nonzero", "ignored")])
def test_one_batch_equals_the_dense_formula(level, dtype, reduction, kind):
    for n, dim in SIZES:
        torch.manual_seed(n)
        x, temperature = torch.randn(n, dim).double(), torch.tensor(0.1).double()
        weights = torch.rand(n).double() * (torch.arange(n) % 7 > 0)
        labels = labels_of(kind, n)
        for form in ("out", "in"):

            def ours(x, t, form=form, labels=labels, weights=weights):
                return sup_con(x, labels, temperature=t, form=form, reduction=reduction, weights=weights)

            def exact(x, t, form=form, labels=labels, weights=weights):
                return reference.sup_con(x, None, t, labels, None, weights, form, "cosine", reduction)[0]

            with using_isa(level):
                assert_equal(ours, exact, [x, temperature], reduction, dtype)


@pytest.mark.parametrize("level", isa_levels())
@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("reduction", ["mean", "mean_nonzero", "none"])
def test_two_batches_equal_the_dense_formula(level, dtype, reduction):
    for n, dim in [(3, 4), (300, 33), (701, 20)]:
        torch.manual_seed(n)
        image, text, temperature = (
            torch.randn(n, dim).double(),
            torch.randn(n, dim).double(),
            torch.tensor(0.2).double(),
        )
        weights = torch.rand(n).double() * (torch.arange(n) % 7 > 0)
        ids = labels_of("ignored", n)

        def ours(a, b, t, ids=ids, weights=weights):
            return clip(a, b, temperature=t, ids=ids, weights=weights, reduction=reduction)

        def exact(a, b, t, ids=ids, weights=weights):
            return reference.clip(a, b, t, ids, weights, reduction=reduction)[0]

        with using_isa(level):
            assert_equal(ours, exact, [image, text, temperature], reduction, dtype)


@pytest.mark.parametrize("level", isa_levels())
@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("loss", ["sup_con", "nt_xent", "clip"])
def test_statistics_come_from_the_same_pass(loss, dtype, level):
    """They equal those of the reference, and neither value nor gradient has another bit for them."""
    n = 1300
    torch.manual_seed(5)
    x, y = (torch.randn(n, 7, dtype=dtype, requires_grad=True) for _ in range(2))
    labels = labels_of("pairs" if loss == "nt_xent" else "ignored", n)
    loss_of = {
        "sup_con": lambda **also: sup_con(x, labels, temperature=0.1, **also),
        "nt_xent": lambda **also: nt_xent(x, labels, temperature=0.1, **also),
        "clip": lambda **also: clip(x, y, ids=labels, temperature=0.1, **also),
    }[loss]
    with using_isa(level):
        plain, (value, stats) = loss_of(), loss_of(return_stats=True)
    wide, temperature = (x.detach().double(), y.detach().double()), torch.tensor(0.1).double()
    if loss == "clip":
        wanted = reference.clip(*wide, temperature, labels, None, want_stats=True)[1]
    else:
        wanted = reference.sup_con(wide[0], None, temperature, labels, None, None, want_stats=True)[1]
    all_but_tiles = (torch.stack(list(found)[:11]) for found in (stats, pair_stats(wanted)))
    torch.testing.assert_close(*all_but_tiles, rtol=1e-5, atol=1e-6)
    assert torch.equal(plain, value)
    assert torch.equal(*(torch.autograd.grad(result, x)[0] for result in (plain, value)))


@pytest.mark.parametrize("temperature", [0.03, 0.024, 1e-3])
def test_on_both_sides_of_the_largest_logit(temperature):
    """Logits up to 33 are summed as they are, of 42 and 1000 with shifts."""
    torch.manual_seed(1)
    x = torch.randn(1200, 6).double()
    x[1::2] = x[::2] + 0.1 * torch.randn(600, 6)

    def ours(x):
        return sup_con(x, torch.arange(1200) // 2, temperature=temperature, reduction="mean_all")

    def exact(x):
        return reference.sup_con(x, None, temperature, torch.arange(1200) // 2)[0]

    for dtype in LIMITS:
        assert_equal(ours, exact, [x.to(dtype)], "mean", dtype)


def test_large_dot_products_and_bad_numbers_take_the_chunk_loop():
    torch.manual_seed(2)
    x, labels = 30 * torch.randn(1200, 8), torch.arange(1200) // 3
    wanted = reference.sup_con(x.double(), None, 1.0, labels, similarity="dot")[0]
    assert sup_con(x, labels, temperature=1.0, similarity="dot", reduction="mean_all").item() == pytest.approx(
        wanted.item(), rel=1e-5
    )
    for bad in (torch.nan, torch.inf):
        y = torch.randn(1200, 8)
        y[7, 3] = bad
        assert sup_con(y, labels).isnan()
        assert clip(y, torch.randn(1200, 8)).isnan()


def test_bits_do_not_depend_on_the_number_of_threads():
    torch.manual_seed(3)
    x = torch.randn(2000, 17, requires_grad=True)
    image, text = torch.randn(900, 17, requires_grad=True), torch.randn(900, 17, requires_grad=True)
    temperature = torch.tensor(0.1, requires_grad=True)

    def run():
        loss = sup_con(x, torch.arange(2000) // 3, temperature=temperature)
        both = clip(image, text, temperature=temperature)
        return [loss, both, *torch.autograd.grad(loss + both, [x, image, text, temperature])]

    for level in isa_levels():
        with using_isa(level):
            first = run()
            for threads in (1, 3, 7):
                with using_threads(threads):
                    assert all(torch.equal(a, b) for a, b in zip(first, run(), strict=True)), (level, threads)


def test_forward_alone_and_frozen_sides():
    torch.manual_seed(4)
    image, text = torch.randn(500, 12), torch.randn(500, 12)
    value = clip(image, text)
    for wanted in ((image,), (text,), (image, text)):
        leaves = [x.clone().requires_grad_() if any(x is w for w in wanted) else x for x in (image, text)]
        loss = clip(*leaves)
        assert loss.item() == value.item()
        loss.backward()
        exact = [x.detach().double().requires_grad_() for x in (image, text)]
        reference.clip(*exact, 0.07)[0].backward()
        for x, e in zip(leaves, exact, strict=True):
            if x.requires_grad:
                torch.testing.assert_close(x.grad.double(), e.grad, rtol=1e-4, atol=1e-8)
