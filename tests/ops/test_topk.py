"""topk: order, ties, what is never returned, k beyond the gallery, gradients of the scores."""

import pytest
import torch
import torch.nn.functional as F

import pairloom
from tests.ops.golden import DTYPES

SIMILARITIES = ["cosine", "dot", "euclidean", "squared_euclidean"]


@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_equals_sorting_the_matrix(similarity):
    torch.manual_seed(0)
    queries, gallery = torch.randn(30, 8, dtype=torch.float64), torch.randn(200, 8, dtype=torch.float64)
    matrix = {
        "cosine": lambda: F.normalize(queries) @ F.normalize(gallery).T,
        "dot": lambda: queries @ gallery.T,
        "euclidean": lambda: -torch.cdist(queries, gallery),
        "squared_euclidean": lambda: -(torch.cdist(queries, gallery) ** 2),
    }[similarity]()
    expected = matrix.sort(dim=1, descending=True)
    for k in (1, 7, 200):
        scores, indices = pairloom.topk(queries, gallery, k, similarity=similarity)
        assert torch.equal(indices, expected.indices[:, :k])
        torch.testing.assert_close(scores, expected.values[:, :k])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_ties_go_to_the_lowest_index(similarity, dtype):
    gallery = torch.tensor([[0, 2], [2, 0], [2, 0], [2, 0], [2, 0], [2, 0]], dtype=dtype)
    _, indices = pairloom.topk(gallery[1:2], gallery, 3, similarity=similarity)
    assert indices.tolist() == [[1, 2, 3]]


def test_many_ties_over_a_long_gallery():
    gallery = torch.eye(4).repeat(500, 1)
    _, indices = pairloom.topk(torch.eye(4), gallery, 150)
    assert torch.equal(indices, torch.arange(4)[:, None] + 4 * torch.arange(150))


@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_k_beyond_the_gallery_pads(similarity):
    gallery = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    scores, indices = pairloom.topk(gallery, gallery, 5, similarity=similarity)
    assert indices[:, 2:].eq(-1).all()
    assert scores[:, 2:].eq(-torch.inf).all()
    assert indices[:, :2].tolist() == [[0, 1], [1, 0]]


def test_empty_gallery_no_queries_and_k_zero():
    x = torch.randn(3, 4)
    scores, indices = pairloom.topk(x, x[:0], 2)
    assert indices.tolist() == [[-1, -1]] * 3
    assert scores.eq(-torch.inf).all()
    assert pairloom.topk(x[:0], x, 2)[1].shape == (0, 2)
    assert pairloom.topk(x, x, 0)[0].shape == (3, 0)


@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_nan_is_never_returned(similarity):
    gallery = torch.tensor([[1.0, 0.0], [torch.nan, 0.0], [0.0, 1.0]])
    queries = torch.tensor([[1.0, 0.0], [torch.nan, 1.0]])
    scores, indices = pairloom.topk(queries, gallery, 3, similarity=similarity)
    assert indices.tolist() == [[0, 2, -1], [-1, -1, -1]]
    assert scores[0, 2] == -torch.inf
    assert scores[1].eq(-torch.inf).all()


def test_infinite_distance_is_never_returned():
    scores, indices = pairloom.topk(torch.zeros(1, 1), torch.tensor([[torch.inf], [1.0]]), 2, similarity="euclidean")
    assert indices.tolist() == [[1, -1]]
    assert scores.tolist() == [[-1.0, -torch.inf]]


@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_gradient_of_the_scores(similarity):
    torch.manual_seed(1)
    queries = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    gallery = torch.randn(9, 5, dtype=torch.float64, requires_grad=True)

    def scores(queries, gallery):
        return pairloom.topk(queries, gallery, 3, similarity=similarity)[0]

    assert torch.autograd.gradcheck(scores, (queries, gallery))
    assert torch.autograd.gradgradcheck(scores, (queries, gallery))


def test_padding_has_no_gradient():
    x = torch.randn(2, 3, requires_grad=True)
    scores, indices = pairloom.topk(x, x, 4)
    assert not indices.requires_grad
    scores.clamp(min=-1e3).sum().backward()
    assert x.grad.isfinite().all()


