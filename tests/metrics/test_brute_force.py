"""The metrics equal their definitions (`brute_force`) and pytorch-metric-learning, ties and duplicates included."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import pairloom
from pairloom.metrics import _ranking, map_at_r, precision_at_1, recall_at_k
from tests.metrics import brute_force

SIMILARITIES = ("cosine", "dot", "euclidean", "squared_euclidean")


def same(ours: float, truth: float) -> bool:
    return ours == pytest.approx(truth, abs=1e-12, nan_ok=True)


@st.composite
def tied_rows(draw: st.DrawFn, most: int = 24) -> tuple[Tensor, Tensor]:
    """Rows of few whole numbers (many exact duplicates, equal scores and zero rows) with few labels."""
    rows = draw(st.integers(1, most))
    small = st.integers(-1, 1)
    values = draw(st.lists(st.lists(small, min_size=2, max_size=2), min_size=rows, max_size=rows))
    labels = draw(st.lists(st.integers(-1, 3), min_size=rows, max_size=rows))
    return torch.tensor(values, dtype=torch.float32), torch.tensor(labels)


@settings(max_examples=60, deadline=None)
@given(data=tied_rows(), k=st.integers(1, 30), similarity=st.sampled_from(SIMILARITIES))
def test_leave_one_out_with_ties(data: tuple[Tensor, Tensor], k: int, similarity: str) -> None:
    assert same(
        recall_at_k(*data, k=k, similarity=similarity), brute_force.recall_at_k(*data, k=k, similarity=similarity)
    )
    assert same(map_at_r(*data, similarity=similarity), brute_force.map_at_r(*data, similarity=similarity))


@settings(max_examples=60, deadline=None)
@given(queries=tied_rows(), gallery=tied_rows(), k=st.integers(1, 30), similarity=st.sampled_from(SIMILARITIES))
def test_gallery_with_ties(
    queries: tuple[Tensor, Tensor], gallery: tuple[Tensor, Tensor], k: int, similarity: str
) -> None:
    data = (*queries, *gallery)
    assert same(
        recall_at_k(*data, k=k, similarity=similarity), brute_force.recall_at_k(*data, k=k, similarity=similarity)
    )
    assert same(map_at_r(*data, similarity=similarity), brute_force.map_at_r(*data, similarity=similarity))


def random_case(classes: int, seed: int, rows: int = 300) -> tuple[Tensor, Tensor]:
    """Noisy clusters of very unequal size, the rarest possibly with one member."""
    generator = torch.Generator().manual_seed(seed)
    share = torch.rand(classes, generator=generator) ** 3 + 1e-3
    labels = torch.multinomial(share, rows, replacement=True, generator=generator)
    centres = torch.randn(classes, 8, generator=generator)
    return centres[labels] + torch.randn(rows, 8, generator=generator), labels


@pytest.mark.parametrize("classes", [2, 10, 120])
def test_equal_to_pytorch_metric_learning(classes: int) -> None:
    testers = pytest.importorskip("pytorch_metric_learning.utils.accuracy_calculator")
    inference = pytest.importorskip("pytorch_metric_learning.utils.inference")
    distances = pytest.importorskip("pytorch_metric_learning.distances")
    calculator = testers.AccuracyCalculator(
        include=("precision_at_1", "mean_average_precision_at_r"),
        k="max_bin_count",
        device=torch.device("cpu"),
        knn_func=inference.CustomKNN(distances.CosineSimilarity()),
    )
    queries, query_labels = random_case(classes, seed=classes)
    gallery, gallery_labels = random_case(classes, seed=classes + 1, rows=250)

    theirs = calculator.get_accuracy(queries, query_labels)
    assert same(precision_at_1(queries, query_labels), theirs["precision_at_1"])
    assert same(map_at_r(queries, query_labels), theirs["mean_average_precision_at_r"])

    theirs = calculator.get_accuracy(queries, query_labels, gallery, gallery_labels)
    assert same(precision_at_1(queries, query_labels, gallery, gallery_labels), theirs["precision_at_1"])
    assert same(map_at_r(queries, query_labels, gallery, gallery_labels), theirs["mean_average_precision_at_r"])


@pytest.mark.parametrize("answers", [1, 50, 700])
def test_blocks_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch, answers: int) -> None:
    embeddings, labels = random_case(12, seed=5)
    whole = map_at_r(embeddings, labels), recall_at_k(embeddings, labels, k=3)
    monkeypatch.setattr(_ranking, "BLOCK_ANSWERS", answers)
    assert (map_at_r(embeddings, labels), recall_at_k(embeddings, labels, k=3)) == whole
    assert same(whole[0], brute_force.map_at_r(embeddings, labels))


def test_a_block_keeps_to_its_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """No call of top-k returns more than the budget, so memory does not grow with Q x M."""
    asked: list[int] = []

    def spy(queries: Tensor, gallery: Tensor, k: int, *, similarity: str) -> tuple[Tensor, Tensor]:
        asked.append(len(queries) * k)
        return pairloom.topk(queries, gallery, k, similarity=similarity)

    monkeypatch.setattr(_ranking, "topk", spy)
    monkeypatch.setattr(_ranking, "BLOCK_ANSWERS", 1000)
    embeddings, labels = random_case(30, seed=7)
    map_at_r(embeddings, labels)
    assert len(asked) > 1
    assert max(asked) <= 1000
    assert sum(asked) < len(labels) * int(
        labels.bincount().max()
    )  # rare classes are not searched as deep as the frequent ones


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_dtypes(dtype: torch.dtype) -> None:
    embeddings, labels = random_case(5, seed=1, rows=60)
    rows = embeddings.to(dtype)
    assert same(map_at_r(rows, labels), brute_force.map_at_r(rows, labels))


def test_labels_are_compared_exactly() -> None:
    """2^53 and 2^53 + 1 are one number as float64."""
    points = torch.tensor([[0.0], [1.0], [5.0], [6.0]])
    big = torch.tensor([2**53, 2**53 + 1, 2**53, 2**53 + 1])
    assert recall_at_k(points, big, similarity="euclidean") == 0.0
    extremes = torch.tensor([-(2**63), 2**63 - 1, -(2**63), 2**63 - 1])
    assert map_at_r(points, extremes, similarity="euclidean") == 0.0
    assert map_at_r(points, torch.tensor([True, True, False, False]), similarity="euclidean") == 1.0
    assert map_at_r(points, torch.tensor([9, 9, 0, 0], dtype=torch.uint8), similarity="euclidean") == 1.0


def test_gradients_are_not_recorded_and_inputs_stay() -> None:
    embeddings, labels = random_case(4, seed=3, rows=40)
    before = embeddings.clone()
    assert isinstance(map_at_r(embeddings.requires_grad_(), labels), float)
    assert embeddings.grad is None
    assert torch.equal(embeddings.detach(), before)
