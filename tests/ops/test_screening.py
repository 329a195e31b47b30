"""Screened top-k: bit for bit the answers without a screen, on inputs built to break the bound too."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

import pairloom
from pairloom.testing import isa_levels, using_isa, using_threads

SCREENS = ["int8", "bf16"]
SIMILARITIES = ["cosine", "dot", "euclidean", "squared_euclidean"]


def assert_equal_bits(queries, rows, k, *, screen="int8", similarity="dot", exclude=None):
    """Returns how many rows were scored in full."""
    expected = pairloom.topk(queries, rows, k, similarity=similarity, exclude=exclude)
    gallery = pairloom.Gallery(rows, screen=screen)
    scores, ids, stats = pairloom.topk(queries, gallery, k, similarity=similarity, exclude=exclude, return_stats=True)
    assert torch.equal(ids, expected[1])
    assert torch.equal(scores, expected[0])
    assert stats.rescored.shape == (len(queries),)
    return stats.rescored


def spoilt(rows, kind, generator):
    """Rows that make bounds, ties or arithmetic difficult."""
    m, d = rows.shape
    if kind == "integers":
        return (3 * rows).round()
    if kind == "duplicates":
        return rows[torch.randint(0, max(m // 3, 1), (m,), generator=generator)] if m else rows
    if kind == "one-large":
        rows[:, :1] *= 1e4
    if kind == "scales":
        rows *= 10.0 ** torch.randint(-20, 20, (m, 1), generator=generator)
    if kind == "strange":
        values = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0, 1e30, 1e-30, 1e-42])
        for i in range(0, m, 4):
            rows[i, i % d] = values[i // 4 % 7]
        rows[1::5] = 0
    return rows


@given(
    sizes=st.tuples(st.sampled_from([1, 2, 7, 8, 17, 70]), st.sampled_from([0, 1, 31, 130, 700]), st.integers(1, 70)),
    k=st.sampled_from([0, 1, 3, 20]),
    kind=st.sampled_from(["plain", "integers", "duplicates", "one-large", "scales", "strange"]),
    similarity=st.sampled_from(SIMILARITIES),
    screen=st.sampled_from(SCREENS),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.float16, torch.bfloat16]),
    level=st.sampled_from(isa_levels()),
    threads=st.sampled_from([1, 2, 5]),
    excluded=st.booleans(),
    seed=st.integers(0, 2**20),
)
@settings(deadline=None, max_examples=150)
def test_equals_the_kernel(sizes, k, kind, similarity, screen, dtype, level, threads, excluded, seed):
    q, m, d = sizes
    generator = torch.Generator().manual_seed(seed)
    rows = spoilt(torch.randn(m, d, generator=generator), kind, generator).to(dtype)
    queries = spoilt(torch.randn(q, d, generator=generator), kind, generator).to(dtype)
    exclude = None
    if excluded and m:
        exclude = [torch.randint(0, m, (m // 2,), generator=generator).tolist() for _ in range(q)]
    with using_isa(level), using_threads(threads):
        assert_equal_bits(queries, rows, k, screen=screen, similarity=similarity, exclude=exclude)


def same_codes(count, dim, seed=0):
    """A query and rows that all have the codes of one row: what is left along the query decides."""
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(dim, generator=generator).sign()
    codes = torch.randint(-100, 101, (dim,), generator=generator).float()
    codes[0] = 127.0  # sets the scale of every row: 1
    shifts = torch.rand(count, generator=generator) * 0.98 - 0.49
    shift = query.repeat(count, 1) * shifts.unsqueeze(1)
    shift[:, 0] = 0
    return query.unsqueeze(0), codes + shift, shifts


@pytest.mark.parametrize("level", isa_levels())
@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_rows_with_equal_codes(similarity, level):
    """No estimate tells them apart; the best are those that the query pulls most."""
    query, rows, shifts = same_codes(3000, 65)
    assert len(torch.ops.pairloom.code_rows(rows, "int8")[0].unique(dim=0)) == 1
    with using_isa(level):
        assert_equal_bits(query.repeat(9, 1), rows, 7, similarity=similarity)
        if similarity == "dot":
            assert torch.equal(pairloom.topk(query, rows, 7, similarity="dot", screen="int8")[1][0], shifts.topk(7)[1])


@pytest.mark.parametrize("level", isa_levels())
def test_the_best_rows_look_worst(level):
    """Residuals against the query, beside better rows with residuals along it, estimated nearly two bounds lower."""
    generator = torch.Generator().manual_seed(0)
    sign = torch.randn(65, generator=generator).sign()
    sign[0] = 1.0
    codes = torch.randint(-90, 91, (65,), generator=generator).float()
    codes[0] = 127.0
    along = sign.clone()
    along[0] = 0
    lower = along * (
        torch.arange(65) <= 62
    )  # estimates fall by 62; the bounds of both are 2 x 0.49 x sqrt(65 x 64) > 63
    good, better, worse = codes - 0.49 * along, codes - lower + 0.49 * along, codes - 3 * along
    rows = torch.cat([good.repeat(300, 1), better.repeat(5, 1), worse.repeat(3000, 1)])
    rows = rows[torch.randperm(len(rows), generator=generator)]
    query = sign.repeat(12, 1)
    best = pairloom.topk(query.double(), rows.double(), 5, similarity="dot")[1]
    with using_isa(level):
        assert assert_equal_bits(query, rows, 5).eq(305).all()  # all that are good or better
        found = pairloom.topk(query, rows, 5, similarity="dot", screen="int8")[1]
    assert torch.equal(found.sort(dim=1)[0], best.sort(dim=1)[0])
    assert (rows[found[0]] == better).all()


@pytest.mark.parametrize("screen", SCREENS)
def test_estimates_in_the_wrong_order(screen):
    """Random rows with the worst residuals, against the query and along it: the best have poor estimates."""
    torch.manual_seed(0)
    rows, query = torch.randn(2000, 32), torch.randn(1, 32)
    codes, records = torch.ops.pairloom.code_rows(rows, screen)
    step = records[0, :, None] if screen == "int8" else rows.abs() * 2**-8
    signs = torch.where(torch.arange(2000) % 2 == 0, 1.0, -1.0).unsqueeze(1)
    grid = codes[:, :32].float() * records[0, :, None]
    largest = rows.abs() == rows.abs().amax(dim=1, keepdim=True)
    rows = torch.where(largest, rows, grid + 0.49 * step * query.sign() * signs)
    for similarity in SIMILARITIES:
        assert_equal_bits(query, rows, 10, screen=screen, similarity=similarity)
        assert_equal_bits(rows[:40], rows, 3, screen=screen, similarity=similarity)


@pytest.mark.parametrize("screen", SCREENS)
def test_what_is_stored_bounds_the_error(screen):
    """|s - estimate| <= |scale_a codes_a| |r_b| + |r_a| |b|, from the stored numbers; and it is nearly reached."""
    torch.manual_seed(0)
    random = torch.randn(200, 48), torch.randn(300, 48) * 10.0 ** torch.randint(-3, 3, (300, 1))
    query, rows, _ = same_codes(300, 48)
    nearest = []
    for a, b in (random, (query, rows)):
        (codes_a, of_a), (codes_b, of_b) = (torch.ops.pairloom.code_rows(x, screen) for x in (a, b))
        scaled_a, scaled_b = (c.double() * r[0, :, None].double() for c, r in ((codes_a, of_a), (codes_b, of_b)))
        error = (a.double() @ b.double().T - scaled_a @ scaled_b.T).abs()
        bound = (of_a[2] + of_a[1])[:, None] * of_b[1] + of_a[1][:, None] * of_b[2]
        assert (error <= bound).all()
        assert (b.double().norm(dim=1) <= of_b[2]).all()
        assert ((b.double() - scaled_b[:, :48]).norm(dim=1) <= of_b[1]).all()
        nearest.append((error / bound).max().item())
    if screen == "int8":
        assert nearest[1] > 0.9  # the rows above were built for it


def test_few_rows_are_scored_in_full():
    torch.manual_seed(0)
    rows = torch.randn(20000, 128)
    queries = torch.randn(30, 128)
    for similarity in SIMILARITIES:
        int8 = assert_equal_bits(queries, rows, 10, similarity=similarity)
        bf16 = assert_equal_bits(queries, rows, 10, similarity=similarity, screen="bf16")
        assert int8.min() >= 10
        assert int8.float().mean() < 400
        assert bf16.float().mean() < 60


def test_what_is_counted_does_not_depend_on_the_machine():
    torch.manual_seed(0)
    rows, queries = torch.randn(9000, 40), torch.randn(20, 40)
    counts = set()
    for level in isa_levels():
        for threads in (1, 2, 3):
            with using_isa(level), using_threads(threads):
                counts.add(tuple(assert_equal_bits(queries, rows, 5).tolist()))
    assert len(counts) == 1


def test_queries_that_cannot_be_screened_are_scored_in_full():
    rows = torch.randn(5000, 16, generator=torch.Generator().manual_seed(0))
    queries = rows[:6].clone()
    queries[1] = 0  # every score ties
    queries[3, 2] = torch.nan
    queries[4] *= 1e25
    rescored = assert_equal_bits(queries, rows, 4)
    assert rescored[[1, 3, 4]].eq(5000).all()
    assert rescored[[0, 2, 5]].lt(1000).all()
    assert assert_equal_bits(queries[:1], rows, 4000).eq(5000).all()


def test_rows_that_cannot_be_coded_are_found():
    torch.manual_seed(0)
    rows = torch.randn(3000, 8)
    rows[1234] = 1e19  # beyond what a bound is made for, and the best answer
    rows[77] = torch.nan
    rescored = assert_equal_bits(torch.ones(3, 8), rows, 2)
    assert rescored.lt(1000).all()
    assert pairloom.topk(torch.ones(1, 8), rows, 1, similarity="dot", screen="int8")[1].item() == 1234


@pytest.mark.parametrize("screen", SCREENS)
@pytest.mark.parametrize("similarity", ["dot", "squared_euclidean"])
def test_subnormal_numbers_that_only_the_search_sees(screen, similarity):
    """Coded by a thread that takes them for 0: the best row is all subnormal, and the query makes it large."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.zeros(2000, 100)
    rows[:, 0] = 1.2e-38 + 2e-38 * torch.rand(2000, generator=generator)
    rows[7, 0] = 1e-37
    rows[1500] = 1.1e-38
    query = torch.full((1, 100), 1e16)
    with using_threads(1):
        expected = pairloom.topk(query, rows, 1, similarity=similarity)
        if not torch.set_flush_denormal(True):
            pytest.skip("this processor cannot")
        try:
            gallery = pairloom.Gallery(rows, screen=screen)
        finally:
            torch.set_flush_denormal(False)
        found = pairloom.topk(query, gallery, 1, similarity=similarity)
    assert torch.equal(found[1], expected[1])
    assert torch.equal(found[0], expected[0])


