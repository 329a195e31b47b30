"""ONNX in standard operators, ids equal and scores within 1e-5; decompositions of saved programs; AOTInductor."""

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

import pairloom
from pairloom._registry import records
from pairloom.export import Retriever, module_to_onnx, onnx_decompositions, to_aoti
from pairloom.reference._rows import standard_log1p


def run(path, *tensors):
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [node.name for node in session.get_inputs()]
    return session.run(None, dict(zip(names, (tensor.numpy() for tensor in tensors), strict=True)))


def test_retriever_is_one_file_with_a_dynamic_batch(tmp_path):
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 16))
    retriever = Retriever(encoder, torch.randn(200, 16), k=10)
    path = module_to_onnx(
        retriever, (torch.randn(4, 1, 8, 8),), tmp_path / "retriever.onnx",
        input_names=["images"], output_names=["scores", "ids"],
    )  # fmt: skip
    assert [file.name for file in tmp_path.iterdir()] == ["retriever.onnx"]
    assert {node.domain for node in onnx.load(path).graph.node} == {""}
    assert retriever.training
    retriever.eval()
    for batch in (1, 2, 33):
        images = torch.randn(batch, 1, 8, 8)
        scores, ids = run(path, images)
        expected_scores, expected_ids = retriever(images)
        np.testing.assert_array_equal(ids, expected_ids)
        np.testing.assert_allclose(scores, expected_scores.detach(), atol=1e-5)


@pytest.mark.parametrize("similarity", ["cosine", "squared_euclidean"])
def test_ties_nan_and_padding_are_the_same_in_onnx_runtime(similarity, tmp_path):
    gallery = torch.tensor([[1.0, 0.0], [2.0, 0.0], [torch.nan, 0.0], [1.0, 0.0], [0.0, 0.0], [1.0, 0.0]])
    retriever = Retriever(nn.Identity(), gallery, k=8, similarity=similarity)
    path = module_to_onnx(retriever, (torch.tensor([[1.0, 0.0], [0.0, 1.0]]),), tmp_path / "tied.onnx")
    for queries in (torch.tensor([[1.0, 0.0]]), torch.tensor([[torch.nan, 1.0], [0.0, 0.0], [-1.0, 3.0]])):
        scores, ids = run(path, queries)
        expected_scores, expected_ids = retriever(queries)
        np.testing.assert_array_equal(ids, expected_ids)
        np.testing.assert_allclose(scores, expected_scores, atol=1e-5)


def test_a_loss_exports(tmp_path):
    torch.manual_seed(1)
    x, labels = torch.randn(6, 4), torch.arange(6) // 2
    loss = pairloom.MultiSimilarityLoss(epsilon=0.1)
    path = module_to_onnx(loss, (x, labels), tmp_path / "loss.onnx")
    x, labels = torch.randn(9, 4), torch.arange(9) // 2
    np.testing.assert_allclose(run(path, x, labels)[0], loss(x, labels), rtol=1e-5)


@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")  # torch's exporter about itself
def test_saved_programs_decompose_into_standard_operators(tmp_path):
    class Everything(nn.Module):
        def forward(self, x, labels):
            loss = pairloom.functional.info_nce(x, x.flip(0), ids=labels, temperature=0.01)
            loss = loss + pairloom.functional.multi_similarity(x, labels)
            return loss, *pairloom.topk(x, x, 3), pairloom.pairwise_similarity(x)

    x, labels = torch.randn(6, 4), torch.arange(6) // 2
    program = torch.export.export(Everything(), (x, labels))
    assert sum("pairloom" in str(node.target) for node in program.graph.nodes) == 4
    program = program.run_decompositions(onnx_decompositions())
    assert not any("pairloom" in str(node.target) for node in program.graph.nodes)
    exported = torch.onnx.export(program, (x, labels), dynamo=True, verbose=False)
    exported.save(tmp_path / "everything.onnx", external_data=False)
    for output, expected in zip(run(tmp_path / "everything.onnx", x, labels), Everything()(x, labels), strict=True):
        np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-5)


