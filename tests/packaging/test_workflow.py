"""Proves that the workflow for wheels is well-formed and covers every Python, and that its smoke test passes."""

import re
import subprocess
import sys

import pytest

from tests.packaging.build_tree import ROOT

PYTHONS = ["cp310", "cp311", "cp312", "cp313", "cp314"]
WORKFLOW = ROOT / ".github" / "workflows" / "wheels.yml"


@pytest.fixture
def text() -> str:
    """The workflow; a source distribution has none."""
    if not WORKFLOW.is_file():
        pytest.skip("no workflows here")
    return WORKFLOW.read_text(encoding="utf-8")


def test_every_python_is_built(text: str) -> None:
    (matrix,) = re.findall(r"python: \[(.*)\]", text)
    assert matrix.split(", ") == PYTHONS
    tomllib = pytest.importorskip("tomllib")  # from Python 3.11 on
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert settings["tool"]["cibuildwheel"]["build"] == [f"{python}-*" for python in PYTHONS]
    assert settings["project"]["requires-python"] == ">=3.10"


def test_it_is_well_formed(text: str) -> None:
    """By a parser where there is one, else by what goes wrong by hand: tabs, odd indentation, keys without a value."""
    assert "\t" not in text
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    assert all((len(line) - len(line.lstrip())) % 2 == 0 for line in lines)
    assert all(re.match(r"\s*(- )?[\w-]+:( \S.*)?$", line) for line in lines)
    assert [line for line in lines if not line.startswith(" ")] == ["name: wheels", "on:", "permissions:", "jobs:"]
    try:
        import yaml
    except ImportError:
        return
    jobs = yaml.safe_load(text)["jobs"]
    assert jobs.keys() == {"wheels", "sdist"}
    assert jobs["wheels"]["strategy"]["matrix"]["python"] == PYTHONS


def test_smoke_test_passes() -> None:
    result = subprocess.run([sys.executable, "tools/smoke_test.py"], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "works with torch" in result.stdout


def test_libraries_of_torch_that_stay_outside_are_those_that_are_linked() -> None:
    """auditwheel is told of each; one more in cmake/Torch.cmake would be copied into every wheel."""
    (linked,) = re.findall(r"torch_stable_abi INTERFACE (torch_cpu .*)\)", (ROOT / "cmake" / "Torch.cmake").read_text())
    excluded = re.findall(r"--exclude lib(\w+)\.so", (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert sorted(excluded) == sorted(linked.split())
