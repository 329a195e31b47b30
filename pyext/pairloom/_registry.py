"""One record per operator. Tests, the support matrix, documentation and benchmarks iterate `records()`.

A file of one operator ends with ``register(OpRecord(...))``: that loads the library, gives the operator its shape
function and its gradient, and lists it here. ``python -m pairloom._registry`` prints docs/support.md.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pairloom import _library
from pairloom._autograd import PairLossFormula
from pairloom._dispatch import not_scripted, twin_of

MODULES = (
    "pairloom.similarity",
    "pairloom.scoring",
    "pairloom.losses.info_nce",
    "pairloom.losses.clip",
    "pairloom.losses.sup_con",
    "pairloom.losses.multi_similarity",
    "pairloom.losses.lifted_structure",
    "pairloom.losses.batch_hard_triplet",
    "pairloom.losses.binomial_deviance",
    "pairloom.losses.dcl",
    "pairloom.losses.hcl",
    "pairloom.losses.circle",
    "pairloom.losses.contrastive",
    "pairloom.losses.triplet_margin",
    "pairloom.losses.margin",
    "pairloom.losses.siglip",
    "pairloom.losses.proxy_anchor",
    "pairloom.mixup.mix",
)
"""Every module that registers an operator, in the order of the documentation."""

COMPOSED = (
    ("nt_xent", "NTXentLoss", ("info_nce",)),
    ("moco", "MoCoLoss", ("info_nce",)),
    ("multiple_negatives_ranking", "MultipleNegativesRankingLoss", ("info_nce",)),
    ("n_pairs", "NPairsLoss", ("info_nce",)),
    ("normalized_softmax", "NormalizedSoftmaxLoss", ("sup_con",)),
    ("proxy_nca", "ProxyNCALoss", ("sup_con", "dcl")),
    ("lifted_structure_pairs", "LiftedStructureLoss", ("pairwise_similarity",)),
    ("dhel", "DHELLoss", ("pairwise_similarity",)),
    ("gist", "GISTEmbedLoss", ("pairwise_similarity",)),
)
"""Losses without an operator of their own: function, module, and the operators that they call."""


@dataclass(frozen=True)
class Sample:
    """One call of the public function: ``function(**arguments)``."""

    name: str
    """What is special about it, unique within the record: usable as a test id."""
    arguments: dict[str, Any]
    """Arguments of the public function by name; tensors do not require gradients yet."""
    differentiable: tuple[str, ...]
    """Names of the tensor arguments that gradients are to be taken of."""
    needs_float64: bool = False
    """Near ties or extreme values: half precision may choose other pairs, compare in float32 and float64 only."""

    def with_grad(self) -> dict[str, Any]:
        """The arguments, with fresh leaves that require gradients in place of the differentiable ones."""
        fresh = {name: self.arguments[name].detach().clone().requires_grad_() for name in self.differentiable}
        return {**self.arguments, **fresh}


class SampleFactory(Protocol):
    """Makes the samples of an operator. ``shape`` is (N, M, D); embeddings get ``dtype``."""

    def __call__(
        self, *, dtype: torch.dtype = torch.float32, shape: tuple[int, int, int] = (6, 9, 5), seed: int = 0
    ) -> Iterator[Sample]: ...


@dataclass(frozen=True)
class Tolerance:
    """Allowed error of the value and of the gradients, relative to the largest magnitude of the expected tensor.

    For sums over D <= 1024 and M <= 10^4 pairs of rows of norm 1 at moderate temperature.
    """

    value: float
    gradient: float


DEFAULT_TOLERANCES: Mapping[torch.dtype, Tolerance] = {
    torch.float64: Tolerance(1e-12, 1e-11),
    torch.float32: Tolerance(1e-5, 5e-5),
    # Inputs are rounded before the operator sees them, sums are float32: only the gradients are rounded again.
    torch.float16: Tolerance(1e-5, 2e-3),
    torch.bfloat16: Tolerance(1e-5, 1e-2),
}


@dataclass(frozen=True)
class Support:
    """What an operator promises beyond eager mode on the CPU; a promise is tested, an empty one is documented."""

    compile: bool = True
    """torch.compile(fullgraph=True, dynamic=True)."""
    export: bool = True
    """torch.export, saved and loaded."""
    aoti: bool = True
    """AOTInductor package."""
    torchscript: bool = True
    """torch.jit.script, saved and loaded."""
    onnx: bool = True
    """Export to standard ONNX operators."""
    true_gradient: bool = True
    """gradcheck passes; otherwise the definition holds parts of the value constant, in the reference too."""
    double_backward: bool = True
    """gradgradcheck passes (the second derivative through the reference)."""
    func_transforms: bool = True
    """torch.func: grad, vmap, jacrev, jvp (through the reference)."""
    standalone: bool = True
    """A saved program needs the operator library only; otherwise the loading process imports `pairloom.functional`."""
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
    cuda: str = "formula"
    """What computes on CUDA: "kernel" and "chunks" (of rows or queries, in plain torch) in linear memory, or the
    "formula" on the whole matrix."""


@dataclass(frozen=True)
class OpRecord:
    """Everything a generic test, a table or a benchmark needs to know about one operator."""

    name: str
    """The stem that names the operator, its reference, header, tests and benchmark."""
    function: Callable[..., Any]
    """The public function."""
    reference: Callable[..., Any]
    """The plain-torch definition: arguments of the operator without ``needs_grad``, outputs without the gradients."""
    samples: SampleFactory
    module: type[torch.nn.Module] | None = None
    """The loss module, if there is one."""
    standard: Callable[..., Any] | None = None
    """The reference in operators that ONNX has, where it differs from ``reference``."""
    fake: Callable[..., Any] | None = None
    """Shape function, setup_context and backward of an operator that is no pair loss (those share one formula)."""
    setup_context: Callable[..., None] | None = None
    backward: Callable[..., Any] | None = None
    support: Support = Support()
    tolerances: Mapping[torch.dtype, Tolerance] = field(default_factory=lambda: DEFAULT_TOLERANCES)

    @property
    def op(self) -> torch._ops.OpOverload:
        """The operator, as ``torch.ops`` has it."""
        return getattr(torch.ops.pairloom, self.name).default

    @property
    def argument_names(self) -> list[str]:
        """Argument names of the operator, in order."""
        return [argument.name for argument in self.op._schema.arguments]

    def op_arguments(self, sample: Sample | Mapping[str, Any]) -> tuple[Any, ...]:
        """What the public function hands to the operator for these arguments (recorded from a real call).

        Arguments that require gradients stay connected to what the operator gets: the reference can be differentiated
        to the same leaves.
        """
        arguments = sample.arguments if isinstance(sample, Sample) else dict(sample)
        with _Recorder(self.op) as recorder:
            self.function(**arguments)
        given = recorder.calls[0]
        left_out = self.op._schema.arguments[len(given) :]  # the dispatcher drops trailing defaults
        return (*given, *(argument.default_value for argument in left_out))

    def reference_arguments(self, op_arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """The same for the reference, from the arguments of the operator (last ones may be left at their defaults)."""
        return tuple(v for n, v in zip(self.argument_names, op_arguments, strict=False) if n != "needs_grad")

    def without_kernel(self, *op_arguments: Any) -> Any:
        """The operator in plain torch, all outputs: its body for exporters. The gradient outputs are NaN.

        An exported forward graph does not use them; if one ever does, NaN is seen where 0 would not be.
        """
        outputs = (self.standard or self.reference)(*self.reference_arguments(op_arguments))
        if not isinstance(outputs, tuple) or self.fake is not None:
            return outputs
        shapes = PairLossFormula(self.op, self.reference).fake(*op_arguments)[len(outputs) :]
        return (*outputs, *(torch.full_like(shape, torch.nan) for shape in shapes))


class _Recorder(TorchDispatchMode):
    """Notes the arguments of every call of one operator."""

    def __init__(self, op: torch._ops.OpOverload) -> None:
        super().__init__()
        self.op = op
        self.calls: list[tuple[Any, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is self.op:
            self.calls.append(tuple(args))
        return func(*args, **(kwargs or {}))


_records: dict[str, OpRecord] = {}


def register(record: OpRecord) -> OpRecord:
    """Load the operators, give this one its shapes and gradients, and list it."""
    _library.load()
    if not record.support.torchscript:
        not_scripted(record.function)
    if record.backward is None:
        PairLossFormula(record.op, record.reference).register()
    else:
        assert record.fake is not None
        torch.library.register_fake(record.op, record.fake)
        torch.library.register_autograd(record.op, record.backward, setup_context=record.setup_context)
    _records[record.name] = record
    return record


def records() -> list[OpRecord]:
    """All operators of the package."""
    for module in MODULES:
        importlib.import_module(module)
    # Not in the order of registration, which depends on what was used first.
    return sorted(_records.values(), key=lambda record: MODULES.index(record.function.__module__))


CUDA_STATES = {"kernel": "kernel: compiled, proven on the host", "chunks": "chunks", "formula": "formula"}


def support_table() -> str:
    """The support matrix as Markdown."""
    promises = {
        "compile": "torch.compile",
        "export": "torch.export",
        "aoti": "AOTInductor",
        "torchscript": "TorchScript",
        "onnx": "ONNX",
        "double_backward": "second derivative",
        "func_transforms": "torch.func",
        "standalone": "saved programs without this package",
    }
    lines = [
        "# What every operator supports",
        "",
        "Generated by `python -m pairloom._registry > docs/support.md`; a test compares this file with the records.",
        "",
        "| operator | function | module | dtypes | CUDA | " + " | ".join(promises.values()) + " |",
        "|---" * (5 + len(promises)) + "|",
    ]
    for record in records():
        support = record.support
        cells = [
            f"`pairloom::{record.name}`",
            f"`{record.function.__name__}`",
            f"`{record.module.__name__}`" if record.module else "",
            ", ".join(str(dtype).removeprefix("torch.") for dtype in support.dtypes),
            CUDA_STATES[support.cuda],
            *("yes" if getattr(support, promise) else "no" for promise in promises),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    lines += [
        "",
        "Losses that have no operator of their own, and call those of others:",
        "",
        "| function | module | calls | TorchScript |",
        "|---|---|---|---|",
    ]
    for function, module, operators in COMPOSED:
        found = getattr(importlib.import_module(f"pairloom.losses.{function}"), function)
        calls = ", ".join(f"`pairloom::{operator}`" for operator in operators)
        lines.append(f"| `{function}` | `{module}` | {calls} | {'yes' if twin_of(found) else 'no'} |")
    lines += [
        "",
        "TorchScript is about functions; the modules `MarginLoss`, `ProxyAnchorLoss` and `SigLIPLoss` do not script.",
        "What does not says so when it is scripted; all of them can be saved with `torch.export`.",
        "",
        "CUDA: *kernel* - compiled for the GPU, proven on the host (`tests/cuda_host`), **not yet run on a GPU**;",
        "*chunks* - plain torch in linear memory, not yet run on a GPU either; *formula* - plain torch on the whole",
        "matrix.",
        "",
        "Second derivatives, `torch.func` transforms and *formula* use the plain-torch reference of the operator:",
        "exact, but with O(N M) memory. ONNX export writes the same reference in standard operators.",
    ]
    return "\n".join(lines)


def main() -> None:
    """Print the support matrix."""
    print(support_table())


if __name__ == "__main__":
    from pairloom import _registry  # the module that the records register in; this one is called __main__

    _registry.main()
