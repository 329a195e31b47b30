"""One call as numbers to compare: its outputs, and the gradients of a fixed weighted sum of the first of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from pairloom._registry import OpRecord, Sample
from pairloom.reference import similarity as reference_similarity

Evaluation = dict[str, Tensor]
"""``output0``, ``output1``, ... and ``d_<argument>`` for every differentiated argument; all detached."""


def evaluate(function: Callable[..., Any], arguments: Mapping[str, Any], differentiable: Iterable[str]) -> Evaluation:
    """Call ``function(**arguments)`` and differentiate it.

    The upstream gradient is not constant, so that an output whose gradient went to another row is seen. Infinite
    outputs (places of `topk` that hold nothing) take no part in it.
    """
    # detach() and not clone(): the leaves keep the memory layout of the arguments.
    leaves = {name: arguments[name].detach().requires_grad_() for name in differentiable}
    outputs = function(**{**arguments, **leaves})
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    found = {f"output{i}": output.detach() for i, output in enumerate(outputs) if isinstance(output, Tensor)}
    first = outputs[0]
    if leaves and first.requires_grad:
        upstream = torch.linspace(0.5, 1.5, first.numel(), dtype=first.dtype, device=first.device).reshape(first.shape)
        total = (torch.where(first.isinf(), 0.0, first) * upstream).sum()
        gradients = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
        for (name, leaf), gradient in zip(leaves.items(), gradients, strict=True):
            found[f"d_{name}"] = torch.zeros_like(leaf) if gradient is None else gradient
    return found


def evaluate_record(record: OpRecord, sample: Sample) -> Evaluation:
    """The public function of an operator on one of its samples."""
    return evaluate(record.function, sample.arguments, sample.differentiable)


def evaluate_reference(record: OpRecord, sample: Sample) -> Evaluation:
    """The plain-torch definition on the same sample, in the dtype of the sample."""

    def reference(**arguments: Any) -> Any:
        outputs = record.reference(*record.reference_arguments(record.op_arguments(arguments)))
        return outputs[0] if record.backward is None else outputs  # the public function returns no statistics

    return evaluate(reference, sample.arguments, sample.differentiable)


def widen(arguments: Mapping[str, Any], dtype: torch.dtype = torch.float64) -> dict[str, Any]:
    """The same arguments with float tensors in ``dtype``; widening is exact."""
    return {
        name: value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value
        for name, value in arguments.items()
    }


@contextmanager
def computed_in(dtype: torch.dtype) -> Iterator[None]:
    """References compute in ``dtype`` inside: what a user who writes the formula in plain torch of that dtype gets."""
    with mock.patch.object(reference_similarity, "compute_dtype", return_value=dtype):
        yield
