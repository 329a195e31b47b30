"""Multi-hot labels: two rows that share any label are positives of each other."""

import pytest
import torch

import pairloom
from pairloom import reference
from pairloom._labels import operator_labels
from pairloom.functional import (
    binomial_deviance,
    clip,
    hcl,
    info_nce,
    lifted_structure_pairs,
    multi_similarity,
    nt_xent,
    sup_con,
)
from pairloom.losses._pair_means import positives_per_anchor
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


def pairs_of(loss):
    """A loss of two batches as one of labelled embeddings with references."""

    def labelled(x, labels, ref=None, ref_labels=None, **options):
        return loss(x, x.flip(1) + 1 if ref is None else ref[: len(x)], ids=labels, **options)

    return labelled


def with_negatives(x, labels, ref=None, ref_labels=None, **options):
    if ref is None:
        return info_nce(x, 2 * x + 1, ids=labels, **options)
    return info_nce(x, 2 * x + 1, ref, ids=labels, negative_ids=ref_labels, **options)


KERNELS = {
    "sup_con": sup_con,
    "multi_similarity": multi_similarity,
    "nt_xent": nt_xent,
    "info_nce": with_negatives,
    "info_nce-positive": lambda *a, **o: with_negatives(*a, **o, same_id="positive"),
    "clip": pairs_of(clip),
    "clip-positive": lambda *a, **o: pairs_of(clip)(*a, **o, same_id="positive"),
}


@pytest.mark.parametrize("references", [False, True])
@pytest.mark.parametrize("count", [1, 2, 31, 32, 33, 64, 100])
@pytest.mark.parametrize("name", KERNELS)
def test_kernels_equal_their_references(name, count, references, monkeypatch):
    """Value and gradients of every input, ignored rows and rows without a label among them."""
    loss = KERNELS[name]
    labels, ref_labels = random_labels(21, count, 2 / (count + 3)).long(), random_labels(26, count, 0.1).long()
    labels[4], labels[5], ref_labels[3] = -100, 0, -100
    x, ref = torch.randn(21, 5, dtype=torch.float64), torch.randn(26, 5, dtype=torch.float64)
    found = []
    for plain in (False, True):
        if plain:
            monkeypatch.setattr("pairloom._dispatch.needs_reference", lambda *_: True)
        leaves = [x.clone().requires_grad_(), ref.clone().requires_grad_()]
        value = loss(leaves[0], labels, leaves[1], ref_labels) if references else loss(leaves[0], labels)
        value.backward()
        found.append([value, *(leaf.grad for leaf in leaves[: 1 + references])])
    torch.testing.assert_close(*found)
    assert found[0][0] != 0 or count == 1


@pytest.mark.parametrize("name", KERNELS)
def test_one_label_each_is_a_class_for_the_kernels_too(name):
    loss = KERNELS[name]
    torch.manual_seed(0)
    x, classes = torch.randn(40, 6), torch.randint(0, 50, (40,))
    ref, ref_classes = torch.randn(45, 6), torch.randint(0, 50, (45,))
    classes[3] = ref_classes[7] = -100

    def one_hot(ids):
        return torch.where((ids < 0).unsqueeze(1), -100, torch.nn.functional.one_hot(ids.clamp(min=0), 50))

    torch.testing.assert_close(loss(x, one_hot(classes)), loss(x, classes), rtol=0, atol=0)
    several = loss(x, one_hot(classes), ref, one_hot(ref_classes))
    torch.testing.assert_close(several, loss(x, classes, ref, ref_classes), rtol=0, atol=0)


@pytest.mark.parametrize("references", [False, True])
def test_positives_are_counted_by_row(references):
    labels, others = random_labels(300, 70, 0.02).long(), random_labels(200, 70, 0.02).long()
    labels[7] = others[9] = -100
    own = operator_labels(labels, -100)
    other = operator_labels(others, -100) if references else None
    used = others if references else labels
    shared = (labels.clamp(min=0) @ used.clamp(min=0).T) > 0
    if not references:
        shared.fill_diagonal_(False)
    found = positives_per_anchor(own, other, -100)
    assert found.tolist() == shared.sum(1).tolist()
    assert 0 < found.max() < 100


def test_mean_over_pairs_of_multi_hot_labels(tmp_path):
    """nt_xent, pair by pair; scripted and compiled too."""
    x, labels = torch.randn(14, 4, dtype=torch.float64), random_labels(14, 40, 0.05).long()
    shared = (labels @ labels.T) > 0
    z = torch.nn.functional.normalize(x)
    z = z @ z.T / 0.07
    losses = []
    for i, j in shared.fill_diagonal_(False).nonzero().tolist():
        others = [k for k in range(14) if k != i and not shared[i, k]]
        losses.append(torch.logsumexp(z[i, [j, *others]], 0) - z[i, j])
    wanted = torch.stack(losses).mean()
    torch.testing.assert_close(nt_xent(x, labels), wanted)
    module = pairloom.NTXentLoss()
    torch.testing.assert_close(torch.jit.script(module)(x, labels), wanted)
    torch.testing.assert_close(torch.compile(module, fullgraph=True, backend="aot_eager")(x, labels), wanted)
    torch.testing.assert_close(torch.func.grad(nt_xent)(x, labels), torch.func.grad(sum_of_pairs)(x, shared))


def sum_of_pairs(x, shared):
    z = torch.nn.functional.normalize(x)
    z = z @ z.T / 0.07
    terms = [
        torch.logsumexp(z[i, [j, *(k for k in range(14) if k != i and not shared[i, k])]], 0) - z[i, j]
        for i, j in shared.nonzero().tolist()
    ]
    return torch.stack(terms).mean()


def test_class_weights_have_no_multi_hot_labels():
    from pytorch_metric_learning.reducers import ClassWeightedReducer

    loss = pairloom.SupConLoss(reducer=ClassWeightedReducer(torch.ones(3)))
    with pytest.raises(ValueError, match="reducer weights classes, but labels are multi-hot"):
        loss(torch.eye(2), torch.ones(2, 3).long())
    assert lifted_structure_pairs(torch.eye(3), torch.tensor([[1, 1], [1, 0], [0, 0]])) > 0


def test_ids_of_two_batches_are_checked():
    x, rows = torch.eye(2), torch.ones(2, 3).long()
    for call in (lambda ids: info_nce(x, x, ids=ids), lambda ids: clip(x, x, ids=ids)):
        with pytest.raises(ValueError, match="ids holds 2; entries of multi-hot labels are 0 or 1"):
            call(2 * rows)
        with pytest.raises(ValueError, match=r"ids has shape \(1, 2, 3\); it must be \(2,\), one id .* or \(2, number"):
            call(rows[None])
    with pytest.raises(ValueError, match=r"ids has shape \(2, 3\) and negative_ids \(2,\)"):
        info_nce(x, x, x, ids=rows, negative_ids=rows[:, 0])


def test_gradient_and_compile():
    x, labels = torch.randn(12, 4, dtype=torch.float64, requires_grad=True), random_labels(12, 40)
    assert torch.autograd.gradcheck(lambda x: hcl(x, labels), (x,))
    compiled = torch.compile(hcl, fullgraph=True, dynamic=True)
    torch.testing.assert_close(compiled(x, labels), hcl(x, labels))


def test_export_to_onnx(tmp_path):
    class Loss(torch.nn.Module):
        def forward(self, x, labels):
            return hcl(x, labels)

    pairloom.export.module_to_onnx(Loss(), (torch.randn(12, 4), random_labels(12, 40).long()), tmp_path / "loss.onnx")


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
