"""mine_hard_negatives: equal to sorting all scores of every query, for tensors, arrays and memory maps; the same bits
for any memory budget, any number of threads and after an interruption; the report adds up; bad input is refused first.

Entries are small integers and the similarity is the dot product: scores are exact, and many are equal.
"""

import re
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

import pairloom
from pairloom.mining import _checkpoint, hard_negatives
from pairloom.testing import using_threads

pytestmark = pytest.mark.filterwarnings("ignore:.*have fewer than k")

TINY = 1e-3
"""MiB: a query at a time, and a corpus of a few rows at a time."""


def integers(*shape, seed=0, largest=3):
    return np.random.default_rng(seed).integers(-largest, largest + 1, shape).astype(np.float32)


def random_positives(q, m, seed=0, most=4):
    rng = np.random.default_rng(seed)
    return [rng.choice(m, rng.integers(0, min(most, m) + 1), replace=False).tolist() for _ in range(q)]


def kept_by_sorting(scores, positives, range_min, range_max, absolute, relative, most, least):
    """Ids that pass, best first, and how many the window held: one query in plain Python."""
    ranked = [j for j in np.argsort(-scores, kind="stable") if scores[j] > -np.inf and j not in positives]
    window = ranked[range_min:range_max]
    known = [scores[j] for j in positives if np.isfinite(scores[j])]
    bounds = [] if most is None else [most]
    if known and absolute is not None:
        bounds.append(min(known) - absolute)
    if known and relative is not None:
        bounds.append(min(known) - relative * abs(min(known)))
    kept = [j for j in window if all(scores[j] <= bound for bound in bounds) and (least is None or scores[j] >= least)]
    return kept, len(window)


@settings(max_examples=120, deadline=None, derandomize=True)
@given(
    q=st.integers(0, 7),
    m=st.integers(0, 40),
    k=st.integers(1, 6),
    range_min=st.integers(0, 4),
    width=st.integers(0, 20),
    absolute=st.none() | st.sampled_from((0.0, 2.0, -3.0)),
    relative=st.none() | st.sampled_from((0.0, 0.25)),
    most=st.none() | st.sampled_from((0.0, 7.5)),
    least=st.none() | st.sampled_from((-9.0, 0.0)),
    strange=st.booleans(),
    memory_mib=st.sampled_from((TINY, 256.0)),
    array=st.booleans(),
    seed=st.integers(0, 99),
)
def test_equals_sorting_all_scores(
    q, m, k, range_min, width, absolute, relative, most, least, strange, memory_mib, array, seed
):
    queries, corpus = integers(q, 3, seed=seed), integers(m, 3, seed=seed + 1)
    if strange:
        corpus[::7], corpus[3::9, 0], queries[::5] = np.nan, np.inf, np.nan
    positives = random_positives(q, m, seed)
    with np.errstate(invalid="ignore"):
        scores = (queries[:, None, :] * corpus[None, :, :]).sum(2)
    mined = pairloom.mine_hard_negatives(
        queries if array else torch.from_numpy(queries), corpus if array else torch.from_numpy(corpus), positives,
        k=k, range_min=range_min, range_max=range_min + k + width, absolute_margin=absolute, relative_margin=relative,
        max_score=most, min_score=least, similarity="dot", memory_mib=memory_mib,
    )  # fmt: skip
    candidates = 0
    for i in range(q):
        kept, window = kept_by_sorting(
            scores[i], set(positives[i]), range_min, range_min + k + width, absolute, relative, most, least
        )
        candidates += window
        wanted = kept[:k] + [-1] * (k - len(kept[:k]))
        assert mined.indices[i].tolist() == wanted
        assert mined.scores[i].tolist() == [scores[i, j] if j >= 0 else -np.inf for j in wanted]
    report = mined.report
    assert report.candidates == candidates == sum(report.removed.values()) + report.left_over + report.negatives
    per_query = (mined.indices >= 0).sum(1)
    assert report.negatives == int(per_query.sum())
    assert report.with_none == int((per_query == 0).sum())
    assert report.with_fewer == int(((per_query > 0) & (per_query < k)).sum())
    assert report.positives == sum(map(len, positives))


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean", "squared_euclidean"])
@pytest.mark.parametrize("strategy", ["top", "random"])
def test_bits_depend_neither_on_memory_nor_threads_nor_on_where_the_corpus_is(similarity, strategy, tmp_path):
    rng = np.random.default_rng(0)
    queries, corpus = rng.standard_normal((20, 9), np.float32), rng.standard_normal((300, 9), np.float32)
    positives = random_positives(20, 300)
    np.save(tmp_path / "corpus.npy", corpus)
    mapped = np.load(tmp_path / "corpus.npy", mmap_mode="r")

    def mine(queries, corpus, memory_mib):
        return pairloom.mine_hard_negatives(
            queries, corpus, positives, k=7, range_min=2, range_max=60, relative_margin=0.05,
            strategy=strategy, generator=5, similarity=similarity, memory_mib=memory_mib,
        )  # fmt: skip

    wanted = mine(torch.from_numpy(queries), torch.from_numpy(corpus), 256.0)
    for matrix in (torch.from_numpy(corpus), corpus, mapped):
        for memory_mib, threads in ((TINY, 2), (0.05, 1), (3.0, 2), (256.0, 1)):
            with using_threads(threads):
                found = mine(queries if memory_mib < 1 else torch.from_numpy(queries), matrix, memory_mib)
            assert torch.equal(found.indices, wanted.indices)
            assert torch.equal(found.scores, wanted.scores)
            assert found.report == wanted.report


