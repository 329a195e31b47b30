"""gist: golden values, the whole matrix in plain torch beside it, what the guide filters, gradients, bad input."""

import pytest
import torch
import torch.nn.functional as F

from pairloom import GISTEmbedLoss
from pairloom.functional import gist, multiple_negatives_ranking
from tests.ops import golden
from tests.ops.peers import SEEDS, assert_equal_peer

GUIDE = torch.tensor([[0.96, 0.28], [0.8, 0.6], [0.28, 0.96], [-0.6, 0.8]], dtype=torch.float64)


def test_golden_values():
    """With margin 0 many of the guide's similarities equal the threshold: they stay."""
    inputs = (golden.A, golden.B, GUIDE, golden.B)
    assert gist(*inputs, temperature=0.1).item() == pytest.approx(0.449363, abs=1e-6)
    assert gist(*inputs, temperature=0.1, margin=0.05).item() == pytest.approx(0.193054, abs=1e-6)
    single = gist(*(x.float() for x in inputs), temperature=0.1)
    assert single.item() == pytest.approx(0.449363, abs=1e-5)


def dense(guides, temperature, margin, kind, anchors, positives):
    """The same on whole matrices, as in its public code: blocks side by side, -inf where the guide filters."""
    ga, gp, gh = (F.normalize(x) for x in guides)
    limit = (ga * gp).sum(1, keepdim=True)
    limit = limit * (1 - margin) if kind == "relative" else limit - margin
    own = torch.eye(len(ga), dtype=torch.bool)

    def loss(a, p, h):
        a, p, h = F.normalize(a), F.normalize(p), F.normalize(h)
        blocks = [(a @ p.T).masked_fill((ga @ gp.T > limit) & ~own, -torch.inf)]
        if anchors:
            blocks.append((a @ a.T).masked_fill((ga @ ga.T > limit) | own, -torch.inf))
        if positives:
            blocks.append((p @ p.T).masked_fill((gp @ gp.T > limit) | own, -torch.inf))
        blocks.append((a @ h.T).masked_fill(ga @ gh.T > limit, -torch.inf))
        return F.cross_entropy(torch.cat(blocks, 1) / temperature, torch.arange(len(a)))

    return loss


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("kind", "margin", "anchors", "positives"),
    [
        ("absolute", 0.0, True, True),
        ("absolute", 0.2, True, False),
        ("relative", 0.3, False, True),
        ("relative", -0.1, False, False),
    ],
)
def test_equals_the_whole_matrix(seed, kind, margin, anchors, positives):
    torch.manual_seed(seed)
    inputs = [torch.randn(n, 6, dtype=torch.float64) for n in (20, 20, 13)]
    guides = [torch.randn(n, 4, dtype=torch.float64) for n in (20, 20, 13)]
    loss = GISTEmbedLoss(0.1, margin=margin, margin_kind=kind, contrast_anchors=anchors, contrast_positives=positives)
    expected = dense(guides, 0.1, margin, kind, anchors, positives)
    assert_equal_peer(lambda a, p, h: loss(a, p, *guides[:2], h, guides[2]), expected, *inputs)


def test_a_guide_that_filters_nothing_or_everything():
    x, y = golden.A.clone().requires_grad_(), golden.B
    alike, opposite = torch.ones(4, 1, dtype=torch.float64), -torch.ones(4, 1, dtype=torch.float64)
    off = {"contrast_anchors": False, "contrast_positives": False}
    everybody = gist(x, y, alike, alike, temperature=0.05, **off)  # all equal: nobody is above
    torch.testing.assert_close(everybody, multiple_negatives_ranking(x, y))
    nobody = gist(x, y, alike, opposite, margin=0.5)  # threshold -1.5: all pairs are above
    nobody.backward()
    assert nobody.item() == 0
    assert not x.grad.any()


def test_gradients_of_temperature_and_weights():
    torch.manual_seed(4)
    a, p = torch.randn(5, 3, dtype=torch.float64), torch.randn(5, 3, dtype=torch.float64)
    guides = torch.randn(5, 2, dtype=torch.float64), torch.randn(5, 2, dtype=torch.float64)
    weights = torch.rand(5, dtype=torch.float64)

    def loss(a, p, temperature, weights):
        return gist(a, p, *guides, temperature=temperature, weights=weights)

    for temperature in (torch.tensor(0.5), torch.linspace(0.3, 0.9, 5)):
        inputs = [x.double().requires_grad_() for x in (a, p, temperature, weights)]
        assert torch.autograd.gradcheck(loss, inputs)


def test_half_precision_low_temperature_empty_and_nan():
    torch.manual_seed(5)
    a, p, g = (torch.randn(16, 8) for _ in range(3))
    half = a.to(torch.bfloat16).requires_grad_()
    value = gist(half, p.to(torch.bfloat16), g, g, temperature=1e-3)
    value.backward()
    assert value.dtype == torch.float32
    assert value.isfinite()
    assert half.grad.isfinite().all()
    assert gist(a[:0], p[:0], g[:0], g[:0]).item() == 0
    a[3, 2] = torch.nan
    assert gist(a, p, g, g).isnan()


def test_inputs_are_checked():
    with pytest.raises(ValueError, match="negatives is given without guide_negatives"):
        gist(golden.A, golden.B, GUIDE, golden.B, golden.EXTRA)
    with pytest.raises(ValueError, match="guide_positive has 3 rows and anchor has 4"):
        gist(golden.A, golden.B, GUIDE, golden.B[:3])
    with pytest.raises(ValueError, match="margin_kind is 'percent'; allowed: absolute, relative"):
        GISTEmbedLoss(margin_kind="percent")
    assert repr(GISTEmbedLoss()).startswith("GISTEmbedLoss(temperature=0.01, margin=0.0")
