"""Cases on training: queues of negatives, second derivatives, learned temperatures, statistics."""

import math

import pytest
import torch
import torch.nn.functional as F

import pairloom
from pairloom import InfoNCELoss, MultiSimilarityLoss
from pairloom.functional import info_nce


class TestL20QueueOfNegatives:
    """Rows that are not normalised, slots that are still empty, batches of odd sizes."""

    def test_length_of_queue_rows_does_not_matter(self):
        query, key, queue = torch.randn(5, 8), torch.randn(5, 8), torch.randn(11, 8)
        longer = queue * torch.logspace(-3, 3, 11).unsqueeze(1)
        torch.testing.assert_close(info_nce(query, key, longer), info_nce(query, key, queue))

    @pytest.mark.parametrize("filled", [0, 1, 10, 11])
    def test_empty_slots_are_nobodys_negatives(self, filled):
        query, key, queue = torch.randn(5, 8), torch.randn(5, 8), torch.randn(11, 8)
        ids, queue_ids = torch.arange(5), torch.arange(100, 111)
        queue_ids[filled:] = -100
        queue[filled:] = torch.randn(11 - filled, 8) * 1e6  # whatever an unwritten slot holds
        masked = info_nce(query, key, queue, ids=ids, negative_ids=queue_ids)
        shorter = info_nce(query, key, queue[:filled], ids=ids, negative_ids=queue_ids[:filled])
        torch.testing.assert_close(masked, shorter)

    def test_queue_rows_without_gradient_get_none(self):
        query, queue = torch.randn(5, 8, requires_grad=True), torch.randn(11, 8)
        info_nce(query, query.detach(), queue).backward()
        assert queue.grad is None
        assert query.grad.any()


class TestL23SecondDerivative:
    """Right, or a clear error; never silently zero."""

    @pytest.mark.parametrize("similarity", ["euclidean", "squared_euclidean", "cosine", "dot"])
    def test_of_distances(self, similarity):
        a, b = (torch.randn(4, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))

        def function(a, b):
            return pairloom.pairwise_similarity(a, b, similarity=similarity).exp().sum()

        assert torch.autograd.gradgradcheck(function, (a, b))
        top = pairloom.topk(a, b, 2, similarity=similarity)[0].exp().sum()
        (gradient,) = torch.autograd.grad(top, a, create_graph=True)
        (second,) = torch.autograd.grad(gradient.sum(), a)
        assert second.any()

    def test_of_a_loss_in_a_gradient_penalty(self):
        x = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
        labels = torch.arange(6) // 2

        def penalty(x):
            (gradient,) = torch.autograd.grad(MultiSimilarityLoss()(x, labels), x, create_graph=True)
            return gradient.square().sum()

        assert torch.autograd.gradcheck(penalty, (x,))

    @pytest.mark.parametrize("loss", [MultiSimilarityLoss(), InfoNCELoss()], ids=["multi_similarity", "info_nce"])
    def test_under_compile_torch_refuses(self, loss):
        """As for every compiled function; a penalty without its second derivative would be silently wrong."""
        torch._dynamo.reset()
        x, other = torch.randn(6, 4, requires_grad=True), torch.arange(6) // 2
        other = torch.randn(6, 4) if isinstance(loss, InfoNCELoss) else other
        value = torch.compile(loss, fullgraph=True, backend="aot_eager")(x, other)
        (gradient,) = torch.autograd.grad(value, x, create_graph=True)
        with pytest.raises(RuntimeError, match="double backward"):
            (value + gradient.square().sum()).backward()


class TestL26LearnedTemperature:
    """The temperature always gets a gradient, zero when nothing depends on it; it is a number, 0-d, or one per row."""

    @pytest.mark.parametrize("rows", [0, 1, 5])
    def test_the_scale_is_never_unused(self, rows):
        loss = InfoNCELoss(0.1, learn_temperature=True)
        x = torch.randn(rows, 4, requires_grad=True)
        loss(x, torch.randn(rows, 4)).backward()
        assert loss.log_scale.grad is not None
        assert loss.log_scale.grad.isfinite()
        assert bool(loss.log_scale.grad) == (rows > 1)

    def test_frozen_embeddings(self):
        loss = InfoNCELoss(0.1, learn_temperature=True)
        loss(torch.randn(5, 4), torch.randn(5, 4)).backward()
        assert loss.log_scale.grad.item() != 0.0

    def test_number_scalar_and_row_agree(self):
        query, key = torch.randn(2, 5, 4, dtype=torch.float64)
        logits = F.normalize(query) @ F.normalize(key).T
        rows = torch.linspace(0.1, 1.0, 5, dtype=torch.float64, requires_grad=True)
        loss = info_nce(query, key, temperature=rows)
        expected = F.cross_entropy(logits / rows.unsqueeze(1), torch.arange(5))
        torch.testing.assert_close(loss, expected)
        torch.testing.assert_close(torch.autograd.grad(loss, rows), torch.autograd.grad(expected, rows))
        scalar = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
        loss = info_nce(query, key, temperature=scalar)
        expected = F.cross_entropy(logits / scalar, torch.arange(5))
        torch.testing.assert_close(torch.autograd.grad(loss, scalar), torch.autograd.grad(expected, scalar))
        assert loss.item() == info_nce(query, key, temperature=0.3).item()


class TestL27HowManyNegativesWereThere:
    """Statistics of the same pass: pairs, anchors without positive, top-1 accuracy, mean similarities."""

    def test_multi_similarity(self):
        angles = torch.tensor([0.0, 10.0, 90.0, 100.0, 200.0]) * math.pi / 180
        x = torch.stack([angles.cos(), angles.sin()], dim=1)
        _, stats = MultiSimilarityLoss().with_stats(x, torch.tensor([0, 0, 1, 1, 2]))
        assert (int(stats.anchors), int(stats.positives), int(stats.negatives)) == (5, 4, 16)
        assert int(stats.anchors_without_positive) == 1
        assert int(stats.anchors_without_negative) == 0
        assert stats.top1_accuracy.item() == 1.0
        assert stats.mean_positive_similarity.item() == pytest.approx(math.cos(math.radians(10)), abs=1e-6)

    def test_info_nce_with_ids_and_a_queue(self):
        ids, queue_ids = torch.tensor([0, 0, 1]), torch.tensor([0, 5])
        query, key, queue = torch.randn(3, 4), torch.randn(3, 4), torch.randn(2, 4)
        _, stats = InfoNCELoss().with_stats(query, key, queue, ids, queue_ids)
        # Rows 0 and 1 share an id with each other and with the first queue row: left out.
        assert (int(stats.positives), int(stats.negatives)) == (3, 2 + 2 + 4)
        _, stats = InfoNCELoss(same_id="positive").with_stats(query, key, queue, ids, queue_ids)
        assert (int(stats.positives), int(stats.negatives)) == (3 + 3 + 1, 2 + 2 + 4)

    def test_gradients_flow_beside_them(self):
        x = torch.randn(4, 3, requires_grad=True)
        loss, stats = InfoNCELoss().with_stats(x, torch.randn(4, 3))
        loss.backward()
        assert x.grad.any()
        assert not any(value.requires_grad for value in stats)
