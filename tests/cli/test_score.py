"""`pairloom score`: the answers of `topk`, by a file and by a gallery, in every form of output; and what is refused."""

import csv
import io

import numpy as np
import pytest
import torch

import pairloom as package
from tests.cli.common import DIM, QUERIES, ROWS, error, matrices, pairloom

BY_MODEL = ("score", "--model", "retriever.onnx", "--queries", "queries.npy")
BY_GALLERY = ("score", "--gallery", "gallery.npy", "--queries", "queries.npy")


def found(*arguments):
    """Scores and ids, by way of .npz."""
    pairloom(*arguments, "-o", "found.npz")
    with np.load("found.npz") as file:
        return file["scores"], file["ids"]


def assert_same(got, wanted, names=False):
    np.testing.assert_allclose(got[0], wanted[0], rtol=0, atol=2e-6)
    ids = wanted[1].tolist()
    if names:
        ids = [["" if one < 0 else f"item {one}" for one in row] for row in ids]
    assert got[1].tolist() == ids


@pytest.mark.parametrize("options", [(), ("--stock",), ("--batch", 7), ("--threads", 1), ("-k", 3)], ids=str)
def test_a_model_answers_as_topk(options, here):
    k = 3 if "-k" in options else 10
    assert_same(found(*BY_MODEL, *options), package.topk(*matrices(here), k), names=True)


def test_a_model_with_an_encoder(here):
    pairloom("export", "--gallery", "gallery.npy", "--encoder", "encoder.pt2", "-k", 5, "-o", "whole.onnx")
    queries, gallery = matrices(here)
    encoder = torch.load("encoder.pt", weights_only=False)
    got = found("score", "--model", "whole.onnx", "--queries", "queries.npy")
    with torch.no_grad():
        assert_same(got, package.topk(encoder(queries), gallery, 5))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"similarity": "dot"},
        {"similarity": "euclidean"},
        {"similarity": "squared_euclidean"},
        {"screen": "int8"},
        {"screen": "bf16", "similarity": "dot"},
    ],
    ids=str,
)
def test_a_gallery_answers_as_topk(options, here):
    arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
    wanted = package.topk(*matrices(here), 6, similarity=options.get("similarity", "cosine"))
    assert_same(found(*BY_GALLERY, "-k", 6, "--batch", 11, *arguments), wanted)


def test_ids_and_exclusions_of_a_gallery(here):
    lists = [[row, 3] if row % 2 else [] for row in range(QUERIES)]
    (here / "exclude.csv").write_text("".join(f"{' '.join(map(str, one))}\n" for one in lists))
    arguments = ("-k", 6, "--ids", "ids.csv", "--exclude", "exclude.csv", "--batch", 7)
    assert_same(found(*BY_GALLERY, *arguments), package.topk(*matrices(here), 6, exclude=lists), names=True)


def test_more_results_than_rows(here):
    np.save("three.npy", np.load("gallery.npy")[:3])
    queries, gallery = matrices(here)
    got = found("score", "--gallery", "three.npy", "--queries", "queries.npy", "-k", 5)
    assert_same(got, package.topk(queries, gallery[:3], 5))
    out = pairloom("score", "--gallery", "three.npy", "--queries", "queries.npy", "-k", 5, "-o", "-").stdout
    assert out.count("\n") == 1 + 3 * QUERIES


def test_every_output_holds_the_same(here):
    scores, ids = found(*BY_MODEL)
    text = pairloom(*BY_MODEL, "-o", "-").stdout
    pairloom(*BY_MODEL, "-o", "found.csv")
    assert (here / "found.csv").read_text() == text
    rows = list(csv.reader(io.StringIO(text)))[1:]
    assert [row[2] for row in rows] == ids.flatten().tolist()
    assert [np.float32(row[3]) for row in rows] == scores.flatten().tolist()
    assert [row[:2] for row in rows[9:11]] == [["0", "10"], ["1", "1"]]
    pytest.importorskip("pyarrow")
    import pyarrow.parquet

    pairloom(*BY_MODEL, "-o", "found.parquet", "--batch", 4)
    table = pyarrow.parquet.read_table("found.parquet")
    assert [list(map(str, row.values())) for row in table.select(["query", "rank", "id"]).to_pylist()] == [
        row[:3] for row in rows
    ]
    assert table["score"].to_pylist() == scores.flatten().tolist()


