"""clip: golden values, the dense formula beside it, learned scale, shared captions, graphs."""

import math

import pytest
import torch
import torch.nn.functional as F

from pairloom import CLIPLoss
from pairloom.functional import clip
from tests.ops import golden


def dense(image, text, temperature):
    logits = F.normalize(image) @ F.normalize(text).T / temperature
    target = torch.arange(len(image))
    return (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2


def test_golden_values():
    assert clip(golden.A, golden.B, temperature=0.5).item() == pytest.approx(0.807375, abs=1e-6)
    assert clip(golden.A, golden.B).item() == pytest.approx(0.705324, abs=1e-6)


def test_equals_the_dense_formula_with_all_gradients():
    torch.manual_seed(0)
    image, text = torch.randn(33, 7, dtype=torch.float64), torch.randn(33, 7, dtype=torch.float64)
    temperature = torch.tensor(0.3, dtype=torch.float64)
    leaves = [x.requires_grad_() for x in (image, text, temperature)]
    ours, wanted = clip(image, text, temperature=temperature), dense(image, text, temperature)
    torch.testing.assert_close(ours, wanted)
    for a, b in zip(torch.autograd.grad(ours, leaves), torch.autograd.grad(wanted, leaves), strict=True):
        torch.testing.assert_close(a, b)
    assert torch.autograd.gradgradcheck(lambda a, b: clip(a[:5], b[:5], temperature=0.5), (image, text))


def test_pairs_with_the_same_id_are_no_negatives():
    image, text = golden.A, golden.A.clone()
    text[1] = text[0]  # images 0 and 1 share a caption
    ids = torch.tensor([0, 0, 1, 2])
    logits = image @ text.T / 0.1
    mask = torch.tensor([[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]], dtype=torch.bool)
    masked = logits.masked_fill(mask, -torch.inf)
    target = torch.arange(4)
    wanted = (F.cross_entropy(masked, target) + F.cross_entropy(masked.T, target)) / 2
    torch.testing.assert_close(clip(image, text, temperature=0.1, ids=ids), wanted)


def test_learned_scale_starts_at_the_temperature_and_stays_bounded():
    loss = CLIPLoss()
    assert loss.current_temperature().item() == pytest.approx(0.07)
    with torch.no_grad():
        loss.log_scale.fill_(10.0)
    assert loss.current_temperature().item() == pytest.approx(0.01)
    image, text = torch.randn(8, 4), torch.randn(8, 4)
    torch.testing.assert_close(loss(image, text), dense(image, text, 0.01), rtol=1e-4, atol=1e-5)
    assert CLIPLoss(learn_temperature=False).log_scale is None
    with pytest.raises(ValueError, match=r"temperature is 0.001, a scale of 1000; max_scale is 100"):
        CLIPLoss(0.001)


def test_graphs(tmp_path):
    module = CLIPLoss()
    compiled = torch.compile(module, fullgraph=True, dynamic=True, backend="aot_eager")
    torch.jit.save(torch.jit.script(module), tmp_path / "loss.pt")
    scripted = torch.jit.load(tmp_path / "loss.pt")
    for n in (9, 20):
        image, text = torch.randn(n, 6, requires_grad=True), torch.randn(n, 6)
        wanted = torch.autograd.grad(module(image, text), image)[0]
        for other in (compiled, scripted):
            torch.testing.assert_close(torch.autograd.grad(other(image, text), image)[0], wanted)


def test_one_pair_and_no_pair():
    assert clip(torch.randn(1, 3), torch.randn(1, 3)).item() == 0
    assert clip(torch.empty(0, 3), torch.empty(0, 3)).item() == 0
    with pytest.raises(ValueError, match="text has 3 rows and image has 2"):
        clip(torch.eye(2, 3), torch.eye(3))
    assert math.isnan(clip(torch.full((2, 2), torch.nan), torch.eye(2)).item())
