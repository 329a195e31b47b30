"""Builds and runs the C++ tests: every tests/cpp/<name>.cpp is a program that exits with 0 when its checks hold."""

import subprocess
from pathlib import Path

import pytest

from tests.packaging.build_tree import require_tree

PROGRAMS = sorted(path.stem for path in Path(__file__).parent.glob("*.cpp"))


@pytest.fixture(scope="module")
def programs() -> Path:
    """Folder of the compiled programs."""
    tree = require_tree()
    cache = (tree / "CMakeCache.txt").read_text().splitlines()
    (cmake,) = (line.split("=", 1)[1] for line in cache if line.startswith("CMAKE_COMMAND:"))
    result = subprocess.run([cmake, "--build", str(tree), "--target", "cpp_tests"], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return tree / "tests"


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_passes(programs: Path, name: str) -> None:
    result = subprocess.run([str(programs / name)], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
