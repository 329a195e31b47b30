"""Euclidean distances in the losses of the kernels and in dcl: value and gradient equal the formula on a matrix of
distances; equal rows, long rows, rows of zeros; TorchScript; distances of pytorch-metric-learning beside them."""

import pytest
import torch
import torch.nn.functional as F
from pytorch_metric_learning import distances, losses

import pairloom
from pairloom import reference
from pairloom.functional import clip, dcl, info_nce, multi_similarity, nt_xent, sup_con

WORDS = ["euclidean", "squared_euclidean"]


def pairs_only(x, labels, ref=None, ref_labels=None, **options):
    return info_nce(x, x.flip(0) + 0.1 if ref is None else ref[: len(x)], **options)


def with_queue(x, labels, ref=None, ref_labels=None, **options):
    return info_nce(x, x.flip(0), ref, ids=labels, negative_ids=ref_labels, **options)


def both_ways(x, labels, ref=None, ref_labels=None, **options):
    return clip(x, x.flip(0) if ref is None else ref[: len(x)], ids=labels, **options)


LOSSES = {
    "sup_con": sup_con,
    "sup_con-in": lambda *a, **o: sup_con(*a, **o, form="in"),
    "nt_xent": nt_xent,
    "multi_similarity": lambda *a, **o: multi_similarity(*a, **o, beta=4.0),
    "multi_similarity-mining": lambda *a, **o: multi_similarity(*a, **o, epsilon=0.1, beta=4.0),
    "dcl": dcl,
    "info_nce": pairs_only,
    "info_nce-queue": with_queue,
    "clip": both_ways,
}


def batch(n=18, m=23, d=5, dtype=torch.float64):
    generator = torch.Generator().manual_seed(n)
    x, ref = (torch.randn(rows, d, generator=generator, dtype=torch.float64).to(dtype) for rows in (n, m))
    labels, ref_labels = (torch.randint(0, 4, (rows,), generator=generator) for rows in (n, m))
    return x, labels, ref, ref_labels


