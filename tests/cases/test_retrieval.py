"""Cases on retrieval: what is missing, ties, large k, one exported graph. Every backend: tests/generic/test_topk.py."""

import onnxruntime
import pytest
import torch
from torch import nn

import pairloom
from pairloom.export import Retriever, module_to_onnx
from pairloom.testing import isa_levels, using_isa, using_threads

SIMILARITIES = ("cosine", "dot", "euclidean", "squared_euclidean")


@pytest.mark.parametrize("similarity", SIMILARITIES)
class TestL21NothingToReturn:
    """k > M, M = 0, k = 0, NaN: id -1 and score -inf, never an exception, a sentinel of 3.4e38 or NaN first."""

    def test_more_than_there_are(self, similarity):
        scores, indices = pairloom.topk(torch.randn(2, 3), torch.randn(4, 3), 7, similarity=similarity)
        assert torch.equal(indices[:, 4:], torch.full((2, 3), -1))
        assert torch.equal(scores[:, 4:], torch.full((2, 3), -torch.inf))
        assert sorted(indices[0, :4].tolist()) == [0, 1, 2, 3]

    def test_empty_gallery_and_k_zero_and_no_query(self, similarity):
        scores, indices = pairloom.topk(torch.randn(2, 3), torch.randn(0, 3), 2, similarity=similarity)
        assert indices.tolist() == [[-1, -1], [-1, -1]]
        assert scores.tolist() == [[-torch.inf] * 2] * 2
        scores, indices = pairloom.topk(torch.randn(2, 3), torch.randn(5, 3), 0, similarity=similarity)
        assert scores.shape == indices.shape == (2, 0)
        scores, indices = pairloom.topk(torch.randn(0, 3), torch.randn(5, 3), 2, similarity=similarity)
        assert scores.shape == indices.shape == (0, 2)
        assert indices.dtype == torch.int64

    def test_nan_on_either_side(self, similarity):
        queries, gallery = torch.randn(3, 3), torch.randn(5, 3)
        queries[1, 2] = torch.nan
        gallery[[0, 3]] = torch.nan
        scores, indices = pairloom.topk(queries, gallery, 5, similarity=similarity)
        assert indices[1].tolist() == [-1] * 5
        for row in (0, 2):
            assert sorted(indices[row, :3].tolist()) == [1, 2, 4]
            assert indices[row, 3:].tolist() == [-1, -1]
        assert not scores.isnan().any()

    def test_gradients_of_missing_places_are_zero(self, similarity):
        queries = torch.randn(2, 3, requires_grad=True)
        gallery = torch.randn(2, 3, requires_grad=True)
        scores, _ = pairloom.topk(queries, gallery, 4, similarity=similarity)
        scores[:, 2:].sum().backward()
        assert not queries.grad.any()
        assert not gallery.grad.any()


@pytest.mark.parametrize("similarity", SIMILARITIES)
class TestL22FiveEqualScores:
    """Three of five equal scores: [0, 1, 2], on every level and for any number of threads."""

    def test_lowest_index_first(self, similarity):
        for level in isa_levels():
            for threads in (1, 2, 7):
                with using_isa(level), using_threads(threads):
                    _, indices = pairloom.topk(torch.ones(9, 3), torch.ones(5, 3), 3, similarity=similarity)
                assert indices.tolist() == [[0, 1, 2]] * 9

    def test_among_many(self, similarity):
        gallery = torch.full((10_000, 3), -1.0)
        gallery[[9_999, 5_000, 4_096, 17, 255, 256]] = 1.0
        for threads in (1, 2, 7):
            with using_threads(threads):
                _, indices = pairloom.topk(torch.ones(2, 3), gallery, 8, similarity=similarity)
            assert indices.tolist() == [[17, 255, 256, 4_096, 5_000, 9_999, 0, 1]] * 2


class TestL28LargeK:
    """k of 200 and far beyond, in every dtype."""

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
    @pytest.mark.parametrize("k", [200, 1000, 5000])
    def test_equals_a_stable_sort(self, dtype, k):
        generator = torch.Generator().manual_seed(0)
        queries, gallery = (torch.randint(-3, 4, (n, 6), generator=generator).to(dtype) for n in (4, 5000))
        scores, indices = pairloom.topk(queries, gallery, k, similarity="dot")
        exact = queries.double() @ gallery.double().T
        wanted, order = torch.sort(exact, dim=1, descending=True, stable=True)
        assert torch.equal(indices, order[:, :k])
        assert torch.equal(scores.double(), wanted[:, :k])


class TestL29OneGraphFromItemsToIds:
    """Encoder, scores and top-k in one ONNX file with a dynamic batch: the ids of eager, ties included."""

    def test_onnx(self, tmp_path):
        torch.manual_seed(0)
        gallery = torch.randn(20, 8).repeat_interleave(3, 0)  # every row three times: ties everywhere
        retriever = Retriever(nn.Sequential(nn.Linear(5, 8), nn.ReLU()), gallery, k=7).eval()
        path = module_to_onnx(
            retriever, (torch.randn(3, 5),), tmp_path / "retriever.onnx", output_names=["scores", "ids"]
        )
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        assert [output.name for output in session.get_outputs()] == ["scores", "ids"]
        for batch in (1, 2, 33):
            items = torch.randn(batch, 5)
            scores, ids = session.run(None, {session.get_inputs()[0].name: items.numpy()})
            wanted_scores, wanted_ids = retriever(items)
            assert torch.equal(torch.as_tensor(ids), wanted_ids)
            torch.testing.assert_close(torch.as_tensor(scores), wanted_scores)
