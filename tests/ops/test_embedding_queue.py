"""The queue holds exactly the last rows, is left out of losses where it is empty, and resumes with the same bits."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import pairloom
from pairloom import EmbeddingQueue
from pairloom.functional import moco


@settings(max_examples=100, deadline=None, derandomize=True)
@given(size=st.integers(1, 9), batches=st.lists(st.integers(0, 20), max_size=8))
def test_equals_a_list_of_slots(size, batches):
    queue = EmbeddingQueue(size, 2, dtype=torch.float64)
    slots, labels, total = torch.zeros(size, 2, dtype=torch.float64), [-100] * size, 0
    for count in batches:
        rows = torch.arange(total, total + count, dtype=torch.float64).unsqueeze(1).expand(count, 2) + 1
        queue.enqueue(rows, torch.arange(total, total + count))
        for number in range(total, total + count):
            slots[number % size], labels[number % size] = number + 1.0, number
        total += count
        assert torch.equal(queue.embeddings, slots)
        assert queue.labels.tolist() == labels
        assert len(queue) == min(total, size)
        assert [len(part) for part in queue.filled()] == [len(queue)] * 2
    queue.clear()
    assert len(queue) == 0
    assert (queue.labels == -100).all()


@pytest.mark.parametrize(
    "loss", ["ContrastiveLoss", "SupConLoss", "MultiSimilarityLoss", "TripletMarginLoss", "NTXentLoss", "CircleLoss"]
)
def test_cross_batch_memory_for_every_loss(loss):
    """Empty slots change nothing: the loss is that against what was put in; no gradient reaches the queue."""
    torch.manual_seed(0)
    module, queue = getattr(pairloom, loss)(), EmbeddingQueue(50, 6)
    before, known = torch.randn(20, 6, requires_grad=True), torch.arange(20) % 5
    queue.enqueue(before, known)
    x, labels = torch.randn(12, 6, requires_grad=True), torch.arange(12) % 5
    value = module(x, labels, ref_emb=queue.embeddings, ref_labels=queue.labels)
    wanted = module(x, labels, ref_emb=before.detach(), ref_labels=known)
    torch.testing.assert_close(value, wanted)
    value.backward()
    assert x.grad.any()
    assert before.grad is None
    first, names = queue.filled()
    torch.testing.assert_close(module(x, labels, ref_emb=first, ref_labels=names), wanted)


def train(encoder, slow, queue, optimizer, batches):
    """MoCo, with a momentum encoder."""
    losses = []
    for x in batches:
        with torch.no_grad():
            for kept, new in zip(slow.parameters(), encoder.parameters(), strict=True):
                kept.lerp_(new, 0.01)
            key = slow(x)
        loss = moco(encoder(x), key, queue.filled()[0], temperature=0.2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        queue.enqueue(key)
        losses.append(loss.item())
    return losses


def test_a_resumed_training_has_the_same_bits():
    torch.manual_seed(1)
    batches = torch.randn(8, 16, 10).unbind()
    encoder = torch.nn.Linear(10, 6)
    slow, queue = copy.deepcopy(encoder), EmbeddingQueue(40, 6, with_labels=False)
    queue.enqueue(torch.randn(5, 6))
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1)
    train(encoder, slow, queue, optimizer, batches[:4])
    saved = copy.deepcopy([part.state_dict() for part in (encoder, slow, queue, optimizer)])
    wanted = train(encoder, slow, queue, optimizer, batches[4:])

    encoder = torch.nn.Linear(10, 6)
    slow, queue = torch.nn.Linear(10, 6), EmbeddingQueue(40, 6, with_labels=False)
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1)
    for part, state in zip((encoder, slow, queue, optimizer), saved, strict=True):
        part.load_state_dict(state)
    assert train(encoder, slow, queue, optimizer, batches[4:]) == wanted
    assert len(queue) == 40


def test_half_precision_64_bit_ids_and_devices():
    queue = EmbeddingQueue(4, 3, dtype=torch.bfloat16).to("cpu")
    queue.enqueue(torch.randn(2, 3, dtype=torch.float64), torch.tensor([2**63 - 1, -(2**63)]))
    assert queue.embeddings.dtype == torch.bfloat16
    assert queue.labels[:2].tolist() == [2**63 - 1, -(2**63)]
    assert EmbeddingQueue(4, 3).to("meta").labels.device.type == "meta"
    assert "size=4, dim=3" in repr(queue)


def test_what_is_refused_changes_nothing():
    queue = EmbeddingQueue(4, 3)
    state = copy.deepcopy(queue.state_dict())
    x, labels = torch.randn(2, 3), torch.tensor([0, 1])
    for arguments, error, words in [
        ((torch.randn(2, 5), labels), ValueError, r"embeddings has shape \(2, 5\); its second size must be 3"),
        ((x, None), ValueError, "labels is None; this queue takes labels of all embeddings"),
        ((x, labels.float()), TypeError, "float32"),
        ((x, labels[:1]), ValueError, "labels"),
        ((x.long(), labels), TypeError, "int64"),
        ((x.tolist(), labels), TypeError, "list"),
    ]:
        with pytest.raises(error, match=words):
            queue.enqueue(*arguments)
    assert all(torch.equal(state[name], value) for name, value in queue.state_dict().items())
    with pytest.raises(ValueError, match="labels is given; this queue takes no labels"):
        EmbeddingQueue(4, 3, with_labels=False).enqueue(x, labels)
    for size, error in ((0, ValueError), (-1, ValueError), (2.5, TypeError), (True, TypeError)):
        with pytest.raises(error, match="size is"):
            EmbeddingQueue(size, 3)
        with pytest.raises(error, match="dim is"):
            EmbeddingQueue(3, size)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(size=st.integers(1, 6), masks=st.lists(st.lists(st.booleans(), max_size=9), max_size=6))
def test_ids_and_masked_rows(size, masks):
    """Rows that the mask leaves out were never there."""
    queue, plain = (EmbeddingQueue(size, 3, with_labels=False, with_ids=True) for _ in range(2))
    for number, mask in enumerate(masks):
        rows = torch.randn(len(mask), 3, generator=torch.Generator().manual_seed(number))
        ids, mask = torch.arange(len(mask)) + 100 * number, torch.tensor(mask, dtype=torch.bool)
        queue.enqueue(rows, ids=ids, mask=mask)
        plain.enqueue(rows[mask], ids=ids[mask])
        for name, buffer in queue.state_dict().items():
            assert torch.equal(buffer, plain.state_dict()[name])
    assert (queue.ids[len(queue) :] == -1).all()
    queue.clear()
    assert (queue.ids == -1).all()


def test_ids_of_queries_leave_their_own_keys_out():
    """A key of the same sample, still in the queue, is no negative."""
    torch.manual_seed(0)
    queue = EmbeddingQueue(8, 4, with_labels=False, with_ids=True)
    keys = torch.randn(6, 4)
    queue.enqueue(keys, ids=torch.arange(6))
    query, filled = torch.randn(3, 4), slice(len(queue))
    info_nce = pairloom.functional.info_nce
    loss = info_nce(
        query, query, queue.embeddings[filled], ids=torch.tensor([2, 3, 9]), negative_ids=queue.ids[filled],
        reduction="none",
    )  # fmt: skip
    for row, own in enumerate((2, 3, None)):
        others = torch.cat([query[:row], query[row + 1 :], keys[[j for j in range(6) if j != own]]])
        one = query[row : row + 1]
        torch.testing.assert_close(loss[row], info_nce(one, one, others))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda q, x: q.enqueue(x), "ids is None"),
        (lambda q, x: EmbeddingQueue(4, 3, with_labels=False).enqueue(x, ids=torch.arange(2)), "ids is given"),
        (lambda q, x: q.enqueue(x, ids=torch.arange(2), mask=torch.ones(2)), "mask is float32"),
        (lambda q, x: q.enqueue(x, ids=torch.arange(2), mask=torch.ones(3, dtype=torch.bool)), r"mask is bool \(3,\)"),
        (lambda q, x: q.enqueue(x, ids=torch.arange(3)), "ids has shape"),
    ],
)
def test_ids_and_masks_that_do_not_fit(call, words):
    queue = EmbeddingQueue(4, 3, with_labels=False, with_ids=True)
    with pytest.raises(ValueError, match=words):
        call(queue, torch.randn(2, 3))
    assert len(queue) == 0