class TinyLosses(nn.Module):
    """Row losses from 1e-1 down to the smallest float32 has: their logarithms of 1 + x must not round to 0."""

    def forward(self, x, labels):
        functional = pairloom.functional
        info_nce = functional.info_nce(x, x, ids=labels, temperature=0.05, similarity="dot", reduction="none")
        multi = functional.multi_similarity(x, labels, similarity="dot", reduction="none")
        average = functional.multi_similarity(x, labels, beta=100.0, similarity="dot", reduction="mean_nonzero")
        return info_nce, multi, average


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")
def test_tiny_losses_stay(saved, tmp_path):
    labels = torch.arange(12) // 2
    x = torch.eye(6)[labels] * torch.linspace(0.1, 2.0, 12).unsqueeze(1)
    module = TinyLosses().eval()
    if saved:
        program = torch.export.export(module, (x, labels)).run_decompositions(onnx_decompositions())
    torch.onnx.export(program if saved else module, (x, labels), tmp_path / "tiny.onnx", dynamo=True, verbose=False)
    expected = module(x, labels)
    assert expected[0].min() < 1e-12
    assert (expected[0] > 0).all()
    for output, wanted in zip(run(tmp_path / "tiny.onnx", x, labels), expected, strict=True):
        np.testing.assert_allclose(output, wanted, rtol=2e-5)


def test_standard_log1p():
    for dtype in (torch.float32, torch.float64):
        # Fewer than 2,048 numbers: torch shares out more among threads, where its first logarithm may be a coarse one.
        x = torch.cat([torch.logspace(-37, 4, 999, dtype=dtype), -torch.logspace(-37, 0, 999, dtype=dtype)])
        x = torch.cat([x, torch.tensor([0.0, -1.0, -2.0, torch.inf, torch.nan], dtype=dtype)])
        tolerance = 8 * torch.finfo(dtype).eps
        torch.testing.assert_close(standard_log1p(x), torch.log1p(x), rtol=tolerance, atol=0, equal_nan=True)


def test_every_operator_has_a_plain_body():
    for record in records():
        arguments = record.op_arguments(next(iter(record.samples())))
        plain, real = onnx_decompositions()[record.op](*arguments), record.op(*arguments)
        for ours, wanted in zip(*(x if isinstance(x, tuple) else (x,) for x in (plain, real)), strict=True):
            assert (ours.shape, ours.dtype) == (wanted.shape, wanted.dtype)


def test_a_batch_of_one_is_no_example(tmp_path):
    retriever = Retriever(nn.Identity(), torch.eye(3), k=2)
    with pytest.raises(ValueError, match="two or more rows"):
        module_to_onnx(retriever, (torch.ones(1, 3),), tmp_path / "one.onnx")
    with pytest.raises(ValueError, match="all must be the same batch"):
        module_to_onnx(retriever, (torch.ones(2, 3), torch.ones(3, 3)), tmp_path / "two.onnx")


def test_a_wrong_file_is_reported(tmp_path, monkeypatch):
    """The comparison is real: a runtime that answers otherwise is an error."""
    from pairloom.export import module_onnx as module

    retriever = Retriever(nn.Identity(), torch.eye(3), k=2)
    monkeypatch.setattr(module, "as_tuple", lambda outputs: (outputs[0] + 1, outputs[1]))
    with pytest.raises(RuntimeError, match=r"output 0 of .* differs .* by up to 1, allowed is 1e-05"):
        module_to_onnx(retriever, (torch.ones(2, 3),), tmp_path / "wrong.onnx")


@pytest.mark.slow
def test_aoti_package_runs_without_our_python(tmp_path):
    import subprocess
    import sys

    torch.manual_seed(2)
    retriever = Retriever(nn.Linear(6, 4), torch.randn(50, 4), k=5)
    path = to_aoti(retriever, (torch.randn(3, 6),), tmp_path / "retriever.pt2")
    items = torch.randn(7, 6)
    torch.save((items, *retriever.eval()(items)), tmp_path / "expected.pt")
    program = f"""
import sys, torch
torch.ops.load_library({pairloom.export.library_path()!r})
items, scores, ids = torch.load({str(tmp_path / "expected.pt")!r})
found = torch._inductor.aoti_load_package({str(path)!r})(items)
torch.testing.assert_close(found[0], scores)
assert torch.equal(found[1], ids)
assert not any(name.split(".")[0] == "pairloom" for name in sys.modules)
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True)
