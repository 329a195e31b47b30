"""The library of operators for ONNX Runtime: our ABI header, registration, errors, threads, instruction sets, bits."""

import ctypes
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper

import pairloom
from pairloom.deploy import ort_library
from pairloom.testing import isa_levels
from tests.packaging.build_tree import ROOT

HERE = Path(__file__).parent


def node_model(queries, gallery, k, similarity="cosine", codes=None, dtype=TensorProto.FLOAT, gallery_dtype=None):
    """One TopKSimilarity node and nothing else: shapes of the inputs as given, without a body."""
    inputs = {"queries": (dtype, queries), "gallery": (gallery_dtype or dtype, gallery)}
    if codes is not None:
        inputs |= {"codes": (TensorProto.INT8, codes), "records": (TensorProto.FLOAT, [5, gallery[0]])}
    node = helper.make_node(
        "TopKSimilarity", list(inputs), ["scores", "ids"], domain="pairloom", k=k, similarity=similarity
    )
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()],
        [
            helper.make_tensor_value_info("scores", dtype, None),
            helper.make_tensor_value_info("ids", TensorProto.INT64, None),
        ],
    )
    domains = [helper.make_opsetid("", 20), helper.make_opsetid("pairloom", 1)]
    return helper.make_model(graph, opset_imports=domains, ir_version=10).SerializeToString()


def session(model, threads=0):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    options.register_custom_ops_library(ort_library())
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def run(served, queries, gallery):
    return served.run(None, {"queries": queries.numpy(), "gallery": gallery.numpy()})


def assert_bits(found, expected):
    np.testing.assert_array_equal(found[0], expected[0].numpy())
    np.testing.assert_array_equal(found[1], expected[1].numpy())


ANY = ["q", "d"], ["m", "d"]


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean", "squared_euclidean"])
@pytest.mark.parametrize("threads", [1, 2, 7])
def test_bits_are_those_of_topk(similarity, threads):
    served = session(node_model(*ANY, k=9, similarity=similarity), threads)
    generator = torch.Generator().manual_seed(threads)
    for q, m, d in [(1, 1, 1), (3, 5, 7), (0, 10, 4), (4, 0, 4), (2, 40000, 16), (300, 9000, 65), (33, 700, 24)]:
        queries = torch.randn(q, d, generator=generator)
        gallery = torch.randn(m, d, generator=generator)
        if m > 3:
            gallery[1], gallery[3] = torch.nan, gallery[0]
        if q > 2:
            queries[2] = 0
        assert_bits(run(served, queries, gallery), pairloom.topk(queries, gallery, 9, similarity=similarity))


@pytest.mark.parametrize("kinds", [(torch.float32, torch.float16), (torch.float64, torch.float64)])
def test_other_element_types(kinds):
    proto = {torch.float32: TensorProto.FLOAT, torch.float16: TensorProto.FLOAT16, torch.float64: TensorProto.DOUBLE}
    served = session(node_model(*ANY, k=5, dtype=proto[kinds[0]], gallery_dtype=proto[kinds[1]]))
    queries, gallery = torch.randn(6, 33).to(kinds[0]), torch.randn(300, 33).to(kinds[1])
    found = run(served, queries, gallery)
    assert found[0].dtype == np.dtype(str(kinds[0]).removeprefix("torch."))
    assert_bits(found, pairloom.topk(queries, gallery, 5))


def test_errors_are_statuses_in_one_sentence():
    served = session(node_model(["q", "a"], ["m", "b"], k=3))
    with pytest.raises(Exception, match="gallery has rows of length 4, but queries have rows of length 5"):
        run(served, torch.ones(2, 5), torch.ones(3, 4))
    with pytest.raises(Exception, match=r"gallery has shape \(3, 0\); rows must have at least one dimension"):
        run(served, torch.ones(2, 0), torch.ones(3, 0))
    assert_bits(run(served, torch.ones(2, 4), torch.ones(3, 4)), pairloom.topk(torch.ones(2, 4), torch.ones(3, 4), 3))
    with pytest.raises(Exception, match="k is -2; it must be 0 or more"):
        session(node_model(*ANY, k=-2))
    with pytest.raises(Exception, match="similarity is 'manhattan'; allowed are 'cosine'"):
        session(node_model(*ANY, k=2, similarity="manhattan"))
    with pytest.raises(
        Exception, match=r"codes have shape \(3, 5\); for this gallery and these queries it must be \(3, 64\)"
    ):
        session(node_model(*ANY, k=2, codes=["m", "s"])).run(
            None,
            {
                "queries": np.ones((1, 4), np.float32),
                "gallery": np.ones((3, 4), np.float32),
                "codes": np.ones((3, 5), np.int8),
                "records": np.ones((5, 3), np.float32),
            },
        )


