"""Cases on numbers: half precision, overflow, zero rows, padding, equal rows, satisfied margins."""

import math

import pytest
import torch
import torch.nn.functional as F

import pairloom
from pairloom import InfoNCELoss, MultiSimilarityLoss
from pairloom.functional import info_nce, multi_similarity
from pairloom.testing import isa_levels, using_isa
from tests.cases.dense import cosine, multi_similarity_rows

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


class TestL05EveryPairIsSatisfied:
    """Nothing left to learn is exactly 0 with zero gradient, whatever the reduction."""

    @pytest.mark.parametrize("reduction", ["mean", "mean_all", "mean_nonzero", "sum"])
    def test_mined(self, reduction):
        x = torch.eye(4).repeat_interleave(3, 0).requires_grad_()  # equal within a class, orthogonal between classes
        labels = torch.arange(4).repeat_interleave(3)
        loss = MultiSimilarityLoss(epsilon=0.1, reduction=reduction)(x, labels)
        loss.backward()
        assert loss.item() == 0.0
        assert x.grad is not None
        assert not x.grad.any()

    @pytest.mark.parametrize("reduction", ["mean", "mean_all", "mean_nonzero", "sum"])
    def test_exponentials_that_are_zero(self, reduction):
        x = torch.eye(4, requires_grad=True)
        loss = InfoNCELoss(1e-3, reduction=reduction)(x, x.detach())
        loss.backward()
        assert loss.item() == 0.0
        assert not x.grad.any()


class TestL07LowTemperatureInHalfPrecision:
    """Similarity 1 at temperature 0.07 is a logit of 14: e^14 does not fit float16 unshifted."""

    @pytest.mark.parametrize("temperature", [0.07, 0.01, 1e-3])
    @pytest.mark.parametrize("dtype", FLOATS, ids=str)
    def test_equal_rows(self, dtype, temperature):
        x = torch.ones(5, 16, dtype=dtype, requires_grad=True)
        loss = info_nce(x, x.detach(), temperature=temperature)
        loss.backward()
        assert loss.item() == pytest.approx(math.log(5), rel=1e-5)
        assert x.grad.isfinite().all()

    @pytest.mark.parametrize("dtype", FLOATS, ids=str)
    def test_the_wrong_key_by_a_thousand(self, dtype):
        x = torch.eye(4, dtype=dtype, requires_grad=True)
        loss = info_nce(x, x.detach().roll(1, 0), temperature=1e-3)
        loss.backward()
        assert loss.item() == pytest.approx(1000.0, rel=1e-4)
        assert x.grad.isfinite().all()


class TestL08MixedDtypes:
    """A query in bfloat16 against references in float32: works, and each gradient has the dtype of its input."""

    @pytest.mark.parametrize("left", FLOATS, ids=str)
    @pytest.mark.parametrize("right", FLOATS, ids=str)
    def test_every_pair_of_dtypes(self, left, right):
        generator = torch.Generator().manual_seed(0)
        a = torch.randn(6, 8, generator=generator).to(left).requires_grad_()
        b = torch.randn(6, 8, generator=generator).to(right).requires_grad_()
        labels = torch.arange(6) // 2
        wide = torch.float64 if torch.float64 in (left, right) else torch.float32
        results = [
            info_nce(a, b),
            multi_similarity(a, labels, b, labels),
            pairloom.topk(a, b, 3)[0].sum(),
            *(pairloom.pairwise_similarity(a, b, similarity=s).sum() for s in ("cosine", "euclidean")),
        ]
        exact = [
            info_nce(a.double(), b.double()),
            multi_similarity(a.double(), labels, b.double(), labels),
            pairloom.topk(a.double(), b.double(), 3)[0].sum(),
            *(
                pairloom.pairwise_similarity(a.double(), b.double(), similarity=s).sum()
                for s in ("cosine", "euclidean")
            ),
        ]
        for value, wanted in zip(results, exact, strict=True):
            assert value.dtype == wide
            assert value.item() == pytest.approx(wanted.item(), rel=1e-5, abs=1e-5)
            for x, gradient, right_gradient in zip(
                (a, b), torch.autograd.grad(value, (a, b)), torch.autograd.grad(wanted, (a, b)), strict=True
            ):
                assert gradient.dtype == x.dtype
                torch.testing.assert_close(
                    gradient, right_gradient, rtol=2e-2, atol=1e-2 if x.dtype.itemsize == 2 else 1e-4
                )


