"""The demo runs from start to end, writes what it says, and its ONNX file answers as PyTorch does.

Four steps of training: the scores mean nothing here, everything else is the real thing.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.packaging.build_tree import ROOT

EXAMPLES = ROOT / "examples"
PNG = b"\x89PNG\r\n\x1a\n"

for needed in ("matplotlib", "onnxruntime", "sklearn", "tqdm"):
    pytest.importorskip(needed, reason=f"the demo needs {needed}")


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    """Python in its own process, as a user starts it, on one thread and a terminal that is wide enough."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120"}
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, env=environment)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """What a quick run writes and prints."""
    folder = tmp_path_factory.mktemp("demo") / "new"
    result = run(EXAMPLES / "digits_retrieval.py", "--quick", "--seed", "1", "--output", folder)
    assert result.returncode == 0, result.stdout + result.stderr
    return folder, result.stdout + result.stderr


def test_writes_exactly_what_it_says(demo: tuple[Path, str]) -> None:
    folder, printed = demo
    assert sorted(path.name for path in folder.iterdir()) == ["digits_retrieval.onnx", "digits_retrieval.png"]
    picture = (folder / "digits_retrieval.png").read_bytes()
    assert picture.startswith(PNG)
    assert len(picture) > 20_000
    for name in ("digits_retrieval.onnx", "digits_retrieval.png"):
        assert name in printed


def test_prints_scores_and_progress(demo: tuple[Path, str]) -> None:
    _, printed = demo
    for row in ("raw pixels", "untrained encoder", "trained encoder"):
        assert re.search(rf"{row}\D+0\.\d{{4}}\D+0\.\d{{4}}", printed), row
    assert re.search(r"raw pixels\D+0\.9911\D+0\.6056", printed)  # no training in it: the same on every machine
    assert re.search("On MAP@R the trained encoder (beats|does NOT beat) both", printed)
    assert re.search(r"loss \d\.\d+, mined [\d,]+/6,320 pairs, 0 anchors without positive", printed)


def test_onnx_file_answers_as_pytorch(demo: tuple[Path, str]) -> None:
    """The demo's own comparison: a row for each kernel and batch size, every verdict ok."""
    _, printed = demo
    rows = re.findall(r"(\S+) │ +(\d+) │ +(\d+) of (\d+) │ +(\S+) │ +(ok|FAILED)", printed)
    assert [kernel for kernel, *_ in rows] == ["Runtime"] * 5 + ["pairloom"] * 5
    assert [int(batch) for _, batch, *_ in rows] == [1, 2, 7, 64, 896] * 2
    for _, batch, equal, answers, difference, verdict in rows:
        assert verdict == "ok"
        assert int(answers) == 6 * int(batch)
        assert int(answers) - int(equal) <= 4  # ties by rounding, if any
        assert float(difference) < 1e-5


def test_onnx_file_is_standard_and_dynamic(demo: tuple[Path, str]) -> None:
    onnx, onnxruntime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    path = demo[0] / "digits_retrieval.onnx"
    model = onnx.load(path)
    assert {node.domain for node in model.graph.node} == {"", "pairloom"}
    assert {node.domain for function in model.functions for node in function.node} == {""}
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (images,) = session.get_inputs()
    assert images.shape[1:] == [1, 8, 8]
    assert not isinstance(images.shape[0], int)
    for rows in (1, 5):
        scores, ids = session.run(None, {images.name: torch.rand(rows, 1, 8, 8).numpy()})
        assert scores.shape == ids.shape == (rows, 6)
        assert (scores[:, :-1] >= scores[:, 1:]).all()


def test_help_explains_every_option() -> None:
    result = run(EXAMPLES / "digits_retrieval.py", "--help")
    assert result.returncode == 0
    for option in ("--steps", "--seed", "--output", "--quick"):
        assert option in result.stdout


@pytest.mark.parametrize(
    ("module", "package"), [("onnxruntime", "onnxruntime"), ("sklearn", "scikit-learn"), ("matplotlib", "matplotlib")]
)
def test_missing_package_is_one_sentence(module: str, package: str) -> None:
    hide_it = (
        f"import sys; sys.modules[{module!r}] = None; sys.path.insert(0, {str(EXAMPLES)!r}); import digits_retrieval"
    )
    result = run("-c", hide_it)
    assert result.returncode == 1
    assert result.stderr.startswith(f"This example needs {package} ")
    assert "pairloom[dev]" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    names = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'"{package}>=' in names  # what the message promises


