"""Gradients of distances are sums of w (y - x), whose weights grow without limit as rows come close: they keep their
digits for rows that nearly coincide, for batches that have collapsed and for rows far from the origin."""

import pytest
import torch

from pairloom import reference
from pairloom.functional import sup_con
from pairloom.testing import isa_levels, using_isa


def unit(n):
    return torch.nn.functional.normalize(torch.randn(n, 32), dim=1)


CLOSE = {
    "twins 1e-3 apart": lambda n: unit(n // 2).repeat_interleave(2, 0) + 1e-3 * torch.randn(n, 32),
    "twins 1e-5 apart": lambda n: unit(n // 2).repeat_interleave(2, 0) + 1e-5 * torch.randn(n, 32),
    "collapsed": lambda n: unit(1) + 1e-4 * torch.randn(n, 32),
    "far from the origin": lambda n: 100 + torch.randn(n, 32),
    "some equal": lambda n: (
        unit(n // 2).repeat_interleave(2, 0) + 1e-5 * torch.randn(n, 32) * (torch.arange(n) > 8).unsqueeze(1)
    ),
}


def gradient(loss, *rows):
    leaves = [x.detach().requires_grad_() for x in rows]
    return [g.double() for g in torch.autograd.grad(loss(*leaves), leaves)]


@pytest.mark.parametrize("kind", CLOSE)
@pytest.mark.parametrize("similarity", ["euclidean", "squared_euclidean"])
@pytest.mark.parametrize("batches", [1, 2])
def test_as_exact_as_differences(batches, similarity, kind):
    torch.manual_seed(0)
    n, labels = 66, torch.arange(66) // 2
    x = CLOSE[kind](n)
    rows = [x] if batches == 1 else [x, x.flip(0) + 1e-6 * torch.randn(n, 32)]
    others = () if batches == 1 else (labels.flip(0),)

    def dense(x, y=None):
        temperature = torch.ones((), dtype=x.dtype)
        return reference.sup_con(x, y, temperature, labels, *(others or (None,)), None, "out", similarity, "mean")[0]

    def ours(x, y=None):
        options = {"ref_emb": y, "ref_labels": others[0]} if others else {}
        options["normalize"] = False
        return sup_con(x, labels, temperature=1.0, similarity=similarity, reduction="mean_all", **options)

    exact = gradient(dense, *(x.double() for x in rows))
    plain = gradient(dense, *rows)
    for level in isa_levels():
        with using_isa(level):
            found = gradient(ours, *rows)
        for g, p, e in zip(found, plain, exact, strict=True):
            size = e.abs().max()
            assert (g - e).abs().max() <= 3 * (p - e).abs().max() + 3e-7 * size, level
