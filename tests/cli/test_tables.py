"""Files of the command: every format is read as what was written, results come back, and errors are one sentence."""

import csv
import tracemalloc
from itertools import pairwise

import numpy as np
import pytest

from pairloom.cli import _results
from pairloom.cli._tables import read_array, read_id_lists, read_ids, read_matrix
from tests.cli.common import table_of

MATRIX = np.random.default_rng(0).standard_normal((7, 3), np.float32)


def parquet():
    pytest.importorskip("pyarrow")
    import pyarrow.parquet

    return pyarrow


def write_table(path, columns):
    arrow = parquet()
    arrow.parquet.write_table(arrow.table(columns), path)
    return path


def lines(path, *rows):
    path.write_text("".join(f"{row}\n" for row in rows))
    return path


def test_numpy_files(tmp_path):
    np.save(tmp_path / "it.npy", MATRIX)
    np.savez(tmp_path / "it.npz", anything=MATRIX)
    mapped = read_matrix("--it", tmp_path / "it.npy")
    assert isinstance(mapped, np.memmap)
    np.testing.assert_array_equal(mapped, MATRIX)
    np.testing.assert_array_equal(read_matrix("--it", tmp_path / "it.npz"), MATRIX)


@pytest.mark.parametrize("header", [(), ("a,b,c",)])
def test_csv_of_numbers(header, tmp_path):
    path = lines(tmp_path / "it.csv", *header, *(",".join(map(str, row)) for row in MATRIX))
    np.testing.assert_array_equal(read_matrix("--it", path), MATRIX)
    assert read_matrix("--it", path).dtype == np.float32


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_parquet_of_lists_and_of_columns(dtype, tmp_path):
    matrix = MATRIX.astype(dtype)
    lists = write_table(tmp_path / "lists.parquet", {"embedding": list(matrix)})
    columns = write_table(tmp_path / "columns.parquet", {f"x{i}": matrix[:, i] for i in range(3)})
    for path in (lists, columns):
        found = read_matrix("--it", path)
        np.testing.assert_array_equal(found, matrix)
        assert found.dtype == dtype


def test_integers_in_parquet_are_numbers_too(tmp_path):
    path = write_table(tmp_path / "it.parquet", {"a": [1, 2], "b": [0.5, 1.5]})
    assert read_matrix("--it", path).tolist() == [[1, 0.5], [2, 1.5]]


def test_arrays_of_any_shape_for_encoders(tmp_path):
    np.save(tmp_path / "it.npy", np.arange(24).reshape(2, 3, 4))
    assert read_array("--it", tmp_path / "it.npy").shape == (2, 3, 4)


@pytest.mark.parametrize("written", ["id\n5\n-3\n8\n", "5\n-3\n8\n", "5\n-3\n8\n\n", "\ufeff5\r\n-3\r\n8\r\n"])
def test_ids_that_are_integers(written, tmp_path):
    (tmp_path / "it.csv").write_text(written, encoding="utf-8", newline="")
    found = read_ids("--ids", tmp_path / "it.csv", 3)
    assert (found.tolist(), found.dtype) == ([5, -3, 8], np.int64)


@pytest.mark.parametrize("ids", [["a", 'b, "c"', "ä"], ["007", "8", "9"], ["1", "2", "99999999999999999999"]])
def test_ids_that_are_strings(ids, tmp_path):
    with (tmp_path / "it.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([[one] for one in ids])
    np.save(tmp_path / "it.npy", np.array(ids))
    write_table(tmp_path / "it.parquet", {"id": ids})
    for suffix in ("csv", "npy", "parquet"):
        assert read_ids("--ids", tmp_path / f"it.{suffix}", 3).tolist() == ids


def test_lists_of_ids(tmp_path):
    wanted = [[3], [], [1, 2], [0]]
    np.save(tmp_path / "two.npy", np.array([[3, -1], [-1, -1], [1, 2], [-1, 0]]))
    paths = [
        lines(tmp_path / "commas.csv", "3", "", "1,2", "0"),
        lines(tmp_path / "spaces.csv", " 3", "", '"1 2"', "0"),
        lines(tmp_path / "header.csv", "positives", "3", "-1", "1, 2", "0"),
        tmp_path / "two.npy",
        write_table(tmp_path / "it.parquet", {"rows": [[3], None, [1, 2], [0]]}),
    ]
    for path in paths:
        indptr, indices = read_id_lists("--positives", path, 4)
        assert [indices[a:b].tolist() for a, b in pairwise(indptr)] == wanted, path
    np.save(tmp_path / "one.npy", np.array([4, -1, 2]))
    indptr, indices = read_id_lists("--positives", tmp_path / "one.npy", 3)
    assert (indptr.tolist(), indices.tolist()) == ([0, 1, 1, 2], [4, 2])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("it.txt", "1", r"--it is .*it.txt; it must be a file of .npy, .npz, .csv or .parquet"),
        ("it.npy", "no array", "cannot be read as an array"),
        ("it.npz", "no archive", "cannot be read as an array"),
        ("it.parquet", "no table", "cannot be read as Parquet"),
        ("it.csv", "", "empty"),
        ("it.csv", "1,2\n3\n", "no table of numbers"),
        ("it.csv", "1,2\n3,x\n", "no table of numbers"),
    ],
)
def test_files_that_are_no_matrix(name, content, message, tmp_path):
    if name.endswith("parquet"):
        parquet()
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        read_matrix("--it", tmp_path / name)


