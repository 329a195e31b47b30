"""Retrievers as ONNX: what is in the file, what it answers with and without our library, and what is refused."""

import json
import os
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

import pairloom
from pairloom.deploy import ort_library
from pairloom.export import _answers, to_onnx
from pairloom.export import _retriever_graph as graph_module
from pairloom.export import onnx as onnx_module

K = 7


def session(path, library):
    options = onnxruntime.SessionOptions()
    if library:
        options.register_custom_ops_library(ort_library())
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


@pytest.fixture(params=[False, True], ids=["stock", "library"])
def library(request):
    return request.param


def metadata(path):
    return {entry.key: entry.value for entry in onnx.load(str(path), load_external_data=False).metadata_props}


def random_encoder():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 24))


def assert_same(found, expected, atol=2e-6):
    """Scores close, ids equal: rows drawn at random are further apart than roundings."""
    np.testing.assert_allclose(found[0], expected[0].detach(), rtol=0, atol=atol)
    np.testing.assert_array_equal(found[1], expected[1])


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean", "squared_euclidean"])
def test_encoder_and_gallery_in_one_file(similarity, library, tmp_path):
    encoder, gallery = random_encoder(), torch.randn(700, 24)
    path = to_onnx(
        encoder, gallery, k=K, path=tmp_path / "it.onnx", similarity=similarity, args=(torch.randn(3, 12),),
        input_names=["items"],
    )  # fmt: skip
    assert os.listdir(tmp_path) == ["it.onnx"]
    assert encoder.training
    served = session(path, library)
    assert [node.name for node in served.get_inputs()] == ["items"]
    assert [(node.name, node.shape) for node in served.get_outputs()] == [
        ("scores", ["batch", K]),
        ("ids", ["batch", K]),
    ]
    for batch in (1, 2, 65):
        items = torch.randn(batch, 12)
        found = served.run(None, {"items": items.numpy()})
        assert_same(found, pairloom.topk(encoder(items), gallery, K, similarity=similarity), atol=2e-5)


@pytest.mark.parametrize("precision", ["float16", "int8"])
@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_smaller_galleries(precision, similarity, library, tmp_path):
    torch.manual_seed(1)
    gallery, queries = torch.randn(500, 70), torch.randn(20, 70)
    path = to_onnx(None, gallery, k=K, path=tmp_path / "small.onnx", similarity=similarity, precision=precision)
    assert path.stat().st_size < 500 * 70 * 4 * 0.8
    found = session(path, library).run(None, {"queries": queries.numpy()})
    kept = gallery.half() if precision == "float16" else pairloom.Int8Gallery(gallery)
    expected = pairloom.topk(queries, kept, K, similarity=similarity)
    assert_same(found, expected, atol=2e-5)
    if library and not (precision == "int8" and similarity == "cosine"):  # whose queries are normalised elsewhere
        np.testing.assert_array_equal(found[0], expected[0])


def test_gallery_kinds_give_the_same_file(tmp_path):
    gallery = torch.randn(40, 6, generator=torch.Generator().manual_seed(2))
    np.save(tmp_path / "gallery.npy", gallery.numpy())
    kinds = {
        "tensor": gallery,
        "float64": gallery.double(),
        "array": gallery.numpy(),
        "columns": np.asfortranarray(gallery.numpy()),
        "map": np.load(tmp_path / "gallery.npy", mmap_mode="r"),
        "gallery": pairloom.Gallery(gallery, screen="int8"),
    }
    files = {name: to_onnx(None, rows, k=3, path=tmp_path / f"{name}.onnx") for name, rows in kinds.items()}
    stored = [graph_initializer(path, "gallery") for path in files.values()]
    for array in stored:
        np.testing.assert_array_equal(array, gallery.numpy())
    coded = pairloom.Int8Gallery(gallery)
    files = [
        to_onnx(None, rows, k=3, path=tmp_path / "int8.onnx", precision="int8").read_bytes()
        for rows in (gallery, coded)
    ]
    assert files[0] == files[1]


