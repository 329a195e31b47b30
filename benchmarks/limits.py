"""What the processor can do at most: multiply-adds on registers alone, on as many threads as the benchmark has."""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pairloom import _native

# 64 flops an instruction: 16 float32 sums get two products of bfloat16 each. Twelve independent sums hide the latency.
BF16_SOURCE = """
#include <chrono>
#include <immintrin.h>
extern "C" double rate(double seconds) {
  using clock = std::chrono::steady_clock;
  const auto since = [](clock::time_point t) { return std::chrono::duration<double>(clock::now() - t).count(); };
  __m512 sum[12];
  for (auto& s : sum) s = _mm512_setzero_ps();
  const __m512bh a = (__m512bh)_mm512_set1_epi32(0x3f803f80), b = (__m512bh)_mm512_set1_epi32(0x3c003c00);
  double best = 0;
  for (const auto start = clock::now(); since(start) < seconds;) {
    const auto begin = clock::now();
    for (int i = 0; i < 100000; ++i) {
#pragma GCC unroll 12
      for (int j = 0; j < 12; ++j) sum[j] = _mm512_dpbf16_ps(sum[j], a, b);
    }
    const double now = 12.0 * 64 * 100000 / since(begin) * 1e-9;
    if (now > best) best = now;
  }
  float used = 0;
  for (auto& s : sum) used += s[0];
  volatile float keep = used;
  (void)keep;
  return best;
}
"""


def _together(rate: Callable[[float], float], threads: int, seconds: float) -> float:
    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(lambda _: rate(seconds), range(threads)))


def fma_limit(threads: int, seconds: float = 0.3) -> float:
    """GFLOP/s that `threads` threads reach together when they only multiply and add float32 registers."""
    return _together(_native.fma_rate, threads, seconds)


def bf16_limit(threads: int, seconds: float = 0.3) -> float | None:
    """The same for the bfloat16 dot product of AVX-512; None where the processor or a compiler is missing."""
    rate = _bf16_rate()
    return None if rate is None else _together(rate, threads, seconds)


@functools.cache
def _bf16_rate() -> Callable[[float], float] | None:
    cpuinfo, compiler = Path("/proc/cpuinfo"), shutil.which("g++")
    if compiler is None or not cpuinfo.exists() or "avx512_bf16" not in cpuinfo.read_text():
        return None
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder) / "rate.cpp", Path(folder) / "rate.so"
        source.write_text(BF16_SOURCE)
        command = [compiler, "-O2", "-mavx512f", "-mavx512bf16", "-shared", "-fPIC", str(source), "-o", str(library)]
        if subprocess.run(command, capture_output=True).returncode != 0:
            return None
        rate = ctypes.CDLL(str(library)).rate  # stays mapped after the file is gone
    rate.argtypes, rate.restype = [ctypes.c_double], ctypes.c_double
    return rate
