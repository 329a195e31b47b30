"""What the exporters share: eval mode, a dynamic batch, and the comparison of what was written with the module."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


@contextmanager
def inference(module: nn.Module) -> Iterator[None]:
    """Eval mode without gradients; the mode of every submodule is restored afterwards."""
    training = {child: child.training for child in module.modules()}
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for child, mode in training.items():
            child.training = mode


def batch_shapes(args: Sequence[Any]) -> tuple[Any, ...]:
    """Dynamic shapes of the example arguments: the first dimension of every tensor is the batch, one size for all."""
    sizes = {argument.shape[0] for argument in args if isinstance(argument, Tensor) and argument.dim() > 0}
    if len(sizes) > 1:
        raise ValueError(
            f"args have first dimensions {sorted(sizes)}; with dynamic_batch=True all must be the same batch "
            "(pass dynamic_shapes=... to say which dimensions vary)"
        )
    if sizes & {0, 1}:
        raise ValueError(
            f"args have a batch of {sizes.pop()}; give an example of two or more rows, "
            "because the exporter takes a size of 0 or 1 for a constant"
        )
    batch = torch.export.Dim("batch")
    return tuple({0: batch} if isinstance(argument, Tensor) and argument.dim() > 0 else None for argument in args)


def as_tuple(outputs: Any) -> tuple[Tensor, ...]:
    """Outputs of a module as a flat tuple of tensors; numbers, as metrics give them, in float64."""
    leaves = torch.utils._pytree.tree_leaves(outputs)
    return tuple(x if isinstance(x, Tensor) else torch.tensor(x, dtype=torch.float64) for x in leaves)


def compare(written: str, outputs: Sequence[Tensor], expected: Sequence[Tensor], tolerance: float) -> None:
    """Integers must be equal, floats within ``tolerance`` (absolute, and relative above 1)."""
    if len(outputs) != len(expected):
        raise RuntimeError(f"{written} has {len(outputs)} outputs, the module has {len(expected)}")
    for number, (output, wanted) in enumerate(zip(outputs, expected, strict=True)):
        exact = not wanted.dtype.is_floating_point
        allowed = 0.0 if exact else tolerance
        if output.shape != wanted.shape or not torch.allclose(
            output.double(), wanted.double(), rtol=allowed, atol=allowed, equal_nan=True
        ):
            raise RuntimeError(
                f"output {number} of {written} differs from the module's: {_difference(output, wanted)}, "
                f"allowed is {allowed:g}; the file was written, do not use it"
            )


def _difference(output: Tensor, wanted: Tensor) -> str:
    if output.shape != wanted.shape:
        return f"shape {tuple(output.shape)} instead of {tuple(wanted.shape)}"
    if not wanted.dtype.is_floating_point:
        return f"{int((output != wanted).sum())} of {wanted.numel()} integers"
    return f"by up to {float((output.double() - wanted.double()).abs().nan_to_num(torch.inf).max()):.3g}"
