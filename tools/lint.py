"""Style and type checks, all of them.

`make lint` runs the list, `make format` repairs, tests/packaging runs each as a test.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def cpp_files() -> list[str]:
    """Our C++ and CUDA sources."""
    suffixes = {".cpp", ".h", ".cu", ".cuh"}
    folders = ("csrc", "cmake/consumer", "tests/cpp", "tests/cuda_host")
    return sorted(str(path) for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in suffixes)


def clang_format(*arguments: str) -> list[str]:
    """clang-format as pip installed it, beside the running Python."""
    return [str(Path(sysconfig.get_path("scripts")) / "clang-format"), *arguments, *cpp_files()]


def module(*arguments: str) -> list[str]:
    """A tool that is a Python module."""
    return [sys.executable, "-m", *arguments]


def checks() -> dict[str, list[str]]:
    """Name and command of each check."""
    return {
        "ruff check": module("ruff", "check", "."),
        "ruff format": module("ruff", "format", "--check", "."),
        "clang-format": clang_format("--dry-run", "-Werror"),
        "mypy": module("mypy"),
        "documentation": [sys.executable, "tools/docs.py", "--check"],
    }


def repairs() -> dict[str, list[str]]:
    """Name and command of what can repair itself."""
    return {
        "ruff check": module("ruff", "check", "--fix", "."),
        "ruff format": module("ruff", "format", "."),
        "clang-format": clang_format("-i"),
    }


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run one command in the repository's root and keep what it says."""
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def main() -> int:
    """Run all; exit status 1 when one fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fix", action="store_true", help="rewrite the sources instead of checking them")
    failed = 0
    for name, command in (repairs() if parser.parse_args().fix else checks()).items():
        result = run(command)
        print(f"{name:14} {'ok' if result.returncode == 0 else 'FAILED'}")
        if result.returncode != 0:
            failed = 1
            print(result.stdout)
    return failed


if __name__ == "__main__":
    sys.exit(main())
