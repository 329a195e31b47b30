"""Galleries that are arrays or memory maps give the bits of the same gallery as a tensor, for any size of the blocks;
they are never read as a whole, never written to, and refused in words where they cannot be searched."""

import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import pairloom
from pairloom import _gallery_blocks

SIMILARITIES = ("cosine", "dot", "euclidean", "squared_euclidean")


def mib(rows, array):
    """A budget of so many rows."""
    return rows * array.shape[1] * array.itemsize / 2**20


def assert_same(found, wanted):
    assert torch.equal(found[0], wanted[0])
    assert torch.equal(found[1], wanted[1])


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    q=st.integers(0, 6),
    m=st.sampled_from((0, 1, 2, 40, 257, 600)),
    d=st.sampled_from((1, 3, 17)),
    k=st.sampled_from((0, 1, 5, 64, 700)),
    rows=st.sampled_from((1, 7, 256, 1000)),
    dtype=st.sampled_from(("float16", "float32", "float64", ">f4")),
    similarity=st.sampled_from(SIMILARITIES),
    excluding=st.booleans(),
    strange=st.booleans(),
    seed=st.integers(0, 99),
)
def test_bits_of_one_call(q, m, d, k, rows, dtype, similarity, excluding, strange, seed):
    rng = np.random.default_rng(seed)
    gallery = rng.integers(-2, 3, (m, d)) + 0.1 * rng.integers(0, 2, (m, 1))  # many equal rows
    if strange:
        gallery[::5], gallery[3::7, 0] = np.nan, np.inf
    gallery = gallery.astype(dtype)
    queries = torch.from_numpy(rng.standard_normal((q, d))).float()
    exclude = [rng.integers(0, m, rng.integers(0, 9)).tolist() if m else [] for _ in range(q)] if excluding else None
    wanted = pairloom.topk(
        queries, torch.from_numpy(gallery.astype(gallery.dtype.newbyteorder("="))), k,
        similarity=similarity, exclude=exclude,
    )  # fmt: skip
    found = pairloom.topk(queries, gallery, k, similarity=similarity, exclude=exclude, memory_mib=mib(rows, gallery))
    assert_same(found, wanted)
    assert found[0].is_contiguous()


ROWS = np.random.default_rng(0).standard_normal((50, 3)).astype("f4")
RECORDS = np.zeros(50, [("id", "i2"), ("row", "f4", (3,))])
RECORDS["row"] = ROWS
WIDE_RECORDS = np.zeros(50, [("id", "i4"), ("row", "f8", (3,))])
WIDE_RECORDS["row"] = ROWS
VIEWS = {
    "columns reversed": ROWS[:, ::-1],
    "all reversed": ROWS[::-1, ::-1],
    "one column, reversed": ROWS[:, :1][:, ::-1],
    "one row, reversed": ROWS[:1][:, ::-1],
    "no rows, reversed": ROWS[:0][:, ::-1],
    "field of a record": RECORDS["row"],
    "wide field of a record": WIDE_RECORDS["row"],
    "repeated": np.broadcast_to(ROWS[:1], (50, 3)),
}


@pytest.mark.parametrize("view", VIEWS)
def test_strides_that_torch_does_not_have(view):
    """Single rows, single columns and empty blocks pass for contiguous whatever their strides are."""
    array = VIEWS[view]
    tensor = torch.from_numpy(np.array(array, order="C"))
    queries = tensor.new_ones(2, array.shape[1])
    wanted = pairloom.topk(queries, tensor, 3)
    for rows in (1, 7, 100):
        assert_same(pairloom.topk(queries, array, 3, memory_mib=mib(rows, array)), wanted)
    assert_same(pairloom.topk(queries, array, 3, screen="int8"), wanted)
    assert_same(pairloom.topk(queries, pairloom.Gallery(array, screen=None), 3), wanted)
    if len(array) > 10:
        assert_same(
            pairloom.mine_hard_negatives(array[:4], array, [[0]] * 4, k=2),
            pairloom.mine_hard_negatives(tensor[:4], tensor, [[0]] * 4, k=2),
        )


