"""Sigmoid loss: golden value, the dense formula beside it, learned scale and bias, further texts, pairs that match."""

import pytest
import torch
import torch.nn.functional as F

import pairloom
from pairloom.functional import siglip
from tests.ops import golden


def dense(image, text, scale, bias, match):
    z = scale * F.normalize(image) @ F.normalize(text).T + bias
    return F.softplus(torch.where(match, -z, z), threshold=50).sum(1).mean()


def test_golden_value():
    assert siglip(golden.A, golden.B).item() == pytest.approx(1.855489, abs=1e-6)


def test_equals_the_dense_formula_with_all_gradients():
    torch.manual_seed(0)
    image, text, negatives = (torch.randn(n, 6, dtype=torch.float64) for n in (17, 17, 9))
    scale, bias = torch.tensor(7.0, dtype=torch.float64), torch.tensor(-3.0, dtype=torch.float64)
    leaves = [x.requires_grad_() for x in (image, text, negatives, scale, bias)]
    ours = siglip(image, text, negatives, scale=scale, bias=bias)
    wanted = dense(image, torch.cat([text, negatives]), scale, bias, torch.eye(17, 26, dtype=torch.bool))
    torch.testing.assert_close(ours, wanted)
    for a, b in zip(torch.autograd.grad(ours, leaves), torch.autograd.grad(wanted, leaves), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("ids", [[0, 1, 2, 3, 1], [2**63 - 1, -(2**63), 0, 1, 0], [-1, -2, 5, 6, 6]])
def test_pairs_with_one_id_match_and_further_texts_match_nobody(ids):
    torch.manual_seed(1)
    image, text, negatives = (torch.randn(n, 6, dtype=torch.float64) for n in (5, 5, 3))
    ids = torch.tensor(ids)
    match = torch.cat([ids[:, None] == ids, torch.zeros(5, 3, dtype=torch.bool)], dim=1)
    wanted = dense(image, torch.cat([text, negatives]), 10.0, -10.0, match)
    torch.testing.assert_close(siglip(image, text, negatives, ids=ids), wanted)
    several = F.one_hot(torch.unique(ids, return_inverse=True)[1])
    torch.testing.assert_close(siglip(image, text, negatives, ids=several), wanted)


def test_ignored_pairs_take_no_part():
    torch.manual_seed(2)
    image, text = torch.randn(6, 4, dtype=torch.float64), torch.randn(6, 4, dtype=torch.float64)
    ids = torch.tensor([0, -100, 2, 3, -100, 5])
    kept = ids != -100
    torch.testing.assert_close(siglip(image, text, ids=ids), siglip(image[kept], text[kept]))


def test_scale_and_bias_always_get_a_gradient():
    loss = pairloom.SigLIPLoss()
    loss(torch.zeros(0, 4), torch.zeros(0, 4)).backward()
    assert loss.log_scale.grad == 0
    assert loss.bias.grad == 0
    value, stats = loss.with_stats(torch.eye(4), torch.eye(4))
    assert value.requires_grad
    assert int(stats.positives) == 4
    assert not any(p.requires_grad for p in pairloom.SigLIPLoss(learn=False).parameters())


@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_finite_at_extreme_scales(scale):
    image, text = torch.randn(20, 4, requires_grad=True), torch.randn(20, 4)
    loss = siglip(image, text, scale=scale)
    loss.backward()
    assert loss.isfinite()
    assert image.grad.isfinite().all()


def test_arguments_are_checked():
    x = torch.eye(3)
    with pytest.raises(ValueError, match="scale is 0; it must be finite and above 0"):
        siglip(x, x, scale=0)
    with pytest.raises(ValueError, match="bias is nan"):
        siglip(x, x, bias=float("nan"))
    with pytest.raises(ValueError, match="text has 2 rows and image has 3"):
        siglip(x, x[:2])
