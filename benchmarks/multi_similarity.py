"""Multi-Similarity loss with its mining, forward and backward, beside the dense formula and pytorch-metric-learning."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from pytorch_metric_learning.losses import MultiSimilarityLoss
from pytorch_metric_learning.miners import MultiSimilarityMiner

from benchmarks.harness import Comparison, compare
from pairloom.functional import multi_similarity

ALPHA, BETA, BASE, EPSILON = 2.0, 50.0, 0.5, 0.1


def dense(embeddings: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    x = F.normalize(embeddings)
    s = x @ x.T
    same = labels[:, None] == labels
    positive = same & ~torch.eye(len(x), dtype=torch.bool)
    hardest_positive = s.masked_fill(~positive, torch.inf).amin(1, keepdim=True)
    hardest_negative = s.masked_fill(same, -torch.inf).amax(1, keepdim=True)
    keep_positive = positive & (s - EPSILON < hardest_negative)
    keep_negative = ~same & (s + EPSILON > hardest_positive)
    pull = torch.where(keep_positive, torch.exp(-ALPHA * (s - BASE)), 0).sum(1).log1p() / ALPHA
    push = torch.where(keep_negative, torch.exp(BETA * (s - BASE)), 0).sum(1).log1p() / BETA
    return (pull + push).mean()


def contenders(n: int, dim: int) -> dict[str, Callable[[], object]]:
    x = torch.randn(n, dim, requires_grad=True)
    labels = torch.arange(n) // 4
    compiled = torch.compile(dense)
    miner, metric_learning = MultiSimilarityMiner(EPSILON), MultiSimilarityLoss(ALPHA, BETA, BASE)
    losses = {
        "pairloom": lambda: multi_similarity(x, labels, alpha=ALPHA, beta=BETA, base=BASE, epsilon=EPSILON),
        "eager": lambda: dense(x, labels),
        "compile": lambda: compiled(x, labels),
    }
    if n <= 4096:  # beyond, its index tuples take too long
        losses["pytorch-metric-learning"] = lambda: metric_learning(x, labels, miner(x, labels))

    def step(loss: Callable[[], torch.Tensor]) -> Callable[[], object]:
        return lambda: torch.autograd.grad(loss(), x)

    return {name: step(loss) for name, loss in losses.items()}


def run(*, quick: bool, repeats: int) -> list[Comparison]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    return [
        compare(
            {"op": "multi_similarity", "N": n, "D": dim, "class size": 4, "mining": True, "pass": "forward + backward"},
            contenders(n, dim),
            flops=6.0 * n * n * dim,
            repeats=repeats if n <= 512 else max(3, repeats // 2),
        )
        for n, dim in ([(512, 64)] if quick else [(512, 128), (4096, 128), (8192, 256)])
    ]
