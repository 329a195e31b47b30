"""Galleries of .npy files and the copies beside them."""

import json
import os
import threading

import numpy as np
import pytest
import torch

import pairloom
from pairloom import _codes as codes_module
from pairloom import _folders as folders_module


@pytest.fixture
def stored(tmp_path):
    path = tmp_path / "rows.npy"
    rows = np.random.default_rng(0).standard_normal((700, 24)).astype(np.float32)
    np.save(path, rows)
    return path, torch.from_numpy(rows)


def entries(path):
    return sorted(p.name for p in path.parent.iterdir())


@pytest.mark.parametrize("screen", ["int8", "bf16", None])
def test_open_equals_memory(stored, screen, monkeypatch):
    path, rows = stored
    monkeypatch.setattr(codes_module, "BLOCK_BYTES", 5000)  # some dozen blocks
    queries = rows[:5] + 0.01
    expected = pairloom.topk(queries, rows, 4, similarity="euclidean")
    for _ in range(2):  # made, then found
        found = pairloom.topk(queries, pairloom.Gallery.open(path, screen=screen), 4, similarity="euclidean")
        assert torch.equal(found[0], expected[0])
        assert torch.equal(found[1], expected[1])
    assert entries(path) == (["rows.npy"] if screen is None else ["rows.npy", f"rows.npy.{screen}"])


def test_the_copy_is_made_once_and_again_for_other_rows(stored, monkeypatch):
    path, rows = stored
    pairloom.Gallery.open(path)
    made = []
    code = codes_module.code_rows
    monkeypatch.setattr(codes_module, "code_rows", lambda *arguments: made.append(1) or code(*arguments))
    pairloom.Gallery.open(path)
    assert not made
    np.save(path, rows.numpy() * 2)
    gallery = pairloom.Gallery.open(path)
    assert made == [1]
    assert torch.equal(pairloom.topk(rows[:3], gallery, 2)[1], pairloom.topk(rows[:3], 2 * rows, 2)[1])
    about = path.with_name("rows.npy.int8") / "about.json"
    for broken in ("{", "[]", json.dumps({"format": 0})):
        about.write_text(broken)
        pairloom.Gallery.open(path)
    assert made == [1] * 4


def test_interrupted_while_the_copy_is_made(stored, monkeypatch):
    path, rows = stored

    def interrupt(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(codes_module, "code_rows", interrupt)
        with pytest.raises(KeyboardInterrupt):
            pairloom.Gallery.open(path)
    assert entries(path) == ["rows.npy"]
    assert torch.equal(pairloom.topk(rows[:3], pairloom.Gallery.open(path), 1)[1].flatten(), torch.arange(3))


@pytest.mark.parametrize("screen", ["int8", "bf16"])
def test_opened_by_several_threads_at_once(stored, screen, monkeypatch):
    """None finds the half-made copy of another, or takes it away; nor do processes with one id on two machines."""
    path, rows = stored
    count, failed = 4, []
    barrier = threading.Barrier(count)
    code = codes_module.code_rows

    def together(*arguments):
        barrier.wait(30)
        return code(*arguments)

    def work():
        try:
            found = pairloom.topk(rows[:3], pairloom.Gallery.open(path, screen=screen), 2)
            assert torch.equal(found[1], pairloom.topk(rows[:3], rows, 2)[1])
        except Exception as error:
            failed.append(error)

    monkeypatch.setattr(codes_module, "code_rows", together)
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert entries(path) == ["rows.npy", f"rows.npy.{screen}"]


def test_many_copies_take_one_place(tmp_path):
    """The folder may be gone again between a refused rename and the next look at it."""
    folder, failed = tmp_path / "copy", []

    def work(name):
        try:
            for turn in range(200):
                partial = tmp_path / f"{name}.{turn}"
                partial.mkdir()
                (partial / folders_module.ABOUT).write_text(name)
                folders_module.take_place(partial, folder)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcdefgh"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert entries(folder) == ["copy"]


def test_what_a_killed_process_left_is_in_nobodys_way(stored):
    path, rows = stored
    path.with_name(f"rows.npy.int8.{os.getpid()}.partial").mkdir()  # in a container ids come again
    assert torch.equal(pairloom.topk(rows[:3], pairloom.Gallery.open(path), 1)[1].flatten(), torch.arange(3))


DAMAGE = {
    "cut": lambda file: os.truncate(file, file.stat().st_size // 2),
    "empty": lambda file: os.truncate(file, 0),
    "missing": lambda file: file.unlink(),
    "another shape": lambda file: np.save(file, np.zeros((3, 64), np.int8)),
    "another dtype": lambda file: np.save(file, np.load(file).astype(np.float64)),
    "another order": lambda file: np.save(file, np.asfortranarray(np.load(file))),
    "no array": lambda file: file.write_text("no array" * 50),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", ["codes.npy", "records.npy"])
def test_a_damaged_copy_is_made_again(stored, name, damage):
    path, rows = stored
    pairloom.Gallery.open(path)
    DAMAGE[damage](path.with_name("rows.npy.int8") / name)
    found = pairloom.topk(rows[:3], pairloom.Gallery.open(path), 2)
    assert torch.equal(found[1], pairloom.topk(rows[:3], rows, 2)[1])
    assert entries(path) == ["rows.npy", "rows.npy.int8"]


def test_other_files_where_the_copy_goes_are_left_alone(stored):
    path, _ = stored
    folder = path.with_name("rows.npy.int8")
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"notes\.txt"):
        pairloom.Gallery.open(path)
    assert (folder / "notes.txt").read_text() == "mine"
    path.with_name("rows.npy.bf16").write_text("mine")
    with pytest.raises(FileExistsError, match="is a file"):
        pairloom.Gallery.open(path, screen="bf16")
    assert path.with_name("rows.npy.bf16").read_text() == "mine"
    assert entries(path) == ["rows.npy", "rows.npy.bf16", "rows.npy.int8"]


def test_empty_files(tmp_path):
    path = tmp_path / "none.npy"
    np.save(path, np.zeros((0, 4), np.float32))
    assert pairloom.topk(torch.ones(2, 4), pairloom.Gallery.open(path), 1)[1].tolist() == [[-1], [-1]]


def test_no_matrix(tmp_path):
    np.save(tmp_path / "whole.npy", np.zeros((3, 4), np.int64))
    with pytest.raises(TypeError, match="int64"):
        pairloom.Gallery.open(tmp_path / "whole.npy")
    np.save(tmp_path / "flat.npy", np.zeros(3, np.float32))
    with pytest.raises(ValueError, match="2-D"):
        pairloom.Gallery.open(tmp_path / "flat.npy")
    (tmp_path / "text.npy").write_text("no array")
    with pytest.raises(ValueError, match=r"text\.npy"):
        pairloom.Gallery.open(tmp_path / "text.npy")
    np.savez(tmp_path / "several.npz", a=np.zeros(3))
    with pytest.raises(ValueError, match="several arrays"):
        pairloom.Gallery.open(tmp_path / "several.npz")
    with pytest.raises(FileNotFoundError):
        pairloom.Gallery.open(tmp_path / "missing.npy")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["flat.npy", "several.npz", "text.npy", "whole.npy"]


def test_memory_maps_of_the_user(stored):
    path, _ = stored
    mapped = np.load(path, mmap_mode="r")
    for array in (mapped, mapped[::2], mapped[:, ::2], mapped[::-1], mapped.astype(">f4"), mapped.T):
        expected = torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32))
        found = pairloom.topk(expected[:3], pairloom.Gallery(array), 2)
        assert torch.equal(found[1], pairloom.topk(expected[:3], expected, 2)[1])
