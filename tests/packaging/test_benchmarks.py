"""Proves that benchmarks run and refuse to compare different numbers, and that the report says what the files say."""

from __future__ import annotations

import dataclasses
import math
import shutil
from pathlib import Path
from types import ModuleType

import pytest
import torch

from benchmarks import NAMES, family_of, nt_xent, report, sparse, topk, triplet
from benchmarks.family import Family, Workload, sweep
from benchmarks.harness import LIMIT, PEAK, RESULTS, Settings, Target, compare, read_results, write_results
from benchmarks.memory import CLEAR_REFS, peak_extra_mb

QUICK = Settings(quick=True, repeats=1)


def without_compiler(family: Family) -> Family:
    """The same peers but torch.compile, which takes seconds."""
    losses = {"dense" if name == "eager" else name: loss for name, loss in family.losses.items()}
    return dataclasses.replace(family, losses=losses)


@pytest.mark.parametrize("name", ["clip", "info_nce", "multi_similarity", "nt_xent", "sup_con", "triplet"])
def test_all_contenders_compute_the_same(name: str) -> None:
    if name == "triplet" and triplet.missing():
        pytest.skip(str(triplet.missing()))
    family = without_compiler(family_of(name))
    both = [Workload(16, 8, backward=False), Workload(16, 8)]
    for result in sweep(family, both, QUICK):
        assert [timing.name for timing in result.timings] == ["pairloom", "dense", "pytorch-metric-learning"]
        assert all(ratio > 0 for ratio in result.ratios.values())


@pytest.mark.parametrize("module", [sparse, topk])
def test_benchmarks_that_are_no_sweep_run(module: ModuleType) -> None:
    for result in module.run(QUICK):
        assert result.timings[0].name == "pairloom"
        assert result.fraction_of_limit > 0


def test_different_numbers_are_not_compared() -> None:
    one, two = torch.tensor(1.0), torch.tensor(1.01)
    with pytest.raises(AssertionError, match="other and ours do not compute the same"):
        compare({}, {"ours": lambda: (one,), "other": lambda: (two,)}, flops=0, repeats=1)
    with pytest.raises(AssertionError, match="nan"):
        compare({}, {"ours": lambda: (one,), "other": lambda: (one * torch.nan,)}, flops=0, repeats=1)


def test_who_would_be_too_slow_drops_out_and_ours_stays() -> None:
    settings = dataclasses.replace(QUICK, max_call_seconds=0.0)
    small, large = sweep(without_compiler(nt_xent.FAMILY), [Workload(16, 8), Workload(32, 8)], settings)
    assert len(small.timings) == 3
    assert [timing.name for timing in large.timings] == ["pairloom"]
    assert large.left_out["dense"].endswith("s a call")


def test_targets_are_judged_on_their_side_and_missing_numbers_are_not_met() -> None:
    targets = [Target("eager", 2.0), Target(PEAK, 10.0, at_most=True), Target(LIMIT, 0.8), Target("keops", 1.0)]
    c = compare({}, {"pairloom": lambda: ()}, flops=0, repeats=1)
    c.ratios, c.peak_extra_mb, c.fraction_of_limit, c.targets = {"eager": 1.9}, {"pairloom": 11.0}, 0.8, targets
    c.left_out = {"keops": "not installed"}
    assert [c.met(target) for target in targets] == [False, False, True, None]
    assert report.verdict(c, targets[0]) == "MISSED"
    assert report.reached_text(c, targets[3]) == "not measured (not installed)"
    c.ratios["eager"] = math.nan
    assert c.met(targets[0]) is False


@pytest.mark.skipif(not CLEAR_REFS.exists(), reason="peak memory is read where Linux has it")
def test_memory_sees_the_matrix_of_a_peer_and_none_of_ours() -> None:
    work = Workload(4096, 8)  # a matrix has 64 MiB
    peaks = {name: peak_extra_mb("nt_xent", name, work, Settings())[0] for name in ("pairloom", "eager")}
    assert peaks["pairloom"] < 64 < 128 < peaks["eager"]


def test_results_come_back_as_they_were_written(tmp_path: Path) -> None:
    written = list(sweep(without_compiler(nt_xent.FAMILY), [Workload(16, 8, targets=(Target("dense", 0.0),))], QUICK))
    path = write_results("nt_xent", written, complete=False, folder=tmp_path)
    _, complete, read = read_results(path)
    assert not complete
    assert read == written


def test_the_report_is_made_from_the_committed_files(tmp_path: Path) -> None:
    stored = sorted(RESULTS.glob("*.json"))
    assert stored
    for path in stored:
        shutil.copy(path, tmp_path)
    text = report.write_report(tmp_path).read_text()
    for path in stored:
        _, _, comparisons = read_results(path)
        assert f"## {path.stem}\n" in text
        assert all(report.workload_text(c) in text for c in comparisons)
        assert all(report.target_text(target) in text for c in comparisons for target in c.targets)
    assert text == (RESULTS / "README.md").read_text(), "run `python -m benchmarks report`"
    assert {path.name for path in tmp_path.glob("*.png")} == {path.name for path in RESULTS.glob("*.png")}


def test_every_file_of_results_belongs_to_a_benchmark() -> None:
    assert {path.stem for path in RESULTS.glob("*.json")} <= set(NAMES)
