"""Top-k in a gallery that exists as int8 alone, and queries coded by the same rule.

    scale_x = max |x| / 127,   codes_x = x / scale_x rounded to the nearest integer, halves away from 0
    s(a, b) = (codes_a . codes_b) (scale_a scale_b)        "cosine": a / |a| is coded, and divided by |b| at the end

The product of the codes is exact. A row with NaN or of norm 1e18 and more has no codes: its scores are NaN, and NaN is
never returned. A row with a scale below 1e-30 has the scale 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pairloom.reference.similarity import unit_rows
from pairloom.reference.topk import best, best_standard

LARGEST_NORM = 1e18
SMALLEST_SCALE = 1e-30


def coded_topk(
    queries: Tensor, codes: Tensor, records: Tensor, k: int, similarity: str = "cosine"
) -> tuple[Tensor, Tensor]:
    """(Q, D), (M, S >= D) int8 with zeros from D on, (5, M) -> scores (Q, k) float32, indices (Q, k) int64.

    Records: scale, bound on the residual (infinite for a row without codes), norm, 1 / norm, sum of the codes.
    """
    return best(_scores(queries, codes, records, similarity), k)


def coded_topk_standard(
    queries: Tensor, codes: Tensor, records: Tensor, k: int, similarity: str = "cosine"
) -> tuple[Tensor, Tensor]:
    """`coded_topk` in the operators that ONNX has."""
    return best_standard(_scores(queries, codes, records, similarity), k)


def code_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Codes (N, D) int8 and scales (N, 1) of float32 rows; the scale is NaN where there are no codes."""
    largest = rows.abs().amax(dim=1, keepdim=True)
    scale = largest / 127.0
    scale = torch.where(scale < SMALLEST_SCALE, 0.0, scale)
    steps = rows * torch.where(scale > 0, scale, 1.0).reciprocal()
    steps = torch.where(scale > 0, steps, 0.0)
    codes = (steps + torch.where(steps < 0, -0.5, 0.5)).to(torch.int32).to(torch.int8)
    norm = (rows * rows).sum(dim=1, keepdim=True).sqrt()
    return codes, torch.where(norm < LARGEST_NORM, scale, torch.nan)


def _scores(queries: Tensor, codes: Tensor, records: Tensor, similarity: str) -> Tensor:
    if similarity not in ("cosine", "dot"):
        raise ValueError(f"similarity is {similarity!r}; int8 galleries have cosine and dot")
    queries = queries.to(torch.float32)
    row_scale = torch.where(records[1] < torch.inf, records[0], torch.nan)
    if similarity == "cosine":
        queries = unit_rows(queries)
        row_scale = row_scale * records[3]
    query_codes, query_scale = code_rows(queries)
    query_codes = torch.nn.functional.pad(query_codes, (0, codes.shape[1] - query_codes.shape[1]))
    return _products(query_codes, codes).to(torch.float32) * (query_scale * row_scale)


def _products(a: Tensor, b: Tensor) -> Tensor:
    """(Q, S), (M, S) int8 -> (Q, M) int32."""
    if torch.onnx.is_in_onnx_export():
        return torch.onnx.ops.symbolic(
            "MatMulInteger", (a, b.transpose(0, 1)), dtype=torch.int32, shape=(a.shape[0], b.shape[0]), version=10
        )
    return (a.to(torch.float64) @ b.to(torch.float64).transpose(0, 1)).to(torch.int32)  # exact: below 2**53