def test_memory_maps_and_views(tmp_path):
    gallery = np.random.default_rng(0).standard_normal((300, 8), np.float32)
    np.save(tmp_path / "gallery.npy", gallery)
    queries = torch.from_numpy(gallery[:5].copy())
    wanted = pairloom.topk(queries, torch.from_numpy(gallery), 9)
    read_only = gallery.copy()
    read_only.flags.writeable = False
    for array in (
        np.load(tmp_path / "gallery.npy", mmap_mode="r"),
        np.load(tmp_path / "gallery.npy", mmap_mode="r+"),
        np.memmap(tmp_path / "gallery.npy", np.float32, "r", offset=128, shape=(300, 8)),
        read_only,
        np.asfortranarray(gallery),
        gallery[::-1].copy()[::-1],
        np.concatenate([gallery, gallery], axis=1)[:, :8],
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # torch warns of memory that cannot be written to
            assert_same(pairloom.topk(queries, array, 9, memory_mib=mib(70, gallery)), wanted)
    assert np.array_equal(np.load(tmp_path / "gallery.npy"), gallery)


def test_ties_across_blocks_go_to_the_lowest_index():
    gallery = np.ones((50, 2), np.float32)
    _, indices = pairloom.topk(torch.ones(3, 2), gallery, 20, memory_mib=mib(6, gallery))
    assert torch.equal(indices, torch.arange(20).expand(3, 20))


def test_blocks_are_read_one_by_one(monkeypatch):
    seen = []
    read = _gallery_blocks.rows_of
    monkeypatch.setattr(_gallery_blocks, "rows_of", lambda matrix, rows: seen.append(rows) or read(matrix, rows))
    gallery = np.zeros((10, 4), np.float32)
    pairloom.topk(torch.zeros(1, 4), gallery, 2, memory_mib=mib(4, gallery))
    assert [(rows.start, rows.stop) for rows in seen[1:]] == [(0, 4), (4, 8), (8, 10)]


def test_progress_is_on_stderr_and_only_when_asked_for(capsys):
    gallery = np.zeros((10, 4), np.float32)
    pairloom.topk(torch.zeros(1, 4), gallery, 2)
    assert capsys.readouterr() == ("", "")
    pairloom.topk(torch.zeros(1, 4), gallery, 2, progress=True)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "topk" in captured.err
    assert "100%" in captured.err


@pytest.mark.parametrize(
    ("queries", "gallery", "exception", "words"),
    [
        (torch.zeros(2, 3), np.zeros((4, 3), np.int64), TypeError, "gallery is an array of int64"),
        (torch.zeros(2, 3), np.zeros((4, 3), np.complex64), TypeError, "gallery is an array of complex64"),
        (torch.zeros(2, 3), np.zeros(4, np.float32), ValueError, r"gallery is an array of shape \(4,\)"),
        (torch.zeros(2, 3), np.zeros((4, 0), np.float32), ValueError, r"gallery is an array of shape \(4, 0\)"),
        (torch.zeros(2, 3), np.zeros((4, 5), np.float32), ValueError, "gallery has 5 dimensions per row and queries"),
        (torch.zeros(2, 3), [[0.0] * 3], TypeError, "gallery is a list"),
        (torch.zeros(2, 3, requires_grad=True), np.zeros((4, 3)), ValueError, "queries requires gradients"),
    ],
    ids=str,
)
def test_errors(queries, gallery, exception, words):
    with pytest.raises(exception, match=words):
        pairloom.topk(queries, gallery, 1)


def test_without_gradients_of_the_mode():
    with torch.no_grad():
        assert pairloom.topk(torch.ones(1, 3, requires_grad=True), np.ones((4, 3)), 1)[1].tolist() == [[0]]


def test_a_gallery_larger_than_memory(tmp_path):
    """A file of 256 MiB is searched by a process that may allocate 64 MiB more than it has."""
    gallery = np.lib.format.open_memmap(tmp_path / "gallery.npy", mode="w+", dtype=np.float16, shape=(2**20, 128))
    gallery[777_777] = 1
    gallery.flush()
    program = """
import resource, sys
import numpy as np
import torch
import pairloom
torch.set_num_threads(1)
gallery = np.load(sys.argv[1], mmap_mode="r")
query = torch.ones(1, 128)
pairloom.topk(query, gallery[:300], 3)  # what is loaded once
held = int(next(line for line in open("/proc/self/status") if line.startswith("VmData")).split()[1]) << 10
resource.setrlimit(resource.RLIMIT_DATA, (held + (64 << 20), resource.RLIM_INFINITY))
assert pairloom.topk(query, gallery, 2, memory_mib=16)[1].tolist() == [[777_777, 0]]
try:
    pairloom.topk(query, gallery, 2, memory_mib=256)
except (MemoryError, RuntimeError):
    print("limited")
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, str(tmp_path / "gallery.npy")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "limited\n"
