"""Memory is O(N D): forward and backward of every loss and of top-k never come near the size of the N x M matrix.

One process of its own calls every third sample in turn; the high-water mark of its resident memory is read after each.
"""

import json
import subprocess
import sys

import pytest

from tests.generic.common import EVERYTHING

PROGRAM = """
import json
import sys
import torch
from pairloom._registry import records
from pairloom.testing import evaluate_record, peak_memory_mb, using_threads

# Passes of plain torch take their time: fewer rows for rules in Python, unless slow tests run too.
few = 10240 if sys.argv[1] == "everything" else 4096


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
        rows = 10240 if record.support.standalone else few
        samples = list(record.samples(shape=(rows, rows, 16)))
        for sample in samples[::3] if record.support.standalone else samples[:1]:
            if not holds_the_matrix(record, sample.name):
                before = peak_memory_mb()
                evaluate_record(record, sample)
                found[f"{record.name}-{sample.name}"] = peak_memory_mb() - before
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def measured() -> dict:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, "everything" if EVERYTHING else "few"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_far_below_the_matrix(measured):
    assert len(measured) > 12
    # Inputs, gradients and packed copies are below 1 MiB each; a chunk of the matrix is 16 MiB, and a rule in plain
    # torch has some hundred tensors of 1 MiB in flight. The matrix is 400 MiB; of 4096 rows it is 64 MiB, but
    # autograd over the dense formula of a rule in Python holds that more than four times.
    assert sum(measured.values()) < 250, measured


def test_the_probe_sees_a_matrix():
    # A measurement that cannot fail proves nothing: the dense formula must show up in it.
    program = """
import torch
from pairloom import reference
from pairloom.testing import peak_memory_mb
x = torch.randn(4096, 16, requires_grad=True)
before = peak_memory_mb()
reference.binomial_deviance(x, None, torch.arange(4096) // 4, None, None)[0].backward()
print(peak_memory_mb() - before)
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=True)
    assert float(done.stdout) > 250
