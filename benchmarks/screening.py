"""Top-k that is screened in int8, beside full precision, bfloat16, int8 alone, ONNX Runtime and torch."""

from __future__ import annotations

from collections.abc import Iterator

import torch

import pairloom
from benchmarks.harness import Comparison, Settings, Target, as_tensors, compare
from benchmarks.topk import contenders

FULL = "full precision"
RESCORED = "rows scored in full, of a query on average"
TARGETS = {1: (Target(FULL, 3.0),), 1024: (Target("onnxruntime", 2.5),)}
"""By number of queries, for the first gallery."""
CASES = (
    *((queries, 100_000, 256) for queries in (1, 32, 1024)),
    *((queries, 1_000_000, 128) for queries in (1, 32)),
)
QUICK_CASES = tuple((queries, 10_000, 64) for queries in (1, 32))
K = 10


def run(settings: Settings) -> Iterator[Comparison]:
    """One query, a few, many; a small and a large gallery, whose codes are made outside the timing."""
    cases = QUICK_CASES if settings.quick else CASES
    for count, size, dim in cases:
        torch.manual_seed(0)
        gallery = torch.nn.functional.normalize(torch.randn(size, dim))
        queries = torch.nn.functional.normalize(torch.randn(count, dim))
        int8, bf16 = (pairloom.Gallery(gallery, screen=screen) for screen in ("int8", "bf16"))
        alone = pairloom.Int8Gallery(gallery)
        others = contenders(queries, gallery, K)
        ready = others["pairloom"]()[0]
        result = compare(
            {
                "op": "topk, screened",
                "queries": count,
                "gallery": size,
                "D": dim,
                "k": K,
                "dtype": "float32",
                "similarity": "dot",
            },
            {
                "pairloom": lambda q=queries, g=int8: pairloom.topk(q, g, K, similarity="dot"),
                "screened in bfloat16": lambda q=queries, g=bf16: pairloom.topk(q, g, K, similarity="dot"),
                FULL: others["pairloom"],
                # Its scores are approximate: those in full precision stand in for the comparison.
                "int8 alone": lambda q=queries, g=alone, r=ready: (r, pairloom.topk(q, g, K, similarity="dot")),
                "onnxruntime": others["onnxruntime"],
                "torch": others["torch"],
            },
            flops=2.0 * count * size * dim,
            repeats=settings.repeats,
            seconds=settings.max_seconds / len(cases),
            compared=lambda output: as_tensors(output[:1]),  # scores: of equal ones, any id will do
            targets=TARGETS.get(count, ()) if (size, dim) == cases[0][1:] and not settings.quick else (),
        )
        rescored = pairloom.topk(queries, int8, K, similarity="dot", return_stats=True)[2].rescored
        result.measures = {RESCORED: rescored.double().mean().item()}
        yield result