def test_mixed_dtypes():
    queries, gallery = torch.randn(3, 4, dtype=torch.bfloat16, requires_grad=True), torch.randn(5, 4)
    scores, _ = pairloom.topk(queries, gallery, 2)
    assert scores.dtype == torch.float32
    scores.sum().backward()
    assert queries.grad.dtype == torch.bfloat16


@pytest.mark.parametrize("operator", [torch.ops.pairloom.topk, pairloom.reference.topk])
def test_exclusions(operator):
    gallery = torch.tensor([[1.0], [5.0], [3.0], [5.0]])
    queries = torch.tensor([[1.0], [-1.0], [1.0]])
    # query 0 excludes rows 3 and 1, query 1 nothing, query 2 everything
    indptr, indices = torch.tensor([0, 2, 2, 6]), torch.tensor([3, 1, 0, 1, 2, 3])
    scores, found = operator(queries, gallery, 3, "dot", indptr, indices)
    assert found.tolist() == [[2, 0, -1], [0, 2, 1], [-1, -1, -1]]
    assert scores[0].tolist() == [3.0, 1.0, -torch.inf]


def test_gradients_with_exclusions():
    torch.manual_seed(1)
    queries = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    gallery = torch.randn(9, 5, dtype=torch.float64, requires_grad=True)
    excluded = torch.tensor([0, 0, 3, 3, 12]), torch.tensor([8, 0, 4, *range(9)])

    def scores(queries, gallery, operator=torch.ops.pairloom.topk):
        return operator(queries, gallery, 3, "cosine", *excluded)[0].nan_to_num(neginf=0.0)

    assert torch.autograd.gradcheck(scores, (queries, gallery))
    assert torch.autograd.gradgradcheck(scores, (queries, gallery))
    torch.testing.assert_close(
        torch.autograd.grad(scores(queries, gallery).sum(), queries),
        torch.autograd.grad(scores(queries, gallery, pairloom.reference.topk).sum(), queries),
    )


def test_exclusions_in_compiled_graphs():
    queries, gallery = torch.randn(3, 4), torch.randn(6, 4)
    excluded = torch.tensor([0, 2, 2, 3]), torch.tensor([5, 0, 1])
    expected = torch.ops.pairloom.topk(queries, gallery, 2, "dot", *excluded)

    def search(queries, gallery, indptr, indices):
        return torch.ops.pairloom.topk(queries, gallery, 2, "dot", indptr, indices)

    compiled = torch.compile(search, fullgraph=True, backend="aot_eager")
    for a, b in zip(compiled(queries, gallery, *excluded), expected, strict=True):
        assert torch.equal(a, b)
    torch.library.opcheck(torch.ops.pairloom.topk.default, (queries, gallery, 2, "dot", *excluded))


LONG = torch.int64
BAD_EXCLUSIONS = {
    "one of two": (torch.zeros(4, dtype=LONG), None, "belong together"),
    "length": (torch.zeros(3, dtype=LONG), torch.zeros(0, dtype=LONG), "exclude_indptr has 3 entries for 3 queries"),
    "start": (torch.tensor([1, 1, 1, 1]), torch.zeros(1, dtype=LONG), "exclude_indptr begins with 1"),
    "falls": (torch.tensor([0, 5, 2, 5]), torch.zeros(5, dtype=LONG), "falls from 5 to 2 at query 1"),
    "end": (torch.tensor([0, 1, 2, 3]), torch.zeros(2, dtype=LONG), "ends with 3 for 2 exclude_indices"),
    "dtype": (torch.zeros(4), torch.zeros(0, dtype=LONG), "exclude_indptr has dtype Float"),
    "dimensions": (torch.zeros(4, dtype=LONG), torch.zeros(0, 2, dtype=LONG), "exclude_indices has 2 dimensions"),
}


@pytest.mark.parametrize("case", BAD_EXCLUSIONS)
def test_bad_exclusions(case):
    indptr, indices, message = BAD_EXCLUSIONS[case]
    with pytest.raises(RuntimeError, match=message):
        torch.ops.pairloom.topk(torch.zeros(3, 2), torch.zeros(5, 2), 1, "dot", indptr, indices)
