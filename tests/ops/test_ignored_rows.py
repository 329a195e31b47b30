"""Rows and columns that the labels take out of a loss do not touch it, whatever numbers they hold: value and gradients
are those of any other numbers in their place, and their own gradient is 0. Small batches, and large ones, which are
swept."""

import pytest
import torch

from pairloom.functional import clip, info_nce, multi_similarity, nt_xent, sup_con
from pairloom.testing import isa_levels, using_isa

ONE_BATCH = {"sup_con": sup_con, "nt_xent": nt_xent, "multi_similarity": multi_similarity}
TWO_BATCHES = {"info_nce": info_nce, "clip": clip}


def spoiled(x, ignored):
    """NaN or infinity in every ignored row."""
    x = x.clone()
    places = ignored.nonzero().squeeze(1)
    x[places[::2], 1] = torch.nan
    x[places[1::2], 0] = -torch.inf
    return x


def value_and_gradients(loss, *tensors):
    leaves = [tensor.detach().clone().requires_grad_() for tensor in tensors]
    value = loss(*leaves)
    return [value.detach(), *torch.autograd.grad(value, leaves)]


def assert_untouched(loss, ignored, *tensors):
    for level in isa_levels():
        with using_isa(level):
            wanted = value_and_gradients(loss, *tensors)
            found = value_and_gradients(loss, *(spoiled(x, ignored) for x in tensors))
        torch.testing.assert_close(found, wanted, rtol=2e-5, atol=1e-6 if tensors[0].dtype == torch.float32 else 1e-2)
        for gradient in found[1:]:
            assert not gradient[ignored].any(), level
            assert gradient[~ignored].any()


def labels_of(n):
    labels = torch.arange(n) // 2
    ignored = torch.arange(n) % 5 == 1
    return torch.where(ignored, -100, labels), ignored


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("n", [23, 1300])
@pytest.mark.parametrize("name", ONE_BATCH)
def test_one_batch(name, n, dtype):
    labels, ignored = labels_of(n)
    x = torch.randn(n, 7, generator=torch.Generator().manual_seed(n)).to(dtype)
    assert_untouched(lambda x: ONE_BATCH[name](x, labels, similarity="cosine"), ignored, x)
    assert_untouched(lambda x: ONE_BATCH[name](x, labels, similarity="dot"), ignored, x * 0.3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("n", [23, 600])
@pytest.mark.parametrize("name", TWO_BATCHES)
def test_two_batches(name, n, dtype):
    ids, ignored = labels_of(n)
    generator = torch.Generator().manual_seed(n)
    a, b = (torch.randn(n, 7, generator=generator).to(dtype) for _ in range(2))
    assert_untouched(lambda a, b: TWO_BATCHES[name](a, b, ids=ids, temperature=0.2), ignored, a, b)


def test_distances():
    labels, ignored = labels_of(40)
    x = torch.randn(40, 7, generator=torch.Generator().manual_seed(0))
    for similarity in ("euclidean", "squared_euclidean"):
        row_labels = labels.to(torch.int64)

        def loss(x, similarity=similarity, row_labels=row_labels):
            return torch.ops.pairloom.multi_similarity(
                x, None, row_labels, None, None, 2.0, 3.0, 0.5, None, similarity, "mean", -100, 1, False
            )[0]  # fmt: skip

        assert_untouched(loss, ignored, x)


def test_a_row_that_takes_part_is_not_hidden():
    labels, _ = labels_of(40)
    x = torch.randn(40, 7)
    x[2, 3] = torch.nan
    for loss in ONE_BATCH.values():
        assert loss(x, labels).isnan()
