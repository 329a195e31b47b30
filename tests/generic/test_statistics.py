"""Statistics equal a count pair by pair in Python loops for the losses known here, and those of the reference."""

import pytest
import torch

from pairloom.testing import isa_levels, using_isa
from tests.generic.common import pair_losses, some_samples


def naive_info_nce(a):
    """Positives, negatives of row i, and whether it counts, as Python lists."""
    rows, columns = len(a["rows"]), len(a["columns"])
    row_labels = None if a["row_labels"] is None else a["row_labels"].tolist()
    known = [] if a["column_labels"] is None else a["column_labels"].tolist()
    for i in range(rows):
        positives, negatives = [], []
        for j in range(columns):
            label = known[j] if j < len(known) else None
            same = label is not None and row_labels is not None and label == row_labels[i]
            if label is not None and label == a["ignore_index"]:
                continue
            if j == i or (same and a["same_id"] == "positive"):
                positives.append(j)
            elif not same:
                negatives.append(j)
        yield positives, negatives, row_labels is None or row_labels[i] != a["ignore_index"]


def naive_labelled(a):
    one_batch = a["columns"] is None
    row_labels = a["row_labels"].tolist()
    column_labels = row_labels if one_batch else a["column_labels"].tolist()
    for i, own in enumerate(row_labels):
        pairs = [
            j
            for j, label in enumerate(column_labels)
            if not (one_batch and i == j) and not (a["ignore_index"] is not None and label == a["ignore_index"])
        ]
        positives = [j for j in pairs if column_labels[j] == own]
        yield positives, [j for j in pairs if column_labels[j] != own], own != a["ignore_index"]


PAIRS = {record.values[0].name: naive_labelled for record in pair_losses()} | {
    "info_nce": naive_info_nce,
    "clip": naive_info_nce,
}


def naive_similarity(x, y, similarity):
    if similarity in ("euclidean", "squared_euclidean"):
        return -float((x - y).norm() ** (1 if similarity == "euclidean" else 2))
    if similarity == "cosine":
        x, y = x / max(x.norm(), 1e-12), y / max(y.norm(), 1e-12)
    return float(x @ y)


def naive_statistics(record, arguments, row_losses):
    """The vector that `PairStats` names, before its ratios, counted pair by pair in Python."""
    rows = arguments["rows"].double()
    columns = rows if arguments["columns"] is None else arguments["columns"].double()
    epsilon = arguments.get("epsilon")
    total = [0.0] * 11
    for i, (positives, negatives, counts) in enumerate(PAIRS[record.name](arguments)):
        if not counts:
            continue
        s = {j: naive_similarity(rows[i], columns[j], arguments["similarity"]) for j in (*positives, *negatives)}
        mined_positives, mined_negatives = positives, negatives
        if epsilon is not None:
            hardest_positive = min((s[j] for j in positives), default=float("inf"))
            hardest_negative = max((s[j] for j in negatives), default=-float("inf"))
            mined_negatives = [j for j in negatives if positives and s[j] + epsilon > hardest_positive]
            mined_positives = [j for j in positives if negatives and s[j] - epsilon < hardest_negative]
        best = [max((s[j] for j in kind), default=-float("inf")) for kind in (positives, negatives)]
        row = [1, len(positives), len(negatives), len(mined_positives), len(mined_negatives)]
        row += [not positives, not negatives, best[0] > best[1]]
        row += [sum(s[j] for j in positives), sum(s[j] for j in negatives), float(row_losses[i]) > 0]
        total = [a + float(b) for a, b in zip(total, row, strict=True)]
    return torch.tensor(total, dtype=torch.float64)


def naive_both_ways(record, arguments):
    """Of clip: the statistics of its two InfoNCE losses, added."""
    a = {**arguments, "column_labels": arguments["row_labels"]}
    total = torch.zeros(11, dtype=torch.float64)
    for there in (a, {**a, "rows": a["columns"], "columns": a["rows"]}):
        losses = torch.ops.pairloom.info_nce(
            there["rows"], there["columns"], there["temperature"], there["row_labels"], there["column_labels"], None,
            there["similarity"], "none", there["same_id"], there["ignore_index"], 0, False,
        )[0]  # fmt: skip
        total += naive_statistics(record, there, losses)
    return total


def with_stats(record, sample):
    """Arguments of the operator by name, and its statistics."""
    arguments = dict(zip(record.argument_names, record.op_arguments(sample), strict=True)) | {"want_stats": True}
    return arguments, record.op(*arguments.values())[1]


@pytest.mark.parametrize("record", pair_losses())
def test_equal_a_count_pair_by_pair(record):
    assert record.name in PAIRS, "say in PAIRS which pairs of this loss are positive and negative"
    for sample in some_samples(record, shape=(23, 18, 6), dtype=torch.float64, seed=1):
        arguments, stats = with_stats(record, sample)
        if record.name == "clip":
            expected = naive_both_ways(record, arguments)
        else:
            unweighted = {**arguments, "weights": None, "reduction": "none"}
            expected = naive_statistics(record, arguments, record.op(*unweighted.values())[0])
        torch.testing.assert_close(stats[:11], expected, msg=sample.name)


@pytest.mark.parametrize("level", isa_levels())
@pytest.mark.parametrize("record", pair_losses())
def test_equal_the_reference_on_every_level(record, level):
    for shape in ((7, 10, 5), (70, 260, 9), (300, 33, 4)):
        for sample in some_samples(record, shape=shape, dtype=torch.float32, seed=2):
            arguments, _ = with_stats(record, sample)
            with using_isa(level):
                stats = record.op(*arguments.values())[1]
            wide = [
                value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
                for value in arguments.values()
            ]
            expected = record.reference(*record.reference_arguments(tuple(wide)))[1]
            assert torch.equal(stats[:8], expected[:8]), sample.name
            # Sums of similarities in [-1, 1] (or of dot products): relative to the number of pairs.
            pairs = expected[1:3].clamp(min=1)
            scale = expected[8:10].abs().clamp(min=1).maximum(pairs)
            assert ((stats[8:10] - expected[8:10]).abs() / scale < 1e-5).all(), sample.name
            # A float32 loss may round to 0.
            assert stats[10] <= expected[10]


@pytest.mark.parametrize("record", pair_losses())
def test_not_asked_for_they_are_zeros(record):
    for sample in some_samples(record):
        arguments = record.op_arguments(sample)
        assert not record.op(*arguments)[1].any()
