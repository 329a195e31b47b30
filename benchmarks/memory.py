"""Peak memory of forward + backward, each in a process of its own."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import resource
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from benchmarks.family import FEW_ROWS, OURS, Family, Workload
from benchmarks.harness import Settings

COMPILE_SECONDS = 300
EXIT_SECONDS = 10
CLEAR_REFS = Path("/proc/self/clear_refs")  # Linux only
RESERVED_MB = 1024  # address space for thread stacks and heaps, never touched


def peak_extra_mb(
    family_name: str, contender: str, work: Workload, settings: Settings
) -> tuple[float | None, str | None]:
    """MiB that the call adds to its process at the peak, beside inputs, loss and gradients.

    Without a number there is a reason why the contender failed; (None, None) where the system cannot tell.

    Processes are forked from one that has imported everything but has started no thread, so each is fresh and starts
    fast.
    """
    if not CLEAR_REFS.exists():
        return None, None
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.memory", "pairloom.functional"])
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(
        target=_child, args=(sender, family_name, contender, work, torch.get_num_threads(), settings.max_memory_mb)
    )
    child.start()
    sender.close()
    allowed = 2 * settings.max_call_seconds + COMPILE_SECONDS
    try:
        if receiver.poll(allowed):
            return receiver.recv()
        child.kill()
        return None, f"no result after {allowed:.0f} s"
    except EOFError:
        return None, "died, probably out of memory"
    finally:
        child.join(EXIT_SECONDS)
        child.kill()
        child.join()


def _child(
    sender: Connection, family_name: str, contender: str, work: Workload, threads: int, max_memory_mb: float
) -> None:
    from benchmarks import family_of

    torch.set_num_threads(threads)
    if contender != OURS:  # a peer may ask for more than there is; nobody else should suffer
        limit = int(_status("VmSize") + max_memory_mb + RESERVED_MB) << 20
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    try:
        sender.send((_measure(family_of(family_name), contender, work), None))
    except (MemoryError, RuntimeError) as error:
        if "memory" not in f"{type(error).__name__} {error}".lower():
            raise
        sender.send((None, "out of memory"))


def _measure(family: Family, contender: str, work: Workload) -> float:
    small = replace(work, n=min(work.n, FEW_ROWS))
    tensors = family.inputs(work.n, work.dim, work.dtype)
    run = family.step(contender, tensors, work.backward)
    if contender == "compile":
        run()  # compiled for this shape; the peak of the compiler does not count
    else:  # loads libraries and starts threads; small, so that what a program keeps from call to call does count
        family.step(contender, family.inputs(small.n, work.dim, work.dtype), work.backward)()
    before = _reset_peak()
    results = run()
    held = sum(t.numel() * t.element_size() for t in results) / 2**20
    return max(0.0, _status("VmHWM") - before - held)


def _reset_peak() -> float:
    """MiB in use now, from where the peak counts anew."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    CLEAR_REFS.write_text("5")
    return _status("VmRSS")


def _status(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field + ":")) / 1024
