"""Galleries of int8 alone: exact integer arithmetic, the same on every processor."""

import pytest
import torch
import torch.nn.functional as F

import pairloom
from pairloom.testing import isa_levels, using_isa, using_threads


def coded(x):
    """Codes and scales by the documented rule; halves away from zero."""
    scale = x.abs().amax(dim=1) / 127
    steps = x * torch.where(scale < 1e-30, 0.0, 1 / scale).unsqueeze(1)
    return torch.trunc(steps + 0.5 * steps.sign()), torch.where(scale < 1e-30, 0.0, scale)


def by_sorting(queries, rows, k, similarity, exclude):
    codes, scales = coded(rows)
    if similarity == "cosine":
        queries = F.normalize(queries)
        scales = scales * torch.where(rows.norm(dim=1) < 1e-12, 0.0, 1 / rows.double().norm(dim=1)).float()
    of_queries, query_scales = coded(queries)
    products = (of_queries.double() @ codes.double().T).float()
    scores = products * (query_scales.unsqueeze(1) * scales)
    for q, ids in enumerate(exclude):
        scores[q, ids] = -torch.inf
    values, indices = torch.sort(scores, dim=1, descending=True, stable=True)
    return values[:, :k], torch.where(values[:, :k] > -torch.inf, indices[:, :k], -1)


@pytest.mark.parametrize("level", isa_levels())
@pytest.mark.parametrize("similarity", ["dot", "cosine"])
@pytest.mark.parametrize("sizes", [(1, 1000, 5), (7, 333, 64), (40, 129, 65), (300, 700, 20), (2, 3, 1)], ids=str)
def test_equals_sorting(sizes, similarity, level):
    q, m, d = sizes
    torch.manual_seed(q)
    if similarity == "dot":  # with many ties
        rows, queries = torch.randint(-20, 21, (m, d)).float(), torch.randint(-20, 21, (q, d)).float()
    else:
        rows, queries = torch.randn(m, d), torch.randn(q, d)
    rows[m // 2] = 0
    exclude = [torch.randperm(m)[: m // 3].tolist() for _ in range(q)]
    k = min(11, m)
    expected = by_sorting(queries, rows, k, similarity, exclude)
    for threads in (1, 3):
        with using_isa(level), using_threads(threads):
            scores, ids = pairloom.topk(queries, pairloom.Int8Gallery(rows), k, similarity=similarity, exclude=exclude)
        if similarity == "dot":  # the norms of queries may differ by a rounding between torch and the kernel
            assert torch.equal(scores, expected[0])
            assert torch.equal(ids, expected[1])
        torch.testing.assert_close(scores, expected[0], rtol=2e-6, atol=1e-6)


def test_every_level_gives_the_same_bits():
    torch.manual_seed(0)
    gallery, queries = pairloom.Int8Gallery(torch.randn(3000, 100)), torch.randn(50, 100)
    answers = []
    for level in isa_levels():
        with using_isa(level):
            answers.append(pairloom.topk(queries, gallery, 20, similarity="dot"))
    for scores, ids in answers[1:]:
        assert torch.equal(scores, answers[0][0])
        assert torch.equal(ids, answers[0][1])


def test_close_to_the_exact_scores():
    torch.manual_seed(0)
    rows, queries = torch.randn(2000, 256), torch.randn(10, 256)
    gallery = pairloom.Int8Gallery(rows)
    scores, ids = pairloom.topk(queries, gallery, 10)
    exact = (F.normalize(queries) @ F.normalize(rows).T).gather(1, ids)
    torch.testing.assert_close(scores, exact, rtol=0, atol=5e-3)
    assert gallery.codes.shape == (2000, 256)
    assert gallery.codes.dtype == torch.int8
    torch.testing.assert_close(gallery.codes * gallery.scales[:, None], rows, rtol=0, atol=0.02)


def test_rows_without_codes_are_never_returned():
    rows = torch.eye(5, 6)
    rows[0, 0], rows[1, 1], rows[2, 2] = torch.nan, torch.inf, 1e20
    _, ids = pairloom.topk(torch.ones(1, 6), pairloom.Int8Gallery(rows), 5, similarity="dot")
    assert ids.tolist() == [[3, 4, -1, -1, -1]]
    assert pairloom.topk(torch.full((1, 6), torch.nan), pairloom.Int8Gallery(rows), 2)[1].tolist() == [[-1, -1]]


@pytest.mark.parametrize("m", [0, 1])
def test_small_and_empty(m):
    _, ids = pairloom.topk(torch.ones(2, 3), pairloom.Int8Gallery(torch.ones(m, 3)), 2)
    assert ids.tolist() == [[0, -1] if m else [-1, -1]] * 2
    assert pairloom.topk(torch.ones(0, 3), pairloom.Int8Gallery(torch.ones(m, 3)), 2)[1].shape == (0, 2)
    assert pairloom.topk(torch.ones(2, 3), pairloom.Int8Gallery(torch.ones(m, 3)), 0)[1].shape == (2, 0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_other_dtypes(dtype):
    torch.manual_seed(0)
    rows, queries = torch.randn(50, 9).to(dtype), torch.randn(4, 9).to(dtype)
    scores, ids = pairloom.topk(queries, pairloom.Int8Gallery(rows), 3)
    assert scores.dtype == torch.float32
    expected = pairloom.topk(queries.float(), pairloom.Int8Gallery(rows.float()), 3)
    assert torch.equal(ids, expected[1])


def test_codes_do_not_depend_on_the_level():
    """Numbers in the middle between two steps too, where a fused rounding would choose the other one."""
    torch.manual_seed(0)
    rows = torch.randn(20000, 128)
    rows[:5000] = (torch.randint(-126, 126, (5000, 128)) + 0.5) * torch.rand(5000, 1)
    codes = []
    for level in isa_levels():
        with using_isa(level):
            codes.append(torch.ops.pairloom.code_rows(rows, "int8")[0])
    assert all(torch.equal(found, codes[0]) for found in codes[1:])
