"""What only a GPU shows: kernels as nvcc compiled them, in its memory. Skipped where there is none: `make test-gpu`.

Every sample of every operator that runs chunk by chunk on CUDA equals the CPU operator, gradients too; a second run has
the same bits, in a graph, on another stream and on another device too; memory stays linear."""

import shutil
import subprocess
import sys

import pytest
import torch

import pairloom
from pairloom import _library
from pairloom._dispatch import DEVICE_KERNELS
from pairloom._registry import records
from pairloom.testing import evaluate, evaluate_record
from tests.generic.common import sample_named

if not torch.cuda.is_available():
    pytest.skip("no GPU", allow_module_level=True)
RECORDS = [record for record in records() if record.name in DEVICE_KERNELS or record.name in ("topk", "mix")]
CASES = [
    pytest.param(record, sample.name, id=f"{record.name}-{sample.name}")
    for record in RECORDS
    for sample in record.samples()
]
MOST = {torch.float64: 1e-9, torch.float32: 2e-4, torch.float16: 2e-2, torch.bfloat16: 6e-2}


def moved(sample, device):
    from torch.utils._pytree import tree_map_only

    arguments = tree_map_only(torch.Tensor, lambda x: x.to(device), sample.arguments)
    return type(sample)(sample.name, arguments, sample.differentiable)


def on_gpu(record, sample, device="cuda"):
    there = moved(sample, device)
    return evaluate(record.function, there.arguments, list(there.differentiable))


def test_the_kernels_are_loaded():
    assert _library.load_cuda() == "loaded"
    assert {"info_nce", "sup_con", "multi_similarity", "clip"} <= DEVICE_KERNELS


@pytest.mark.parametrize("dtype", MOST, ids=str)
@pytest.mark.parametrize(("record", "name"), CASES)
def test_equals_the_cpu(record, name, dtype):
    sample = sample_named(record, name, shape=(70, 90, 33), dtype=dtype, seed=1)
    if sample.needs_float64 and dtype.itemsize < 4:
        pytest.skip("near ties: half precision may choose other pairs")
    found, expected = on_gpu(record, sample), evaluate_record(record, sample)
    for key, wanted in expected.items():
        size = float(wanted[wanted.isfinite()].abs().max()) if wanted.isfinite().any() else 1.0
        torch.testing.assert_close(found[key].cpu(), wanted, rtol=0, atol=MOST[dtype] * max(size, 1e-3), equal_nan=True)


@pytest.mark.parametrize("name", ["info_nce", "sup_con", "multi_similarity", "clip"])
def test_the_same_bits_again_and_elsewhere(name):
    """Twice, on a second stream, and on every other device that is there."""
    record = next(record for record in records() if record.name == name)
    sample = sample_named(record, next(record.samples()).name, shape=(300, 500, 64), dtype=torch.float32, seed=2)
    first = on_gpu(record, sample)
    again = [on_gpu(record, sample)]
    with torch.cuda.stream(torch.cuda.Stream()):
        again.append(on_gpu(record, sample))
    torch.cuda.synchronize()
    again += [on_gpu(record, sample, f"cuda:{i}") for i in range(1, torch.cuda.device_count())]
    for found in again:
        for key, value in first.items():
            assert torch.equal(value.cpu(), found[key].cpu()), key


def test_captured_in_a_graph():
    x, y = (torch.randn(256, 64, device="cuda", requires_grad=True) for _ in range(2))

    def step():
        loss = pairloom.functional.info_nce(x, y)
        return loss, *torch.autograd.grad(loss, [x, y])

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            expected = [value.clone() for value in step()]
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        outputs = step()
    graph.replay()
    torch.cuda.synchronize()
    for output, wanted in zip(outputs, expected, strict=True):
        assert torch.equal(output, wanted)


def test_nothing_waits_for_the_gpu():
    x, y = (torch.randn(512, 64, device="cuda", requires_grad=True) for _ in range(2))
    pairloom.functional.info_nce(x, y).backward()
    torch.cuda.set_sync_debug_mode("error")
    try:
        pairloom.functional.info_nce(x, y).backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_memory_is_linear():
    """32,768 x 32,768 similarities would be 4 GiB."""
    x, y = (torch.randn(32_768, 128, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(2))
    pairloom.functional.info_nce(x[:1024], y[:1024]).backward()
    x.grad = y.grad = None
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    pairloom.functional.info_nce(x, y).backward()
    assert torch.cuda.max_memory_allocated() - before < 400 << 20


@pytest.mark.skipif(shutil.which("compute-sanitizer") is None, reason="no compute-sanitizer")
@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_compute_sanitizer(tool):
    program = """
import torch, pairloom
x, y = (torch.randn(33, 20, device="cuda", requires_grad=True) for _ in range(2))
pairloom.functional.info_nce(x, y).backward()
labels = torch.arange(33, device="cuda") // 3
pairloom.MultiSimilarityLoss(epsilon=0.1)(x, labels).backward()
pairloom.SupConLoss()(x, labels).backward()
"""
    done = subprocess.run(
        ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", sys.executable, "-c", program],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
