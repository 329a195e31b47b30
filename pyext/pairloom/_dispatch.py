"""Which implementation computes a call, and which gradients it makes on the way."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from pairloom._stats import pair_stats

Function = TypeVar("Function", bound=Callable[..., Any])  # classes are callable too


def scripted_as(twin: Callable[..., Any]) -> Callable[[Function], Function]:
    """TorchScript compiles ``twin`` wherever the decorated function is called or scripted.

    TorchScript knows neither keyword-only arguments with defaults nor a return type that depends on an argument, and
    needs none of the Python-only work (checks, the choice of the reference). The twin is what is left: the call.
    """

    def mark(function: Function) -> Function:
        function.__prepare_scriptable__ = lambda: twin  # type: ignore[attr-defined]
        return function

    return mark


def no_torchscript(name: str) -> RuntimeError:
    """Why a loss does not script, in one sentence with the way out; torch's own speaks of its compiler."""
    return RuntimeError(
        f"{name} has no TorchScript form, because part of it is computed in Python; save it with torch.export instead"
    )


def not_scripted(loss: Function) -> Function:
    """Functions and modules that TorchScript refuses, wherever they are called or held: `no_torchscript`."""

    def refuse(*_: Any) -> None:
        raise no_torchscript(loss.__name__)

    loss.__prepare_scriptable__ = refuse  # type: ignore[attr-defined]
    return loss


def twin_of(function: Callable[..., Any]) -> Callable[..., Any] | None:
    """What TorchScript compiles for this function (`scripted_as`); None if it refuses."""
    try:
        twin: Callable[..., Any] = function.__prepare_scriptable__()  # type: ignore[attr-defined]
    except (AttributeError, RuntimeError):
        return None
    return twin


DEVICE_KERNELS: set[str] = set()
"""Operators that run chunk by chunk on CUDA in this process; the others compute their formula on the whole matrix."""

CUDA_SWITCHED_OFF = os.environ.get("PAIRLOOM_CUDA_KERNELS") == "0"
"""Then all of them do."""


def needs_reference(embeddings: Tensor, operator: str = "") -> bool:
    """Whether the plain-torch reference computes this call instead of the kernel.

    The kernels run on the CPU, some on CUDA too, have no rule for torch.func transforms (vmap, grad, jacrev, jvp), and
    are unknown to ONNX.
    """
    device = embeddings.device.type
    if device != "cpu" and (device != "cuda" or CUDA_SWITCHED_OFF or operator not in DEVICE_KERNELS):
        return True
    return in_transform() or torch.onnx.is_in_onnx_export()


def in_transform() -> bool:
    """Whether a torch.func transform is active. Constant in a compiled graph: dynamo guards the stack of transforms."""
    return torch._C._functorch.peek_interpreter_stack() is not None


# What torch.compiler.assume_constant_result does; the decorator itself imports all of dynamo: over a second.
in_transform._dynamo_marked_constant = True  # type: ignore[attr-defined]


def as_temperature(temperature: Tensor | float, like: Tensor) -> Tensor:
    """A temperature (bias, boundary) as the operators take it: a number becomes a 0-d float64 tensor."""
    if isinstance(temperature, Tensor):
        return temperature
    return torch.full([], temperature, dtype=torch.float64, device=like.device)


def gradient_bits(
    rows: Tensor,
    columns: Tensor | None,
    temperature: Tensor | None,
    reduction: str,
    bias: Tensor | None = None,
    boundary: Tensor | None = None,
    weights: Tensor | None = None,
) -> int:
    """The ``needs_grad`` argument: which gradients the forward pass is to make (`_autograd.GRADIENT_BITS`).

    ``weights`` are named for operators only that have an output for their gradient (streamed rules).
    """
    if not torch.jit.is_scripting():  # noqa: SIM102 - TorchScript skips the body only of this very condition
        # An exported graph is mostly run without gradients; if it is trained, backward asks the operator again.
        if torch.compiler.is_exporting():
            return 0
    if not torch.is_grad_enabled() or reduction == "none":
        return 0
    bits = 0
    bit = 1
    for tensor in [rows, columns, temperature, bias, boundary, weights]:  # in the order of the bits
        if tensor is not None and tensor.requires_grad:
            bits += bit
        bit *= 2
    return bits


def pair_loss(op: Callable[..., Any], reference: Callable[..., Any], *arguments: Any) -> Any:
    """Loss, or (loss, PairStats), of the arguments of the operator; its last two are ``needs_grad, want_stats``."""
    if needs_reference(arguments[0], reference.__name__):
        loss, stats = without_autocast(reference, *arguments[:-2], arguments[-1])
    else:
        loss, stats, *_ = op(*arguments)
    return (loss, pair_stats(stats)) if arguments[-1] else loss


def without_autocast(reference: Callable[..., Any], *arguments: Any) -> Any:
    """A reference under autocast: sums stay in float32, as in the kernels."""
    device = arguments[0].device.type
    if not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
        return reference(*arguments)
    with torch.autocast(device, enabled=False):
        return reference(*arguments)
