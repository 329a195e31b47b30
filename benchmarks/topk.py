"""Top-k scoring beside torch and ONNX Runtime (MatMul + TopK)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import onnxruntime
import torch
from onnx import TensorProto, helper

import pairloom
from benchmarks.harness import LIMIT, Comparison, Settings, Target, as_tensors, compare

TARGETS = (Target("onnxruntime", 1.1), Target("torch", 3.5), Target(LIMIT, 0.85))


def onnxruntime_topk(gallery: torch.Tensor, k: int) -> Callable[[np.ndarray], object]:
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


def run(settings: Settings) -> Iterator[Comparison]:
    """One query, a few, many."""
    torch.manual_seed(0)
    size, dim, k = (10_000, 64, 10) if settings.quick else (100_000, 256, 10)
    gallery = torch.randn(size, dim)
    served = onnxruntime_topk(gallery, k)
    for count in (1, 32, 1024):
        queries = torch.randn(count, dim)
        array = queries.numpy()
        yield compare(
            {
                "op": "topk",
                "queries": count,
                "gallery": size,
                "D": dim,
                "k": k,
                "dtype": "float32",
                "similarity": "dot",
            },
            {
                "pairloom": lambda q=queries: pairloom.topk(q, gallery, k, similarity="dot"),
                "onnxruntime": lambda q=array: served(q),
                "torch": lambda q=queries: torch.topk(q @ gallery.T, k),
            },
            flops=2.0 * count * size * dim,
            repeats=settings.repeats,
            seconds=settings.max_seconds / 3,
            compared=lambda output: as_tensors(output[:1]),  # scores: of equal ones, any id will do
            targets=TARGETS if count == 1024 and not settings.quick else (),
        )