def test_margins_are_relative_to_the_lowest_positive():
    """As in sentence-transformers; a negative as good as the threshold stays."""
    corpus = torch.tensor([[10.0], [8.0], [9.0], [7.0], [6.0], [5.0]])
    query, positives = torch.ones(1, 1), [[0, 1]]

    def ids(**options):
        return pairloom.mine_hard_negatives(query, corpus, positives, k=4, similarity="dot", **options).indices.tolist()

    assert ids() == [[2, 3, 4, 5]]
    assert ids(absolute_margin=0.0) == [[3, 4, 5, -1]]
    assert ids(absolute_margin=2.0) == [[4, 5, -1, -1]]
    assert ids(relative_margin=0.25) == [[4, 5, -1, -1]]
    assert ids(absolute_margin=2.0, relative_margin=0.375) == [[5, -1, -1, -1]]
    assert ids(absolute_margin=-1.0) == [[2, 3, 4, 5]]
    assert ids(max_score=7.0, min_score=6.0) == [[3, 4, -1, -1]]


@pytest.mark.parametrize("range_min", [5, 6, 10**9])
def test_ranks_beyond_the_corpus(range_min):
    mined = pairloom.mine_hard_negatives(torch.ones(2, 3), torch.ones(6, 3), [[0], [1]], k=2, range_min=range_min)
    assert mined.indices.tolist() == [[-1, -1]] * 2
    assert (mined.report.skipped, mined.report.candidates, mined.report.with_none) == (10, 0, 2)


def test_a_relative_margin_of_negative_scores():
    """The threshold is s - m |s|, below s whatever its sign."""
    corpus = torch.tensor([[-4.0], [-5.0], [-6.0], [-3.0]])
    mined = pairloom.mine_hard_negatives(torch.ones(1, 1), corpus, [[0]], k=3, similarity="dot", relative_margin=0.25)
    assert mined.indices.tolist() == [[1, 2, -1]]


