"""One ONNX file in ONNX Runtime: our kernel in the scoring node beside its body of standard operators."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnxruntime
import torch
from torch import Tensor

import pairloom
from benchmarks.harness import Comparison, Settings, Target, as_tensors, compare

BODY = "body in standard operators"
TARGETS = {1: (Target(BODY, 1.0),), 32: (Target(BODY, 1.0),), 1024: (Target(BODY, 1.1),)}
"""By number of queries, for float32."""
CASES = (
    *((queries, 100_000, 256, "float32", None) for queries in (1, 32, 1024)),
    *((queries, 100_000, 256, "float32", "int8") for queries in (1, 32, 1024)),
    *((queries, 100_000, 256, "float16", None) for queries in (1, 32)),
    *((queries, 100_000, 256, "int8", None) for queries in (1, 32, 1024)),
)
"""(queries, rows of the gallery, components, precision, screen)."""
QUICK_CASES = ((32, 5_000, 64, "float32", None), (32, 5_000, 64, "int8", None))
K = 10


def session(path: Path, *libraries: str) -> onnxruntime.InferenceSession:
    """On as many threads as torch uses; those of a session that waits do not spin beside the others."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    for library in libraries:
        options.register_custom_ops_library(library)
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def run(settings: Settings) -> Iterator[Comparison]:
    """One query, a few, many; galleries in float32 (screened too), float16 and int8."""
    cases = QUICK_CASES if settings.quick else CASES
    with tempfile.TemporaryDirectory() as folder:
        for count, size, dim, precision, screen in cases:
            torch.manual_seed(0)
            gallery, queries = torch.randn(size, dim), torch.randn(count, dim)
            path = pairloom.export.to_onnx(
                None, gallery, k=K, path=f"{folder}/it.onnx", precision=precision, screen=screen, check=False
            )
            feed = {"queries": queries.numpy()}
            ours, body = session(path, pairloom.deploy.ort_library()), session(path)
            # Nothing of torch takes part: its threads would spin on for a while after each call, beside the runtime's.
            contenders: dict[str, Any] = {
                "pairloom": lambda s=ours, f=feed: s.run(None, f),
                BODY: lambda s=body, f=feed: s.run(None, f),
            }
            yield compare(
                {
                    "op": "topk in ONNX Runtime",
                    "queries": count,
                    "gallery": size,
                    "D": dim,
                    "k": K,
                    "dtype": precision if screen is None else f"{precision}, screened in {screen}",
                    "similarity": "cosine",
                },
                contenders,
                flops=2.0 * count * size * dim,
                repeats=settings.repeats,
                seconds=settings.max_seconds / len(cases),
                compared=_scores,
                targets=TARGETS[count] if precision == "float32" and screen is None and not settings.quick else (),
            )


def _scores(output: Any) -> list[Tensor]:
    """Of equal ones, any id will do."""
    return as_tensors(output[:1])