def graph_initializer(path, name):
    (found,) = (tensor for tensor in onnx.load(str(path)).graph.initializer if tensor.name == name)
    return onnx.numpy_helper.to_array(found)


def test_gallery_as_an_input(library, tmp_path):
    encoder = random_encoder()
    for encoded in (True, False):
        path = to_onnx(
            encoder if encoded else None, None, k=K, path=tmp_path / "open.onnx",
            args=(torch.randn(2, 12),) if encoded else None,
        )  # fmt: skip
        served = session(path, library)
        first = served.get_inputs()[0].name
        for rows in (1, 3, 200):
            items, gallery = torch.randn(5, 12 if encoded else 24), torch.randn(rows, 24)
            found = served.run(None, {first: items.numpy(), "gallery": gallery.numpy()})
            embeddings = encoder(items) if encoded else items
            assert_same(found, pairloom.topk(embeddings, gallery, K))
        assert metadata(path)["pairloom.gallery"] == "input"
    assert metadata(path)["pairloom.dim"] == "any"


@pytest.mark.parametrize(
    ("ids", "missing"),
    [
        (torch.arange(5) * 10 + 7, -1),
        (np.array([2**40, -5, 0, 3, 9]), -1),
        (["a", " ", "ü", "d", "e"], ""),
        (np.array(["x1", "x22", "x3", "x4", "x5"]), ""),
    ],
)
def test_ids_of_the_caller(ids, missing, library, tmp_path):
    gallery = torch.randn(5, 4)
    path = to_onnx(None, gallery, k=K, path=tmp_path / "named.onnx", ids=ids)
    queries = torch.randn(3, 4)
    scores, found = session(path, library).run(None, {"queries": queries.numpy()})
    rows = pairloom.topk(queries, gallery, K)[1].numpy()
    table = np.asarray(ids).tolist()
    assert found.tolist() == [[table[row] if row >= 0 else missing for row in ranked] for ranked in rows.tolist()]
    assert np.isinf(scores[:, 5:]).all()


def test_metadata_and_operators(tmp_path):
    gallery = torch.randn(30, 6)
    path = to_onnx(None, gallery, k=3, path=tmp_path / "a.onnx", similarity="dot", precision="float16", opset=18)
    assert metadata(path) == {
        "pairloom.version": pairloom.__version__,
        "pairloom.similarity": "dot",
        "pairloom.normalized": "false",
        "pairloom.k": "3",
        "pairloom.gallery": "float16",
        "pairloom.dim": "6",
    }
    model = onnx.load(str(path))
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", 18), ("pairloom", 1)]
    assert [(node.domain, node.op_type) for node in model.graph.node] == [("pairloom", "TopKSimilarity")]
    (function,) = model.functions
    assert {node.domain for node in function.node} == {""}
    assert [(entry.domain, entry.version) for entry in function.opset_import] == [("", 18)]
    inferred = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
    assert [value.type.tensor_type.shape.dim[1].dim_value for value in inferred.graph.output] == [3, 3]


def test_no_path_of_this_machine_is_in_the_file(tmp_path):
    path = to_onnx(random_encoder(), torch.randn(9, 24), k=3, path=tmp_path / "a.onnx", args=(torch.randn(2, 12),))
    for word in (b"site-packages", os.getcwd().encode(), sys.prefix.encode(), str(tmp_path).encode()):
        assert word not in path.read_bytes()


def test_portable_files_know_standard_operators_only(tmp_path):
    gallery, queries = torch.randn(30, 6), torch.randn(4, 6)
    for precision in ("float32", "int8"):
        path = to_onnx(None, gallery, k=3, path=tmp_path / "p.onnx", portable=True, precision=precision)
        model = onnx.load(str(path))
        assert {node.domain for node in model.graph.node} == {""}
        assert not model.functions
        assert [entry.domain for entry in model.opset_import] == [""]
        kept = gallery if precision == "float32" else pairloom.Int8Gallery(gallery)
        found = session(path, False).run(None, {"queries": queries.numpy()})
        assert_same(found, pairloom.topk(queries, kept, 3))


