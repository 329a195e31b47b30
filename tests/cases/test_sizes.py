"""Cases on size: memory that grows with all pairs of pairs, and offsets beyond 32 bits."""

import json
import math
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

import pairloom
from pairloom.functional import info_nce, multi_similarity
from pairloom.testing import using_threads
from tests.cases.dense import cosine, info_nce_rows, multi_similarity_rows


class TestL01ManyPositivesOfOneClass:
    """x = randn(256, 32), 128 labels 0, then 1 to 128: elsewhere all negatives were repeated for each positive pair."""

    PROGRAM = """
import json, time, torch
from pairloom.functional import info_nce, multi_similarity
from pairloom.testing import peak_memory_mb
torch.set_num_threads(2)
x = torch.randn(256, 32, requires_grad=True)
labels = torch.cat([torch.zeros(128, dtype=torch.long), torch.arange(1, 129)])
run = lambda: (info_nce(x, x, ids=labels, same_id="positive") + multi_similarity(x, labels)).backward()
x[:8].sum().backward()
before = peak_memory_mb()
run()
times = []
for _ in range(10):
    start = time.perf_counter()
    run()
    times.append(time.perf_counter() - start)
print(json.dumps([peak_memory_mb() - before, min(times)]))
"""

    def test_a_few_megabytes_and_milliseconds(self):
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", self.PROGRAM], capture_output=True, text=True, check=True
        )
        megabytes, seconds = json.loads(done.stdout)
        assert megabytes < 16
        assert seconds < 0.5  # some milliseconds on a quiet machine; 45 s where it was reported

    def test_equal_the_dense_formula(self):
        x = torch.randn(256, 32, generator=torch.Generator().manual_seed(0))
        labels = torch.cat([torch.zeros(128, dtype=torch.long), torch.arange(1, 129)])
        same, own = labels.unsqueeze(1) == labels, torch.eye(256, dtype=torch.bool)
        expected = info_nce_rows(cosine(x, x), same, ~same, 0.07).mean()
        assert info_nce(x, x, ids=labels, same_id="positive").item() == pytest.approx(expected.item(), rel=1e-5)
        expected = multi_similarity_rows(cosine(x, x), same & ~own, ~same).mean()
        assert multi_similarity(x, labels).item() == pytest.approx(expected.item(), rel=1e-5)


class TestL12OffsetsBeyond32Bits:
    """N M > 2^31 with D = 8, and N D > 2^31; the right values come from a few rows and columns in float64."""

    N = 47_000
    SOME = (0, 1, 23_456, 46_998, 46_999)

    def embeddings(self):
        assert self.N**2 > 2**31
        generator = torch.Generator().manual_seed(0)
        return [F.normalize(torch.randn(self.N, 8, generator=generator), dim=1) for _ in range(2)]

    def test_info_nce(self):
        query, key = (x.requires_grad_() for x in self.embeddings())
        temperature, some = 0.5, list(self.SOME)
        with using_threads(2):
            losses = info_nce(query.detach(), key.detach(), temperature=temperature, reduction="none")
            loss = info_nce(query, key, temperature=temperature)
            loss.backward()
        assert loss.item() == pytest.approx(losses.double().mean().item(), rel=1e-6)
        s = cosine(query[some], key)
        expected = torch.logsumexp(s / temperature, 1) - s[range(len(some)), some] / temperature
        torch.testing.assert_close(losses[some].double(), expected, rtol=1e-5, atol=1e-5)
        # One key's gradient takes all rows: p_ij = e^{z_ij - lse_i}, lse_i = L_i + z_ii.
        z_own = (query * key).sum(1).double() / temperature
        for j in some:
            z = (query.double() @ key[j].double()) / temperature
            p = (z - losses.double() - z_own).exp()
            p[j] -= 1
            g = (p / temperature / self.N) @ query.double()
            g = g - (g @ key[j].double()) * key[j].double()
            torch.testing.assert_close(key.grad[j].double(), g, rtol=1e-3, atol=1e-9)

    def test_multi_similarity(self):
        x, _ = self.embeddings()
        labels = torch.arange(self.N) // 3
        with using_threads(2):
            losses, stats = multi_similarity(x, labels, reduction="none", return_stats=True)
        some = list(self.SOME)
        same = labels[some].unsqueeze(1) == labels
        own = torch.tensor(some).unsqueeze(1) == torch.arange(self.N)
        expected = multi_similarity_rows(cosine(x[some], x), same & ~own, ~same)
        torch.testing.assert_close(losses[some].double(), expected, rtol=1e-5, atol=1e-5)
        assert int(stats.positives) + int(stats.negatives) == self.N * (self.N - 1)

    def test_topk_of_a_gallery_with_more_than_two_to_the_31_entries(self):
        """The gallery is all zeros, which the system does not even store, but for three rows at the end."""
        dim = 128
        rows = 2**31 // dim + 1000
        gallery = torch.zeros(rows, dim, dtype=torch.bfloat16)
        query = torch.ones(1, dim)
        places = [rows - 900, rows - 2, rows - 1]
        gallery[places] = torch.tensor([[1.0], [3.0], [2.0]], dtype=torch.bfloat16)
        with using_threads(2):
            scores, indices = pairloom.topk(query, gallery, 4, similarity="dot")
        assert indices.tolist() == [[rows - 2, rows - 1, rows - 900, 0]]
        assert scores.tolist() == [[3.0 * dim, 2.0 * dim, 1.0 * dim, 0.0]]

    @pytest.mark.slow
    def test_loss_with_more_than_two_to_the_31_entries(self):
        """The extra negatives, packed to float32, take 9 GB."""
        dim = 256
        rows = 2**31 // dim + 1000
        negatives = torch.zeros(rows, dim, dtype=torch.bfloat16)
        negatives[-1] = 1.0
        query, key = torch.ones(2, dim), torch.zeros(2, dim, dtype=torch.bfloat16)
        loss = info_nce(query, key, negatives, temperature=1.0)
        assert loss.item() == pytest.approx(math.log(math.e + rows + 1))
