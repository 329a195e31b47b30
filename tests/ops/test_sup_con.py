"""sup_con: golden values, public code beside it, extreme and empty cases, precision near 0."""

import math

import pytest
import torch
from pytorch_metric_learning.losses import SupConLoss as PeerLoss

from pairloom import SupConLoss
from pairloom.functional import info_nce, sup_con
from pairloom.testing import isa_levels, using_isa
from tests.ops import golden

VIEWS, VIEW_LABELS = torch.cat([golden.A, golden.B]), torch.cat([golden.LABELS, golden.LABELS])


def test_golden_values():
    options = {"temperature": 0.5, "reduction": "mean"}
    assert sup_con(golden.A, golden.LABELS, **options).item() == pytest.approx(0.668040, abs=1e-6)
    assert sup_con(golden.A, golden.LABELS, form="in", **options).item() == pytest.approx(0.668040, abs=1e-6)
    assert sup_con(VIEWS, VIEW_LABELS, **options).item() == pytest.approx(1.665585, abs=1e-6)
    assert sup_con(VIEWS, VIEW_LABELS, form="in", **options).item() == pytest.approx(1.547665, abs=1e-6)
    two_alone = torch.tensor([0, 1, 1, 2])
    assert sup_con(golden.A, two_alone, **options).item() == pytest.approx(0.313562, abs=1e-6)


def test_one_label_per_sample_is_nt_xent():
    views = torch.arange(4).repeat(2)
    assert sup_con(VIEWS, views, temperature=0.5).item() == pytest.approx(1.220251, abs=1e-6)


@pytest.mark.parametrize("references", [False, True])
def test_equals_pytorch_metric_learning(references):
    torch.manual_seed(0)
    x, labels = torch.randn(24, 8, dtype=torch.float64), torch.randint(0, 9, (24,))
    ref = torch.randn(31, 8, dtype=torch.float64) if references else None
    ref_labels = torch.randint(0, 9, (31,)) if references else None
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    loss = SupConLoss(temperature=0.2)(ours, labels, ref_emb=ref, ref_labels=ref_labels)
    peer = PeerLoss(temperature=0.2)(theirs, labels, ref_emb=ref, ref_labels=ref_labels)
    loss.backward()
    peer.backward()
    torch.testing.assert_close(loss, peer)
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_inside_is_at_most_outside():
    torch.manual_seed(1)
    x, labels = torch.randn(60, 8), torch.randint(0, 5, (60,))
    out, inside = (sup_con(x, labels, form=form, reduction="none") for form in ("out", "in"))
    assert (inside <= out + 1e-6).all()
    assert (inside < out - 1e-3).any()


@pytest.mark.parametrize("level", isa_levels())
@pytest.mark.parametrize("form", ["out", "in"])
def test_far_apart_and_near_zero(form, level):
    """Positives e^-200 below the negatives do not vanish; losses of 1e-30 keep their digits, with their gradients."""
    x = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
    for labels, wanted in (
        (torch.tensor([0, 0, 1, 1]), 200 + math.log(1 + math.exp(-200))),
        (torch.arange(4) % 2, 0.0),
    ):
        with using_isa(level):
            loss = sup_con(x, labels, temperature=0.01, form=form, reduction="none")
        wide = sup_con(x.double(), labels, temperature=0.01, form=form, reduction="none")
        torch.testing.assert_close(loss.double(), wide, rtol=1e-5, atol=1e-40)
        assert loss.tolist() == pytest.approx([wanted] * 4, rel=0.01, abs=1e-8)
    rows = torch.tensor([[1.0, 0.2]], requires_grad=True)
    wide = rows.detach().double().requires_grad_()
    columns, labels = torch.tensor([[1.0, 0.3], [0.2, -1.0]]), torch.tensor([0, 1])
    for x in (rows, wide):
        with using_isa(level):
            sup_con(x, labels[:1], columns.to(x.dtype), labels, temperature=0.02, form=form).backward()
    assert 0 < wide.grad.abs().max() < 1e-15
    torch.testing.assert_close(rows.grad.double(), wide.grad, rtol=1e-4, atol=0)


def test_one_positive_is_info_nce():
    torch.manual_seed(2)
    query, key = torch.randn(20, 6), torch.randn(20, 6)
    labels = torch.arange(20)
    ours = sup_con(query, labels, key, labels, temperature=0.3, reduction="none")
    torch.testing.assert_close(ours, info_nce(query, key, temperature=0.3, reduction="none"))


def test_settings_are_checked():
    with pytest.raises(ValueError, match="form is 'middle'; allowed: out, in"):
        SupConLoss(form="middle")
    with pytest.raises(TypeError, match=r"\(anchors\) is a int; it must be a torch.Tensor"):
        SupConLoss()(torch.eye(2), torch.tensor([0, 1]), (1, 2, 3))
    with pytest.raises(ValueError, match="labels is None"):
        SupConLoss()(torch.eye(2))
