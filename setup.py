"""Build of the extension: run CMake with Ninja, then put the libraries, and the files by which CMake finds
them, into the package.

Everything about compiling stands in CMakeLists.txt, everything about the package in pyproject.toml; this file only
joins the two. CMake works in build/<interpreter tag>/ and keeps its objects there, so that a second build compiles only
what changed. Environment variables passed on to CMake: CXX, PAIRLOOM_CUDA (AUTO, ON, OFF), PAIRLOOM_SANITIZE (address,
thread, undefined), CMAKE_BUILD_PARALLEL_LEVEL.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
PACKAGE = "pairloom"
INSTALL_HINT = "install it and build again with `pip install --no-build-isolation .`"


def stop(sentence: str) -> None:
    """End the build with one sentence on what is missing and the way out."""
    raise SystemExit(f"pairloom cannot be built: {sentence}")


def find_program(name: str) -> str:
    """Path of a build tool: beside the running Python (pip put it there) or on PATH."""
    found = shutil.which(name, path=sysconfig.get_path("scripts")) or shutil.which(name)
    if found is None:
        stop(f"{name} was not found beside {sys.executable} or on PATH; {INSTALL_HINT}.")
    return str(found)


def check_environment() -> None:
    """Look for everything that compiling needs before any work is done."""
    for module in ("torch", "pybind11"):
        if importlib.util.find_spec(module) is None:
            stop(f"{module} is not installed for {sys.executable}, whose {module} is built against; {INSTALL_HINT}.")
    if not (Path(sysconfig.get_path("include")) / "Python.h").is_file():
        stop(f"Python.h of {sys.executable} is missing; install the development files of this Python (python3-dev).")
    wanted = os.environ.get("CXX", "").split()[:1] or ["c++", "g++", "clang++"]
    if not any(shutil.which(compiler) for compiler in wanted):
        stop(f"no C++ compiler was found (looked for {', '.join(wanted)}); install g++ 11 or newer, or set CXX.")


class FreshBuild(build_py):
    """setuptools' build_py step, from an empty folder: a module deleted since the last wheel must not return."""

    def run(self) -> None:
        """Collect the Python sources of a wheel; an editable installation collects nothing."""
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


class CMakeBuild(build_ext):
    """setuptools' build_ext step, carried out by CMake."""

    def run(self) -> None:
        """Compile, then copy the libraries to where setuptools wants the extension."""
        check_environment()
        tree = self.compile()
        target = Path(self.get_ext_fullpath(f"{PACKAGE}._native")).parent
        for path in self.built(tree):
            place = target / ("cmake" if path.suffix == ".cmake" else "") / path.name
            place.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, place)

    def compile(self) -> Path:
        """Run CMake and return its folder."""
        sanitizer = os.environ.get("PAIRLOOM_SANITIZE", "")
        tree = ROOT / "build" / "-".join(filter(None, [sys.implementation.cache_tag, sanitizer]))
        forget_moved_tree(tree)
        configure = [
            find_program("cmake"),
            *("-S", str(ROOT), "-B", str(tree), "-G", "Ninja", "--log-level=NOTICE"),
            f"-DCMAKE_MAKE_PROGRAM={find_program('ninja')}",
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-DPAIRLOOM_VERSION={self.distribution.get_version()}",
            f"-DPAIRLOOM_SANITIZE={sanitizer}",
            f"-DPAIRLOOM_CUDA={os.environ.get('PAIRLOOM_CUDA', 'AUTO')}",
        ]
        run(configure, "CMake could not configure the build")
        jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL") or str(len(os.sched_getaffinity(0)))
        run([configure[0], "--build", str(tree), "--parallel", jobs], "compiling failed")
        return tree

    def built(self, tree: Path) -> list[Path]:
        """What CMake made for the package: the libraries, and the files by which C++ programs find them."""
        libraries = [path for path in sorted((tree / "lib").iterdir()) if path.suffix == ".so"]
        optional = {"libpairloom_cuda.so"}  # where nvcc is
        wanted = {
            "libpairloom.so",
            "libpairloom_torch.so",
            "libpairloom_ort.so",
            f"_native{sysconfig.get_config_var('EXT_SUFFIX')}",
        }
        if {path.name for path in libraries} - optional != wanted:
            stop(f"expected {sorted(wanted)} in {tree / 'lib'}; delete {tree} and build again.")
        return [*libraries, *sorted((tree / "package").iterdir())]


def run(command: list[str], failure: str) -> None:
    """Run one command; its own output stays visible above our closing sentence."""
    if subprocess.run(command, cwd=ROOT).returncode != 0:
        stop(f"{failure}; the reason stands above.")


def forget_moved_tree(tree: Path) -> None:
    """CMake refuses a build folder that was made in another place, for example after the checkout moved."""
    cache = tree / "CMakeCache.txt"
    if cache.is_file() and f"CMAKE_HOME_DIRECTORY:INTERNAL={ROOT}\n" not in cache.read_text(encoding="utf-8"):
        shutil.rmtree(tree)


def replace_file(source: Path, target: Path) -> None:
    """Copy in one step: a process that has the old library mapped keeps it whole."""
    partial = target.with_name(target.name + ".partial")
    shutil.copy2(source, partial)
    partial.replace(target)


# The sources are CMake's business; the extension is declared so that the wheel is marked as specific to this Python.
setup(
    ext_modules=[Extension(f"{PACKAGE}._native", sources=[])],
    cmdclass={"build_py": FreshBuild, "build_ext": CMakeBuild},
)
