"""Every metric with the rows that a newcomer may hand it: equal to its definition in float64, NaN over nothing, or one
sentence on the argument; the same in an exported graph, with the check of the file switched off."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import pairloom
from pairloom import metrics
from pairloom.export import module_to_onnx
from pairloom.export._onnx import onnx_runtime
from pairloom.reference import metrics as dense
from tests.metrics import brute_force

SEARCH: dict[str, dict[str, Any]] = {
    "recall_at_k": {"k": 3},
    "precision_at_1": {},
    "r_precision": {},
    "map_at_r": {},
    "mean_reciprocal_rank": {},
    "ndcg_at_k": {"k": 4},
    "roc_auc": {},
    "error_rates": {"thresholds": torch.tensor([0.5, -3.0, math.inf, -math.inf, 0.0])},
}
SIMILARITIES = ("cosine", "dot", "euclidean", "squared_euclidean")
Rows = tuple[Tensor, ...]


def whole(n: int, seed: int = 0) -> Tensor:
    """Small whole numbers, exact in every dtype; many scores are equal."""
    return torch.randint(-2, 3, (n, 3), generator=torch.Generator().manual_seed(seed)).float()


X, Y = whole(9), torch.tensor([0, 0, 1, 1, 2, 0, 1, -100, -100])
G, L = whole(6, 1), torch.tensor([0, 1, 0, 1, 2, 7])

CASES: dict[str, Rows] = {
    "plain": (X, Y),
    "gallery": (X, Y, G, L),
    "one class": (X, Y * 0),
    "one class everywhere": (X, Y * 0, G, L * 0),
    "duplicates": (X[:1].expand(9, 3), Y),
    "the gallery is the batch": (X, Y, X, Y),
    "rows of zeros": (X * 0, Y),
    "a NaN row": (X.clone().index_fill_(0, torch.tensor([2]), math.nan), Y),
    "NaN everywhere": (X * math.nan, Y),
    "NaN in the gallery": (X, Y, G.clone().index_fill_(0, torch.tensor([0, 3]), math.nan), L),
    "infinite rows": (X.clone().index_fill_(0, torch.tensor([1]), math.inf), Y),
    "strided": (X.repeat(1, 2)[:, ::2].T.contiguous().T, Y.repeat_interleave(2)[::2]),
    "one query": (X[:1], Y[:1], G, L),
    "one item": (X, Y, G[:1], L[:1]),
    "bool": (X, Y > 0),
    "uint8 and int64": (X, Y.clamp(min=0).to(torch.uint8), G, L),
    "float64 beside half": (X.double(), Y, G.half(), L),
    "Parameter": (nn.Parameter(X), Y),
}
NOTHING: dict[str, Rows] = {
    "no rows": (X[:0], Y[:0]),
    "one row": (X[:1], Y[:1]),
    "no queries": (X[:0], Y[:0], G, L),
    "no gallery": (X, Y, G[:0], L[:0]),
    "neither": (X[:0], Y[:0], G[:0], L[:0]),
}
LONELY: dict[str, Rows] = {"all alone": (X, torch.arange(9)), "other classes": (X, Y, G, L + 1000)}


def numbers(value: Any) -> np.ndarray:
    """A number, a tensor, or two lists of them."""
    return np.asarray([np.asarray(v) for v in value] if isinstance(value, tuple) else value, dtype=np.float64)


def plain_scores(rows: Tensor, items: Tensor, similarity: str) -> list[list[float]]:
    """Similarities in Python's floats."""

    def of(a: list[float], b: list[float]) -> float:
        if similarity.endswith("euclidean"):
            square = sum((x - y) ** 2 for x, y in zip(a, b, strict=True))
            return -square if similarity == "squared_euclidean" else -math.sqrt(square)
        dot = sum(x * y for x, y in zip(a, b, strict=True))
        if similarity == "dot":
            return dot
        length = math.hypot(*a) * math.hypot(*b)
        return dot / length if length else 0.0

    return [[of(a, b) for b in items.tolist()] for a in rows.tolist()]


