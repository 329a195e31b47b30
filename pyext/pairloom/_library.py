"""Finds libpairloom_torch.so next to this file and loads it once, so that torch knows the pairloom operators."""

from __future__ import annotations

from pathlib import Path

LIBRARY = Path(__file__).with_name("libpairloom_torch.so")
CUDA_LIBRARY = Path(__file__).with_name("libpairloom_cuda.so")
_cuda_loaded: list[bool] = []


def load() -> None:
    """Make `torch.ops.pairloom` complete; does nothing when it already is (loaded by us, or by a C++ program)."""
    if _loaded():
        return
    import torch

    from pairloom._build_info import torch_built_against

    if not LIBRARY.is_file():
        raise ImportError(
            f"pairloom's operators are not built: {LIBRARY} does not exist; "
            "build them with `pip install --no-build-isolation .` in the source folder."
        )
    try:
        torch.ops.load_library(str(LIBRARY))
    except (OSError, RuntimeError) as error:
        # torch only says that it failed; the loader's own words, which name the symbol, are behind that.
        reason = str(error.__cause__ or error).strip().splitlines()[0]
        raise ImportError(
            f"pairloom's operators ({LIBRARY.name}, built against torch {torch_built_against()}) do not load into "
            f"torch {torch.__version__}: {reason}; rebuild them in this environment with "
            "`pip install --no-build-isolation --force-reinstall --no-deps .` in the source folder."
        ) from error


def load_cuda() -> str:
    """Load the kernels for CUDA, once and where torch has CUDA. What came of it, in words."""
    import torch

    if not CUDA_LIBRARY.is_file():
        return "not built"
    if torch.version.cuda is None:
        return "not loaded: this torch has no CUDA"
    if not _cuda_loaded:
        try:
            torch.ops.load_library(str(CUDA_LIBRARY))
        except (OSError, RuntimeError) as error:
            return f"not loaded: {str(error.__cause__ or error).strip().splitlines()[0]}"
        _cuda_loaded.append(True)
    return "loaded"


def _loaded() -> bool:
    import torch

    return hasattr(torch.ops.pairloom, "info_nce")