@pytest.mark.parametrize("asked", [True, None])
def test_data_beside_the_graph(asked, library, tmp_path, monkeypatch):
    """Asked for, or because a file would be too large; the limit is small here."""
    if asked is None:
        monkeypatch.setattr(graph_module, "LARGEST_FILE", 20000)
    encoder, gallery = random_encoder(), torch.randn(300, 24)
    ids = [f"row {i}" for i in range(300)]
    path = to_onnx(
        encoder, gallery, k=K, path=tmp_path / "big.onnx", args=(torch.randn(2, 12),), ids=ids, external_data=asked
    )
    assert sorted(os.listdir(tmp_path)) == ["big.onnx", "big.onnx.data"]
    assert (tmp_path / "big.onnx.data").stat().st_size >= gallery.nbytes
    items = torch.randn(4, 12)
    found = session(path, library).run(None, {"input": items.numpy()})
    rows = pairloom.topk(encoder(items), gallery, K)[1]
    assert found[1].tolist() == [[ids[row] for row in ranked] for ranked in rows.tolist()]


def test_small_files_stay_one(tmp_path):
    to_onnx(None, torch.randn(30, 6), k=3, path=tmp_path / "small.onnx")
    assert os.listdir(tmp_path) == ["small.onnx"]


@pytest.mark.parametrize("precision", ["float32", "float16", "int8"])
@pytest.mark.parametrize("rows", [0, 1])
def test_galleries_of_no_row_and_of_one(rows, precision, library, tmp_path):
    gallery, queries = torch.randn(rows, 5), torch.randn(3, 5)
    names = (f"row {i}" for i in range(rows))
    path = to_onnx(None, gallery, k=np.int64(2), path=tmp_path / "tiny.onnx", precision=precision, ids=names)
    scores, ids = session(path, library).run(None, {"queries": queries.numpy()})
    assert np.isinf(scores[:, rows:]).all()
    assert ids.tolist() == [["row 0", ""] if rows else [-1, -1]] * 3  # of no ids nobody knows the kind


def test_screened_files_answer_the_same(library, tmp_path):
    torch.manual_seed(3)
    gallery, queries = torch.randn(3000, 70), torch.randn(20, 70)
    gallery[100] = torch.nan
    path = to_onnx(None, gallery, k=K, path=tmp_path / "screened.onnx", screen="int8")
    found = session(path, library).run(None, {"queries": queries.numpy()})
    expected = pairloom.topk(queries, gallery, K)
    assert_same(found, expected)
    if library:
        np.testing.assert_array_equal(found[0], expected[0])