def test_plain_galleries_and_screens_of_one_call():
    torch.manual_seed(0)
    rows, queries = torch.randn(300, 6), torch.randn(4, 6)
    expected = pairloom.topk(queries, rows, 3)
    plain = pairloom.Gallery(rows, screen=None)
    for answer in (pairloom.topk(queries, plain, 3), pairloom.topk(queries, rows.numpy(), 3, screen="bf16")):
        assert torch.equal(answer[0], expected[0])
        assert torch.equal(answer[1], expected[1])
    assert pairloom.topk(queries, plain, 3, return_stats=True)[2].rescored.tolist() == [300] * 4
    assert pairloom.topk(queries, rows, 3, return_stats=True)[2].rescored.tolist() == [300] * 4
    assert len(plain) == 300
    assert repr(pairloom.Gallery(rows)) == "Gallery(300 x 6 float32, screen='int8')"


REFUSED = [
    (lambda q, g: pairloom.Gallery(g.long()), TypeError, "embeddings"),
    (lambda q, g: pairloom.Gallery(g, screen="int4"), ValueError, "screen is 'int4'"),
    (lambda q, g: pairloom.Gallery(torch.zeros(1, 70000)), ValueError, "70,000 columns"),
    (lambda q, g: pairloom.topk(q, pairloom.Gallery(g), 2, screen="int8"), ValueError, "screen is 'int8'"),
    (lambda q, g: pairloom.topk(q, g, 2, screen="fp8"), ValueError, "screen is 'fp8'"),
    (lambda q, g: pairloom.topk(q[:, :3], pairloom.Gallery(g), 2), ValueError, "gallery"),
    (lambda q, g: pairloom.topk(q.requires_grad_(), pairloom.Gallery(g), 2), ValueError, "requires gradients"),
    (lambda q, g: pairloom.topk(q, [g], 2), TypeError, "gallery is a list"),
    (lambda q, g: pairloom.topk(q, pairloom.Int8Gallery(g), 2, similarity="euclidean"), ValueError, "Int8Gallery"),
    (lambda q, g: pairloom.topk(q, pairloom.Gallery(g), 2, return_stats=1), TypeError, "return_stats"),
]


