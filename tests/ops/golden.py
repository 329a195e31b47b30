"""Small inputs with known answers, and the comparison that the operator tests share.

Rows have unit norm, so cosine and dot agree. The values were worked out in float64 and checked against public code.
"""

import torch
from torch import Tensor

A = torch.tensor([[1, 0], [0.6, 0.8], [0, 1], [-0.8, 0.6]], dtype=torch.float64)
B = torch.tensor([[0.8, 0.6], [0.28, 0.96], [-0.28, 0.96], [-1, 0]], dtype=torch.float64)
EXTRA = torch.tensor([[0, -1], [0.8, -0.6], [-0.6, -0.8]], dtype=torch.float64)
LABELS = torch.tensor([0, 0, 1, 1])

INFO_NCE = 0.813667  # rows A, columns B, temperature 0.5
INFO_NCE_EXTRA = 1.021571  # the same with EXTRA as further negatives
MULTI_SIMILARITY = 0.449069  # A, LABELS, alpha 2, beta 50, base 0.5, no mining
MULTI_SIMILARITY_MINED = 0.299535  # beta 40, epsilon 0.1
MULTI_SIMILARITY_MINED_ROWS = [0.0, 0.599070, 0.599070, 0.0]

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


def relative_error(value: Tensor, expected: Tensor) -> float:
    """Largest difference, relative to the largest magnitude of the expected tensor."""
    assert value.shape == expected.shape
    if expected.numel() == 0:
        return 0.0
    difference = (value.double() - expected.double()).abs().max()
    return float(difference / expected.double().abs().max().clamp(min=1e-300))
