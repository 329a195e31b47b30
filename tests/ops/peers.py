"""Our losses beside those of public code, on random data: classes of very different size, references or none."""

from collections.abc import Callable

import torch
from torch import Tensor

SEEDS = [0, 1, 2]


def uneven(seed: int, *, rows: int = 40, dimensions: int = 8, classes: int = 9) -> tuple[Tensor, Tensor]:
    """float64 (rows, dimensions), and labels: some classes are large, some have one member."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, dimensions, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, classes, (rows,), generator=generator).pow(2) % classes
    labels[0] = classes
    return x, labels


def assert_equal_peer(ours: Callable[..., Tensor], theirs: Callable[..., Tensor], *inputs: Tensor) -> None:
    """Value and the gradients of all inputs; both are called with the inputs alone."""
    left, right = ([x.detach().clone().requires_grad_() for x in inputs] for _ in range(2))
    loss, peer = ours(*left), theirs(*right)
    torch.testing.assert_close(loss, peer)
    assert loss.item() != 0
    loss.backward()
    peer.backward()
    for a, b in zip(left, right, strict=True):
        torch.testing.assert_close(a.grad, b.grad)
