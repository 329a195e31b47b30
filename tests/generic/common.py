"""What the generic tests share: every sample of every operator as test parameters. Nothing here names an operator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from pairloom import _stream
from pairloom._registry import OpRecord, Sample, records
from pairloom.testing import isa_levels

SHAPE = (7, 10, 5)
"""(N, M, D), three different numbers: what a dimension stands for can be told from its size."""

EVERYTHING = False
"""Whether slow tests run too (tests/generic/conftest.py)."""

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


def every_record(**supports: bool) -> list:
    """Parameters: all records; with ``compile=True`` and so on only those that promise it."""
    return [
        pytest.param(record, id=record.name)
        for record in records()
        if all(getattr(record.support, name) == value for name, value in supports.items())
    ]


def every_sample(
    *,
    differentiable: bool = False,
    needs_float64: bool = True,
    quick: int | None = None,
    most: int | None = None,
    **supports: bool,
) -> list:
    """Parameters (record, name of the sample).

    ``differentiable=True``: those with something to differentiate; ``needs_float64=False``: without near ties;
    ``quick``: so many of each record in the default run, spread over its list, the others marked slow; ``most``: so
    many in all, where one takes seconds and what differs between samples hardly matters.
    """
    parameters = []
    for (record,) in (parameter.values for parameter in every_record(**supports)):
        samples = [
            sample
            for sample in record.samples()
            if (sample.differentiable or not differentiable) and (needs_float64 or not sample.needs_float64)
        ]
        samples = samples[:: 1 if most is None else max(-(-len(samples) // most), 1)]
        # Operators by a rule in Python share all of their machinery: some samples of each are enough by default.
        few = quick if record.support.standalone else min(quick or 2, 2)
        every = 1 if few is None else -(-len(samples) // few)
        parameters += [
            pytest.param(
                record, sample.name, id=f"{record.name}-{sample.name}", marks=[] if i % every == 0 else pytest.mark.slow
            )
            for i, sample in enumerate(samples)
        ]
    return parameters


def some_samples(record: OpRecord, **options: object) -> list[Sample]:
    """All samples of a record; of a rule in Python, some that are spread over its list, unless slow tests run too."""
    samples = list(record.samples(**options))
    return samples if EVERYTHING or record.support.standalone else samples[:: -(-len(samples) // 4)]


def every_level() -> list:
    """Parameters (record, instruction-set level).

    Rules in Python meet levels in the similarity matrix only: the highest is enough by default.
    """
    levels = isa_levels()
    return [
        pytest.param(
            record,
            level,
            id=f"{record.name}-{level}",
            marks=[] if record.support.standalone or level == levels[-1] else pytest.mark.slow,
        )
        for record in records()
        for level in levels
    ]


@contextmanager
def chunks_of(record: OpRecord, entries: int) -> Iterator[None]:
    """Chunks of so many entries of the matrix for rules in Python, so that small shapes have several."""
    with pytest.MonkeyPatch.context() as patch:
        if not record.support.standalone:
            patch.setattr(_stream, "CHUNK_ENTRIES", entries)
        yield


def pair_losses() -> list:
    """Parameters: records of operators that return (loss, stats, gradients)."""
    return [pytest.param(record, id=record.name) for record in records() if record.backward is None]


def sample_named(record: OpRecord, name: str, *, shape: tuple[int, int, int] = SHAPE, **options: object) -> Sample:
    """One sample of a record, made with other options."""
    return next(sample for sample in record.samples(shape=shape, **options) if sample.name == name)


def labels_of(sample: Sample) -> list[str]:
    """Names of the arguments that hold labels."""
    return [
        name for name, value in sample.arguments.items() if isinstance(value, Tensor) and not value.is_floating_point()
    ]


def embeddings_of(sample: Sample) -> list[str]:
    """Names of the arguments that hold embeddings."""
    return [
        name
        for name, value in sample.arguments.items()
        if isinstance(value, Tensor) and value.is_floating_point() and value.dim() == 2
    ]


def outputs_of(value: object) -> tuple[Tensor, ...]:
    """The tensors that a public function returned."""
    return value if isinstance(value, tuple) else (value,)


class Call(nn.Module):
    """A public function with everything but its tensors fixed: ``module(*tensors)``."""

    def __init__(self, record: OpRecord, sample: Sample) -> None:
        super().__init__()
        self.function = record.function
        leaves, self.spec = tree_flatten(sample.arguments)
        self.fixed = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self.places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]

    def forward(self, *tensors: Tensor) -> Tensor | tuple[Tensor, ...]:
        leaves = list(self.fixed)
        for i, tensor in zip(self.places, tensors, strict=True):
            leaves[i] = tensor
        return self.function(**tree_unflatten(leaves, self.spec))


def tensors_of(sample: Sample) -> tuple[Tensor, ...]:
    """The arguments of `Call`: every tensor, also one in a tuple."""
    return tuple(leaf for leaf in tree_leaves(sample.arguments) if isinstance(leaf, Tensor))


def dynamic_shapes(sample: Sample) -> tuple[tuple[dict[int, object], ...]]:
    """For exporters of a `Call`: N, N + 1 and M of every tensor argument are dynamic, D is fixed."""
    n, m = torch.export.Dim("n"), torch.export.Dim("m")
    dims = {SHAPE[0]: n, SHAPE[0] + 1: n + 1, SHAPE[1]: m}
    return (tuple({i: dims[size] for i, size in enumerate(x.shape) if size in dims} for x in tensors_of(sample)),)
