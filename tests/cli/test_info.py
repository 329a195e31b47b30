"""Proves that `pairloom info` tells the truth, and that the cap on the instruction set holds."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import pairloom
from pairloom import _native
from tests.packaging.build_tree import ROOT

LEVELS = _native.isa_available()


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own."""
    command = [sys.executable, "-m", "pairloom.cli", *arguments]
    return subprocess.run(command, env={**os.environ, "COLUMNS": "200", **environment}, capture_output=True, text=True)


def test_table_names_every_fact() -> None:
    result = run("info")
    assert result.returncode == 0, result.stderr
    for word in ("instruction set", "threads", "torch built against", "torch running", "CUDA", "libpairloom.so"):
        assert word in result.stdout
    assert torch.__version__ in result.stdout
    assert pairloom.__version__ in result.stdout


def test_json_holds_the_same_facts() -> None:
    facts = json.loads(run("info", "--json", PAIRLOOM_MAX_ISA="baseline").stdout)
    assert (facts["isa"], facts["isa_cap"]) == ("baseline", "baseline")
    assert facts["torch_running"] == torch.__version__
    assert facts["version"] == pairloom.__version__
    assert facts["isa_available"] == LEVELS
    assert facts["cuda"] == ("CUDA" in facts["libraries"])
    assert facts["cuda_reason"]
    assert facts["cuda_here"]
    assert all(Path(path).is_file() for path in facts["libraries"].values())


def test_help_has_an_example() -> None:
    assert "Example:" in run("info", "--help").stdout


def level_under_cap(cap: str) -> str:
    """The level that a new process picks (asked without torch, which takes seconds to import)."""
    code = "from pairloom import _native; print(_native.isa())"
    environment = {**os.environ, "PAIRLOOM_MAX_ISA": cap}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True).stdout.strip()


@pytest.mark.parametrize("level", LEVELS)
def test_cap_is_honoured(level: str) -> None:
    assert level_under_cap(level) == level


def test_cap_above_the_processor_changes_nothing() -> None:
    assert level_under_cap(_native.build_info()["isa_levels"][-1]) == LEVELS[-1]


def test_misspelt_cap_changes_nothing_and_is_pointed_out() -> None:
    assert level_under_cap("avx9") == LEVELS[-1]
    assert "no such level" in run("info", PAIRLOOM_MAX_ISA="avx9").stdout


def test_level_can_be_changed_at_run_time() -> None:
    before = _native.isa()
    try:
        for level in LEVELS:
            _native.set_isa(level)
            assert _native.isa() == level
    finally:
        _native.set_isa(before)


def test_unavailable_level_is_refused_in_one_sentence() -> None:
    with pytest.raises(ValueError, match=r"'avx9'.*'baseline'"):
        _native.set_isa("avx9")


def test_missing_libraries_are_one_sentence(tmp_path: Path) -> None:
    copied = tmp_path / "pairloom"
    shutil.copytree(ROOT / "pyext" / "pairloom", copied, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    result = run("info", PYTHONPATH=str(tmp_path))
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert "make build" in result.stderr


def test_unknown_command_fails() -> None:
    result = run("infos")
    assert result.returncode != 0
    assert "infos" in result.stderr