def results(loss, x, labels, ref, ref_labels, **options):
    """Value and the gradients of both batches."""
    x, ref = x.detach().clone().requires_grad_(), ref.detach().clone().requires_grad_()
    value = loss(x, labels, ref, ref_labels, **options)
    value.sum().backward()
    return [value.detach(), x.grad, ref.grad]


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("name", LOSSES)
def test_equals_the_reference(name, word, normalize, monkeypatch):
    """In float64 to its last digits, in float32 to its own; the reference holds the differences of all pairs."""
    options = {"similarity": word, "normalize": normalize}
    loss = LOSSES[name]
    ours = results(loss, *batch(), **options)
    narrow = results(loss, *batch(dtype=torch.float32), **options)
    monkeypatch.setattr("pairloom._dispatch.needs_reference", lambda *_: True)
    wanted = results(loss, *batch(), **options)
    assert wanted[0] != 0
    assert all(gradient.any() for gradient in wanted[1:])
    torch.testing.assert_close(ours, wanted)
    torch.testing.assert_close([x.double() for x in narrow], wanted, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("name", LOSSES)
def test_rows_of_length_one_by_default(name, word):
    x, labels, ref, ref_labels = batch()
    loss = LOSSES[name]
    x[3] = 0
    value, d_x, _ = results(loss, x, labels, ref, ref_labels, similarity=word)
    unit = loss(F.normalize(x), labels, F.normalize(ref), ref_labels, similarity=word, normalize=False)
    torch.testing.assert_close(value, unit)
    assert d_x.isfinite().all()
    assert not d_x[3].any()
    if word != "cosine" and name not in ("info_nce-queue",):
        torch.testing.assert_close((d_x * x).sum(1), torch.zeros(18, dtype=torch.float64))
    for product in ("cosine", "dot"):
        same = [loss(x, labels, ref, ref_labels, similarity=product, normalize=n) for n in (True, False)]
        assert same[0] == same[1]


def test_squared_distance_of_unit_rows_is_cosine_twice():
    """||a - b||^2 = 2 - 2 cos, and constants leave a softmax."""
    x, labels, ref, ref_labels = batch()
    for loss in (sup_con, nt_xent, dcl, both_ways, with_queue):
        cosine = results(loss, x, labels, ref, ref_labels, temperature=0.25)
        distance = results(loss, x, labels, ref, ref_labels, temperature=0.5, similarity="squared_euclidean")
        torch.testing.assert_close(distance, cosine)


@pytest.mark.parametrize("level", pairloom.testing.isa_levels())
@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("name", LOSSES)
def test_equal_rows_have_distance_and_gradient_zero(name, word, level):
    x, labels, ref, ref_labels = batch(dtype=torch.float32)
    x[7] = x[2]
    ref[5] = x[2]
    ref[2] = x[2]  # the positive of info_nce and clip
    with pairloom.testing.using_isa(level):
        found = results(LOSSES[name], x, labels, ref, ref_labels, similarity=word, normalize=False)
    assert all(tensor.isfinite().all() for tensor in found)
    same = torch.ones(6, 3, requires_grad=True)
    value = nt_xent(same, torch.arange(6) // 2, similarity=word)
    value.backward()
    assert value.item() == pytest.approx(torch.tensor(5.0).log().item())
    assert same.grad.abs().max() < (1e-12 if word == "euclidean" else 1e-5)  # squares: differences of equal sums


@pytest.mark.parametrize("size", [1e-18, 1e-6, 1e6, 1e15])
@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("name", LOSSES)
def test_rows_of_any_length(name, word, size):
    """Rows of length 1 do not feel it (above the floor); raw distances stay finite as long as their squares are."""
    x, labels, ref, ref_labels = batch(dtype=torch.float32)
    loss = LOSSES[name]
    if size > 1e-12:
        wanted = loss(x, labels, ref, ref_labels, similarity=word)
        torch.testing.assert_close(loss(size * x, labels, size * ref, ref_labels, similarity=word), wanted)
    found = results(loss, size * x, labels, size * ref, ref_labels, similarity=word, normalize=False)
    assert all(tensor.isfinite().all() for tensor in found)


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("name", ["sup_con", "sup_con-in", "multi_similarity", "multi_similarity-mining", "dcl"])
def test_one_row_is_that_row_of_many(name, word):
    x, labels, ref, ref_labels = batch()
    loss = LOSSES[name]
    options = {"similarity": word, "reduction": "none"}
    rows = loss(x, labels, ref, ref_labels, **options)
    for i in (0, 7, 17):
        one = loss(x[i : i + 1], labels[i : i + 1], ref, ref_labels, **options)
        torch.testing.assert_close(one[0], rows[i])


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("name", [name for name in LOSSES if "mining" not in name])
def test_gradcheck(name, word, normalize):
    x, labels, ref, ref_labels = batch(5, 6, 3)
    leaves = [x.requires_grad_(), ref.requires_grad_()]

    def call(x, ref):
        return LOSSES[name](x, labels, ref, ref_labels, similarity=word, normalize=normalize)

    assert torch.autograd.gradcheck(call, leaves)


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("name", ["SupConLoss", "NTXentLoss", "MultiSimilarityLoss"])
def test_modules_take_distances_and_script(name, power, tmp_path):
    distance = distances.LpDistance(normalize_embeddings=power == 2, power=power)
    settings = {"beta": 4} if name == "MultiSimilarityLoss" else {"temperature": 0.4}
    ours, theirs = (getattr(library, name)(distance=distance, **settings) for library in (pairloom, losses))
    assert (ours.similarity, ours.normalize) == (WORDS[power - 1], power == 2)
    x, labels, ref, ref_labels = batch()
    torch.testing.assert_close(ours(x, labels), theirs(x, labels))
    torch.testing.assert_close(ours(x, labels, None, ref, ref_labels), theirs(x, labels, None, ref, ref_labels))
    torch.jit.save(torch.jit.script(ours), tmp_path / "loss.pt")
    scripted = torch.jit.load(tmp_path / "loss.pt")
    torch.testing.assert_close(scripted(x, labels, None, ref, ref_labels), ours(x, labels, None, ref, ref_labels))


@pytest.mark.parametrize("module", [pairloom.InfoNCELoss, pairloom.CLIPLoss])
def test_modules_of_two_batches(module):
    x, _, ref, _ = batch()
    other = ref[:18]
    loss = module(0.3, similarity="euclidean", normalize=False)
    function = clip if module is pairloom.CLIPLoss else info_nce
    wanted = function(x, other, temperature=0.3, similarity="euclidean", normalize=False)
    torch.testing.assert_close(loss(x, other), wanted)
    torch.testing.assert_close(loss.with_stats(x, other)[0], wanted)
    torch.testing.assert_close(torch.jit.script(loss)(x, other), wanted)
    assert "normalize=False" in repr(loss)
    with pytest.raises(TypeError, match="normalize is 1; it must be True or False"):
        module(normalize=1)


def test_statistics_are_of_negated_distances():
    x, labels, *_ = batch()
    _, stats = sup_con(x, labels, similarity="euclidean", normalize=False, return_stats=True)
    s = reference.pairwise_similarity(x, x, "euclidean")
    negative = labels.unsqueeze(1) != labels
    torch.testing.assert_close(stats.mean_negative_similarity, s[negative].mean())


def test_half_precision_sums_in_float32():
    x, labels, *_ = batch(dtype=torch.bfloat16)
    for word in WORDS:
        value = nt_xent(x, labels, similarity=word)
        assert value.dtype == torch.float32
        torch.testing.assert_close(value, nt_xent(x.float(), labels, similarity=word))
