"""`pairloom export`: the file that `to_onnx` writes, what is printed of it, and what is refused."""

import json

import numpy as np
import onnx
import pytest
import torch

from tests.cli.common import DIM, QUERIES, ROWS, error, pairloom

EXPORT = ("export", "--gallery", "gallery.npy", "-o", "it.onnx")


def test_what_is_printed(here):
    out = pairloom(*EXPORT, "--ids", "ids.csv", "-k", 3, "--similarity", "dot", COLUMNS="80").stdout
    for word in ("it.onnx", "400 rows x 16 dimensions, float32", "ids.csv", "best 3 by dot"):
        assert word in out
    assert all(len(line) <= 80 for line in out.splitlines())


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        ((), {}),
        (("--precision", "float16", "-k", 3), {"precision": "float16", "k": 3}),
        (("--precision", "int8", "--similarity", "dot"), {"precision": "int8", "similarity": "dot"}),
        (("--screen", "int8", "--opset", "20"), {"screen": "int8"}),
        (("--portable",), {"portable": True}),
    ],
    ids=str,
)
def test_json_and_options(options, facts, here):
    told = json.loads(pairloom(*EXPORT, *options, "--json").stdout)
    wanted = {
        "k": 10, "similarity": "cosine", "precision": "float32", "screen": None, "rows": ROWS, "dim": DIM,
        "encoder": None, "ids": None, "portable": False,
    }  # fmt: skip
    sizes = told.pop("files")
    assert told == {**wanted, **facts}
    assert sizes == {"it.onnx": (here / "it.onnx").stat().st_size}
    model = onnx.load("it.onnx")
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    assert metadata["pairloom.k"] == str(told["k"])
    assert metadata["pairloom.gallery"] == told["precision"]
    names = {value.name for value in model.graph.initializer}
    assert ("gallery_codes" in names) == ("int8" in options)
    assert (len(model.functions) == 0) == told["portable"]


def test_external_data(here):
    told = json.loads(pairloom(*EXPORT, "--external-data", "--json").stdout)
    assert set(told["files"]) == {"it.onnx", "it.onnx.data"}
    assert told["files"]["it.onnx.data"] >= ROWS * DIM * 4


def test_a_gallery_in_csv_is_the_same_file(here):
    np.savetxt("gallery.csv", np.load("gallery.npy"), delimiter=",", fmt="%.9g")
    pairloom(*EXPORT)
    pairloom("export", "--gallery", "gallery.csv", "-o", "other.onnx")
    assert (here / "it.onnx").read_bytes() == (here / "other.onnx").read_bytes()


def saved(name, module, args, **options):
    torch.export.save(torch.export.export(module, args, **options), name)


def test_programs_that_do_not_fit(here):
    x = torch.randn(3, DIM)
    saved("fixed.pt2", torch.nn.Linear(DIM, DIM), (x,))
    assert "fixed batch, input (3)" in error(*EXPORT, "--encoder", "fixed.pt2")
    saved("narrow.pt2", torch.nn.Linear(DIM, 3), (x,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    assert "encoder gives 3" in error(*EXPORT, "--encoder", "narrow.pt2")
    (here / "broken.pt2").write_text("no program")
    assert "cannot be read as a program" in error(*EXPORT, "--encoder", "broken.pt2")
    assert not (here / "it.onnx").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("export", "--gallery", "nothing.npy", "-o", "it.onnx"),
            "--gallery is nothing.npy, and there is no such file",
        ),
        (("export", "--gallery", "gallery.npy", "-o", "it.pt"), "--output is it.pt; it must end in .onnx"),
        (("export", "--gallery", "gallery.npy", "-o", "no/it.onnx"), "no folder no"),
        ((*EXPORT, "--ids", "positives.csv"), f"ids of shape ({QUERIES},)"),
        ((*EXPORT, "--encoder", "encoder.pt"), "must be a file of .pt2"),
        ((*EXPORT, "--precision", "int8", "--similarity", "euclidean"), "int8 gallery has 'cosine' and 'dot'"),
        ((*EXPORT, "--screen", "int8", "--portable"), "screen"),
    ],
    ids=str,
)
def test_known_errors(arguments, message, here):
    assert message in error(*arguments)
