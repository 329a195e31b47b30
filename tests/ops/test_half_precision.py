"""float16 and bfloat16 embeddings at every level: computed in float32 or better, from the smallest to the largest
numbers of the dtype. The value is right to float32 rounding, a gradient is the exact one rounded to the dtype."""

import pytest
import torch

from pairloom.functional import clip, info_nce, multi_similarity, sup_con
from pairloom.testing import isa_levels, using_isa

DTYPES = [torch.bfloat16, torch.float16]


def with_negatives(a, b, **options):
    return info_nce(a, b[: len(a)], b[len(a) :], **options)


def two_ways(a, b, **options):
    return clip(a, b[: len(a)], **options)


def one_batch(a, b, **options):
    return sup_con(torch.cat([a, b]), torch.arange(len(a) + len(b)) // 3, **options)


def mined(a, b, temperature, **options):
    return multi_similarity(torch.cat([a, b]), torch.arange(len(a) + len(b)) // 3, epsilon=0.1, **options)


def small_steps(n, largest):
    """Lengths from 1 / largest to largest, in no order."""
    exponents = torch.linspace(-1, 1, n)[torch.randperm(n)]
    return (largest**exponents).unsqueeze(1)


ROWS = {
    "normal": lambda x, limits: x,
    "near the largest": lambda x, limits: x.clamp(-1, 1) * limits.max,
    "near the smallest normal": lambda x, limits: x * limits.tiny * 4,
    "subnormal": lambda x, limits: x * limits.tiny / 4,
    "lengths from 1e-4 to 1e4": lambda x, limits: x * small_steps(len(x), 1e4),
    "components of all sizes": lambda x, limits: (x * torch.randn_like(x).mul(3).exp()).clamp(-6e4, 6e4),
    "zeros": lambda x, limits: x * (torch.arange(len(x)) % 3 > 0).unsqueeze(1) * -1.0,
}


def rows(kind, n, dim, seed, dtype):
    torch.manual_seed(seed)
    return ROWS[kind](torch.randn(n, dim), torch.finfo(dtype)).to(dtype)


def value_and_gradients(level, loss, *tensors, **options):
    leaves = [tensor.detach().clone().requires_grad_() for tensor in tensors]
    with using_isa(level):
        value = loss(*leaves, **options)
        return [value.detach(), *torch.autograd.grad(value, leaves)]


def assert_rounded(found, exact, note=""):
    """Gradients: each component its own rounding, and float32 sums over the row."""
    for ours, wanted in zip(found, exact, strict=True):
        limits = torch.finfo(ours.dtype)
        bound = (
            wanted.abs() * (limits.eps / 2) + wanted.abs().amax(dim=-1, keepdim=True) * 3e-5 + limits.tiny * limits.eps
        )
        bound = torch.where(wanted.abs() > limits.max * (1 - limits.eps), torch.inf, bound)  # may round to infinity
        assert bool(((ours.double() - wanted).abs().nan_to_num(torch.inf) <= bound).all()), note


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("loss", [with_negatives, two_ways, one_batch, mined])
def test_cosine_at_every_length(loss, kind, dtype):
    for n, m, dim, temperature in [(5, 9, 3, 0.01), (40, 55, 33, 0.05), (4, 5, 5000, 0.05)]:
        a, b = rows(kind, n, dim, 1, dtype), rows(kind, m, dim, 2, dtype)
        exact = value_and_gradients("baseline", loss, a.double(), b.double(), temperature=temperature)
        for level in isa_levels():
            found = value_and_gradients(level, loss, a, b, temperature=temperature)
            assert found[0].dtype == torch.float32
            assert found[0].item() == pytest.approx(exact[0].item(), rel=1e-6 / temperature, abs=1e-6), (level, n)
            assert_rounded(found[1:], exact[1:], (level, n))


@pytest.mark.parametrize("dtype", DTYPES)
def test_large_batches_and_dot_products(dtype):
    """Sums over a thousand pairs; the shorter way through one batch and the chunk loop."""
    for scale, options in [(1.0, {"temperature": 0.1}), (0.1, {"temperature": 1.0, "similarity": "dot"})]:
        a, b = (rows("normal", 650, 24, seed, dtype) * scale for seed in (1, 2))
        for loss in (one_batch, two_ways):
            exact = value_and_gradients("baseline", loss, a.double(), b.double(), **options)
            for level in isa_levels():
                found = value_and_gradients(level, loss, a, b, **options)
                assert found[0].item() == pytest.approx(exact[0].item(), rel=3e-6)
                assert_rounded(found[1:], exact[1:], (level, scale))


@pytest.mark.parametrize("sign", [1, -1])
def test_factors_that_leave_the_range_only_together(sign):
    """A weight is divided by two norms and the temperature, each of which alone is in the range of the matrix unit."""
    a, b = (rows("normal", 40, 33, seed, torch.bfloat16) * 2.0 ** (-38 * sign) for seed in (1, 2))
    weights = torch.full((40,), 2.0 ** (39 * sign), dtype=torch.float64)
    for temperature in (2.0 ** (-25 * sign), 1.0):
        options = {"weights": weights, "temperature": temperature, "reduction": "sum"}
        exact = value_and_gradients("baseline", two_ways, a.double(), b.double(), **options)
        for level in isa_levels():
            assert_rounded(value_and_gradients(level, two_ways, a, b, **options)[1:], exact[1:], (level, temperature))


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_loss_for_each_row_with_any_upstream_gradient(dtype):
    """Backward passes them as weights: negative ones, zeros, and tiny ones of a scaled loss."""
    a, b = rows("normal", 40, 33, 1, dtype), rows("normal", 55, 33, 2, dtype)
    upstream = torch.linspace(-1, 1, 41)[:40].double()
    upstream[7] = 1e-12

    for loss in (with_negatives, two_ways):

        def weighed(a, b, loss=loss):
            return (loss(a, b, temperature=0.1, reduction="none") * upstream).sum()

        exact = value_and_gradients("baseline", weighed, a.double(), b.double())
        for level in isa_levels():
            found = value_and_gradients(level, weighed, a, b)
            for ours, wanted in zip(found[1:], exact[1:], strict=True):
                limit = torch.finfo(dtype).eps / 2 * wanted.abs() + 3e-5 * wanted.abs().max()
                assert bool(((ours.double() - wanted).abs() <= limit).all()), level