class TestRandom:
    queries, corpus = torch.from_numpy(integers(300, 4)), torch.from_numpy(integers(60, 4, seed=1))

    def mine(self, **options):
        options = {"k": 3, "range_max": 10, "strategy": "random", "similarity": "dot", "generator": 1, **options}
        return pairloom.mine_hard_negatives(self.queries, self.corpus, [[]] * 300, **options)

    def test_seeds(self):
        assert torch.equal(self.mine().indices, self.mine().indices)
        assert not torch.equal(self.mine().indices, self.mine(generator=2).indices)
        first, second = (self.mine(generator=torch.Generator().manual_seed(3)).indices for _ in range(2))
        assert torch.equal(first, second)
        torch.manual_seed(0)
        first = self.mine(generator=None).indices
        assert not torch.equal(first, self.mine(generator=None).indices)
        torch.manual_seed(0)
        assert torch.equal(first, self.mine(generator=None).indices)

    def test_drawn_evenly_among_the_window_and_returned_best_first(self):
        counts = np.zeros(10)
        window = pairloom.topk(self.queries, self.corpus, 10, similarity="dot")[1]
        for seed in range(20):
            mined = self.mine(generator=seed)
            ranks = (mined.indices[:, :, None] == window[:, None, :]).double().argmax(2)
            assert (ranks.diff(dim=1) > 0).all()  # also: none twice
            counts += np.bincount(ranks.flatten().numpy(), minlength=10)
        share = counts / counts.sum()  # of 18,000 draws: one standard deviation is 0.002
        assert np.abs(share - 0.1).max() < 0.01

    def test_queries_do_not_draw_alike(self):
        corpus, queries = torch.zeros(40, 2), torch.zeros(200, 2)
        mined = pairloom.mine_hard_negatives(queries, corpus, [[]] * 200, k=2, strategy="random", generator=0)
        assert len(mined.indices.unique(dim=0)) > 150


class TestResume:
    queries, corpus = integers(40, 5), integers(90, 5, seed=1)
    positives = random_positives(40, 90)

    def mine(self, path=None, **options):
        options = {"k": 4, "range_max": 30, "absolute_margin": 1.0, "similarity": "dot", "memory_mib": 0.05, **options}
        return pairloom.mine_hard_negatives(self.queries, self.corpus, self.positives, checkpoint=path, **options)

    def interrupted(self, path, after, monkeypatch, **options):
        """Ctrl-C while the step after so many is computed."""
        steps = []

        def scores(*arguments):
            if len(steps) == after:
                raise KeyboardInterrupt
            steps.append(len(arguments[0]))
            return lowest_scores(*arguments)

        lowest_scores = hard_negatives.lowest_scores
        with monkeypatch.context() as patch:
            patch.setattr(hard_negatives, "lowest_scores", scores)
            with pytest.raises(KeyboardInterrupt):
                self.mine(path, **options)
        return sum(steps)

    @pytest.mark.parametrize("options", [{}, {"strategy": "random", "generator": 3}], ids=["top", "random"])
    @pytest.mark.parametrize("after", [0, 1, 3])
    def test_goes_on_bit_equal(self, after, options, tmp_path, monkeypatch):
        path = tmp_path / "mined.npz"
        done = self.interrupted(path, after, monkeypatch, **options)
        assert path.exists() == (after > 0)
        if after:
            with np.load(path) as file:
                assert int(file["done"]) == done < 40
        wanted = self.mine(**options)
        found = self.mine(path, **{**options, "memory_mib": 0.11})  # another budget may go on
        assert torch.equal(found.indices, wanted.indices)
        assert torch.equal(found.scores, wanted.scores)
        assert found.report == wanted.report
        assert [entry.name for entry in tmp_path.iterdir()] == ["mined.npz"]

    def test_a_finished_run_is_read_not_repeated(self, tmp_path, monkeypatch):
        wanted = self.mine(tmp_path / "mined.npz")
        monkeypatch.setattr(hard_negatives, "lowest_scores", None)
        assert torch.equal(self.mine(tmp_path / "mined.npz").indices, wanted.indices)

    def test_interrupted_while_writing(self, tmp_path, monkeypatch):
        path = tmp_path / "mined.npz"
        self.interrupted(path, 2, monkeypatch)
        before = path.read_bytes()

        def half(file, **_):
            file.write(b"half")
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(_checkpoint.np, "savez", half)
            with pytest.raises(KeyboardInterrupt):
                self.mine(path)
        assert path.read_bytes() == before
        assert [entry.name for entry in tmp_path.iterdir()] == ["mined.npz"]

    @pytest.mark.parametrize(
        ("changed", "name"),
        [({"k": 5}, "k = 4"), ({"absolute_margin": 2.0}, "absolute_margin = 1.0"), ({"similarity": "cosine"}, "dot")],
    )
    def test_another_call_is_refused(self, changed, name, tmp_path):
        self.mine(tmp_path / "mined.npz")
        with pytest.raises(ValueError, match=re.escape(name)):
            self.mine(tmp_path / "mined.npz", **changed)

    def test_other_inputs_are_refused(self, tmp_path, monkeypatch):
        self.mine(tmp_path / "mined.npz")
        for name, other in (
            ("queries", self.queries + 1),
            ("corpus", self.corpus.astype(np.float64)),
            ("positives", [[]] * 40),
        ):
            with monkeypatch.context() as patch:
                patch.setattr(self, name, other)
                with pytest.raises(ValueError, match=f"made with {name} = "):
                    self.mine(tmp_path / "mined.npz")

    def test_what_is_no_checkpoint(self, tmp_path):
        (tmp_path / "mined.npz").write_text("something else")
        with pytest.raises(ValueError, match=r"mined.npz cannot be read"):
            self.mine(tmp_path / "mined.npz")
        with pytest.raises(ValueError, match="there is no folder"):
            self.mine(tmp_path / "nowhere" / "mined.npz")
        with pytest.raises(ValueError, match="needs a seed"):
            self.mine(tmp_path / "mined.npz", strategy="random")


