"""Scorer: bits of topk without torch; rows that come and go; files; threads; one sentence for what does not fit."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import pairloom
from pairloom.deploy import Scorer
from pairloom.export import to_onnx
from pairloom.testing import isa_levels, using_isa
from tests.generic.test_topk import integers, oracle, with_strange_rows

SIMILARITIES = ("cosine", "dot", "euclidean", "squared_euclidean")
SCREENS = (None, "int8", "bf16")
SIZES = (
    (1, 1, 1, 3),
    (3, 40, 7, 5),
    (0, 20, 4, 2),
    (4, 0, 4, 2),
    (300, 9000, 65, 10),
    (2, 900, 33, 900),
    (5, 30, 8, 0),
)


def rows(count, dim=12, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal((count, dim)).astype(dtype)


def strange(count, dim=12, seed=0, dtype=np.float32):
    """Duplicates, zeros, NaN, infinity, tiny and huge rows among ordinary ones."""
    x = rows(count, dim, seed, dtype)
    for place, change in {3: lambda: x[1], 5: lambda: 0, 7: lambda: np.nan, 11: lambda: np.inf}.items():
        if place < count:
            x[place] = change()
    x[13:14] *= 1e-30
    x[17:18] *= 1e18
    return x


def assert_bits(found, expected):
    np.testing.assert_array_equal(found[0], expected[0].numpy())
    np.testing.assert_array_equal(found[1], expected[1].numpy())
    assert found[0].dtype == np.dtype(str(expected[0].dtype).removeprefix("torch."))


@pytest.mark.parametrize("level", isa_levels())
@pytest.mark.parametrize("similarity", SIMILARITIES)
@pytest.mark.parametrize("screen", SCREENS)
def test_bits_are_those_of_topk(similarity, screen, level):
    with using_isa(level):
        for q, m, d, k in SIZES:
            queries, gallery = strange(q, d, seed=q), strange(m, d, seed=m + 1)
            expected = pairloom.topk(torch.from_numpy(queries), torch.from_numpy(gallery), k, similarity=similarity)
            for threads in (1, 2, 7):
                scorer = Scorer(gallery, similarity=similarity, screen=screen, threads=threads)
                for _ in range(2):  # norms are found once
                    assert_bits(scorer(queries, k), expected)


@pytest.mark.parametrize("dtypes", [("f4", "f2"), ("f8", "f4"), ("f4", "f8"), ("f2", "f2")])
@pytest.mark.parametrize("screen", SCREENS)
def test_other_number_formats(dtypes, screen):
    queries, gallery = rows(9, seed=1, dtype=dtypes[0]), rows(300, seed=2, dtype=dtypes[1])
    expected = pairloom.topk(torch.from_numpy(queries), torch.from_numpy(gallery), 6)
    scorer = Scorer(gallery, screen=screen)
    assert_bits(scorer(queries, 6), expected)
    assert_bits(scorer(queries, 6), expected)


LAYOUTS = {
    "transposed": lambda x: np.asfortranarray(x),
    "every other row": lambda x: np.repeat(x, 2, axis=0)[::2],
    "reversed twice": lambda x: x[::-1, ::-1].copy()[::-1, ::-1],
    "own byte order, spelled out": lambda x: x.astype(x.dtype.newbyteorder("<" if sys.byteorder == "little" else ">")),
    "other byte order": lambda x: x.astype(x.dtype.newbyteorder()),
    "not aligned": lambda x: np.frombuffer(b"." + x.tobytes(), np.uint8)[1:].view(x.dtype).reshape(x.shape),
    "read-only": lambda x: np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape),
    "expanded": lambda x: np.broadcast_to(x[:1], x.shape),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("screen", SCREENS)
def test_any_layout(layout, screen):
    queries, gallery = LAYOUTS[layout](rows(6, seed=1)), LAYOUTS[layout](rows(200, seed=2))
    found = Scorer(gallery, screen=screen)(queries, 5)
    as_tensor = [torch.from_numpy(np.array(x, np.float32)) for x in (queries, gallery)]
    assert_bits(found, pairloom.topk(*as_tensor, 5))


def test_int8_alone(tmp_path):
    gallery, queries = strange(400, 40), strange(9, 40, seed=2)
    for similarity in ("cosine", "dot"):
        path = to_onnx(
            None, gallery, k=6, path=tmp_path / "a.onnx", precision="int8", similarity=similarity, check=False
        )
        expected = pairloom.topk(torch.from_numpy(queries), pairloom.Int8Gallery(gallery), 6, similarity=similarity)
        scorer = Scorer.from_onnx(path)
        assert_bits(scorer(queries), expected)
        assert scorer(queries.astype(np.float64))[0].dtype == np.float32
        scorer.save(tmp_path / "kept")
        assert_bits(Scorer.load(tmp_path / "kept")(queries), expected)
        with pytest.raises(ValueError, match="has int8 alone and takes no more rows"):
            scorer.add(gallery[:1])
        scorer.remove([0])
        assert 0 not in scorer(queries)[1]


class Plain:
    """The same in plain Python: a list of (id, row)."""

    def __init__(self, gallery, ids):
        self.entries = list(zip(ids, gallery, strict=True))

    def __call__(self, queries, k):
        gallery = torch.tensor(np.array([row for _, row in self.entries], np.float32).reshape(-1, 4))
        scores, found = oracle(torch.tensor(queries), gallery, k, "dot")
        names = [*(one for one, _ in self.entries), -1]
        return scores.numpy(), np.array([[names[i] for i in row] for row in found.tolist()]).reshape(found.shape)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    steps=st.lists(st.tuples(st.sampled_from("arqA"), st.integers(0, 99)), max_size=25),
    screen=st.sampled_from(SCREENS),
    start=st.integers(0, 20),
)
def test_rows_come_and_go(steps, screen, start):
    """Integers, so that sums are exact: any history of changes gives what a list would."""
    first = integers(start, 4, seed=1).numpy()
    scorer, plain = Scorer(first, similarity="dot", screen=screen), Plain(first, range(start))
    queries = integers(3, 4, seed=2).numpy()
    following, largest = start, -1
    for step, seed in steps:
        if step in "aA":
            more = integers(seed % 7, 4, seed=seed).numpy()
            if step == "a":
                known = [one for one, _ in plain.entries]
                largest = max([largest, *known])  # ids that are gone are not given out again
                ids = [largest + 1 + i for i in range(len(more))]
                scorer.add(more)
            else:
                following = max([following, *(one for one, _ in plain.entries)]) + 1000
                ids = [following + i for i in range(len(more))]
                scorer.add(more, ids)
            plain.entries += zip(ids, more, strict=True)
            largest = max([largest, *ids])
        elif step == "r" and plain.entries:
            gone = {plain.entries[i][0] for i in np.random.default_rng(seed).integers(0, len(plain.entries), 3)}
            scorer.remove(list(gone))
            largest = max([largest, *(one for one, _ in plain.entries)])
            plain.entries = [entry for entry in plain.entries if entry[0] not in gone]
        assert scorer.ids.tolist() == [one for one, _ in plain.entries]
        found, expected = scorer(queries, 5), plain(queries, 5)
        np.testing.assert_array_equal(found[0], expected[0])
        np.testing.assert_array_equal(found[1], expected[1])


def test_string_ids_and_exclusions():
    gallery, queries = rows(30), rows(4, seed=1)
    names = [f"row {i}" for i in range(30)]
    numbers, named = Scorer(gallery), Scorer(gallery, ids=names)
    best = numbers(queries, 3)[1]
    lists = [best[0].tolist(), [], best[2][:1].tolist(), list(range(30))]
    expected = pairloom.topk(torch.from_numpy(queries), torch.from_numpy(gallery), 5, exclude=lists)
    indptr = np.cumsum([0, *map(len, lists)])
    flat = [i for one in lists for i in one]
    for scorer, word in ((numbers, lambda i: i), (named, lambda i: names[i])):
        as_lists = [[word(i) for i in one] for one in lists]
        for exclude in (as_lists, (indptr, np.array([word(i) for i in flat])), (indptr, [word(i) for i in flat])):
            scores, ids = scorer(queries, 5, exclude=exclude)
            np.testing.assert_array_equal(scores, expected[0])
            missing = "" if scorer is named else -1
            assert ids.tolist() == [[word(i) if i >= 0 else missing for i in one] for one in expected[1].tolist()]
        one_each = np.array([word(best[0, 0]), "" if scorer is named else -1, word(best[2, 0]), word(best[3, 0])])
        found = scorer(queries, 1, exclude=one_each)[1][:, 0]
        assert (found != one_each).all()
    with pytest.raises(ValueError, match="exclude holds 30, which is no id of this scorer"):
        numbers(queries, 3, exclude=[[30], [], [], []])
    with pytest.raises(ValueError, match="exclude has 2 entries for 4 queries"):
        numbers(queries, 3, exclude=[[], []])


def test_searches_see_one_moment():
    """Threads that search while others add and remove: every answer is that of some moment."""
    block = 50
    scorer = Scorer(np.ones((block, 4), np.float32), similarity="dot", ids=range(block))
    queries, stop, failed = np.ones((2, 4), np.float32), threading.Event(), []

    def search():
        while not stop.is_set():
            try:
                scores, ids = scorer(queries, 3 * block)
                found = ids[0][ids[0] >= 0]
                assert (np.diff(found) > 0).all()  # ties in the order of the rows
                assert len(found) in (block, 2 * block)
                assert (scores[0][: len(found)] == 4).all()
            except Exception as error:
                failed.append(error)

    threads = [threading.Thread(target=search) for _ in range(3)]
    for thread in threads:
        thread.start()
    for turn in range(1, 60):
        scorer.add(np.ones((block, 4), np.float32), np.arange(turn * block, (turn + 1) * block))
        scorer.remove(np.arange((turn - 1) * block, turn * block))
    stop.set()
    for thread in threads:
        thread.join()
    assert not failed


def test_several_add_at_once():
    scorer = Scorer(np.zeros((0, 3), np.float32), similarity="dot")

    def work(number):
        for turn in range(30):
            scorer.add(np.full((2, 3), number, np.float32), [1000 * number + 2 * turn, 1000 * number + 2 * turn + 1])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(scorer) == 240
    scores, ids = scorer(np.ones((1, 3), np.float32), 240)
    assert (scores[0] == 3 * (ids[0] // 1000)).all()


@pytest.mark.parametrize("screen", SCREENS)
def test_files(screen, tmp_path):
    gallery, queries = strange(300), rows(5, seed=3)
    np.save(tmp_path / "gallery.npy", gallery)
    expected = pairloom.topk(torch.from_numpy(queries), torch.from_numpy(gallery), 6)
    opened = Scorer.open(tmp_path / "gallery.npy", screen=screen)
    assert_bits(opened(queries, 6), expected)
    if screen is not None:  # one copy for both
        before = (tmp_path / f"gallery.npy.{screen}" / "codes.npy").stat().st_mtime_ns
        pairloom.Gallery.open(tmp_path / "gallery.npy", screen=screen)
        assert (tmp_path / f"gallery.npy.{screen}" / "codes.npy").stat().st_mtime_ns == before
    names = [f"n{i}" for i in range(300)]
    scorer = Scorer(gallery, screen=screen, ids=names, k=6)
    for _ in range(2):  # the second takes the place of the first
        scorer.save(tmp_path / "kept")
    loaded = Scorer.load(tmp_path / "kept")
    assert repr(loaded) == repr(scorer)
    scores, ids = loaded(queries)
    np.testing.assert_array_equal(scores, expected[0])
    assert ids.tolist() == [[names[i] if i >= 0 else "" for i in one] for one in expected[1].tolist()]
    loaded.add(gallery[:2], ["more", "and more"])
    loaded.remove(["n0"])
    assert len(loaded) == 301
    assert sorted(path.name for path in tmp_path.iterdir() if "partial" in path.name or "replaced" in path.name) == []


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize("settings", [{}, {"precision": "float16"}, {"screen": "int8"}])
@pytest.mark.parametrize("ids", [None, [f"n{i}" for i in range(200)]])
def test_from_onnx(settings, external, ids, tmp_path):
    gallery, queries = strange(200), rows(5, seed=3)
    gallery[17] *= 1e-15  # what float16 cannot hold is refused
    path = to_onnx(
        None, gallery, k=4, path=tmp_path / "it.onnx", similarity="dot", external_data=external, ids=ids,
        check=False, **settings,
    )  # fmt: skip
    scorer = Scorer.from_onnx(path)
    with np.errstate(over="ignore"):
        kept = gallery.astype(settings.get("precision", "float32"))
    scores, found = scorer(queries)
    expected = pairloom.topk(torch.from_numpy(queries), torch.from_numpy(kept), 4, similarity="dot")
    np.testing.assert_array_equal(scores, expected[0])
    assert found.tolist() == (expected[1] if ids is None else np.array([*ids, ""], object)[expected[1]]).tolist()
    assert scorer.similarity == "dot"
    assert scorer(queries, 7)[0].shape == (5, 7)


def test_files_of_others(tmp_path):
    np.save(tmp_path / "a.npy", rows(3))
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "mine.txt").write_text("mine")
    for path in ("a.npy", "folder", "nowhere"):
        with pytest.raises(ValueError, match=r"is no folder that Scorer\.save wrote"):
            Scorer.load(tmp_path / path)
    scorer = Scorer(rows(3))
    for path in ("a.npy", "folder"):
        with pytest.raises(FileExistsError, match="move it away"):
            scorer.save(tmp_path / path)
    scorer.save(tmp_path / "kept")
    os.truncate(tmp_path / "kept" / "embeddings.npy", 140)
    with pytest.raises(ValueError, match="or it is damaged"):
        Scorer.load(tmp_path / "kept")
    (tmp_path / "b.onnx").write_bytes(b"no model")
    with pytest.raises(ValueError, match=r"b\.onnx is no ONNX file|has no gallery"):
        Scorer.from_onnx(tmp_path / "b.onnx")
    with pytest.raises(FileNotFoundError, match=r"c\.onnx does not exist"):
        Scorer.from_onnx(tmp_path / "c.onnx")
    with pytest.raises(ValueError, match="it is an input of the graph"):
        Scorer.from_onnx(to_onnx(None, None, k=2, path=tmp_path / "d.onnx", check=False))


def test_no_torch(tmp_path):
    """In a process where importing torch raises: everything, codes beside a file included."""
    np.save(tmp_path / "gallery.npy", rows(300))
    to_onnx(None, rows(300), k=3, path=tmp_path / "it.onnx", check=False)
    program = f"""
