"""Metrics in exported graphs equal the eager ones: ties, duplicates, NaN, lonely classes, nothing to find."""

import inspect

import numpy as np
import pytest
import torch
from torch import nn

from pairloom import metrics
from pairloom.export import module_to_onnx
from pairloom.export._onnx import onnx_runtime
from pairloom.reference import metrics as dense

RETRIEVAL = {
    "recall_at_k": {"k": 3},
    "precision_at_1": {},
    "r_precision": {},
    "map_at_r": {},
    "mean_reciprocal_rank": {},
    "ndcg_at_k": {"k": 4},
    "roc_auc": {},
    "error_rates": {"thresholds": torch.linspace(-20, 20, 9)},
}


class All(nn.Module):
    """Every retrieval metric of one batch, or against a gallery."""

    def forward(self, *tensors):
        outputs = []
        for name, settings in RETRIEVAL.items():
            value = getattr(metrics, name)(*tensors, **settings, similarity="dot")
            outputs += value if isinstance(value, tuple) else [value]
        return tuple(outputs)


class Geometry(nn.Module):
    def forward(self, a, b):
        return metrics.alignment(a, b, alpha=1.5), metrics.uniformity(a)


def inputs(q, m, classes, seed, strange=True):
    """Small integers: sums are exact, and scores tie often."""
    generator = torch.Generator().manual_seed(seed)
    x, y = (torch.randint(-3, 4, (n, 4), generator=generator).float() for n in (q, m))
    if strange and q > 3:
        x[2], x[3] = torch.nan, x[0]
    labels = [torch.randint(0, classes, (n,), generator=generator) for n in (q, m)]
    return x, labels[0], y, labels[1]


def values(outputs):
    return [np.asarray(output, dtype=np.float64) for output in outputs]


CASES = [(7, 9, 3, 0), (2, 30, 2, 1), (25, 4, 6, 2), (12, 11, 40, 3), (30, 30, 1, 4)]


@pytest.mark.parametrize("against", ["itself", "gallery"])
def test_retrieval_metrics(against, tmp_path):
    count = 2 if against == "itself" else 4
    example = inputs(6, 8, 3, 9)[:count]
    rows, columns = torch.export.Dim("q"), torch.export.Dim("m")
    shapes = (tuple({0: dim} for dim in (rows, rows, columns, columns)[:count]),)
    path = module_to_onnx(All(), example, tmp_path / "all.onnx", dynamic_shapes=shapes, dynamic_batch=False)
    session = onnx_runtime(path)
    names = [node.name for node in session.get_inputs()]
    for case in CASES:
        given = inputs(*case)[:count]
        found = session.run(None, {name: tensor.numpy() for name, tensor in zip(names, given, strict=True)})
        for ours, wanted in zip(values(found), values(All()(*given)), strict=True):
            np.testing.assert_allclose(ours, wanted, rtol=1e-6, atol=1e-9)


def test_geometry(tmp_path):
    torch.manual_seed(0)
    a, b = torch.randn(5, 3), torch.randn(5, 3)
    session = onnx_runtime(module_to_onnx(Geometry(), (a, b), tmp_path / "geometry.onnx"))
    for count in (2, 9, 40):
        a, b = torch.randn(count, 3), torch.randn(count, 3)
        found = session.run(None, {"a": a.numpy(), "b": b.numpy()})
        np.testing.assert_allclose(values(found), values(Geometry()(a, b)), rtol=1e-5)


def test_effective_rank_says_why_not(tmp_path):
    class Rank(nn.Module):
        def forward(self, x):
            return torch.tensor(metrics.effective_rank(x))

    with pytest.raises(Exception, match="effective_rank needs singular values, which ONNX does not have"):
        module_to_onnx(Rank(), (torch.randn(3, 3),), tmp_path / "rank.onnx")


@pytest.mark.parametrize("name", [*RETRIEVAL, "alignment", "uniformity"])
def test_signatures_agree(name):
    eager = inspect.signature(getattr(metrics, name)).parameters
    exported = inspect.signature(getattr(dense, name)).parameters
    assert {n: (p.kind, p.default) for n, p in eager.items()} == {n: (p.kind, p.default) for n, p in exported.items()}


def test_dense_formulas_of_random_rows():
    torch.manual_seed(1)
    for q, m in ((20, 30), (1, 5), (15, 15)):
        x, y = torch.randn(q, 5, dtype=torch.float64), torch.randn(m, 5, dtype=torch.float64)
        a, b = torch.randint(0, 4, (q,)), torch.randint(0, 4, (m,))
        for arguments in ((x, a), (x, a, y, b)):
            for name, settings in RETRIEVAL.items():
                both = (np.atleast_2d(getattr(home, name)(*arguments, **settings)) for home in (dense, metrics))
                for ours, wanted in zip(*both, strict=True):
                    np.testing.assert_allclose(ours, wanted, rtol=1e-12)