class TestReport:
    def test_table(self):
        mined = pairloom.mine_hard_negatives(
            integers(40, 3), integers(50, 3, seed=1), [[0]] * 39 + [[]], k=3, range_min=2, range_max=12,
            absolute_margin=1.0, similarity="dot",
        )  # fmt: skip
        lines = str(mined.report).splitlines()
        assert any(re.fullmatch(r"queries +40", line) for line in lines)
        assert any(re.fullmatch(r"  without a positive +1  margins do not apply", line) for line in lines)
        assert any(re.fullmatch(r"  removed by absolute_margin +\d+  [\d.]+%", line) for line in lines)
        assert any("ranks 2 to 11" in line for line in lines)
        assert mined.report.skipped == 80

    def test_warns_when_filters_leave_nothing(self):
        queries, corpus = torch.ones(4, 1), torch.tensor([[2.0], [3.0], [1.0]])
        with pytest.warns(UserWarning, match=r"4 of 4 queries .* 4 have none; .* removed 8 \(absolute_margin 8\)"):
            pairloom.mine_hard_negatives(queries, corpus, [0] * 4, k=1, similarity="dot", absolute_margin=5.0)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            pairloom.mine_hard_negatives(queries, corpus, [0] * 4, k=1, similarity="dot")

    def test_progress(self, capsys):
        pairloom.mine_hard_negatives(integers(9, 3), integers(20, 3), [[]] * 9, k=2, progress=True)
        captured = capsys.readouterr()
        assert captured.out == ""
        assert "mining" in captured.err
        assert "100%" in captured.err