def test_arrays_that_are_no_matrix(tmp_path):
    arrays = {
        "integers": (np.ones((2, 2), np.int8), "holds int8"),
        "vector": (np.ones(3, np.float32), r"shape \(3,\)"),
        "text": (np.array([["a"]]), "must hold numbers"),
    }
    for name, (array, message) in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
        with pytest.raises(ValueError, match=message):
            read_matrix("--it", tmp_path / f"{name}.npy")
    np.savez(tmp_path / "two.npz", a=MATRIX, b=MATRIX)
    with pytest.raises(ValueError, match="2 arrays"):
        read_matrix("--it", tmp_path / "two.npz")
    uneven = write_table(tmp_path / "uneven.parquet", {"x": [[1.0, 2.0], [3.0]]})
    words = write_table(tmp_path / "words.parquet", {"x": ["a", "b"]})
    for path, message in ((uneven, "different lengths"), (words, "'x' of string")):
        with pytest.raises(ValueError, match=message):
            read_matrix("--it", path)


def test_ids_that_do_not_fit(tmp_path):
    path = lines(tmp_path / "it.csv", "a", "b")
    with pytest.raises(ValueError, match=r"must be \(4,\)"):
        read_ids("--ids", path, 4)
    with pytest.raises(ValueError, match="2 columns in line 2"):
        read_ids("--ids", lines(tmp_path / "two.csv", "a", "b,c"), 2)
    np.save(tmp_path / "it.npy", np.array([0.5, 1.5]))
    with pytest.raises(ValueError, match="integers or strings"):
        read_ids("--ids", tmp_path / "it.npy", 2)
    with pytest.raises(ValueError, match="2 lines; there are 4 queries"):
        read_id_lists("--exclude", path, 4)
    with pytest.raises(ValueError, match="'b' in line 2"):
        read_id_lists("--exclude", lines(tmp_path / "words.csv", "1", "b"), 2)
    with pytest.raises(ValueError, match="must be integers"):
        read_id_lists("--exclude", tmp_path / "it.npy", 2)


RESULTS = {
    "integers": np.array([[3, 1], [0, -1], [-1, -1], [2, 4]]),
    "strings": np.array([["a", "b,c"], ['"', ""], ["", ""], ["ä", "d"]], dtype=object),
}
SCORES = np.array([[0.1, 1 / 3], [2e-9, -np.inf], [-np.inf, -np.inf], [1e9, -5]], np.float32)


def write_results(path, ids):
    with _results.results(path) as write:
        write(SCORES[:1], ids[:1])
        write(SCORES[1:], ids[1:])


@pytest.mark.parametrize("ids", RESULTS.values(), ids=RESULTS)
def test_results_come_back(ids, tmp_path):
    kind = int if ids.dtype == np.int64 else str
    write_results(tmp_path / "it.npz", ids)
    with np.load(tmp_path / "it.npz") as found:
        np.testing.assert_array_equal(found["scores"], SCORES)
        assert found["ids"].tolist() == ids.tolist()
    wanted = table_of(SCORES, ids)
    write_results(tmp_path / "it.csv", ids)
    with (tmp_path / "it.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["query", "rank", "id", "score"]
    assert [(int(q), int(r), kind(i), float(np.float32(s))) for q, r, i, s in rows[1:]] == wanted
    arrow = parquet()
    write_results(tmp_path / "it.parquet", ids)
    table = arrow.parquet.read_table(tmp_path / "it.parquet")
    assert [tuple(row.values()) for row in table.to_pylist()] == wanted
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("suffix", ["npz", "csv", "parquet"])
def test_an_interruption_leaves_what_was_there(suffix, tmp_path):
    if suffix == "parquet":
        parquet()
    path = tmp_path / f"it.{suffix}"
    path.write_text("earlier")

    def interrupted():
        with _results.results(path) as write:
            write(SCORES, RESULTS["integers"])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [(path.name, "earlier")]


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_memory_does_not_grow_with_the_results(suffix, tmp_path):
    arrow = parquet() if suffix == "parquet" else None
    scores, ids = np.ones((100, 10), np.float32), np.ones((100, 10), np.int64)

    def peak(batches):
        tracemalloc.start()
        with _results.results(tmp_path / f"it.{suffix}") as write:
            for _ in range(batches):
                write(scores, ids)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    peak(1)
    assert peak(60) < 2 * peak(6)
    if arrow is not None:
        assert arrow.total_allocated_bytes() < 1e6
