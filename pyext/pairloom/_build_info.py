"""What was built and what is running: the facts behind `pairloom info`."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path
from typing import Any

PACKAGE_DIR = Path(__file__).resolve().parent
LIBRARIES = {
    "core": PACKAGE_DIR / "libpairloom.so",
    "operators": PACKAGE_DIR / "libpairloom_torch.so",
    "onnx runtime": PACKAGE_DIR / "libpairloom_ort.so",
    "module": PACKAGE_DIR / f"_native{sysconfig.get_config_var('EXT_SUFFIX')}",
}
CUDA_LIBRARY = PACKAGE_DIR / "libpairloom_cuda.so"  # where nvcc was
CMAKE_DIR = PACKAGE_DIR / "cmake"


def cmake_folder() -> Path:
    """Folder of the CMake package; ImportError with one sentence when it is not there."""
    if not (CMAKE_DIR / "pairloomConfig.cmake").is_file():
        raise ImportError(
            f"pairloom's CMake package is missing (pairloomConfig.cmake not in {CMAKE_DIR}); "
            "build it with `make build` or `pip install --no-build-isolation .`"
        )
    return CMAKE_DIR


def missing_libraries() -> list[Path]:
    """Libraries of this installation that are not there."""
    return [path for path in LIBRARIES.values() if not path.is_file()]


def build_facts() -> dict[str, Any]:
    """Facts compiled into the extension, ISA levels, and the threads and version of the torch that runs.

    Raises ImportError with one sentence when the extension was never built.
    """
    missing = missing_libraries()
    if missing:
        names = ", ".join(path.name for path in missing)
        raise ImportError(
            f"pairloom's compiled part is missing ({names} not in {PACKAGE_DIR}); build it with `make build` or "
            "`pip install --no-build-isolation .`"
        )
    from pairloom import _native

    build = _native.build_info()
    torch_version, threads, torch_error = running_torch()
    return {
        "version": build["version"],
        "git_sha": build["git_sha"],
        "compiler": build["compiler"],
        "flags": build["flags"],
        "sanitizer": build["sanitizer"],
        "isa": _native.isa(),
        "isa_available": _native.isa_available(),
        "isa_compiled": build["isa_levels"],
        "isa_cap": os.environ.get("PAIRLOOM_MAX_ISA") or None,
        "threads": threads,
        "torch_built": build["torch_version"],
        "torch_running": torch_version,
        "torch_error": torch_error,
        "cuda": build["cuda"],
        "cuda_reason": build["cuda_reason"],
        "cuda_here": cuda_here() if torch_version else "not loaded: no torch",
        "libraries": {
            **{name: str(path) for name, path in LIBRARIES.items()},
            **({"CUDA": str(CUDA_LIBRARY)} if CUDA_LIBRARY.is_file() else {}),
        },
        "cmake": str(CMAKE_DIR),
    }


def running_torch() -> tuple[str | None, int | None, str | None]:
    """Version and threads of torch, or why it cannot be imported: a broken installation is what one asks about."""
    try:
        import torch
    except (ImportError, OSError) as error:
        return None, None, f"{error}".splitlines()[0]
    return str(torch.__version__), torch.get_num_threads(), None


def torch_built_against() -> str:
    """Version of torch whose headers the operators were compiled with, "unknown" when the module does not load."""
    try:
        from pairloom import _native
    except ImportError:
        return "unknown"
    return str(_native.build_info()["torch_version"])


def cuda_here() -> str:
    """Whether the kernels for CUDA are in use in this process, or why not."""
    from pairloom import _library

    _library.load()
    return _library.load_cuda()