def test_encoders_with_several_inputs_and_half_outputs(library, tmp_path):
    class Pooled(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(50, 16)

        def forward(self, tokens, mask):
            weights = mask.unsqueeze(2).float()
            return ((self.embed(tokens) * weights).sum(1) / weights.sum(1).clamp(min=1)).half()

    torch.manual_seed(4)
    encoder, gallery = Pooled(), torch.randn(100, 16)
    length = torch.export.Dim("length")
    batch = torch.export.Dim("batch")
    path = to_onnx(
        encoder, gallery, k=K, path=tmp_path / "text.onnx", tolerance=2e-3,
        args=(torch.randint(0, 50, (3, 9)), torch.ones(3, 9, dtype=torch.int64)),
        dynamic_shapes=({0: batch, 1: length}, {0: batch, 1: length}),
    )  # fmt: skip
    tokens = torch.randint(0, 50, (5, 13))
    mask = (torch.arange(13) < torch.tensor([[13], [4], [1], [7], [2]])).long()
    scores, _ = session(path, library).run(None, {"tokens": tokens.numpy(), "mask": mask.numpy()})
    np.testing.assert_allclose(scores, pairloom.topk(encoder(tokens, mask).float(), gallery, K)[0].detach(), atol=2e-3)


class GivesBfloat16(nn.Linear):
    """An encoder whose embeddings no kernel of the runtime takes."""

    def __init__(self):
        super().__init__(12, 24)

    def forward(self, x):
        return super().forward(x).bfloat16()


class TwoAlways(nn.Linear):
    """An encoder that takes a batch of two and no other."""

    def __init__(self):
        super().__init__(12, 24)

    def forward(self, x):
        return super().forward(x) + torch.arange(2).unsqueeze(1)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"k": -1}, ValueError, "k is -1; it must be 0 or more"),
        ({"similarity": "l1"}, ValueError, "similarity is 'l1'; allowed: cosine"),
        ({"precision": "int4"}, ValueError, "precision is 'int4'; allowed: float32, float16, int8"),
        ({"precision": "int8", "similarity": "euclidean"}, ValueError, "similarity is 'euclidean'; an int8 gallery"),
        ({"gallery": [[1.0]]}, TypeError, "gallery is a list"),
        ({"gallery": torch.ones(3, 5)}, ValueError, "gallery has rows of 5 numbers, and the encoder gives 24"),
        (
            {"gallery": None, "precision": "float16"},
            ValueError,
            "precision is 'float16', and a gallery that is an input",
        ),
        ({"gallery": None, "ids": [1]}, ValueError, "ids are given for a gallery that is an input"),
        ({"ids": [1, 2]}, ValueError, r"ids have shape \(2,\); it must be \(9,\)"),
        ({"ids": np.ones(9)}, TypeError, "ids holds 1.0; they must be integers or strings"),
        ({"ids": [1, 1, *range(7)]}, ValueError, "ids holds 1 twice; each row has an id of its own"),
        ({"opset": 9}, ValueError, "opset is 9; allowed: 18 to "),
        ({"opset": 99}, ValueError, "opset is 99; allowed: 18 to "),
        ({"opset": "20"}, TypeError, "opset is '20'; it must be an integer"),
        ({"tolerance": 0}, ValueError, "tolerance is 0; it must be finite and above 0"),
        ({"tolerance": None}, TypeError, "tolerance is None; it must be a number"),
        ({"check": 1}, TypeError, "check is 1; it must be True or False"),
        ({"k": 2**63 - 1}, ValueError, "k is 9223372036854775807; it must be below 2"),
        ({"args": {"x": torch.ones(2, 12)}}, TypeError, "args is a dict; pass a tuple"),
        ({"args": (torch.ones(2, 12).bfloat16(),)}, TypeError, "args holds bfloat16"),
        ({"encoder": GivesBfloat16()}, ValueError, "encoder gives bfloat16"),
        ({"encoder": TwoAlways()}, ValueError, "encoder takes a batch of 2 alone"),
        ({"input_names": ["ids"]}, ValueError, "encoder has an input called 'ids'"),
        ({"input_names": ["gallery"], "gallery": None, "check": False}, ValueError, "input called 'gallery'"),
        (
            {"gallery": torch.full((9, 24), 1e5), "precision": "float16"},
            ValueError,
            "gallery holds 100000, which float16",
        ),
        ({"gallery": np.full((9, 24), 1e300)}, ValueError, r"gallery holds 1e\+300, which float32"),
        ({"ids": range(-1, 8)}, ValueError, "ids holds -1, which stands for what is missing"),
        ({"ids": [*"abcdefgh", ""]}, ValueError, "ids holds '', which stands for what is missing"),
        ({"args": None}, ValueError, "args is missing"),
        ({"args": torch.ones(2, 12)}, TypeError, "args is a Tensor; pass a tuple"),
        ({"path": "."}, ValueError, "path is '.', which is a folder"),
        ({"args": (torch.ones(1, 12),)}, ValueError, "two or more rows"),
        ({"encoder": None}, ValueError, "args is given without an encoder"),
        ({"encoder": len}, TypeError, "encoder is a builtin_function_or_method"),
        ({"encoder": nn.Flatten(0)}, ValueError, r"encoder gives a tensor of shape \(24,\); it must give embeddings"),
        ({"screen": "bf16"}, ValueError, "screen is 'bf16'; allowed: int8"),
        ({"screen": "int8", "portable": True}, ValueError, "screen is given with portable=True"),
        ({"screen": "int8", "precision": "int8"}, ValueError, "screen is given for a gallery"),
        ({"path": "no/such/it.onnx"}, ValueError, "no/such' is no folder"),
        ({"portable": 1}, TypeError, "portable is 1; it must be True or False"),
        ({"precision": "float32", "gallery": pairloom.Int8Gallery(torch.ones(9, 24))}, ValueError, "int8 alone"),
    ],
)
def test_refused_before_anything_is_written(arguments, error, message, tmp_path):
    given = {
        "encoder": random_encoder(),
        "gallery": torch.ones(9, 24),
        "k": 3,
        "path": tmp_path / "it.onnx",
        "args": (torch.randn(2, 12),),
        **arguments,
    }
    with pytest.raises(error, match=message):
        to_onnx(given.pop("encoder"), given.pop("gallery"), **given)
    assert os.listdir(tmp_path) == []