class TestL09RowsWithoutDirection:
    """A zero row, and one whose squares overflow float16."""

    @pytest.mark.parametrize("dtype", FLOATS, ids=str)
    def test_zero_row(self, dtype):
        zero, other = torch.zeros(1, 4, dtype=dtype, requires_grad=True), torch.eye(4, dtype=dtype)
        assert not pairloom.pairwise_similarity(zero, other).any()
        loss = info_nce(torch.cat([zero, other[:1]]), other[:2])
        loss.backward()
        assert loss.isfinite()
        assert not zero.grad.any()
        labels = torch.tensor([0, 0])
        multi_similarity(torch.cat([zero, other[:1]]), labels).backward()
        assert not zero.grad.any()

    @pytest.mark.parametrize("dtype", FLOATS, ids=str)
    def test_long_rows(self, dtype):
        long = 300 * torch.ones(1, 4, dtype=dtype)
        assert pairloom.pairwise_similarity(long, torch.ones(1, 4, dtype=dtype)).item() == pytest.approx(1.0)

    @pytest.mark.parametrize("scale", [1e-18, 1e-11, 1e15, 1e18, 3e37])
    def test_rows_of_any_length_in_float32(self, scale):
        x = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
        expected = cosine(x, x) if scale > 1e-12 else torch.zeros(5, 5, dtype=torch.float64)
        similarity = pairloom.pairwise_similarity(x * scale, x)
        torch.testing.assert_close(similarity.double(), expected, rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize("scale", [1e-200, 1e-11, 1e150, 1e200, 1e300])
    def test_rows_of_any_length_in_float64(self, scale):
        x = torch.randn(5, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        expected = cosine(x, x) if scale > 1e-12 else torch.zeros(5, 5, dtype=torch.float64)
        torch.testing.assert_close(pairloom.pairwise_similarity(x * scale, x), expected)


class TestL10OneIdenticalPairAtLogit100:
    """log(sum(exp)) of [100, 0, 0, ...] unshifted is inf in float32, and so is a merge of two blocks of it."""

    @pytest.mark.parametrize("place", [0, 5, 255, 256, 511, 512, 1023])
    def test_wherever_the_identical_pair_stands(self, place):
        torch.manual_seed(0)
        negatives = F.normalize(torch.randn(1024, 64), dim=1) * 0.01
        query = F.normalize(torch.randn(1, 64), dim=1)
        negatives[place] = query[0]
        for scale in (100.0, 1000.0):
            loss = info_nce(query, torch.zeros(1, 64), negatives, temperature=1 / scale, similarity="dot")
            assert loss.item() == pytest.approx(scale, rel=1e-5)
            positive = info_nce(query, query, negatives, temperature=1 / scale, similarity="dot")
            assert positive.item() == pytest.approx(math.log(2), rel=1e-4)


class TestL11PaddingTakesPartInNothing:
    """All logits very negative and sizes that fill no tile: a padded 0 would win every maximum and swamp every sum."""

    @pytest.mark.parametrize("level", isa_levels())
    @pytest.mark.parametrize(("n", "m", "d"), [(1, 1, 1), (3, 5, 3), (7, 17, 5), (6, 33, 17), (13, 65, 31)])
    def test_all_similarities_negative(self, level, n, m, d):
        rows, columns = torch.ones(n, d), -torch.ones(n + m, d)
        with using_isa(level):
            loss = info_nce(rows, columns[:n], columns[n:], temperature=1e-2)
            assert loss.item() == pytest.approx(math.log(n + m), rel=1e-4)
            scores, indices = pairloom.topk(rows, columns, n + m + 2)
            assert torch.equal(indices[0], torch.tensor([*range(n + m), -1, -1]))
            assert (scores[:, : n + m] < -0.999).all()
            labels, others = torch.zeros(n, dtype=torch.long), torch.ones(n + m, dtype=torch.long)
            s = cosine(rows, columns)
            expected = multi_similarity_rows(s, torch.zeros_like(s).bool(), torch.ones_like(s).bool()).mean()
            loss, stats = multi_similarity(rows, labels, columns, others, return_stats=True)
            assert loss.item() == pytest.approx(expected.item(), rel=1e-4, abs=1e-12)
            assert int(stats.negatives) == n * (n + m)


class TestL16HugeMarginsDoNotOverflow:
    """log(1 + e^x) at x = 1000 and beyond."""

    @pytest.mark.parametrize("base", [-1000.0, 1000.0, -1e6, 1e6])
    def test_multi_similarity(self, base):
        x = torch.randn(6, 4, requires_grad=True)
        loss = multi_similarity(x, torch.arange(6) // 2, base=base)
        loss.backward()
        # alpha (base - s) or beta (s - base) is all there is: their 1/alpha and 1/beta cancel.
        assert loss.item() == pytest.approx(abs(base), rel=1e-2)
        assert x.grad.isfinite().all()

    @pytest.mark.parametrize(("alpha", "beta"), [(1e4, 1e4), (1e-4, 1e-4), (1e6, 1e-6), (1e-6, 1e6)])
    def test_steepness(self, alpha, beta):
        x = torch.randn(6, 4, requires_grad=True)
        loss = multi_similarity(x, torch.arange(6) // 2, alpha=alpha, beta=beta)
        loss.backward()
        assert loss.isfinite()
        assert x.grad.isfinite().all()
