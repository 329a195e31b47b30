"""Products of the gradients pass over tiles of W that mining left empty: same result on every level, and counted."""

import pytest
import torch

from pairloom import reference
from pairloom.functional import multi_similarity
from pairloom.testing import isa_levels, using_isa, using_threads


def clustered(n, dim, classes, seed=0):
    """Rows near the centre of their class, the last class far from its centre: only its pairs are mined."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes, dim, generator=generator, dtype=torch.float64)
    labels = torch.arange(n) * classes // n
    spread = torch.where(labels == classes - 1, 2.0, 0.05).unsqueeze(1)
    return centres[labels] + spread * torch.randn(n, dim, generator=generator, dtype=torch.float64), labels


@pytest.mark.parametrize("level", isa_levels())
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("n", "dim", "classes"), [(700, 40, 9), (1300, 17, 30), (90, 5, 3)])
@pytest.mark.parametrize("references", [False, True])
def test_gradients_are_those_of_the_dense_formula(level, dtype, n, dim, classes, references):
    x, labels = clustered(n, dim, classes)
    x = x.to(dtype)
    ref, ref_labels = (clustered(n + 37, dim, classes)[0].to(dtype), clustered(n + 37, dim, classes)[1])
    inputs = [x, ref] if references else [x]
    leaves = [value.clone().requires_grad_() for value in inputs]
    wide = [value.double().requires_grad_() for value in inputs]
    columns = (leaves[1], ref_labels) if references else (None, None)
    with using_isa(level):
        loss, stats = multi_similarity(leaves[0], labels, *columns, epsilon=0.05, return_stats=True)
        gradients = torch.autograd.grad(loss, leaves)
    exact, _ = reference.multi_similarity(
        wide[0], wide[1] if references else None, labels, ref_labels if references else None, None, epsilon=0.05
    )
    for ours, wanted in zip(gradients, torch.autograd.grad(exact, wide), strict=True):
        # A pair near the edge of the margin may be mined in one precision only; half-precision gradients are rounded.
        limit = {torch.float64: 1e-10, torch.float32: 1e-3, torch.bfloat16: 1e-2}[dtype]
        assert (ours.double() - wanted).abs().max() <= limit * wanted.abs().max()
    assert 0 < stats.live_tiles <= 1
    if n > 1000:
        assert stats.live_tiles < 0.7, "most tiles of this batch hold no mined pair"


def test_bits_do_not_depend_on_threads_and_nothing_mined_is_zero():
    x, labels = clustered(1300, 17, 30)
    x = x.float().requires_grad_()

    def run():
        return torch.autograd.grad(multi_similarity(x, labels, epsilon=0.05), x)[0]

    first = run()
    for threads in (1, 3, 7):
        with using_threads(threads):
            assert torch.equal(first, run())
    apart = torch.eye(64).repeat_interleave(4, 0).requires_grad_()  # positives at 1, negatives at 0
    loss, stats = multi_similarity(apart, torch.arange(256) // 4, epsilon=0.1, return_stats=True)
    assert loss == 0
    assert not torch.autograd.grad(loss, apart)[0].any()
    assert stats.live_tiles == 0


def test_not_counted_without_mining():
    x = torch.randn(64, 8, requires_grad=True)
    assert multi_similarity(x, torch.arange(64) // 4, return_stats=True)[1].live_tiles.isnan()
    assert multi_similarity(x.detach(), torch.arange(64) // 4, epsilon=0.1, return_stats=True)[1].live_tiles.isnan()


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean"])
@pytest.mark.parametrize("level", isa_levels())
def test_rows_without_weight_are_no_live_tile(level, similarity):
    """Whatever stands beyond the last column, in whole vectors."""
    x = torch.randn(37, 5, generator=torch.Generator().manual_seed(0)).requires_grad_()
    with using_isa(level):
        stats = multi_similarity(
            x, torch.arange(37) // 4, epsilon=0.1, weights=torch.zeros(37), similarity=similarity, return_stats=True
        )[1]
    assert stats.live_tiles == 0
