"""Losses over `pairloom.stream_rows`: blocks of rows, threads, memory, graphs and second derivatives change nothing."""

import pytest
import torch

from pairloom import _stream
from pairloom.functional import dhel, gist, lifted_structure_pairs
from pairloom.testing import peak_memory_mb, using_threads

GUIDES = [torch.randn(n, 4, generator=torch.Generator().manual_seed(n), dtype=torch.float64) for n in (60, 61, 33)]
LABELS = torch.arange(60) % 7
REF_LABELS = torch.arange(33) % 7


def filtered(a, p, h):
    return gist(a, p, GUIDES[0][: len(a)], GUIDES[1][: len(a)], h, GUIDES[2][: len(h)], temperature=0.2, margin=0.1)


def lifted(a, _, h):
    return lifted_structure_pairs(a, LABELS[: len(a)]) + lifted_structure_pairs(
        a, LABELS[: len(a)], h, REF_LABELS[: len(h)]
    )


def repelled(a, p, _):
    return dhel(a, p)


LOSSES = [filtered, lifted, repelled]


def inputs_of(loss, n=60, m=33, d=5):
    torch.manual_seed(1)
    inputs = [torch.randn(k, d, dtype=torch.float64, requires_grad=True) for k in (n, n, m)]
    unused = {filtered: None, lifted: 1, repelled: 2}[loss]
    return [x.requires_grad_(i != unused) for i, x in enumerate(inputs)]


def value_and_gradients(function, inputs):
    value = function(*inputs)
    return [value, *torch.autograd.grad(value, [x for x in inputs if x.requires_grad])]


@pytest.mark.parametrize("loss", LOSSES)
def test_blocks_and_threads_change_nothing(loss, monkeypatch):
    inputs = inputs_of(loss)
    whole = value_and_gradients(loss, inputs)
    monkeypatch.setattr(_stream, "CHUNK_ENTRIES", 1)
    in_blocks = value_and_gradients(loss, inputs)
    torch.testing.assert_close(in_blocks, whole)
    with using_threads(1):
        torch.testing.assert_close(value_and_gradients(loss, inputs), in_blocks, rtol=0, atol=0)


@pytest.mark.parametrize("loss", LOSSES)
def test_one_graph_gives_the_same(loss):
    inputs = inputs_of(loss)
    compiled = torch.compile(loss, fullgraph=True, dynamic=True, backend="aot_eager")
    torch.testing.assert_close(value_and_gradients(compiled, inputs), value_and_gradients(loss, inputs))


@pytest.mark.parametrize("loss", LOSSES)
def test_second_derivatives(loss):
    inputs = inputs_of(loss, n=5, m=4, d=3)
    assert torch.autograd.gradgradcheck(loss, inputs, atol=1e-4)


@pytest.mark.parametrize("loss", LOSSES)
def test_under_autocast_sums_stay_in_float32(loss):
    inputs = [x.detach().float() for x in inputs_of(loss)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(loss(*inputs), loss(*inputs))
        inside = loss(*inputs)
    torch.testing.assert_close(inside, loss(*inputs))


@pytest.mark.parametrize(
    "loss", ["dhel", pytest.param("gist", marks=pytest.mark.slow), pytest.param("lifted", marks=pytest.mark.slow)]
)
def test_memory_grows_with_rows_not_with_pairs(loss):
    """3,000 x 3,000 similarities are 36 MB, and the dense formula keeps ten such tensors and more."""
    x, y = torch.randn(3_000, 8, requires_grad=True), torch.randn(3_000, 8)
    labels = torch.arange(3_000) // 4

    def run(count):
        a, b = x[:count], y[:count]
        if loss == "gist":
            return gist(a, b, b, b)
        return dhel(a, b) if loss == "dhel" else lifted_structure_pairs(a, labels[:count])

    run(64).backward()
    before = peak_memory_mb()
    run(3_000).backward()
    assert peak_memory_mb() - before < 100
