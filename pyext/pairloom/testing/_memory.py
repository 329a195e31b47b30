"""The most memory that a process has held, for tests that nothing as large as the N x M matrix is ever made."""

from __future__ import annotations

import resource
from pathlib import Path

STATUS = Path("/proc/self/status")


def peak_memory_mb() -> float:
    """Peak resident memory of this process in MiB.

    Linux tells it of the process itself. ``ru_maxrss``, the way out elsewhere, starts at what the *parent* held when it
    started this process, and so can hide everything below that.

    Example:
        >>> from pairloom.testing import peak_memory_mb
        >>> before = peak_memory_mb()
        >>> block = bytearray(64 << 20)
        >>> block[::4096] = b"x" * len(block[::4096])
        >>> peak_memory_mb() - before < 100
        True
    """
    if STATUS.exists():
        for line in STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
