"""pairwise_similarity: formulas written another way, exact zeros, gradients, dtypes, empty inputs."""

import pytest
import torch
import torch.nn.functional as F

import pairloom
from tests.ops.golden import DTYPES

SIMILARITIES = ["cosine", "dot", "euclidean", "squared_euclidean"]


def test_formulas():
    torch.manual_seed(0)
    a, b = torch.randn(9, 5, dtype=torch.float64), torch.randn(13, 5, dtype=torch.float64)
    expected = {
        "cosine": F.cosine_similarity(a[:, None], b[None], dim=2),
        "dot": torch.einsum("nd,md->nm", a, b),
        "euclidean": -torch.linalg.vector_norm(a[:, None] - b, dim=2),
        "squared_euclidean": -(a[:, None] - b).pow(2).sum(2),
    }
    for similarity, wanted in expected.items():
        torch.testing.assert_close(pairloom.pairwise_similarity(a, b, similarity=similarity), wanted)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_distance_to_itself_is_exactly_zero(dtype):
    x = 1000 * torch.randn(50, 33).to(dtype)
    for similarity in ("euclidean", "squared_euclidean"):
        assert not pairloom.pairwise_similarity(x, similarity=similarity).diagonal().any()


@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_derivatives_of_one_batch_with_itself(similarity):
    """The diagonal of a distance has a kink: its gradient is 0, not NaN."""
    torch.manual_seed(1)
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    off_diagonal = ~torch.eye(4, dtype=torch.bool)

    def scores(x):
        return pairloom.pairwise_similarity(x, similarity=similarity)[off_diagonal]

    assert torch.autograd.gradcheck(scores, (x,))
    assert torch.autograd.gradgradcheck(scores, (x,))
    (gradient,) = torch.autograd.grad(pairloom.pairwise_similarity(x, similarity=similarity).sum(), x)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_zero_row(dtype):
    a = torch.zeros(1, 4, dtype=dtype, requires_grad=True)
    score = pairloom.pairwise_similarity(a, torch.ones(1, 4, dtype=dtype))
    score.sum().backward()
    assert score.item() == 0.0
    assert not a.grad.any()


def test_dtypes_of_scores_and_gradients():
    for left in DTYPES:
        for right in DTYPES:
            a, b = torch.randn(2, 3).to(left).requires_grad_(), torch.randn(4, 3).to(right).requires_grad_()
            scores = pairloom.pairwise_similarity(a, b)
            assert scores.dtype == (torch.float64 if torch.float64 in (left, right) else torch.float32)
            scores.sum().backward()
            assert (a.grad.dtype, b.grad.dtype) == (left, right)


def test_empty_inputs():
    x = torch.randn(3, 4)
    assert pairloom.pairwise_similarity(x[:0], x).shape == (0, 3)
    assert pairloom.pairwise_similarity(x, x[:0]).shape == (3, 0)


def test_autocast_keeps_float32():
    x = torch.randn(4, 8)
    plain = pairloom.pairwise_similarity(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(pairloom.pairwise_similarity(x), plain)
        mapped = torch.func.vmap(lambda row: pairloom.pairwise_similarity(row[None], x)[0])(x)
    torch.testing.assert_close(mapped, plain)