def test_a_file_that_answers_otherwise_is_not_written(tmp_path, monkeypatch):
    """The check is real: with other scores or other neighbours an existing file stays what it was."""
    (tmp_path / "it.onnx").write_text("mine")
    real = _answers.onnx_runtime
    wrongs = [
        (lambda scores, ids: (scores + 1, ids), "scores differ from PyTorch's by up to 1"),
        (
            lambda scores, ids: (scores[:, :2], ids),
            r"scores differ from PyTorch's in shape, \(3, 2\) instead of \(3, 4\)",
        ),
        (lambda scores, ids: (scores, ids[:, ::-1].copy()), "ids differ from PyTorch's"),
        (lambda scores, ids: (scores, np.where(ids == ids[0, 0], -1, ids)), "ids differ from PyTorch's"),
    ]
    for wrong, message in wrongs:

        class Liar:
            def __init__(self, *arguments):
                self.real = real(*arguments)
                self.get_inputs = self.real.get_inputs

            def run(self, *arguments, wrong=wrong):
                return wrong(*self.real.run(*arguments))

        monkeypatch.setattr(_answers, "onnx_runtime", Liar)
        with pytest.raises(RuntimeError, match=message):
            to_onnx(None, torch.randn(9, 5), k=4, path=tmp_path / "it.onnx")
    assert (tmp_path / "it.onnx").read_text() == "mine"
    assert os.listdir(tmp_path) == ["it.onnx"]


def test_rows_that_tie_but_for_a_rounding_may_change_places(tmp_path, monkeypatch):
    monkeypatch.setattr(
        _answers, "topk", lambda *a, **k: (pairloom.topk(*a, **k)[0], pairloom.topk(*a, **k)[1].flip(1))
    )
    to_onnx(None, torch.ones(4, 3), k=4, path=tmp_path / "tied.onnx", ids=["a", "b", "c", "d"])
    to_onnx(None, torch.ones(4, 3), k=4, path=tmp_path / "tied.onnx", precision="int8")


def test_a_missing_package_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(
        ImportError, match=r"needs onnxscript, which is not installed; run `pip install pairloom\[onnx\]`"
    ):
        onnx_module.to_onnx(None, torch.ones(3, 3), k=1, path=tmp_path / "it.onnx")