def test_queries_in_every_format(here):
    queries = np.load("queries.npy")
    np.savez("queries.npz", queries)
    np.savetxt("queries.csv", queries, delimiter=",", fmt="%.9g")
    wanted = found(*BY_MODEL)
    for name in ("queries.npz", "queries.csv"):
        got = found("score", "--model", "retriever.onnx", "--queries", name)
        np.testing.assert_array_equal(got[0], wanted[0])
        np.testing.assert_array_equal(got[1], wanted[1])


@pytest.mark.parametrize("by", [BY_MODEL, BY_GALLERY], ids=["model", "gallery"])
@pytest.mark.parametrize("suffix", ["npz", "csv", "parquet"])
def test_no_queries(by, suffix, here):
    if suffix == "parquet":
        pytest.importorskip("pyarrow")
    np.save("queries.npy", np.empty((0, DIM), np.float32))
    pairloom(*by, "-o", f"none.{suffix}")
    if suffix == "npz":
        assert np.load("none.npz")["ids"].shape == (0, 10)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*BY_MODEL, "-o", "found.txt"), "must end in .npz, .csv or .parquet"),
        ((*BY_MODEL, "-o", "nowhere/found.csv"), "no folder nowhere"),
        ((*BY_MODEL, "-o", "-", "-k", 11), "-k is 11, and retriever.onnx was exported with k = 10"),
        (("score", "--model", "nothing.onnx", "--queries", "queries.npy", "-o", "-"), "no such file"),
        (("score", "--model", "queries.npy", "--queries", "queries.npy", "-o", "-"), "does not load"),
        (("score", "--model", "retriever.onnx", "--queries", "nothing.npy", "-o", "-"), "no such file"),
        (("score", "--model", "retriever.onnx", "--queries", "narrow.npy", "-o", "-"), "(queries, 16)"),
        (("score", "--gallery", "gallery.npy", "--queries", "narrow.npy", "-o", "-"), "rows of 3 numbers"),
        ((*BY_GALLERY, "-o", "-", "--exclude", "far.npy"), "rows 0 to 399"),
        ((*BY_GALLERY, "-o", "-", "--ids", "positives.csv"), "must be (400,)"),
    ],
    ids=str,
)
def test_known_errors(arguments, message, here):
    np.save("narrow.npy", np.ones((QUERIES, 3), np.float32))
    np.save("far.npy", np.full(QUERIES, ROWS))
    assert message in error(*arguments)


def test_another_onnx_file_is_refused(here):
    import onnx
    from onnx import TensorProto, helper

    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", DIM]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "other", values[:1], values[1:])
    onnx.save(helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 20)]), "other.onnx")
    assert "no retriever" in error("score", "--model", "other.onnx", "--queries", "queries.npy", "-o", "-")


@pytest.mark.parametrize(
    "arguments",
    [
        ("score", "--queries", "queries.npy", "-o", "-"),
        (*BY_MODEL, "--gallery", "gallery.npy", "-o", "-"),
        (*BY_MODEL, "--similarity", "dot", "-o", "-"),
        (*BY_MODEL, "--exclude", "positives.csv", "-o", "-"),
        (*BY_GALLERY, "--stock", "-o", "-"),
        (*BY_GALLERY, "--similarity", "near", "-o", "-"),
        (*BY_GALLERY, "-k", 0, "-o", "-"),
    ],
    ids=str,
)
def test_wrong_usage(arguments, here):
    assert "Usage: pairloom score" in pairloom(*arguments, code=2).stderr
