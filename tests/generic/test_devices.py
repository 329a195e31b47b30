"""Tensors of another device, without one: every function runs on meta tensors, which have a device and a shape and no
numbers. An operation that mixes devices fails, and so does one that reads a number back, which would wait for a GPU."""

import pytest
import torch
from torch.utils._pytree import tree_map_only

from pairloom import _device_loss, _device_mix, _library, _stream
from pairloom._autograd import GRADIENT_BITS
from pairloom._registry import Sample, records
from tests.generic.common import every_sample, outputs_of, sample_named


def elsewhere(arguments):
    return tree_map_only(torch.Tensor, lambda x: x.to("meta"), arguments)


@pytest.mark.parametrize(("record", "name"), every_sample(quick=3))
def test_public_functions(record, name):
    """Values and gradients."""
    sample = sample_named(record, name)
    arguments = elsewhere(sample.arguments)
    fresh = {key: arguments[key].requires_grad_() for key in sample.differentiable}
    outputs = [x for x in outputs_of(record.function(**{**arguments, **fresh})) if isinstance(x, torch.Tensor)]
    assert all(x.device.type == "meta" for x in outputs)
    losses = [x.sum() for x in outputs if x.requires_grad]
    if losses:
        gradients = torch.autograd.grad(losses, list(fresh.values()), allow_unused=True)
        assert all(x is None or x.device.type == "meta" for x in gradients)


@pytest.mark.skipif(torch.version.cuda is None, reason="this torch has no CUDA")
def test_the_library_of_kernels_loads_beside_a_torch_with_cuda():
    assert _library.load_cuda() in ("loaded", "not built")


def test_the_table_of_support_says_what_runs():
    for record in records():
        kernel = record.name in _device_loss.OPERATORS or record.name == "mix"
        chunks = record.name in _stream.KERNELS or record.name == "topk"
        assert record.support.cuda == ("kernel" if kernel else "chunks" if chunks else "formula"), record.name


DEVICE_SAMPLES = [
    pytest.param(record, sample.name, id=f"{record.name}-{sample.name}")
    for record in records()
    if record.name in _device_loss.OPERATORS
    for sample in record.samples()
]


@pytest.mark.parametrize(("record", "name"), DEVICE_SAMPLES)
def test_loops_on_the_device(record, name, monkeypatch):
    """Three chunks, all gradients and statistics."""
    monkeypatch.setattr(_stream, "DEVICE_CHUNK_ENTRIES", 30)
    sample: Sample = sample_named(record, name)
    given = dict(zip(record.argument_names, record.op_arguments(sample), strict=True))
    given |= {"needs_grad": 7 if "temperature" in given else 3, "want_stats": True}
    outputs = _device_loss.OPERATORS[record.name](*elsewhere(given).values())
    for output, expected in zip(outputs, record.op(*given.values()), strict=True):
        assert output.device.type == "meta"
        assert output.shape == expected.shape
        assert output.dtype == expected.dtype


STREAMED_SAMPLES = [
    pytest.param(record, sample.name, id=f"{record.name}-{sample.name}")
    for record in records()
    if record.name in _stream.KERNELS
    for sample in list(record.samples())[::4]
]


@pytest.mark.parametrize(("record", "name"), STREAMED_SAMPLES)
def test_streamed_rules_on_the_device(record, name, monkeypatch):
    """The same for rules in Python, which CUDA tensors take chunk by chunk."""
    monkeypatch.setattr(_stream, "DEVICE_CHUNK_ENTRIES", 30)
    sample: Sample = sample_named(record, name)
    given = dict(zip(record.argument_names, record.op_arguments(sample), strict=True))
    tensors = [k for k, v in given.items() if isinstance(v, torch.Tensor) and k in GRADIENT_BITS]
    given |= {"needs_grad": sum(GRADIENT_BITS[name] for name in tensors), "want_stats": True}
    outputs = _stream.KERNELS[record.name](*elsewhere(given).values())
    for output, expected in zip(outputs, record.op(*given.values()), strict=True):
        assert output.device.type == "meta"
        assert output.shape == expected.shape
        assert output.dtype == expected.dtype


@pytest.mark.parametrize(
    "sample", [pytest.param(s, id=s.name) for r in records() if r.name == "mix" for s in r.samples()]
)
def test_mix_on_the_device(sample):
    record = next(record for record in records() if record.name == "mix")
    given = dict(zip(record.argument_names, record.op_arguments(sample), strict=True))
    there = elsewhere(given)
    mixed = _device_mix.mix(*there.values())
    expected = record.op(*given.values())
    assert (mixed.device.type, mixed.shape, mixed.dtype) == ("meta", expected.shape, expected.dtype)
    made = _device_mix.mix_gradients(mixed, *there.values(), 7)
    wanted = torch.ops.pairloom.mix_gradients(expected, *given.values(), 7)
    for output, like in zip(made, wanted, strict=True):
        assert (output.device.type, output.shape, output.dtype) == ("meta", like.shape, like.dtype)
