"""Top-k scoring beside FAISS, scikit-learn, ONNX Runtime (MatMul + TopK), torch, and reading the gallery once."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnxruntime
import torch
from onnx import TensorProto, helper
from torch import Tensor

import pairloom
from benchmarks.harness import LIMIT, Comparison, Settings, Target, as_tensors, compare

ONCE = "read once"
OPTIONAL = {"faiss": "faiss", "scikit-learn": "sklearn"}
"""Peers by the name of their module."""
TARGETS = {
    1: (Target(ONCE, 1 / 1.2),),
    32: (Target("onnxruntime", 1.0),),
    1024: (Target("onnxruntime", 1.1), Target("torch", 3.5), Target("faiss", 4.0), Target(LIMIT, 0.85)),
}
"""By number of queries, for the first gallery and k = 10."""

CASES = (
    *((queries, 100_000, 256, 10) for queries in (1, 32, 1024)),
    *((32, 100_000, 256, k) for k in (1, 100, 1000)),
    *((queries, 1_000_000, 128, 10) for queries in (1, 32)),
)
"""(queries, rows of the gallery, components, k)."""
QUICK_CASES = (
    *((queries, 10_000, 64, 10) for queries in (1, 32, 1024)),
    *((32, 10_000, 64, k) for k in (1, 100, 1000)),
)


def onnxruntime_topk(gallery: Tensor, k: int) -> Callable[[np.ndarray], object]:
    """Scores and ids of MatMul + TopK in ONNX Runtime, on as many threads as torch uses."""
    weights = helper.make_tensor(
        "gallery", TensorProto.FLOAT, list(gallery.T.shape), gallery.T.contiguous().numpy().tobytes(), raw=True
    )
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["queries", "gallery"], ["all"]),
            helper.make_node("TopK", ["all", "k"], ["scores", "ids"]),
        ],
        "topk",
        [helper.make_tensor_value_info("queries", TensorProto.FLOAT, ["Q", gallery.shape[1]])],
        [
            helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["Q", k]),
            helper.make_tensor_value_info("ids", TensorProto.INT64, ["Q", k]),
        ],
        [weights, helper.make_tensor("k", TensorProto.INT64, [1], [k])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda queries: session.run(None, {"queries": queries})


def faiss_topk(gallery: Tensor, k: int) -> Callable[[np.ndarray], object]:
    """Scores and ids of FAISS's exhaustive search (`IndexFlatIP`)."""
    import faiss

    faiss.omp_set_num_threads(torch.get_num_threads())
    index = faiss.IndexFlatIP(gallery.shape[1])
    index.add(gallery.numpy())
    return lambda queries: index.search(queries, k)


def sklearn_topk(gallery: Tensor, k: int) -> Callable[[np.ndarray], object]:
    """Scores and ids of scikit-learn's brute force. It has no dot product; rows of length 1 rank alike by distance."""
    from sklearn.neighbors import NearestNeighbors
    from threadpoolctl import threadpool_limits

    threadpool_limits(torch.get_num_threads())
    index = NearestNeighbors(n_neighbors=k, algorithm="brute", metric="euclidean").fit(gallery.numpy())

    def search(queries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        distances, ids = index.kneighbors(queries)
        return 1 - distances**2 / 2, ids

    return search


def contenders(queries: Tensor, gallery: Tensor, k: int) -> dict[str, Callable[[], Any]]:
    """Ours and the peers that are there.

    Some keep their threads spinning for a while after a call. torch's pool is also ours, so it comes last: whoever
    spins does so beside the others.
    """
    array = queries.numpy()
    arrays = {"onnxruntime": onnxruntime_topk(gallery, k)}
    for name, build in (("faiss", faiss_topk), ("scikit-learn", sklearn_topk)):
        if importlib.util.find_spec(OPTIONAL[name]) is not None:
            arrays[name] = build(gallery, k)
    found: dict[str, Callable[[], Any]] = {"pairloom": lambda: pairloom.topk(queries, gallery, k, similarity="dot")}
    found |= {name: lambda search=search: search(array) for name, search in arrays.items()}
    found["torch"] = lambda: torch.topk(queries @ gallery.T, k)
    if len(queries) == 1:  # no peer but a floor: the scores are ready, and the gallery is summed
        ready = found["pairloom"]()
        found[ONCE] = lambda: (*ready, gallery.sum())
    return found


def run(settings: Settings) -> Iterator[Comparison]:
    """One query, a few, many; small and large k; a small and a large gallery."""
    cases = QUICK_CASES if settings.quick else CASES
    gallery = torch.empty(0, 0)
    for count, size, dim, k in cases:
        torch.manual_seed(0)
        if gallery.shape != (size, dim):
            gallery = torch.nn.functional.normalize(torch.randn(size, dim))
        queries = torch.nn.functional.normalize(torch.randn(count, dim))
        first = (size, dim, k) == cases[0][1:] and not settings.quick
        comparison = compare(
            {
                "op": "topk",
                "queries": count,
                "gallery": size,
                "D": dim,
                "k": k,
                "dtype": "float32",
                "similarity": "dot",
            },
            contenders(queries, gallery, k),
            flops=2.0 * count * size * dim,
            repeats=settings.repeats,
            seconds=settings.max_seconds / len(cases),
            compared=lambda output: as_tensors(output[:1]),  # scores: of equal ones, any id will do
            targets=TARGETS[count] if first else (),
        )
        comparison.left_out = {
            name: "not installed" for name, module in OPTIONAL.items() if importlib.util.find_spec(module) is None
        }
        yield comparison
