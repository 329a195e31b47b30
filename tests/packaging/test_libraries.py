"""Proves that the libraries need only what they may need and that nothing of the building machine is in them."""

import re
from pathlib import Path

import pytest

from tests.packaging.build_tree import LIBRARIES, ROOT, output


def needed(path: Path) -> set[str]:
    """Libraries that the loader must find."""
    return set(re.findall(r"\(NEEDED\).*\[(.+)\]", output("readelf", "-d", str(path))))


def test_core_and_module_know_no_torch() -> None:
    for name in ("core", "module"):
        assert not [
            library for library in needed(LIBRARIES[name]) if re.match(r"lib(torch|c10|aten|gomp|omp)", library)
        ]


def test_library_for_onnx_runtime_stands_alone() -> None:
    """One file serves ONNX Runtime: no library of ours beside it, and nothing in it that a host could mistake."""
    path = LIBRARIES["onnx runtime"]
    allowed = r"(libc|libm|libstdc\+\+|libgcc_s|libpthread|ld-linux-x86-64)\.so\.\d+"
    assert not [library for library in needed(path) if not re.fullmatch(allowed, library)]
    assert re.findall(r" ([TWVBDRiu]) (.+)", output("nm", "-D", "--defined-only", str(path))) == [
        ("T", "RegisterCustomOps")
    ]


def test_operators_need_torch_but_no_python() -> None:
    libraries = needed(LIBRARIES["operators"])
    assert {"libpairloom.so", "libtorch.so", "libtorch_cpu.so", "libc10.so"} <= libraries
    assert not [library for library in libraries if "python" in library]


def test_operators_refer_to_no_unstable_torch_symbol() -> None:
    """The stable ABI is C: a C++ symbol of torch would tie the binary to one torch version."""
    undefined = output("nm", "-D", "--demangle", "--undefined-only", str(LIBRARIES["operators"]))
    assert not re.findall(r"\b(?:at|c10|torch|caffe2)::.*", undefined)


@pytest.mark.parametrize("name", LIBRARIES)
def test_run_path_is_the_package_itself(name: str) -> None:
    assert re.findall(r"\((?:RUNPATH|RPATH)\).*\[(.+)\]", output("readelf", "-d", str(LIBRARIES[name]))) == ["$ORIGIN"]


@pytest.mark.parametrize("name", LIBRARIES)
def test_no_path_of_the_building_machine(name: str) -> None:
    assert str(ROOT).encode() not in LIBRARIES[name].read_bytes()


def test_core_exports_only_its_interface() -> None:
    exported = re.findall(r" [TWVBDR] (.+)", output("nm", "-D", "--demangle", "--defined-only", str(LIBRARIES["core"])))
    assert [name for name in exported if "pairloom::" in name]
    assert not [name for name in exported if "pairloom::" not in name and not name.startswith(("_init", "_fini"))]
