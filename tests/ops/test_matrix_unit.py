"""float32 products in three bfloat16 parts (level "amx"): as exact as multiply-adds, and left to them out of range."""

import pytest
import torch

from pairloom.functional import info_nce, multi_similarity
from pairloom.testing import ROW_KINDS, embedding_rows, isa_levels, using_isa, using_threads

pytestmark = pytest.mark.skipif("amx" not in isa_levels(), reason="this processor or this build has no matrix unit")


def with_negatives(x, y, **options):
    return info_nce(x, y[: len(x)], y[len(x) :], **{"temperature": 0.07, **options})


def on_one_batch(x, y, **options):
    both = torch.cat([x, y])
    return multi_similarity(both, torch.arange(len(both)) // 3, epsilon=0.1, **options)


def value_and_gradients(level, loss, *tensors, **options):
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    with using_isa(level):
        value = loss(*leaves, **options)
        return [value.detach(), *torch.autograd.grad(value, leaves)]


def errors(found, exact):
    return [
        float((f.double() - e).abs().max() / e.abs().max().clamp(min=1e-30)) for f, e in zip(found, exact, strict=True)
    ]


@pytest.mark.parametrize("kind", ROW_KINDS)
@pytest.mark.parametrize("loss", [with_negatives, on_one_batch])
def test_as_exact_as_multiply_adds(loss, kind):
    x = embedding_rows(kind, 301, 257, seed=1)
    y = embedding_rows(kind, 333, 257, seed=2)
    exact = value_and_gradients("avx512", loss, x.double(), y.double())
    split = errors(value_and_gradients("amx", loss, x, y), exact)
    plain = errors(value_and_gradients("avx512", loss, x, y), exact)
    for ours, theirs in zip(split, plain, strict=True):
        assert ours <= 2 * theirs + 4e-7, (split, plain)


OUT_OF_RANGE = {
    "infinity": lambda x: x.index_fill(0, torch.tensor([3]), torch.inf),
    "one nan": lambda x: x.masked_fill(torch.arange(x.numel()).view_as(x) == 77, torch.nan),
    "large row": lambda x: x * torch.where(torch.arange(len(x)) == 5, 1e19, 1.0).unsqueeze(1),
    "small row": lambda x: x * torch.where(torch.arange(len(x)) == 5, 1e-19, 1.0).unsqueeze(1),
    "all near the largest": lambda x: x * 1e37,
    "all subnormal": lambda x: x * 1e-40,
}


@pytest.mark.parametrize("change", OUT_OF_RANGE.values(), ids=OUT_OF_RANGE)
@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("which", [0, 1])
def test_out_of_range_is_left_to_multiply_adds(which, similarity, change):
    tensors = [embedding_rows("normal", 40, 33, seed=1), embedding_rows("normal", 50, 33, seed=2)]
    tensors[which] = change(tensors[which])
    split = value_and_gradients("amx", with_negatives, *tensors, similarity=similarity)
    plain = value_and_gradients("avx512", with_negatives, *tensors, similarity=similarity)
    for ours, theirs in zip(split, plain, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=0, equal_nan=True)


@pytest.mark.parametrize("scale", [1e-17, 1e-6, 1.0, 1e6, 1e17])
def test_scales_inside_the_range_keep_their_digits(scale):
    """Gradients of the cosine scale like 1 / |x|; every part of them must still be there."""
    x, y = embedding_rows("normal", 40, 33, seed=1), embedding_rows("normal", 50, 33, seed=2)
    exact = value_and_gradients("avx512", with_negatives, x.double(), y.double())
    found = value_and_gradients("amx", with_negatives, x * scale if scale > 1e-12 else x, y * max(scale, 1e-12))
    exact[1] = exact[1] / (scale if scale > 1e-12 else 1)
    exact[2] = exact[2] / max(scale, 1e-12)
    assert max(errors(found, exact)) < 2e-6


@pytest.mark.parametrize(("weight", "temperature"), [(1e-17, 0.5), (1e17, 0.5), (1e-30, 0.5), (1.0, 1e8), (1.0, 1e-12)])
def test_weights_and_temperatures(weight, temperature):
    x, y = embedding_rows("unit", 40, 33, seed=1), embedding_rows("unit", 50, 33, seed=2)
    options = {"weights": torch.full((40,), weight), "temperature": temperature, "reduction": "sum"}
    exact = value_and_gradients("avx512", with_negatives, x.double(), y.double(), **options)
    split = errors(value_and_gradients("amx", with_negatives, x, y, **options), exact)
    plain = errors(value_and_gradients("avx512", with_negatives, x, y, **options), exact)
    for ours, theirs in zip(split, plain, strict=True):
        assert ours <= 2 * theirs + 4e-7, (split, plain)


@pytest.mark.parametrize("threads", [1, 3])
def test_same_bits_for_any_number_of_threads(threads):
    x, y = embedding_rows("normal", 531, 130, seed=1), embedding_rows("normal", 700, 130, seed=2)
    found = []
    for count in (2, threads):
        with using_threads(count):
            found.append(value_and_gradients("amx", with_negatives, x, y, ids=torch.arange(531) % 50))
    for a, b in zip(*found, strict=True):
        assert torch.equal(a, b)
