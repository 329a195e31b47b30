"""Proves that the blocks of docs/deploy.md run, in their order and in one folder, and all print the same ids."""

import os
import re
import subprocess
import sys
import sysconfig

import pytest

from tests.packaging.build_tree import ROOT

PAGE = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"## ([^\n]+)\n(?:(?!\n## ).)*?```(python|sh)\n(.*?)```", PAGE, re.DOTALL)
COMPILED = ("TorchScript in C++", "AOTInductor")


def printed(language: str, block: str, folder) -> str:
    """The last line that a block prints."""
    scripts = sysconfig.get_path("scripts")
    environment = {**os.environ, "PAIRLOOM_SOURCE": str(ROOT), "PATH": f"{scripts}:{os.environ['PATH']}"}
    command = [sys.executable, "-c", block] if language == "python" else ["sh", "-e", "-c", block]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip().splitlines()[-1]


def run_page(folder, *, compiled: bool) -> None:
    lines = {
        title: printed(language, block, folder)
        for title, language, block in BLOCKS
        if compiled or title not in COMPILED
    }
    assert lines["Export"].startswith("[[")
    assert len(set(lines.values())) == 1, lines


def test_the_page_has_all_of_them() -> None:
    assert [title for title, _, _ in BLOCKS] == [
        "Export",
        "ONNX Runtime",
        "ONNX Runtime with our kernel",
        "NumPy alone",
        "TorchScript in C++",
        "AOTInductor",
    ]


def test_blocks_run(tmp_path) -> None:
    run_page(tmp_path, compiled=False)


@pytest.mark.slow
def test_blocks_that_compile_run(tmp_path) -> None:
    run_page(tmp_path, compiled=True)
