"""Bad input: one sentence that names the argument, what came and what is allowed; for every metric."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pairloom.metrics import map_at_r, precision_at_1, recall_at_k

X, Y = torch.randn(4, 3), torch.arange(4) % 2
G, L = torch.randn(5, 3), torch.arange(5) % 2


@pytest.mark.parametrize("metric", [recall_at_k, precision_at_1, map_at_r])
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((X, Y[:3]), ValueError, r"query_labels has shape \(3,\); it must be \(4,\)"),
        ((X, Y.float()), TypeError, "query_labels has dtype float32; labels must be integers or bool"),
        ((X.long(), Y), TypeError, "queries has dtype int64"),
        ((X[0], Y), ValueError, r"queries has shape \(3,\)"),
        ((X, Y, G), ValueError, "gallery is given without gallery_labels; pass both, or neither"),
        ((X, Y, None, L), ValueError, "gallery_labels is given without gallery; pass both, or neither"),
        ((X, Y, G[:, :2], L), ValueError, "gallery has 2 dimensions per row and queries has 3"),
        ((X, Y, G, L[:2]), ValueError, r"gallery_labels has shape \(2,\); it must be \(5,\)"),
        ((X, Y, G, L.to(torch.uint64)), TypeError, "both must be uint64 or neither"),
        ((X, Y, G, L.double()), TypeError, "gallery_labels has dtype float64"),
    ],
)
def test_arguments(metric: Any, arguments: tuple[Any, ...], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        metric(*arguments)


@pytest.mark.parametrize("metric", [recall_at_k, precision_at_1, map_at_r])
def test_similarity(metric: Any) -> None:
    with pytest.raises(ValueError, match="similarity is 'hamming'; allowed: cosine, dot, euclidean, squared_euclidean"):
        metric(X, Y, similarity="hamming")


@pytest.mark.parametrize(
    ("k", "error", "message"),
    [
        (0, ValueError, "k is 0; it must be 1 or more"),
        (-1, ValueError, "k is -1"),
        (1.5, TypeError, "k is 1.5; it must be an integer"),
    ],
)
def test_k(k: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        recall_at_k(X, Y, k=k)


def test_arguments_are_checked_without_queries_too() -> None:
    with pytest.raises(ValueError, match="gallery has 2 dimensions"):
        map_at_r(X[:0], Y[:0], G[:, :2], L)
