"""Memory is O(N D): forward and backward of every loss and of top-k never come near the size of the N x M matrix.

One process of its own calls every third sample in turn; the high-water mark of its resident memory is read after each.
"""

import json
import subprocess
import sys

import pytest

PROGRAM = """
import json
import torch
from pairloom._registry import records
from pairloom.testing import evaluate_record, peak_memory_mb, using_threads

shape = (10240, 10240, 16)
matrix = shape[0] * shape[1] * 4


def holds_the_matrix(record, name):
    # Its output is that large by definition (pairwise_similarity; top-k with k = M).
    sample = next(s for s in record.samples(shape=(40, 60, 4)) if s.name == name)
    output = record.function(**sample.arguments)
    return any(o.numel() >= 40 * 40 for o in (output if isinstance(output, tuple) else (output,)))


found = {}
with using_threads(2):
    for record in records():
        for small in record.samples(shape=(8, 12, 4)):
            evaluate_record(record, small)  # what torch allocates on first use is not ours
    for record in records():
        samples = list(record.samples(shape=shape))
        for sample in samples[::3] if record.support.standalone else samples[:1]:
            if not holds_the_matrix(record, sample.name):
                before = peak_memory_mb()
                evaluate_record(record, sample)
                found[f"{record.name}-{sample.name}"] = peak_memory_mb() - before
print(json.dumps({"matrix": matrix / 2**20, "found": found}))
"""


@pytest.fixture(scope="module")
def measured() -> dict:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_far_below_the_matrix(measured):
    assert measured["matrix"] == 400
    total = sum(measured["found"].values())
    assert len(measured["found"]) > 12
    # Inputs, gradients and packed copies are below 1 MiB each; a chunk of the matrix is 16 MiB, and a rule in plain
    # torch has some hundred tensors of 1 MiB in flight. Autograd over the dense formula holds the matrix ten times.
    assert total < 200, measured["found"]


def test_the_probe_sees_a_matrix():
    # A measurement that cannot fail proves nothing: the dense formula must show up in it.
    program = """
import torch
from pairloom.testing import peak_memory_mb
x = torch.randn(10240, 16)
before = peak_memory_mb()
(x @ x.T).exp()
print(peak_memory_mb() - before)
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=True)
    assert float(done.stdout) > 400
