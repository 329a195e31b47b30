"""The folder that commands run in."""

import shutil

import pytest

from tests.cli.common import pairloom, write_inputs


@pytest.fixture(scope="session")
def inputs(tmp_path_factory):
    """Files that nobody changes; with a model that was exported from them."""
    folder = tmp_path_factory.mktemp("inputs")
    write_inputs(folder)
    pairloom(
        "export", "--gallery", folder / "gallery.npy", "--ids", folder / "ids.csv", "-k", 10,
        "-o", folder / "retriever.onnx",
    )  # fmt: skip
    return folder


@pytest.fixture
def here(inputs, tmp_path, monkeypatch):
    """A copy of them, which is the current folder."""
    shutil.copytree(inputs, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path
