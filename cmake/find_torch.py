"""Print "torch version;torch folder;pybind11 CMake folder" of the running Python, or one sentence and exit status 1.

torch is located, not imported: importing takes seconds and can fail for reasons that do not matter to a compiler.
"""

import importlib.util
import os
import re
import sys


def torch_folder() -> str:
    """Folder of the installed torch package."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        sys.exit(f"torch is not installed for {sys.executable}; install torch>=2.10 there and build without isolation.")
    return str(spec.submodule_search_locations[0])


def torch_version(folder: str) -> str:
    """Version as torch itself states it, local part included ("2.13.0+cpu")."""
    with open(os.path.join(folder, "version.py"), encoding="utf-8") as file:
        found = re.search(r"""^__version__\s*=\s*['"]([^'"]+)['"]""", file.read(), re.MULTILINE)
    if found is None:
        sys.exit(f"cannot read the version of torch in {folder}; reinstall torch.")
    return found.group(1)


def pybind11_folder() -> str:
    """Folder of pybind11's CMake package."""
    try:
        import pybind11
    except ImportError:
        sys.exit(f"pybind11 is not installed for {sys.executable}; install pybind11>=2.13 there.")
    return str(pybind11.get_cmake_dir())


if __name__ == "__main__":
    torch = torch_folder()
    sys.stdout.write(";".join([torch_version(torch), torch, pybind11_folder()]))