import sys
sys.modules["torch"] = None
import numpy as np, pairloom
from pairloom.deploy import Scorer, ort_library
queries = np.load({str(tmp_path / "gallery.npy")!r})[:4]
found = []
for scorer in (
    Scorer(np.load({str(tmp_path / "gallery.npy")!r})),
    Scorer.open({str(tmp_path / "gallery.npy")!r}, screen="int8"),
    Scorer.open({str(tmp_path / "gallery.npy")!r}, screen="bf16"),
    Scorer.from_onnx({str(tmp_path / "it.onnx")!r}),
):
    scorer.add(queries)
    scorer.save({str(tmp_path / "kept")!r})
    found.append(Scorer.load({str(tmp_path / "kept")!r})(queries, 2)[1].tolist())
assert found == [[[i, 300 + i] for i in range(4)]] * 4, found
ort_library()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_words_are_ids_and_not_letters():
    gallery = rows(3)
    scorer = Scorer(gallery, ids=["12", "1", "2"])
    found = scorer(gallery, 2, exclude=["12", "", "2"])[1]
    assert "12" not in found[0]
    assert found[1, 0] == "1"
    assert "2" not in found[2]


def test_a_child_process_changes_rows_while_the_parent_was():
    """A lock that another thread held when the process was forked is never opened in the child."""
    scorer = Scorer(rows(3))
    with scorer._changes:
        child = os.fork()
        if child == 0:
            scorer.add(rows(1))
            os._exit(len(scorer))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4


