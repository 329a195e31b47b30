"""Ranking, verification and geometry metrics equal scikit-learn, pytorch-metric-learning and their definitions."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_metric_learning.distances import CosineSimilarity
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from pytorch_metric_learning.utils.inference import CustomKNN
from sklearn.metrics import ndcg_score, roc_auc_score

import pairloom
from pairloom.metrics import (
    _ranking,
    alignment,
    effective_rank,
    error_rates,
    mean_reciprocal_rank,
    ndcg_at_k,
    r_precision,
    roc_auc,
    uniformity,
)
from tests.metrics.test_brute_force import tied_rows
from tests.ops import golden

SIMILARITIES = ("cosine", "dot", "euclidean", "squared_euclidean")


def ranked_hits(queries, query_labels, gallery, gallery_labels, similarity):
    """Of each query with a relevant item: its hits in order, by definition."""
    alone = gallery is None
    gallery, gallery_labels = (queries, query_labels) if alone else (gallery, gallery_labels)
    scores = pairloom.pairwise_similarity(queries, gallery, similarity=similarity)
    for i in range(len(queries)):
        others = [j for j in range(len(gallery)) if not (alone and i == j)]
        if not any(gallery_labels[j] == query_labels[i] for j in others):
            continue
        order = sorted((j for j in others if scores[i, j] > -math.inf), key=lambda j: (-float(scores[i, j]), j))
        yield [bool(gallery_labels[j] == query_labels[i]) for j in order]


def mean(values):
    return sum(values) / len(values) if values else math.nan


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    queries=tied_rows(), gallery=st.none() | tied_rows(), k=st.integers(1, 9), similarity=st.sampled_from(SIMILARITIES)
)
def test_ranking_by_definition(queries, gallery, k, similarity):
    given_rows = (*queries, *(gallery or (None, None)))
    hits = list(ranked_hits(*given_rows, similarity))
    gains = [1 / math.log2(i + 2) for i in range(100)]
    wanted = {
        r_precision: mean([sum(h[: sum(h)]) / sum(h) for h in hits]),
        mean_reciprocal_rank: mean([1 / (1 + h.index(True)) for h in hits]),
    }
    for metric, value in wanted.items():
        assert metric(*given_rows, similarity=similarity) == pytest.approx(value, abs=1e-12, nan_ok=True)
    ndcg = mean([sum(g for g, hit in zip(gains, h[:k]) if hit) / sum(gains[: min(sum(h), k)]) for h in hits])  # noqa: B905
    assert ndcg_at_k(*given_rows, k=k, similarity=similarity) == pytest.approx(ndcg, abs=1e-12, nan_ok=True)


def batch(n=60, m=45, classes=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    rows = [torch.randn(k, 5, generator=generator) for k in (n, m)]
    labels = [torch.randint(0, classes, (k,), generator=generator) for k in (n, m)]
    return rows[0], labels[0], rows[1], labels[1]


def test_equal_scikit_learn_and_pytorch_metric_learning(monkeypatch):
    x, x_labels, y, y_labels = batch()
    scores = pairloom.pairwise_similarity(x, y)
    same = x_labels.unsqueeze(1) == y_labels
    knn = CustomKNN(CosineSimilarity())
    names = ("r_precision", "mean_reciprocal_rank")
    calculator = AccuracyCalculator(include=names, k=45, device=torch.device("cpu"), knn_func=knn)
    unit = [torch.nn.functional.normalize(rows) for rows in (x, y)]
    theirs = calculator.get_accuracy(unit[0], x_labels, unit[1], y_labels)
    for block in (1 << 20, 50):
        monkeypatch.setattr(_ranking, "BLOCK_SCORES", block)
        assert r_precision(x, x_labels, y, y_labels) == pytest.approx(theirs["r_precision"], abs=1e-6)
        assert mean_reciprocal_rank(x, x_labels, y, y_labels) == pytest.approx(theirs["mean_reciprocal_rank"], abs=1e-6)
        for k in (1, 5, 45):
            wanted = ndcg_score(same.numpy().astype(float), scores.numpy().astype(np.float64), k=k)
            assert ndcg_at_k(x, x_labels, y, y_labels, k=k) == pytest.approx(wanted, abs=1e-9)
        auc = roc_auc_score(same.flatten().numpy(), scores.flatten().numpy())
        assert roc_auc(x, x_labels, y, y_labels) == pytest.approx(auc, abs=1e-12)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(data=tied_rows(), similarity=st.sampled_from(SIMILARITIES))
def test_verification_with_ties(data, similarity):
    x, labels = data
    scores = pairloom.pairwise_similarity(x, x, similarity=similarity)
    other = ~torch.eye(len(x), dtype=torch.bool)
    same = (labels.unsqueeze(1) == labels)[other].numpy()
    scores = scores[other].numpy()
    auc = roc_auc_score(same, scores) if 0 < same.sum() < len(same) else math.nan
    assert roc_auc(x, labels, similarity=similarity) == pytest.approx(auc, abs=1e-12, nan_ok=True)
    thresholds = torch.tensor([0.0, -1.0, 0.5, 1.0, -math.inf, math.inf])
    rates = error_rates(x, labels, thresholds=thresholds, similarity=similarity)
    for t, far, frr in zip(thresholds.tolist(), *(rate.tolist() for rate in rates), strict=True):
        assert far == pytest.approx(mean([float(s >= t) for s in scores[~same]]), nan_ok=True)
        assert frr == pytest.approx(mean([float(s < t) for s in scores[same]]), nan_ok=True)


def test_scores_that_are_no_numbers():
    x, labels, *_ = batch()
    broken = x.clone()
    broken[3, 0] = torch.nan
    rest = torch.arange(60) != 3
    assert roc_auc(broken, labels) == roc_auc(x[rest], labels[rest])
    thresholds = torch.linspace(-1, 1, 9)
    for ours, wanted in zip(
        error_rates(broken, labels, thresholds=thresholds),
        error_rates(x[rest], labels[rest], thresholds=thresholds),
        strict=True,
    ):
        assert torch.equal(ours, wanted)
    assert 0 < mean_reciprocal_rank(broken, labels) < 1


def test_geometry():
    """FORMULAS A19 and E9, and the definitions."""
    assert alignment(golden.A, golden.B) == pytest.approx(0.252, abs=1e-6)
    assert uniformity(golden.A) == pytest.approx(-1.907732, abs=1e-6)
    assert effective_rank(golden.A) == pytest.approx(2.0, abs=1e-6)
    x, _, y, _ = batch()
    squares = torch.cdist(x.double(), x.double()).square()
    pairs = squares[torch.triu(torch.ones(60, 60, dtype=torch.bool), 1)]
    assert uniformity(x) == pytest.approx((-2 * pairs).exp().mean().log().item(), rel=1e-6)
    assert uniformity(x.double(), t=0.5) == pytest.approx((-0.5 * pairs).exp().mean().log().item(), rel=1e-12)
    assert alignment(x[:45], y, alpha=1) == pytest.approx((x[:45] - y).norm(dim=1).mean().item(), rel=1e-6)
    far = torch.tensor([[0.0], [100.0]])
    assert uniformity(far) == pytest.approx(-20000)
    assert effective_rank(torch.zeros(3, 2)) == 0
    assert effective_rank(torch.eye(2).double() * 1e308) == pytest.approx(2)
    assert math.isnan(uniformity(x[:1]))
    assert math.isnan(alignment(x[:0], x[:0]))


@pytest.mark.parametrize("metric", [r_precision, mean_reciprocal_rank, ndcg_at_k, roc_auc])
def test_nothing_to_judge_and_bad_input(metric):
    x, labels, *_ = batch()
    assert math.isnan(metric(x, torch.arange(60)))
    assert math.isnan(metric(x[:0], labels[:0]))
    with pytest.raises(TypeError, match="query_labels"):
        metric(x, labels.float())
    with pytest.raises(ValueError, match="gallery is given"):
        metric(x, labels, x)
    with pytest.raises(ValueError, match="similarity is 'l2'"):
        metric(x, labels, similarity="l2")


def test_bad_settings():
    x, labels, *_ = batch()
    with pytest.raises(ValueError, match="k is 0"):
        ndcg_at_k(x, labels, k=0)
    with pytest.raises(TypeError, match="thresholds is list"):
        error_rates(x, labels, thresholds=[0.5])
    with pytest.raises(ValueError, match=r"thresholds has shape \(\)"):
        error_rates(x, labels, thresholds=torch.tensor(0.5))
    with pytest.raises(ValueError, match="thresholds holds nan"):
        error_rates(x, labels, thresholds=torch.tensor([torch.nan]))
    with pytest.raises(ValueError, match=r"b has shape \(3, 5\); it must be that of a, \(60, 5\)"):
        alignment(x, x[:3])
    with pytest.raises(ValueError, match="t is 0"):
        uniformity(x, t=0)