@pytest.mark.parametrize(("call", "kind", "words"), REFUSED, ids=[words for _, _, words in REFUSED])
def test_refused(call, kind, words):
    with pytest.raises(kind, match=words):
        call(torch.randn(2, 6), torch.randn(9, 6))


@pytest.mark.parametrize("kind", ["plain", "integers", "duplicates", "strange"])
@pytest.mark.parametrize("similarity", SIMILARITIES)
@pytest.mark.parametrize("level", isa_levels())
def test_many_queries_screen_by_themselves(level, similarity, kind):
    """From 256 queries and 8,192 rows on the gallery is coded on the way; fewer queries see every row in full."""
    generator = torch.Generator().manual_seed(0)
    rows = spoilt(torch.randn(8300, 70, generator=generator), kind, generator)
    queries = spoilt(torch.randn(260, 70, generator=generator), kind, generator)
    exclude = torch.randint(0, 8300, (260,), generator=generator)
    with using_isa(level):
        parts = [
            pairloom.topk(q, rows, 5, similarity=similarity, exclude=e)
            for q, e in zip(queries.split(130), exclude.split(130), strict=True)
        ]
        for threads in (1, 3):
            with using_threads(threads):
                scores, ids = pairloom.topk(queries, rows, 5, similarity=similarity, exclude=exclude)
            assert torch.equal(ids, torch.cat([part[1] for part in parts]))
            assert torch.equal(scores, torch.cat([part[0] for part in parts]))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_many_queries_of_other_dtypes(dtype):
    torch.manual_seed(0)
    rows, queries = torch.randn(8200, 64).to(dtype)[:, :64], torch.randn(300, 128).to(dtype)[:, ::2]
    scores, ids = pairloom.topk(queries, rows, 64)
    parts = [pairloom.topk(part, rows, 64) for part in queries.split(100)]
    assert torch.equal(ids, torch.cat([part[1] for part in parts]))
    assert torch.equal(scores, torch.cat([part[0] for part in parts]))