def test_one_library_serves_many_sessions_and_threads():
    """Registered again and again; used at the same time; sessions outlive the options they were made with."""
    queries, gallery = torch.randn(40, 20), torch.randn(3000, 20)
    expected = pairloom.topk(queries, gallery, 6)
    served = [session(node_model(*ANY, k=6)) for _ in range(4)]
    failed = []

    def work(one):
        try:
            for _ in range(20):
                assert_bits(run(one, queries, gallery), expected)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(served[i % 3],)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


@pytest.mark.parametrize("level", isa_levels())
def test_every_instruction_set(level, tmp_path):
    """The library has a core of its own, which obeys PAIRLOOM_MAX_ISA."""
    queries, gallery = torch.randn(300, 70), torch.randn(9000, 70)
    (tmp_path / "one.onnx").write_bytes(node_model(*ANY, k=6))
    np.savez(tmp_path / "in.npz", queries=queries.numpy(), gallery=gallery.numpy())
    program = f"""
import numpy, onnxruntime
options = onnxruntime.SessionOptions()
options.register_custom_ops_library({ort_library()!r})
given = dict(numpy.load({str(tmp_path / "in.npz")!r}))
found = onnxruntime.InferenceSession({str(tmp_path / "one.onnx")!r}, options).run(None, given)
numpy.savez({str(tmp_path / "out.npz")!r}, scores=found[0], ids=found[1])
"""
    subprocess.run([sys.executable, "-c", program], check=True, env={**os.environ, "PAIRLOOM_MAX_ISA": level})
    found = np.load(tmp_path / "out.npz")
    with pairloom.testing.using_isa(level):
        assert_bits((found["scores"], found["ids"]), pairloom.topk(queries, gallery, 6))


def test_an_older_runtime_gets_a_status():
    """Case L32: a runtime without the API we need; every runtime can make a status of version 1."""
    said = []
    make_status = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)(
        lambda code, message: said.append((code, message.decode())) or 4711
    )
    table = (ctypes.c_void_p * 300)(ctypes.cast(make_status, ctypes.c_void_p).value)
    asked = []

    def get_api(version):
        asked.append(version)
        return ctypes.addressof(table) if version <= 16 else None

    class Base(ctypes.Structure):
        _fields_ = [
            ("get_api", ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)),
            ("get_version", ctypes.CFUNCTYPE(ctypes.c_void_p)),
        ]

    version = ctypes.create_string_buffer(b"1.16.3")
    base = Base(type(Base().get_api)(get_api), type(Base().get_version)(lambda: ctypes.addressof(version)))
    register = ctypes.CDLL(ort_library()).RegisterCustomOps
    register.restype = ctypes.c_void_p
    assert register(None, ctypes.byref(base)) == 4711
    assert said == [(1, "pairloom's operators need ONNX Runtime 1.17 or newer; this is 1.16.3")]
    assert asked == [17, 1]


def compiled_offsets(header, folder, out):
    compiler = os.environ.get("CXX", "c++")
    command = [compiler, "-std=c++20", f'-DHEADER="{header}"', f"-I{folder}", str(HERE / "ort_offsets.cpp"), "-o", out]
    subprocess.run(command, check=True, capture_output=True)
    return subprocess.run([out], check=True, capture_output=True, text=True).stdout.splitlines()


def official_headers():
    folders = [os.environ.get("ORT_INCLUDE_DIR", ""), "/usr/include/onnxruntime", "/usr/local/include/onnxruntime"]
    return next((folder for folder in folders if folder and (Path(folder) / "onnxruntime_c_api.h").is_file()), None)


def test_our_header_has_the_places_of_the_official_one(tmp_path):
    folder = official_headers()
    ours = compiled_offsets("ort/abi.h", ROOT / "csrc", str(tmp_path / "ours"))
    assert "OrtApi.KernelContext_ParallelFor 274" in ours
    if folder is None:
        pytest.skip("no onnxruntime_c_api.h: install libonnxruntime-dev, or set ORT_INCLUDE_DIR")
    assert ours == compiled_offsets("onnxruntime_c_api.h", folder, str(tmp_path / "theirs"))


def test_without_the_library_there_is_one_sentence(monkeypatch):
    from pairloom.deploy import ort

    monkeypatch.setattr(ort, "ORT_LIBRARY", Path("nowhere") / "libpairloom_ort.so")
    with pytest.raises(ImportError, match=r"libpairloom_ort\.so is not beside the package; build it with `make build`"):
        ort.ort_library()