@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_the_scores_of_the_oracle_are_right(similarity: str) -> None:
    found = pairloom.pairwise_similarity(X.double(), G.double(), similarity=similarity)
    torch.testing.assert_close(found, torch.tensor(plain_scores(X, G, similarity), dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", SEARCH)
def test_equal_to_the_definition_in_float64(name: str, case: str, dtype: torch.dtype) -> None:
    """Products of small whole numbers are exact, so a tie is a tie in float64 too."""
    rows = CASES[case]
    if dtype != torch.float32:
        rows = tuple(x.to(dtype) if x.is_floating_point() else x for x in rows)
    exact = tuple(x.detach().double() if x.is_floating_point() else x for x in rows)
    for similarity in ("dot", "squared_euclidean"):
        settings = {**SEARCH[name], "similarity": similarity}
        found = getattr(metrics, name)(*rows, **settings)
        wanted = getattr(brute_force, name)(*exact, **settings)
        np.testing.assert_allclose(numbers(found), numbers(wanted), rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(numbers(getattr(dense, name)(*rows, **settings)), numbers(wanted), rtol=1e-9)


@pytest.mark.parametrize("similarity", SIMILARITIES)
@pytest.mark.parametrize("case", [*NOTHING, *LONELY])
@pytest.mark.parametrize("name", SEARCH)
def test_nothing_to_average_is_nan(name: str, case: str, similarity: str) -> None:
    rows = {**NOTHING, **LONELY}[case]
    for home in (metrics, dense):
        found = getattr(home, name)(*rows, **SEARCH[name], similarity=similarity)
        if name == "error_rates" and case in LONELY:  # there are pairs of two classes
            assert not found.false_accept_rate.isnan().any()
            found = found.false_reject_rate
        assert np.isnan(numbers(found)).all()


GEOMETRY: dict[str, Tensor] = {
    "plain": X,
    "random": torch.randn(20, 3, generator=torch.Generator().manual_seed(3)),
    "no rows": X[:0],
    "one row": X[:1],
    "duplicates": X[:1].expand(5, 3),
    "zeros": X * 0,
    "a NaN row": CASES["a NaN row"][0],
    "an infinite row": CASES["infinite rows"][0],
    "half": X.half(),
    "bfloat16": X.bfloat16(),
    "strided": X.repeat(1, 2)[:, ::2],
}


@pytest.mark.parametrize("case", GEOMETRY)
def test_geometry_equals_the_definition_in_float64(case: str) -> None:
    x = GEOMETRY[case]
    exact, other = x.double(), x.roll(1, 0)
    for alpha in (1, 2.5):
        wanted = brute_force.alignment(exact, other.double(), alpha=alpha)
        assert metrics.alignment(x, other, alpha=alpha) == pytest.approx(wanted, rel=1e-9, nan_ok=True)
    for t in (2, 0.1):
        wanted = brute_force.uniformity(exact, t=t)
        assert metrics.uniformity(x, t=t) == pytest.approx(wanted, rel=1e-5, abs=1e-6, nan_ok=True)
    wanted = brute_force.effective_rank(exact)
    assert metrics.effective_rank(x) == pytest.approx(wanted, rel=1e-6, nan_ok=True)


def test_nothing_in_geometry_is_nan() -> None:
    assert math.isnan(metrics.alignment(X[:0], X[:0]))
    assert math.isnan(metrics.uniformity(X[:0]))
    assert math.isnan(metrics.effective_rank(X[:0]))


ODD = torch.tensor([0.5, math.nan])
WRONG: list[tuple[str, Rows, dict[str, Any], type[Exception], str]] = [
    ("recall_at_k", (X, Y), {"k": 0}, ValueError, "k is 0; it must be 1 or more"),
    ("recall_at_k", (X, Y), {"k": 2.5}, TypeError, "k is 2.5; it must be an integer"),
    ("ndcg_at_k", (X, Y), {"k": -1}, ValueError, "k is -1; it must be 1 or more"),
    ("ndcg_at_k", (X, Y), {"k": True}, TypeError, "k is True; it must be an integer"),
    ("error_rates", (X, Y), {"thresholds": [0.5]}, TypeError, "thresholds is list; it must be a float tensor"),
    ("error_rates", (X, Y), {"thresholds": Y}, TypeError, "thresholds is torch.int64; it must be a float tensor"),
    ("error_rates", (X, Y), {"thresholds": X}, ValueError, r"thresholds has shape \(9, 3\); it must be 1-D"),
    ("error_rates", (X, Y), {"thresholds": ODD}, ValueError, "thresholds holds nan; every one must be a number"),
    ("alignment", (X, X), {"alpha": 0}, ValueError, "alpha is 0; it must be finite and above 0"),
    ("alignment", (X, G), {}, ValueError, r"b has shape \(6, 3\); it must be that of a, \(9, 3\)"),
    ("alignment", (X, Y), {}, TypeError, "b has dtype int64; embeddings must be float32, float64, float16, bfloat16"),
    ("uniformity", (X,), {"t": math.nan}, ValueError, "t is nan; it must be finite and above 0"),
    ("uniformity", (X,), {"t": "2"}, TypeError, "t is '2'; it must be a number"),
]
for _name, _settings in SEARCH.items():
    WRONG += [
        (
            _name,
            (X, Y.float()),
            _settings,
            TypeError,
            "query_labels has dtype float32; labels must be integers or bool",
        ),
        (_name, (X, Y[:4]), _settings, ValueError, r"query_labels has shape \(4,\); it must be \(9,\)"),
        (_name, (X, Y[:, None]), _settings, ValueError, r"query_labels has shape \(9, 1\); it must be \(9,\)"),
        (_name, (Y, Y), _settings, TypeError, "queries has dtype int64; embeddings must be"),
        (_name, (X, Y, G, L[:1]), _settings, ValueError, r"gallery_labels has shape \(1,\); it must be \(6,\)"),
        (_name, (X, Y, G, L / 2), _settings, TypeError, "gallery_labels has dtype float32"),
        (_name, (X, Y, G[:, :2], L), _settings, ValueError, "gallery has 2 dimensions per row and queries has 3"),
        (_name, (X, Y, G), _settings, ValueError, "gallery is given without gallery_labels; pass both, or neither"),
        (_name, (X, Y), {**_settings, "similarity": "l2"}, ValueError, "similarity is 'l2'; allowed: cosine, dot"),
    ]


class One(nn.Module):
    """A metric as a user would export it."""

    def __init__(self, name: str, settings: dict[str, Any]) -> None:
        super().__init__()
        self.metric, self.settings = getattr(metrics, name), settings

    def forward(self, *rows: Tensor) -> Any:
        return self.metric(*rows, **self.settings)


def case_id(value: Any) -> str | None:
    return value if isinstance(value, str) and " " not in value else ""


@pytest.mark.parametrize(("name", "rows", "settings", "error", "message"), WRONG, ids=case_id)
def test_a_wrong_argument_is_one_sentence(
    name: str, rows: Rows, settings: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        getattr(metrics, name)(*rows, **settings)
    assert "\n" not in str(caught.value)


# Half a second each: every kind of settings, and the labels of one metric.
EXPORTED = [case for case in WRONG if case[0] not in SEARCH or case[0] in ("error_rates", "recall_at_k")]


@pytest.mark.parametrize(("name", "rows", "settings", "error", "message"), EXPORTED, ids=case_id)
def test_a_wrong_argument_is_in_no_file(
    name: str, rows: Rows, settings: dict[str, Any], error: type[Exception], message: str, tmp_path: Any
) -> None:
    """Nobody runs the file here, so nobody else would tell."""
    path = tmp_path / "wrong.onnx"
    with pytest.raises(error, match=message) as caught:
        module_to_onnx(One(name, settings), rows, path, dynamic_batch=False, check=False)
    assert "\n" not in str(caught.value)
    assert not path.exists()


def test_thresholds_on_another_device() -> None:
    with pytest.raises(ValueError, match="thresholds is on meta and queries on cpu; they must be on one device"):
        metrics.error_rates(X, Y, thresholds=torch.ones(1, device="meta"))


def test_an_error_of_the_user_stays_as_torch_reports_it(tmp_path: Any) -> None:
    class Broken(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError("mine")

    with pytest.raises(Exception, match="export") as caught:
        module_to_onnx(Broken(), (X,), tmp_path / "broken.onnx", check=False)
    assert type(caught.value) is not ValueError


class Everything(nn.Module):
    """Every metric that searches, and the geometry of the queries. Dot products of whole numbers tie everywhere."""

    def forward(self, *rows: Tensor) -> Any:
        found = [getattr(metrics, name)(*rows, **settings, similarity="dot") for name, settings in SEARCH.items()]
        found += [metric(*rows, k=10**9, similarity="dot") for metric in (metrics.recall_at_k, metrics.ndcg_at_k)]
        rates = metrics.error_rates(*rows, thresholds=torch.tensor([0.25]), similarity="squared_euclidean")
        geometry = [metrics.alignment(rows[0], rows[0] + 1, alpha=1.5), metrics.uniformity(rows[0])]
        return *found, rates.false_accept_rate, rates.false_reject_rate, *geometry


@pytest.mark.parametrize("against", ["itself", "a gallery"])
def test_an_exported_graph_says_the_same(against: str, tmp_path: Any) -> None:
    count = 2 if against == "itself" else 4
    q, m = torch.export.Dim("q"), torch.export.Dim("m")
    shapes = (tuple({0: dim} for dim in (q, q, m, m)[:count]),)
    example = (X, Y, G, L)[:count]
    path = module_to_onnx(
        Everything(), example, tmp_path / "all.onnx", dynamic_shapes=shapes, dynamic_batch=False, check=False
    )
    session = onnx_runtime(path)
    names = [node.name for node in session.get_inputs()]
    cases = {**CASES, **NOTHING, **LONELY}
    same_kinds = [case for case in cases.values() if len(case) == count and case[0].dtype == torch.float32]
    tried = 0
    for rows in same_kinds:
        if any(x.dtype not in (torch.float32, torch.int64) for x in rows):
            continue
        tried += 1
        found = session.run(None, {name: x.detach().numpy() for name, x in zip(names, rows, strict=True)})
        for ours, wanted in zip(found, torch.utils._pytree.tree_leaves(Everything()(*rows)), strict=True):
            np.testing.assert_allclose(ours, numbers(wanted), rtol=1e-5, atol=1e-6)
    assert tried > 6


def test_a_threshold_that_is_an_input_answers_nan_to_nan(tmp_path: Any) -> None:
    class Rates(nn.Module):
        def forward(self, x: Tensor, labels: Tensor, thresholds: Tensor) -> Any:
            return metrics.error_rates(x, labels, thresholds=thresholds)

    path = module_to_onnx(Rates(), (X, Y, torch.zeros(2)), tmp_path / "rates.onnx", dynamic_batch=False, check=False)
    session = onnx_runtime(path)
    limits = np.array([math.nan, 0.5], dtype=np.float32)
    given = (X.numpy(), Y.numpy(), limits)
    found = session.run(None, {node.name: x for node, x in zip(session.get_inputs(), given, strict=True)})
    wanted = metrics.error_rates(X, Y, thresholds=torch.tensor([0.5]))
    for ours, right in zip(found, wanted, strict=True):
        assert math.isnan(ours[0])
        assert ours[1] == pytest.approx(right.item())
