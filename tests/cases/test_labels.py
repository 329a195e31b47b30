"""Cases on labels: classes without positives, 64-bit ids, duplicates in a batch, ignored rows."""

import pytest
import torch

from pairloom import InfoNCELoss, MultiSimilarityLoss
from pairloom.functional import info_nce, multi_similarity
from tests.cases.dense import cosine, info_nce_rows, multi_similarity_rows


class TestL03NoAnchorHasAPositive:
    """Labels drawn from 10^6 values: the loss says so instead of being silently 0."""

    def labels(self):
        labels = torch.randint(0, 10**6, (64,), generator=torch.Generator().manual_seed(0))
        assert len(labels.unique()) == 64
        return labels

    def test_mined_loss_is_zero_with_a_live_graph(self):
        x = torch.randn(64, 8, requires_grad=True)
        for reduction in ("mean", "mean_nonzero", "sum"):
            loss, stats = MultiSimilarityLoss(epsilon=0.1, reduction=reduction).with_stats(x, self.labels())
            (gradient,) = torch.autograd.grad(loss, x)
            assert loss.item() == 0.0
            assert not gradient.any()
            assert int(stats.anchors - stats.anchors_without_positive) == 0

    def test_unmined_loss_keeps_its_negative_term(self):
        x = torch.randn(64, 8)
        loss, stats = multi_similarity(x, self.labels(), return_stats=True)
        off = ~torch.eye(64, dtype=torch.bool)
        expected = multi_similarity_rows(cosine(x, x), ~off & False, off).mean()
        assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
        assert int(stats.anchors_without_positive) == 64
        assert stats.top1_accuracy.isnan()


class TestL04IdsAreComparedExactly:
    """-2^63, 2^53 + 1 and hashes: neighbours that float64 would merge are different classes."""

    IDS = (-(2**63), -(2**63) + 1, 2**53, 2**53 + 1, 2**63 - 2, 2**63 - 1, 0x7FEDCBA987654321, 0x7FEDCBA987654320)

    def test_distinct_ids_have_no_positives(self):
        x, ids = torch.randn(8, 4), torch.tensor(self.IDS)
        _, stats = multi_similarity(x, ids, return_stats=True)
        assert (int(stats.positives), int(stats.negatives)) == (0, 56)
        assert torch.equal(info_nce(x, x, ids=ids), info_nce(x, x))

    def test_equal_ids_are_positives(self):
        x, ids = torch.randn(16, 4), torch.tensor(self.IDS * 2)
        small = torch.arange(8).repeat(2)
        assert torch.equal(multi_similarity(x, ids), multi_similarity(x, small))
        _, stats = multi_similarity(x, ids, return_stats=True)
        assert int(stats.positives) == 16

    def test_the_smallest_id_may_be_ignored(self):
        x, ids = torch.randn(16, 4), torch.tensor(self.IDS * 2)
        loss = multi_similarity(x, ids, ignore_index=-(2**63))
        keep = ids != -(2**63)
        torch.testing.assert_close(loss, multi_similarity(x[keep], ids[keep]))


class TestL13DuplicatesInTheBatch:
    """The same caption twice: with ids it is ignored or averaged, never a negative."""

    def test_both_readings(self):
        generator = torch.Generator().manual_seed(1)
        image, text = torch.randn(6, 5, generator=generator), torch.randn(6, 5, generator=generator)
        ids = torch.tensor([0, 1, 1, 2, 3, 0])
        text[2] = text[1] + 1e-3  # dropout: nearly equal, so comparing embeddings would not find it
        same = ids.unsqueeze(1) == ids
        own = torch.eye(6, dtype=torch.bool)
        s = cosine(image, text)
        ignored = info_nce_rows(s, own, ~same, 0.1)
        averaged = info_nce_rows(s, same, ~same, 0.1)
        counted = info_nce_rows(s, own, ~own, 0.1)
        loss = InfoNCELoss(0.1, reduction="none")
        torch.testing.assert_close(loss(image, text, ids=ids).double(), ignored, rtol=1e-5, atol=1e-5)
        loss = InfoNCELoss(0.1, reduction="none", same_id="positive")
        torch.testing.assert_close(loss(image, text, ids=ids).double(), averaged, rtol=1e-5, atol=1e-5)
        assert (counted[ids == 1] > ignored[ids == 1]).all()

    def test_in_a_queue_of_negatives(self):
        generator = torch.Generator().manual_seed(2)
        image, text, queue = (torch.randn(n, 5, generator=generator) for n in (4, 4, 7))
        ids, queue_ids = torch.tensor([0, 1, 2, 3]), torch.tensor([9, 1, 8, 1, 7, 0, 6])
        _, stats = info_nce(image, text, queue, ids=ids, negative_ids=queue_ids, return_stats=True)
        assert int(stats.negatives) == 4 * 3 + 4 * 7 - 3
        _, stats = info_nce(image, text, queue, ids=ids, negative_ids=queue_ids, same_id="positive", return_stats=True)
        assert (int(stats.positives), int(stats.negatives)) == (4 + 3, 4 * 3 + 4 * 7 - 3)


class TestL15MinusHundredIsNoClass:
    """Rows of ignore_index leave numerator, denominator and mean."""

    @pytest.mark.parametrize("reduction", ["mean", "mean_nonzero", "sum"])
    def test_multi_similarity(self, reduction):
        x = torch.randn(12, 6)
        labels = torch.tensor([0, 0, 1, -100, 1, 2, -100, 2, 0, -100, 1, -100])
        keep = labels != -100
        loss = MultiSimilarityLoss(reduction=reduction)
        torch.testing.assert_close(loss(x, labels), loss(x[keep], labels[keep]))

    @pytest.mark.parametrize("reduction", ["mean", "mean_nonzero", "sum"])
    def test_info_nce(self, reduction):
        query, key = torch.randn(2, 12, 6)
        ids = torch.tensor([0, 0, 1, -100, 1, 2, -100, 2, 0, -100, 1, -100])
        keep = ids != -100
        loss = InfoNCELoss(reduction=reduction)
        torch.testing.assert_close(loss(query, key, ids=ids), loss(query[keep], key[keep], ids=ids[keep]))

    def test_as_a_class_it_would_be_something_else(self):
        x, labels = torch.randn(6, 4), torch.tensor([0, 0, -100, -100, 1, 1])
        as_class = multi_similarity(x, torch.tensor([0, 0, 5, 5, 1, 1]))
        assert torch.equal(multi_similarity(x, labels, ignore_index=None), as_class)
        assert multi_similarity(x, labels) != as_class
