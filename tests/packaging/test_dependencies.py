"""Proves that dependencies point one way: between the folders of csrc, and from the package to torch."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CSRC = ROOT / "csrc"

# A folder may include itself and folders of lower levels: core <- engine <- rules <- cpu|cuda <- torch|ort|python.
LEVEL = {"core": 0, "engine": 1, "rules": 2, "cpu": 3, "cuda": 3, "torch": 4, "ort": 4, "python": 4}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
FILES = sorted(path for path in CSRC.rglob("*") if path.suffix in {".h", ".cpp", ".cu", ".cuh"})


def includes(path: Path) -> list[tuple[str, str]]:
    """(quote character, included path) of every include."""
    return INCLUDE.findall(path.read_text(encoding="utf-8"))


def test_every_folder_has_a_level() -> None:
    assert {path.name for path in CSRC.iterdir() if path.is_dir()} <= LEVEL.keys()


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(CSRC)))
def test_includes_point_downwards(path: Path) -> None:
    folder = path.relative_to(CSRC).parts[0]
    for quote, target in includes(path):
        if quote == "<":
            continue
        assert (CSRC / target).is_file(), f'"{target}" is not written from csrc/ (the one include folder)'
        other = target.split("/")[0]
        assert other == folder or LEVEL[other] < LEVEL[folder], f'csrc/{folder} must not include "{target}"'


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(CSRC)))
def test_only_the_torch_folder_includes_torch(path: Path) -> None:
    foreign = ("torch/", "ATen/", "c10/", "pybind11/", "Python.h", "onnxruntime", "cuda_runtime", "omp.h")
    allowed = {
        "torch": ("torch/", "cuda_runtime"),
        "python": ("pybind11/",),
        "ort": ("onnxruntime",),
        "cuda": ("cuda_runtime",),
    }
    folder = path.relative_to(CSRC).parts[0]
    for _, target in includes(path):
        if target.startswith(foreign):
            assert target.startswith(allowed.get(folder, ())), f"csrc/{folder} must not include <{target}>"


def test_torch_folder_stays_within_the_stable_abi() -> None:
    stable = ("torch/csrc/stable/", "torch/headeronly/", "torch/csrc/inductor/aoti_torch/c/")
    for path in (CSRC / "torch").glob("*"):
        if path in FILES:
            for quote, target in includes(path):
                if quote == "<" and target.startswith("torch/"):
                    assert target.startswith(stable), f"{path.name} includes {target}"


@pytest.mark.parametrize("module", ["pairloom", "pairloom.cli", "pairloom._build_info"])
def test_importing_does_not_import_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
