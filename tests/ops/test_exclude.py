"""`exclude` of topk: every form means the same in eager mode, in graphs, in TorchScript, in ONNX and under torch.func;
bad ids are refused before any work. The selection itself: tests/ops/test_topk.py and tests/generic/test_topk.py."""

import io
import re

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

import pairloom
from pairloom.export import module_to_onnx

LISTS = [[2, 0], [], [4]]
CSR = (torch.tensor([0, 2, 2, 3]), torch.tensor([2, 0, 4]))
FORMS = {
    "lists": LISTS,
    "tensors": [torch.tensor(ids, dtype=torch.int32) for ids in LISTS],
    "csr": CSR,
    "csr-arrays": tuple(part.numpy().astype(np.uint16) for part in CSR),
}
QUERIES = torch.tensor([[1.0, 0.2], [0.5, 1.0], [-1.0, 0.3]])
GALLERY = torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 0.1], [0.7, 0.7], [-1.0, 0.0]])


class Without(nn.Module):
    """topk with CSR, as a module that TorchScript can read."""

    def forward(
        self, queries: torch.Tensor, gallery: torch.Tensor, indptr: torch.Tensor, indices: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return pairloom.topk(queries, gallery, 3, exclude=(indptr, indices))


def without_one(queries, gallery, exclude):
    return pairloom.topk(queries, gallery, 3, exclude=exclude)


def sorted_by_hand():
    scores = pairloom.pairwise_similarity(QUERIES, GALLERY)
    for query, ids in enumerate(LISTS):
        scores[query, ids] = -torch.inf
    return scores.topk(3)


def assert_same(found, wanted):
    assert torch.equal(torch.as_tensor(found[1]), wanted[1])
    torch.testing.assert_close(torch.as_tensor(found[0]), wanted[0])


@pytest.mark.parametrize("form", FORMS)
def test_forms(form):
    assert_same(pairloom.topk(QUERIES, GALLERY, 3, exclude=FORMS[form]), sorted_by_hand())


@pytest.mark.parametrize(
    "ids", [[2, -1, 4], np.array([2, -1, 4]), torch.tensor([2, -1, 4], dtype=torch.int8)], ids=type
)
def test_one_each(ids):
    assert_same(
        pairloom.topk(QUERIES, GALLERY, 3, exclude=ids), pairloom.topk(QUERIES, GALLERY, 3, exclude=[[2], [], [4]])
    )


def test_leave_one_out():
    x = torch.ones(4, 2)
    _, indices = pairloom.topk(x, x, 3, exclude=torch.arange(4))
    assert indices.tolist() == [[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2]]


@pytest.mark.parametrize("exclude", [CSR, torch.tensor([2, -1, 4])], ids=["csr", "one-each"])
def test_compiled_and_exported(exclude):
    wanted = pairloom.topk(QUERIES, GALLERY, 3, exclude=exclude)
    compiled = torch.compile(without_one, fullgraph=True, dynamic=True, backend="aot_eager")
    assert_same(compiled(QUERIES, GALLERY, exclude), wanted)

    class Exported(nn.Module):
        def forward(self, queries, gallery, exclude):
            return without_one(queries, gallery, exclude)

    program = torch.export.export(Exported(), (QUERIES, GALLERY, exclude))
    assert_same(program.module()(QUERIES, GALLERY, exclude), wanted)


def test_lists_in_a_graph_are_refused_in_words():
    compiled = torch.compile(without_one, fullgraph=True, backend="aot_eager")
    with pytest.raises(Exception, match="exclude is a list; in a compiled or exported graph it must be"):
        compiled(QUERIES, GALLERY, LISTS)


def test_torchscript():
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.script(Without()), buffer)
    buffer.seek(0)
    assert_same(torch.jit.load(buffer)(QUERIES, GALLERY, *CSR), sorted_by_hand())


def test_onnx(tmp_path):
    n, m, ids = (torch.export.Dim(name) for name in ("n", "m", "ids"))
    shapes = ({0: n}, {0: m}, {0: n + 1}, {0: ids})
    path = module_to_onnx(
        Without(), (QUERIES, GALLERY, *CSR), tmp_path / "topk.onnx", dynamic_shapes=shapes, dynamic_batch=False
    )
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    generator = torch.Generator().manual_seed(0)
    for lists in (LISTS, [[], []], [[4, 4, 1, 0], [], [], [3], [0, 1, 2, 3, 4]]):
        queries = torch.randn(len(lists), 2, generator=generator)
        indptr = torch.tensor([0, *map(len, lists)]).cumsum(0)
        indices = torch.tensor([one for some in lists for one in some], dtype=torch.int64)
        inputs = (queries, GALLERY, indptr, indices)
        found = session.run(None, {node.name: x.numpy() for node, x in zip(session.get_inputs(), inputs, strict=True)})
        assert_same(found, pairloom.topk(queries, GALLERY, 3, exclude=lists))


@pytest.mark.parametrize("form", FORMS)
def test_torch_func(form):
    exclude = FORMS[form]
    batches = torch.stack([QUERIES, -QUERIES])
    found = torch.func.vmap(lambda queries: pairloom.topk(queries, GALLERY, 3, exclude=exclude))(batches)
    for number, queries in enumerate(batches):
        assert_same((found[0][number], found[1][number]), pairloom.topk(queries, GALLERY, 3, exclude=exclude))


@pytest.mark.parametrize(
    ("exclude", "exception", "words"),
    [
        ([[0], [5], [1]], ValueError, "exclude holds id 5 for query 1; ids must be in [0, 5), the rows of gallery"),
        (torch.tensor([0, 1]), ValueError, "exclude has shape (2,); it must be (3,)"),
        ((torch.tensor([0, 1, 1, 3]), torch.tensor([0, 1])), ValueError, "it must rise from 0 to 2"),
        (torch.tensor([0.0, 1.0, 2.0]), TypeError, "exclude has dtype float32; ids must be integers"),
        ("none", TypeError, "exclude is a str"),
    ],
    ids=str,
)
@pytest.mark.parametrize("gallery", [GALLERY, GALLERY.numpy()], ids=["tensor", "array"])
def test_errors(gallery, exclude, exception, words):
    with pytest.raises(exception, match=re.escape(words)):
        pairloom.topk(QUERIES, gallery, 2, exclude=exclude)
