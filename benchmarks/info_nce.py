"""InfoNCE, forward and backward, beside the dense formula in eager torch and under torch.compile."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from benchmarks.harness import Comparison, compare, peak_extra_mb
from pairloom.functional import info_nce

TEMPERATURE = 0.07
SHAPES = [(256, 128), (1024, 128), (4096, 256), (8192, 256), (8192, 768), (16384, 256)]
# Ratios to reach, by (N, D).
TARGETS = {(8192, 256): {"eager": 3.0, "compile": 2.0}}


def dense(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    logits = F.normalize(query) @ F.normalize(key).T / TEMPERATURE
    return F.cross_entropy(logits, torch.arange(len(query)))


def step(loss: Callable[..., torch.Tensor], query: torch.Tensor, key: torch.Tensor) -> Callable[[], object]:
    return lambda: torch.autograd.grad(loss(query, key), [query, key])


def memory(n: int, dim: int) -> float:
    return peak_extra_mb(f"""
from pairloom.functional import info_nce
def prepare(n={n}): return [torch.randn(n, {dim}, requires_grad=True) for _ in range(2)]
def warm(): return prepare(64)
def work(inputs):
    return torch.autograd.grad(info_nce(*inputs, temperature={TEMPERATURE}), inputs)
""")


def run(*, quick: bool, repeats: int) -> list[Comparison]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    compiled = torch.compile(dense)
    results = []
    for n, dim in [(1024, 64)] if quick else SHAPES:
        query, key = (torch.randn(n, dim, requires_grad=True) for _ in range(2))

        def ours(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return info_nce(a, b, temperature=TEMPERATURE)

        result = compare(
            {"op": "info_nce", "N": n, "D": dim, "dtype": "float32", "pass": "forward + backward"},
            {
                "pairloom": step(ours, query, key),
                "eager": step(dense, query, key),
                "compile": step(compiled, query, key),
            },
            flops=6.0 * n * n * dim,
            repeats=repeats if n <= 8192 else max(3, repeats // 2),
            targets=TARGETS.get((n, dim)),
        )
        result.peak_extra_mb = memory(n, dim)
        results.append(result)
    return results