class NoWork(TorchDispatchMode):
    """Fails when an operator of the package runs."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert "pairloom" not in str(func), f"{func} ran before the check"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("changed", "exception", "words"),
    [
        ({"positives": [[0], [9], [1]]}, ValueError, "positives holds id 9 for query 1; ids must be in [0, 9)"),
        ({"positives": [[0], [1]]}, ValueError, "positives has 2 entries; it must have 3"),
        ({"positives": None}, TypeError, "positives is a NoneType"),
        ({"k": 0}, ValueError, "k is 0; it must be 1 or more"),
        ({"k": 2.0}, TypeError, "k is 2.0"),
        ({"range_min": -1}, ValueError, "range_min is -1"),
        ({"range_max": -1}, ValueError, "range_max is -1"),
        ({"k": 5, "range_min": 2, "range_max": 6}, ValueError, "range_max - range_min is 4 and k is 5"),
        ({"absolute_margin": float("nan")}, ValueError, "absolute_margin is nan"),
        ({"relative_margin": float("inf")}, ValueError, "relative_margin is inf"),
        ({"max_score": "0.9"}, TypeError, "max_score is '0.9'"),
        ({"max_score": 0.1, "min_score": 0.2}, ValueError, "min_score is 0.2 and max_score is 0.1"),
        ({"strategy": "hardest"}, ValueError, "strategy is 'hardest'; allowed: top, random"),
        ({"generator": 0.5}, TypeError, "generator is 0.5"),
        ({"similarity": "l2"}, ValueError, "similarity is 'l2'"),
        ({"memory_mib": 0}, ValueError, "memory_mib is 0"),
        ({"progress": 1}, TypeError, "progress is 1"),
        ({"corpus": integers(9, 4)}, ValueError, "corpus has 4 dimensions per row and queries has 3"),
        ({"corpus": integers(9, 3).astype(np.int8)}, TypeError, "corpus is an array of int8"),
        ({"queries": integers(3)}, ValueError, "queries is an array of shape (3,)"),
        ({"queries": torch.zeros(3, 3, dtype=torch.int64)}, TypeError, "queries has dtype int64"),
        ({"queries": [[1.0]]}, TypeError, "queries is a list"),
        ({"queries": torch.zeros(3, 3, device="meta")}, ValueError, "queries is on meta"),
    ],
    ids=str,
)
def test_bad_input_is_refused_in_words(changed, exception, words):
    arguments = {"queries": integers(3, 3), "corpus": integers(9, 3), "positives": [[0], [], [1, 2]], "k": 2, **changed}
    with NoWork(), pytest.raises(exception, match=re.escape(words)) as caught:
        pairloom.mine_hard_negatives(**arguments)
    assert "\n" not in str(caught.value)


def test_memory_stays_within_the_budget(tmp_path):
    """30,000 x 30,000 scores would be 3.6 GB; the corpus file is 60 MB. Anonymous memory is limited by the kernel."""
    np.save(tmp_path / "corpus.npy", np.random.default_rng(0).standard_normal((30_000, 512), np.float32))
    program = """
import resource, sys
import numpy as np
import torch
import pairloom
torch.set_num_threads(1)
corpus = np.load(sys.argv[1], mmap_mode="r")
pairloom.mine_hard_negatives(corpus[:8], corpus[:300], list(range(8)), k=3)  # what is loaded once
held = int(next(line for line in open("/proc/self/status") if line.startswith("VmData")).split()[1]) << 10
resource.setrlimit(resource.RLIMIT_DATA, (held + (72 << 20), resource.RLIM_INFINITY))
mined = pairloom.mine_hard_negatives(corpus[:3000], corpus, list(range(3000)), k=3, memory_mib=24)
assert (mined.indices >= 0).all()
try:
    pairloom.mine_hard_negatives(corpus[:3000], corpus, list(range(3000)), k=3, memory_mib=500)
except (MemoryError, RuntimeError):
    print("limited")
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, str(tmp_path / "corpus.npy")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "limited\n"


@pytest.mark.parametrize("screen", ["int8", "bf16", None])
def test_a_gallery_gives_the_same_negatives(screen, tmp_path):
    torch.manual_seed(0)
    corpus = torch.randn(3000, 24)
    queries = corpus[:50] + 0.2
    options = {"k": 4, "range_min": 2, "relative_margin": 0.05}
    expected = pairloom.mine_hard_negatives(queries, corpus, list(range(50)), **options)
    path = tmp_path / "mined.npz"
    found = pairloom.mine_hard_negatives(
        queries, pairloom.Gallery(corpus, screen=screen), list(range(50)), checkpoint=path, **options
    )
    assert torch.equal(found.indices, expected.indices)
    assert torch.equal(found.scores, expected.scores)
    assert found.report == expected.report
    again = pairloom.mine_hard_negatives(queries, corpus, list(range(50)), checkpoint=path, **options)
    assert torch.equal(again.indices, expected.indices)