def test_arrays_that_were_exchanged(tmp_path):
    Scorer(rows(40), screen="int8").save(tmp_path / "kept")
    codes = tmp_path / "kept" / "codes.npy"
    np.save(codes, np.zeros_like(np.load(codes)))
    with pytest.raises(ValueError, match="an array is not the one that was saved"):
        Scorer.load(tmp_path / "kept")


def test_data_elsewhere_is_not_read(tmp_path):
    path = to_onnx(None, rows(200), k=2, path=tmp_path / "it.onnx", external_data=True, check=False)
    path.write_bytes(path.read_bytes().replace(b"it.onnx.data", b"../onnx.data"))
    with pytest.raises(ValueError, match="it must be a file beside it"):
        Scorer.from_onnx(path)


def test_after_a_fork():
    scorer, queries = Scorer(rows(20000, 32), threads=2), rows(300, 32, seed=1)
    expected = scorer(queries, 5)
    child = os.fork()
    if child == 0:
        found = scorer(queries, 5)
        os._exit(0 if (found[1] == expected[1]).all() else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_nothing_of_the_gallery_is_copied(tmp_path):
    """A memory map of 256 MiB, in a process that may not take so much more."""
    path = tmp_path / "large.npy"
    array = np.lib.format.open_memmap(path, "w+", np.float32, (1 << 19, 128))
    array[: 1 << 10] = rows(1 << 10, 128)
    del array
    program = f"""
import resource, numpy as np
from pairloom.deploy import Scorer
scorer = Scorer.open({str(path)!r}, similarity="dot")
scorer(np.ones((1, 128), np.float32), 1)
limit = int(open("/proc/self/statm").read().split()[0]) * 4096 + (100 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
print(scorer(np.ones((3, 128), np.float32), 2)[1].shape)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "(3, 2)\n"


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"gallery": [[1.0]]}, TypeError, "gallery is a list; it must be a NumPy array"),
        ({"gallery": np.ones(3, np.float32)}, ValueError, r"gallery is an array of shape \(3,\); it must be 2-D"),
        ({"gallery": np.ones((3, 2), int)}, TypeError, "gallery is an array of int64"),
        ({"similarity": "l1"}, ValueError, "similarity is 'l1'; allowed: cosine"),
        ({"screen": "int4"}, ValueError, "screen is 'int4'; allowed: int8, bf16, None"),
        ({"threads": 0}, ValueError, "threads is 0; it must be 1 or more"),
        ({"k": -1}, ValueError, "k is -1; it must be 0 or more"),
        ({"ids": [1, 2]}, ValueError, r"ids have shape \(2,\); it must be \(3,\)"),
        ({"ids": [1, 2, 1]}, ValueError, "ids holds 1 twice"),
        ({"ids": [1, -1, 3]}, ValueError, "ids holds -1, which stands for what is missing"),
        ({"ids": ["a", "", "b"]}, ValueError, "ids holds '', which stands for what is missing"),
    ],
)
def test_errors_of_the_constructor(arguments, error, message):
    given = {"gallery": rows(3), **arguments}
    with pytest.raises(error, match=message):
        Scorer(given.pop("gallery"), **given)


def test_errors_of_calls():
    scorer = Scorer(rows(3), ids=["a", "b", "c"])
    for call, error, message in [
        (lambda: scorer(rows(2)), ValueError, "k is None, and this scorer has no default"),
        (lambda: scorer(rows(2), -1), ValueError, "k is -1"),
        (lambda: scorer(rows(2), 1.5), TypeError, "k is 1.5; it must be an integer"),
        (lambda: scorer(rows(2, 5), 1), ValueError, "queries has 5 dimensions per row and the gallery has 12"),
        (lambda: scorer(rows(2)[0], 1), ValueError, "queries is an array of shape"),
        (lambda: scorer.add(rows(1)), ValueError, "ids is missing; this scorer has strings"),
        (lambda: scorer.add(rows(1), [4]), TypeError, "ids are integers; those of this scorer are strings"),
        (lambda: scorer.add(rows(1), ["a"]), ValueError, "ids holds 'a', which is there already"),
        (lambda: scorer.add(rows(1, 5), ["d"]), ValueError, "embeddings has 5 dimensions"),
        (lambda: scorer.remove(["a", "x"]), ValueError, "ids holds 'x', which is no id"),
        (lambda: scorer.add(rows(1, dtype=np.float64), ["d"]), TypeError, "which would round"),
        (lambda: scorer(rows(1), 1, exclude=[[0.0]]), TypeError, "exclude holds 0.0; ids are integers or strings"),
        (lambda: scorer(rows(1), 1, exclude=[[False]]), TypeError, "exclude holds False"),
    ]:
        with pytest.raises(error, match=message):
            call()
    assert scorer.ids.tolist() == ["a", "b", "c"]


def test_strange_rows_everywhere():
    """The oracle of the other backends."""
    for seed in range(4):
        queries = with_strange_rows(integers(6, 4, seed=seed), seed)
        gallery = with_strange_rows(integers(40, 4, seed=seed + 50), seed + 9)
        for screen in SCREENS:
            found = Scorer(gallery.numpy(), similarity="dot", screen=screen)(queries.numpy(), 9)
            expected = oracle(queries, gallery, 9, "dot")
            np.testing.assert_array_equal(found[0], expected[0])
            np.testing.assert_array_equal(found[1], expected[1])


@pytest.mark.parametrize("screen", SCREENS)
def test_scorer_without_rows_is_saved_and_filled(screen, tmp_path):
    """Also one that lost all its rows; it takes the kind of the first ids that come."""
    emptied = Scorer(rows(2), ids=[4, 9], screen=screen)
    emptied.remove([4, 9])
    for number, scorer in enumerate((Scorer(rows(0), screen=screen), emptied)):
        scorer.save(tmp_path / str(number))
        again = Scorer.load(tmp_path / str(number))
        assert len(again) == 0
        assert again(rows(2), 2)[1].tolist() == [[-1, -1], [-1, -1]]
        for one in (scorer, again):
            one.add(rows(2), ids=["a", "b"])
            assert one(rows(2), 1)[1].tolist() == [["a"], ["b"]]
            one.remove(["a", "b"])
            one.add(rows(1))
            assert one.ids.tolist() == [0 if number == 0 else 10 if one is scorer else one.ids[0]]


def test_numbers_end():
    scorer = Scorer(rows(1), ids=[2**63 - 2])
    scorer.add(rows(1))
    assert scorer.ids.tolist() == [2**63 - 2, 2**63 - 1]
    with pytest.raises(ValueError, match="ids is missing, and above the largest"):
        scorer.add(rows(1))
    scorer.add(rows(1), ids=[5])
    assert len(scorer) == 3


NO_IDS = [
    ([True], TypeError, "holds True; ids are integers or strings"),
    (np.array([True, False]), TypeError, "holds np.True_|holds True"),
    ([0.0], TypeError, "holds 0.0"),
    (np.array([1.0]), TypeError, "holds np.float64|holds 1.0"),
    ([None], TypeError, "holds None"),
    (5, TypeError, "is 5; pass an array or a list of ids"),
    ("1", TypeError, "is '1'; pass an array or a list of ids"),
    ([7], ValueError, "holds 7, which is no id"),
]


@pytest.mark.parametrize(("ids", "error", "message"), NO_IDS)
def test_what_is_no_id_is_not_removed(ids, error, message):
    scorer = Scorer(rows(2))
    with pytest.raises(error, match="ids " + f"({message})"):
        scorer.remove(ids)
    assert len(scorer) == 2


@pytest.mark.parametrize(
    ("exclude", "error", "message"),
    [
        (5, TypeError, "exclude is a int; pass ids"),
        (torch.tensor([0, 1]), TypeError, "exclude is a Tensor; pass ids"),
        ([None, None], TypeError, "exclude holds None"),
        (np.array([0.0, 1.0]), TypeError, "exclude holds np.float64|exclude holds 0.0"),
        ([True, False], TypeError, "exclude holds True"),
        ([[0]], ValueError, "exclude has 1 entries for 2 queries"),
        ([[0], [9]], ValueError, "exclude holds 9, which is no id"),
        ((np.array([0, 1]), np.array([0])), ValueError, "exclude has an indptr"),
    ],
)
def test_what_is_no_exclusion(exclude, error, message):
    with pytest.raises(error, match=message):
        Scorer(rows(3))(rows(2), 1, exclude=exclude)


def test_padded_exclusions():
    scorer = Scorer(rows(4))
    padded = np.array([[0, -1], [1, 2]])
    for exclude in (padded, padded.tolist(), [[0], [1, 2]]):
        assert scorer(rows(2), 4, exclude=exclude)[1][:, -1].tolist() == [-1, -1]
        assert 0 not in scorer(rows(2), 4, exclude=exclude)[1][0]


@pytest.mark.parametrize(
    ("ids", "error", "message"),
    [
        ([1, "a"], TypeError, "ids holds 'a'; the first is 1, and all must be integers"),
        (["a", 1], TypeError, "ids holds 1; the first is 'a', and all must be strings"),
        (["a", "b\0"], ValueError, "with a NUL"),
        (["a", b"b"], TypeError, "ids holds b'b'"),
        ([1.0, 2.0], TypeError, "ids holds 1.0; they must be integers or strings"),
        ([True, False], TypeError, "ids holds True"),
        (np.array([1, 2**63], np.uint64), ValueError, "ids holds 9223372036854775808; integers must fit int64"),
        ([1, 2**70], ValueError, "integers must fit int64"),
        ([3, 3], ValueError, "ids holds 3 twice"),
        (["a", ""], ValueError, "ids holds '', which stands for what is missing"),
        ([0, -1], ValueError, "ids holds -1, which stands for what is missing"),
        ([0], ValueError, r"ids have shape \(1,\)"),
        (np.array([[0, 1]]), ValueError, r"ids have shape \(1, 2\)"),
        ("ab", TypeError, "ids is 'ab'"),
        (7, TypeError, "ids is 7"),
    ],
)
def test_one_rule_for_ids(ids, error, message, tmp_path):
    """Of a scorer, of rows that are added, and of a file."""
    with pytest.raises(error, match=message):
        Scorer(rows(2), ids=ids)
    with pytest.raises(error, match=message):
        Scorer(rows(0)).add(rows(2), ids=ids)
    with pytest.raises(error, match=message):
        to_onnx(None, rows(2), k=1, path=tmp_path / "it.onnx", ids=ids)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["k", "threads"])
def test_sizes_beyond_reason(name):
    for value in (2**31, 2**63, 2**70):
        with pytest.raises(ValueError, match=f"{name} is {value}; it must be 0 or more and below 2"):
            Scorer(rows(2), **{name: value})
    with pytest.raises(ValueError, match="k is 9223372036854775807; it must be below 2"):
        pairloom.topk(torch.ones(2, 3), torch.ones(2, 3), 2**63 - 1)


def test_added_rows_do_not_show_in_searches_that_began_before():
    """Rows of one moment share tables with those that come: an id is found only where its row is."""
    scorer = Scorer(rows(5))
    scorer(rows(1), 1, exclude=[[0]])  # the table of ids is there
    before = scorer._rows
    scorer.add(rows(2, seed=1), ids=[50, 60])
    assert before.place(50) is None
    assert scorer._rows.place(60) == 6
    assert before.place(4) == 4
    scorer.remove([0])
    assert scorer._rows.place(60) == 5
    assert scorer._rows.place(0) is None
    scorer.add(rows(1, seed=2), ids=[0])
    queries = rows(3, seed=4)
    everything = torch.from_numpy(np.array(scorer._rows.embeddings))
    scores, places = pairloom.topk(torch.from_numpy(queries), everything, 3)
    found = scorer(queries, 3)
    np.testing.assert_array_equal(found[0], scores)
    assert found[1].tolist() == scorer.ids[places].tolist()


def test_queries_that_an_int8_scorer_cannot_hold(tmp_path):
    path = to_onnx(None, rows(20), k=2, path=tmp_path / "it.onnx", precision="int8")
    scorer = Scorer.from_onnx(path)
    with pytest.raises(ValueError, match=r"queries holds 1e\+300, which float32 cannot hold"):
        scorer(np.full((1, 12), 1e300))
