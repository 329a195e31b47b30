"""Multi-hot labels: two rows that share any label are positives of each other."""

import pytest
import torch

from pairloom import reference
from pairloom._labels import operator_labels
from pairloom.functional import binomial_deviance, hcl
from pairloom.reference._rows import pair_masks

OPTIONS = ("cosine", "mean", -100, False)


def random_labels(rows, count, share=0.1):
    torch.manual_seed(count)
    return (torch.rand(rows, count) < share).to(torch.uint8)


@pytest.mark.parametrize("count", [1, 3, 31, 32, 33, 64, 100])
def test_masks_are_those_of_the_products(count):
    """Words of 32 labels, the last bit of each included, against the product of the label matrices."""
    rows, columns = random_labels(20, count), random_labels(30, count)
    rows[0], rows[1] = 1, 0
    shared = (rows.long() @ columns.long().T) > 0
    positive, negative = pair_masks(operator_labels(rows, None), operator_labels(columns, None), None, None)
    assert torch.equal(positive, shared)
    assert torch.equal(negative, ~shared)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32, torch.int64, torch.uint64])
def test_any_integer_dtype(dtype):
    x, labels = torch.randn(12, 4), random_labels(12, 40)
    assert torch.equal(hcl(x, labels.to(dtype)), hcl(x, labels))


def test_one_label_each_is_a_class():
    x, classes = torch.randn(12, 4, dtype=torch.float64), torch.arange(12) % 5
    one_hot = torch.nn.functional.one_hot(classes)
    for loss in (hcl, binomial_deviance):
        torch.testing.assert_close(loss(x, one_hot), loss(x, classes), rtol=0, atol=0)
        ref, ref_classes = torch.randn(7, 4, dtype=torch.float64), torch.arange(7) % 5
        other = torch.nn.functional.one_hot(ref_classes, 5)
        torch.testing.assert_close(loss(x, one_hot, ref, other), loss(x, classes, ref, ref_classes), rtol=0, atol=0)


def test_ignored_rows_and_rows_without_labels():
    x, labels = torch.randn(6, 4), torch.tensor([[1, 0, 1], [0, 1, 1], [0, 1, 0], [0, 0, 0], [-100] * 3, [1, 1, 0]])
    loss, stats = hcl(x, labels, return_stats=True)
    assert loss.isfinite()
    assert int(stats.anchors) == 5
    # Shared: 0 with 1 and 5, 1 with 2 and 5, 2 with 5; each pair from both sides. Row 3 shares nothing.
    assert int(stats.positives) == 10
    assert int(stats.negatives) == 5 * 4 - 10
    assert int(stats.anchors_without_positive) == 1
    kept = torch.tensor([0, 1, 2, 3, 5])
    torch.testing.assert_close(loss, hcl(x[kept], labels[kept]))


@pytest.mark.parametrize("name", ["info_nce", "sup_con", "multi_similarity"])
def test_references_of_the_kernels_take_words(name):
    x, classes = torch.randn(8, 4, dtype=torch.float64), torch.tensor([0, 1, 2, 0, -100, 1, 2, 2])
    one_hot = torch.nn.functional.one_hot(classes.clamp(min=0))
    one_hot[4] = -100
    results = []
    for labels in (classes, operator_labels(one_hot, -100)):
        if name == "multi_similarity":
            value = reference.multi_similarity(x, None, labels)
        elif name == "sup_con":
            value = reference.sup_con(x, None, 0.5, labels)
        else:
            value = reference.info_nce(x, None, 0.5, labels, same_id="only")
        results.append(value[0])
    assert torch.equal(*results)


def test_gradient_and_compile():
    x, labels = torch.randn(12, 4, dtype=torch.float64, requires_grad=True), random_labels(12, 40)
    assert torch.autograd.gradcheck(lambda x: hcl(x, labels), (x,))
    compiled = torch.compile(hcl, fullgraph=True, dynamic=True)
    torch.testing.assert_close(compiled(x, labels), hcl(x, labels))


def test_export_to_onnx(tmp_path):
    import pairloom

    class Loss(torch.nn.Module):
        def forward(self, x, labels):
            return hcl(x, labels)

    pairloom.export.to_onnx(Loss(), (torch.randn(12, 4), random_labels(12, 40).long()), tmp_path / "loss.onnx")


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.tensor([[0, 2], [1, 0]]), "labels holds 2; entries of multi-hot labels are 0 or 1, or a whole row is"),
        (torch.tensor([[-100, 1], [1, 0]]), "labels holds -100; entries"),
        (torch.zeros(2, 0, dtype=torch.int64), r"labels has shape \(2, 0\)"),
        (torch.zeros(2, 2, 2, dtype=torch.int64), r"labels has shape \(2, 2, 2\)"),
    ],
)
def test_errors(labels, message):
    with pytest.raises(ValueError, match=message):
        hcl(torch.eye(2), labels)


def test_both_sides_have_labels_of_one_kind():
    with pytest.raises(ValueError, match=r"labels has shape \(2, 3\) and ref_labels \(2,\)"):
        hcl(torch.eye(2), torch.ones(2, 3).long(), torch.eye(2), torch.ones(2).long())
