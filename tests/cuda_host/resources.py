"""Registers, spills and shared memory of every CUDA kernel, as ptxas says: ``python -m tests.cuda_host.resources``."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path

import torch

from tests.packaging.build_tree import ROOT

HEADER = "architecture, kernel, registers, bytes spilled, bytes of shared memory\n"


def report(architecture: str, folder: Path) -> str:
    """One line a kernel, sorted."""
    lines = []
    for source in sorted((ROOT / "csrc" / "torch").glob("*.cu")):
        command = [
            "nvcc", "-std=c++20", "-O3", "--expt-relaxed-constexpr", "-Xcompiler", "-fPIC", "-DUSE_CUDA",
            "-DTORCH_TARGET_VERSION=0x020a000000000000", "-DTORCH_STABLE_ONLY", "-isystem",
            str(Path(torch.__file__).parent / "include"), f"-I{ROOT / 'csrc'}",
            f"-gencode=arch=compute_{architecture},code=sm_{architecture}", "-Xptxas", "-v", "-c", str(source),
            "-o", str(folder / "kernels.o"),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr)
        entries = re.findall(
            r"entry function '(\w+)'.*?(\d+) bytes spill stores, (\d+) bytes spill loads.*?"
            r"Used (\d+) registers[^\n]*?(?:(\d+) bytes smem|\n)",
            done.stderr,
            re.DOTALL,
        )
        names = subprocess.run(
            ["c++filt"], input="\n".join(entry[0] for entry in entries), capture_output=True, text=True
        )
        for name, (_, stores, loads, registers, shared) in zip(names.stdout.splitlines(), entries, strict=True):
            short = re.sub(r"pairloom::(\w+::)?|void |\(.*", "", name)
            spilled = int(stores) + int(loads)
            lines.append(f"sm_{architecture} {short}: registers {registers}, spill {spilled}, shared {shared or 0}\n")
    return HEADER + "".join(sorted(lines))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        print(report("90", Path(folder)), end="")
