"""Proves that a source distribution is complete, installs, is removed without trace, and that an editable one is live.

Installing compiles everything; that without CUDA it takes less than 90 s on two cores is measured here too.
"""

import os
import resource
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
from pathlib import Path

import pytest

from pairloom import __version__
from tests.packaging.build_tree import ROOT

LIMIT = 2 * 90  # seconds of processor time: what two cores have in 90 s; other load on the machine does not count
GENERATED = (".so", ".pyc", ".pyd", ".partial")
NAME = f"pairloom-{__version__}"


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source distribution of this checkout, with what building left in it; made from a copy, not to write here."""
    folder = tmp_path_factory.mktemp("sdist")
    shutil.copytree(ROOT, folder / "source", ignore=shutil.ignore_patterns("build", "dist", ".*", "*.egg-info"))
    command = [sys.executable, "setup.py", "-q", "sdist", "-d", str(folder)]
    result = subprocess.run(command, cwd=folder / "source", capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return folder / f"{NAME}.tar.gz"


def test_it_holds_what_compiling_needs_and_nothing_generated(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {member.name.removeprefix(NAME + "/") for member in archive if member.isfile()}
    sources = [
        ROOT / "setup.py",
        ROOT / "pyproject.toml",
        ROOT / "CMakeLists.txt",
        ROOT / "LICENSE",
        ROOT / "README.md",
    ]
    for folder in ("csrc", "cmake", "tests/cpp"):
        sources += [path for path in (ROOT / folder).rglob("*") if path.is_file() and path.suffix != ".pyc"]
    sources += [path for path in (ROOT / "pyext" / "pairloom").rglob("*") if path.suffix in {".py", ".pyi", ".typed"}]
    wanted = {str(path.relative_to(ROOT)) for path in sources}
    assert not wanted - names, "missing"
    # The rest are facts about the distribution, written by setuptools.
    others = {name for name in names - wanted if ".egg-info/" not in name}
    assert others == {"CHANGELOG.md", "MANIFEST.in", "PKG-INFO", "setup.cfg"}
    assert not [name for name in names if name.endswith(GENERATED) or name.startswith("pyext/pairloom/cmake/")]
    assert sdist.stat().st_size < 4 << 20


def fresh_environment(folder: Path) -> Path:
    """A virtual environment that sees all packages of the running Python but pairloom: nothing is downloaded."""
    venv.create(folder / "venv", with_pip=False)
    borrowed = folder / "borrowed"
    borrowed.mkdir()
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if "pairloom" not in path.name and path.suffix != ".pth":
            (borrowed / path.name).symlink_to(path)
    (site_packages(folder / "venv") / "borrowed.pth").write_text(str(borrowed), encoding="utf-8")
    return folder / "venv"


def site_packages(environment: Path) -> Path:
    """Where pip installs."""
    return environment / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"


def run(environment: Path, *command: str, **variables_of_it: str) -> subprocess.CompletedProcess[str]:
    """Run a program of the environment, in the environment's folder and knowing nothing of this checkout."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PAIRLOOM"))}
    variables |= variables_of_it
    # cmake and ninja stand beside the running Python.
    variables["PATH"] = f"{environment / 'bin'}:{sysconfig.get_path('scripts')}:{os.environ['PATH']}"
    program, *arguments = command
    return subprocess.run(
        [str(environment / "bin" / program), *arguments], cwd=environment, env=variables, capture_output=True, text=True
    )


def output(environment: Path, *command: str, **variables: str) -> str:
    """What a program that must succeed prints."""
    result = run(environment, *command, **variables)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout.strip()


def install(environment: Path, *what: str, **variables: str) -> None:
    """Install without asking any index: what is missing would be an error."""
    pip = ("python", "-m", "pip", "--disable-pip-version-check", "-q")
    output(environment, *pip, "install", "--no-build-isolation", "--no-index", *what, **variables)


def uninstall(environment: Path) -> None:
    """Remove it again; the package cannot be imported afterwards."""
    output(environment, "python", "-m", "pip", "-q", "uninstall", "-y", "pairloom")
    assert "No module named 'pairloom'" in run(environment, "python", "-c", "import pairloom").stderr


def files(environment: Path) -> set[Path]:
    """Everything in an environment."""
    return {path for path in environment.rglob("*") if "__pycache__" not in path.parts}


USE = """
import torch, pairloom
print(pairloom.topk(torch.eye(3), torch.eye(3), 1)[1].flatten().tolist(), pairloom.__version__, pairloom.__file__)
"""


def assert_usable(environment: Path, package: Path) -> None:
    """Import and command work, and the package that answers is the one in the given folder."""
    assert output(environment, "python", "-c", USE) == f"[0, 1, 2] {__version__} {package / '__init__.py'}"
    assert __version__ in output(environment, "pairloom", "info")
    assert output(environment, "pairloom", "info", "--cmake") == str(package / "cmake")


@pytest.mark.slow
def test_install_and_uninstall(sdist: Path, tmp_path: Path) -> None:
    environment = fresh_environment(tmp_path)
    before = files(environment)
    start = resource.getrusage(resource.RUSAGE_CHILDREN)
    install(environment, str(sdist), PAIRLOOM_CUDA="OFF")  # the promise is for the extension of the CPU
    end = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert_usable(environment, site_packages(environment) / "pairloom")
    uninstall(environment)
    assert files(environment) == before
    seconds = end.ru_utime + end.ru_stime - start.ru_utime - start.ru_stime
    print(f"building took {seconds:.0f} s of processor time")
    assert seconds < LIMIT


@pytest.mark.slow
def test_editable_install_is_live(sdist: Path, tmp_path: Path) -> None:
    environment = fresh_environment(tmp_path)
    before = files(environment)
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    package = tmp_path / NAME / "pyext" / "pairloom"
    install(environment, "-e", str(tmp_path / NAME))
    assert_usable(environment, package)
    with (package / "functional.py").open("a", encoding="utf-8") as file:
        file.write("\nEDITED = 'seen'\n")
    code = "import pairloom.functional; print(pairloom.functional.EDITED)"
    assert output(environment, "python", "-c", code) == "seen"
    uninstall(environment)
    assert files(environment) == before