def test_validation_script() -> None:
    result = run(EXAMPLES / "digits_validation.py", "--test", "--seeds", "1", "--steps", "4")
    assert result.returncode == 0, result.stderr
    assert re.search(r"as in the example\D+0\.6056", result.stdout)


def test_picture_of_the_readme() -> None:
    picture = ROOT / "docs" / "images" / "digits_retrieval.png"
    assert picture.read_bytes().startswith(PNG)
    assert picture.stat().st_size < 300_000


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The demo as a module."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import digits_retrieval

    return digits_retrieval


def test_classes_do_not_overlap(example: Any) -> None:
    assert not set(example.SEEN) & set(example.UNSEEN)
    images, labels = example.load_digits()
    seen, _ = example.only(example.SEEN, images, labels)
    unseen, _ = example.only(example.UNSEEN, images, labels)
    assert len(seen) + len(unseen) == len(images) == 1797
    assert images.shape[1:] == (1, 8, 8)
    assert images.min() == 0
    assert images.max() == 1


def test_batches_are_balanced(example: Any) -> None:
    labels = torch.tensor([3, 3, 3, 5, 9, 9])
    batch = example.balanced_batch(labels, 4, torch.Generator().manual_seed(0))
    assert labels[batch].tolist() == [3] * 4 + [5] * 4 + [9] * 4


def test_distortion(example: Any) -> None:
    """It keeps shape and range, repeats, and differs from image to image."""
    images = torch.rand(1, 1, 8, 8).expand(3, 1, 8, 8)
    out = example.distort(images, torch.Generator().manual_seed(0))
    assert out.shape == images.shape
    assert out.min() >= 0
    assert out.max() <= 1 + 1e-6
    assert not torch.allclose(out[0], out[1])
    assert torch.equal(out, example.distort(images, torch.Generator().manual_seed(0)))


def test_own_image_is_left_out_of_the_answers(example: Any) -> None:
    ids = torch.tensor([[0, 2, 1], [0, 1, 2], [0, 1, 3]])  # the last image is not among its own answers
    assert example.without_self(ids).tolist() == [[2, 1], [0, 2], [0, 1]]


def test_training_repeats_bit_for_bit(example: Any) -> None:
    images, labels = example.only(example.SEEN, *example.load_digits())

    def loss() -> list[float]:
        torch.manual_seed(3)
        return list(example.train(example.Encoder(), images, labels, steps=4, seed=3, show=False).loss)

    assert loss() == loss()


def test_momentum_contrast_runs() -> None:
    """The example without labels prints its table."""
    result = run(EXAMPLES / "moco_digits.py", "--steps", "3")
    assert result.returncode == 0, result.stdout + result.stderr
    rows = re.findall(r"trained without labels\D+([01]\.\d{4})\D+([01]\.\d{4})", result.stdout)
    assert len(rows) == 1
    refused = run(EXAMPLES / "moco_digits.py", "--steps", "0")
    assert refused.returncode == 2
    assert "--steps" in refused.stderr


def test_metrix_runs() -> None:
    """The example with mixtures prints its table and its verdict, from runs that repeat."""
    outputs = [run(EXAMPLES / "metrix_digits.py", "--steps", "4", "--seeds", "2") for _ in range(2)]
    assert all(result.returncode == 0 for result in outputs), outputs[0].stdout + outputs[0].stderr
    assert outputs[0].stdout == outputs[1].stdout
    for name in ("untrained", "MS", r"MS \+ Metrix"):
        assert re.search(
            rf"│ {name} +│ 0\.\d{{4}} ± 0\.\d{{4}} │ 0\.\d{{4}} ± 0\.\d{{4}} │ 0\.\d{{4}} ±", outputs[0].stdout
        )
    assert re.search(r"Metrix moves MAP@R by [+-]0\.\d{4} ± 0\.\d{4}: better in [012] of 2 runs", outputs[0].stdout)
