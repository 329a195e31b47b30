"""Cases on installing: import compiles nothing, a library that does not fit is one sentence, CUDA is not needed."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import torch

from pairloom._build_info import LIBRARIES, PACKAGE_DIR

ROOT = Path(__file__).resolve().parents[2]
USE = "import torch, pairloom; print(pairloom.topk(torch.eye(3), torch.eye(3), 1)[1].flatten().tolist())"


def python(code, *arguments, **environment):
    command = [sys.executable, "-W", "ignore", "-c", code, *map(str, arguments)]
    return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True)


@pytest.fixture
def copied(tmp_path):
    """A copy of the package for other processes, whose libraries a test may spoil."""
    package = tmp_path / "pairloom"
    shutil.copytree(PACKAGE_DIR, package, ignore=shutil.ignore_patterns("__pycache__"))
    return package


def sentence(package):
    """The one line of the error that using the package ends with."""
    done = python(USE, PYTHONPATH=str(package.parent))
    assert done.returncode != 0
    assert done.stdout == ""
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: pairloom's operators"), done.stderr
    assert "pip install --no-build-isolation" in last  # the way out
    return last


class TestL31InstallWithoutCudaOrWithAnotherTorch:
    """nvcc at first use; undefined symbol; a second torch pulled in (that one: packaging/test_build_errors.py)."""

    def test_import_never_compiles(self, tmp_path):
        """No process is started, and there is no program that could be."""
        code = f"""
import sys, torch
started = []
events = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty")
sys.addaudithook(lambda event, arguments: started.append((event, arguments)) if event in events else None)
{USE}
x = torch.eye(4, requires_grad=True)
pairloom.MultiSimilarityLoss()(x, torch.tensor([0, 0, 1, 1])).backward()
assert not started, started
"""
        done = python(code, PATH=str(tmp_path), CXX="no-such-compiler", CC="no-such-compiler")
        assert done.returncode == 0, done.stderr
        assert done.stdout == "[0, 1, 2]\n"

    def test_missing_library(self, copied):
        for name in ("core", "operators"):
            (copied / LIBRARIES[name].name).unlink()
        assert "not built" in sentence(copied)
        assert str(copied / "libpairloom_torch.so") in sentence(copied)

    def test_library_that_is_none(self, copied):
        (copied / "libpairloom_torch.so").write_bytes(b"cut off")
        assert f"do not load into torch {torch.__version__}" in sentence(copied)

    def test_library_that_misses_the_other(self, copied):
        (copied / "libpairloom.so").unlink()
        assert "libpairloom.so" in sentence(copied)

    def test_library_for_a_torch_with_other_symbols(self, copied, tmp_path):
        source = tmp_path / "other.c"
        source.write_text("void symbol_of_another_torch(void); void use(void) { symbol_of_another_torch(); }")
        library = copied / "libpairloom_torch.so"
        library.unlink()
        subprocess.run(["cc", "-shared", "-fPIC", "-Wl,-z,now", str(source), "-o", str(library)], check=True)
        text = sentence(copied)
        assert "undefined symbol: symbol_of_another_torch" in text
        assert "built against torch" in text

    def test_cpu_only_build(self, tmp_path):
        """Configuring without CUDA asks for nothing of it, and what was built needs nothing of it."""
        scripts = sysconfig.get_path("scripts")
        command = ["cmake", "-G", "Ninja", "-S", ROOT, "-B", tmp_path, f"-DPython_EXECUTABLE={sys.executable}"]
        environment = {**os.environ, "PATH": f"{scripts}:/usr/bin:/bin"}
        options = ("-DPAIRLOOM_CUDA=OFF", "-DCMAKE_CUDA_COMPILER=no-such-compiler")
        done = subprocess.run([*map(str, command), *options], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        facts = (tmp_path / "generated" / "build_info.cpp").read_text()
        assert ".cuda = false" in facts
        assert "PAIRLOOM_CUDA=OFF" in facts
        for library in LIBRARIES.values():
            needed = subprocess.run(["readelf", "-d", str(library)], check=True, capture_output=True, text=True).stdout
            assert "NEEDED" in needed
            assert "cuda" not in needed.replace(str(ROOT), "")
