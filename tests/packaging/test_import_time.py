"""Proves that importing costs little: pairloom with its operators loads in 0.3 s above `import torch`."""

import subprocess
import sys

CODE = """
import time
import torch
start = time.process_time()  # other load on the machine does not count
import pairloom
pairloom.InfoNCELoss, pairloom.MultiSimilarityLoss, pairloom.topk, pairloom.pairwise_similarity
print(time.process_time() - start)
"""

LIMIT = 0.3  # seconds; DESIGN target, and about ten times what it takes on a quiet machine


def test_import_time() -> None:
    best = float("inf")
    for _ in range(5):  # the best of several: a busy machine slows down one of them, not all
        best = min(best, float(subprocess.run([sys.executable, "-c", CODE], check=True, capture_output=True).stdout))
        if best < LIMIT:
            break
    print(f"import pairloom above import torch: {best:.3f} s")
    assert best < LIMIT