def test_serving_needs_neither_torch_nor_this_package(tmp_path):
    """ONNX Runtime, NumPy and the one library."""
    gallery, queries = torch.randn(50, 8), torch.randn(3, 8)
    path = to_onnx(None, gallery, k=4, path=tmp_path / "it.onnx")
    program = f"""
import json, sys, numpy, onnxruntime
options = onnxruntime.SessionOptions()
options.register_custom_ops_library({ort_library()!r})
session = onnxruntime.InferenceSession({str(path)!r}, options)
queries = numpy.array({queries.tolist()!r}, dtype=numpy.float32)
print(json.dumps(session.run(None, {{"queries": queries}})[1].tolist()))
assert not {{"torch", "pairloom"}} & set(sys.modules)
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(result.stdout) == pairloom.topk(queries, gallery, 4)[1].tolist()


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean", "squared_euclidean"])
def test_bits_of_a_stored_gallery(similarity, tmp_path):
    """Its norms are found once, when the file is loaded: of ordinary rows, of none, tiny, huge and NaN ones."""
    torch.manual_seed(5)
    gallery = torch.randn(900, 33)
    gallery[3], gallery[4] = 0, torch.nan
    gallery[5] *= 1e-30
    gallery[6] *= 1e25
    gallery[7] = gallery[8]
    path = to_onnx(None, gallery, k=890, path=tmp_path / "bits.onnx", similarity=similarity, check=False)
    served = session(path, True)
    for count in (1, 5, 300):
        queries = torch.randn(count, 33)
        found = served.run(None, {"queries": queries.numpy()})
        for ours, wanted in zip(found, pairloom.topk(queries, gallery, 890, similarity=similarity), strict=True):
            np.testing.assert_array_equal(ours, wanted)


def test_a_folder_where_the_data_would_go(tmp_path):
    (tmp_path / "it.onnx.data").mkdir()
    for external in (None, True):
        with pytest.raises(ValueError, match=r"it\.onnx\.data, the file for its data, is a folder"):
            to_onnx(None, torch.ones(4, 3), k=1, path=tmp_path / "it.onnx", external_data=external)
    to_onnx(None, torch.ones(4, 3), k=1, path=tmp_path / "it.onnx", external_data=False)


@pytest.mark.parametrize("encoder", [nn.Identity(), nn.Dropout(), nn.Sequential()], ids=["identity", "dropout", "none"])
@pytest.mark.parametrize("library", [False, True])
def test_encoders_that_give_back_their_input(encoder, library, tmp_path):
    """The input keeps its name."""
    gallery, x = torch.randn(20, 6), torch.randn(3, 6)
    path = to_onnx(encoder, gallery, k=2, path=tmp_path / "it.onnx", args=(torch.randn(2, 6),))
    opened = session(path, library)
    assert [one.name for one in opened.get_inputs()] == ["input"]
    assert_same(opened.run(None, {"input": x.numpy()}), pairloom.topk(x, gallery, 2))


@pytest.mark.parametrize("library", [False, True])
@pytest.mark.parametrize("gallery", ["stored", "input"])
def test_encoders_whose_weights_have_our_names(gallery, library, tmp_path):
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.gallery = nn.Parameter(torch.randn(4, 6))
            self.ids = nn.Parameter(torch.randn(6))
            self.scores = nn.Parameter(torch.randn(6))

        def forward(self, x):
            return x @ self.gallery * self.scores + self.ids

    encoder, rows, x = Named(), torch.randn(20, 6), torch.randn(3, 4)
    stored = rows if gallery == "stored" else None
    names = None if stored is None else list(range(100, 120))
    path = to_onnx(encoder, stored, k=2, path=tmp_path / "it.onnx", args=(torch.randn(2, 4),), ids=names)
    feed = {"x": x.numpy(), **({} if stored is not None else {"gallery": rows.numpy()})}
    scores, found = session(path, library).run(["scores", "ids"], feed)
    wanted_scores, wanted = pairloom.topk(encoder(x).detach(), rows, 2)
    np.testing.assert_allclose(scores, wanted_scores, atol=1e-5)
    assert found.tolist() == (wanted + (0 if names is None else 100)).tolist()
