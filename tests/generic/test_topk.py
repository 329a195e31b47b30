"""Top-k is the same everywhere: order by score, ties by lowest index, NaN and -inf never returned, missing places -1
and -inf; on every instruction-set level, for any number of threads, for one query as for a batch, in compiled graphs,
exported programs, TorchScript and ONNX Runtime.

The oracle sorts Python tuples. Entries are small integers where ties matter: every sum is exact, so equal is equal.
"""

import io
import math
import random

import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import pairloom
from pairloom.deploy import Scorer, ort_library
from pairloom.export import module_to_onnx, to_onnx
from pairloom.testing import isa_levels, using_isa, using_threads
from tests.generic.common import DTYPES

SIMILARITIES = ("dot", "cosine", "euclidean", "squared_euclidean")
EXACT = ("dot", "squared_euclidean")
"""Similarities that are exact for small integers on every backend."""


def score(x, y, similarity):
    if similarity == "dot":
        return sum(a * b for a, b in zip(x, y, strict=True))
    return -sum((a - b) ** 2 for a, b in zip(x, y, strict=True))


def oracle(queries, gallery, k, similarity, excluded=None):
    """Scores and indices by sorting (score, index) in Python; ``excluded``: for each query, a list of gallery rows."""
    scores, indices = [], []
    rows = gallery.double().tolist()
    for q, query in enumerate(queries.double().tolist()):
        allowed = set(range(len(rows))) - set(excluded[q] if excluded else [])
        all_scores = [(score(query, rows[j], similarity), j) for j in sorted(allowed)]
        kept = [(s, j) for s, j in all_scores if s > -math.inf]  # false for NaN
        best = sorted(kept, key=lambda pair: (-pair[0], pair[1]))[:k]
        best += [(-math.inf, -1)] * (k - len(best))
        scores.append([s for s, _ in best])
        indices.append([j for _, j in best])
    return torch.tensor(scores).reshape(len(queries), k), torch.tensor(indices, dtype=torch.int64).reshape(
        len(queries), k
    )


def integers(*shape, seed=0, largest=2):
    return torch.randint(-largest, largest + 1, shape, generator=torch.Generator().manual_seed(seed)).float()


def with_strange_rows(x, seed):
    """Some rows NaN, some infinite in one entry."""
    x = x.clone()
    kinds = torch.randint(0, 8, (len(x),), generator=torch.Generator().manual_seed(seed))
    x[kinds == 1] = torch.nan
    x[kinds == 2, 0] = torch.inf
    x[kinds == 3, -1] = -torch.inf
    return x


def assert_topk(found, expected):
    assert torch.equal(found[1], expected[1])
    torch.testing.assert_close(found[0].double(), expected[0].double(), rtol=0, atol=0)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    q=st.integers(0, 9),
    m=st.sampled_from((0, 1, 3, 15, 16, 17, 64, 255, 256, 257, 700)),
    d=st.sampled_from((1, 2, 5, 17)),
    k=st.sampled_from((0, 1, 2, 5, 64, 65, 200, 1000)),
    similarity=st.sampled_from(EXACT),
    dtype=st.sampled_from(DTYPES),
    strange=st.booleans(),
    level=st.sampled_from(isa_levels()),
    threads=st.sampled_from((1, 2)),
    seed=st.integers(0, 99),
)
def test_equals_a_sort_in_python(q, m, d, k, similarity, dtype, strange, level, threads, seed):
    queries, gallery = integers(q, d, seed=seed), integers(m, d, seed=seed + 1)
    if strange:
        queries, gallery = with_strange_rows(queries, seed), with_strange_rows(gallery, seed + 1)
    with using_isa(level), using_threads(threads):
        found = pairloom.topk(queries.to(dtype), gallery.to(dtype), k, similarity=similarity)
    assert_topk(found, oracle(queries, gallery, k, similarity))


def as_exclusions(lists):
    """Lists of gallery rows, one for each query, as the operator takes them."""
    indptr = torch.tensor([0, *(len(rows) for rows in lists)]).cumsum(0)
    return indptr, torch.tensor([j for rows in lists for j in rows], dtype=torch.int64)


def some_exclusions(q, m, k, rng):
    """For each query nothing, everything, all but two, three, all but k - 1, or any number; in any order."""
    lists = []
    for _ in range(q):
        count = min(max(rng.choice([0, m, m - 2, 3, m - k + 1, rng.randint(0, m)]), 0), m)
        rows = rng.sample(range(m), count)
        lists.append(sorted(rows) if rng.random() < 0.5 else rows)
    return lists


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    q=st.integers(0, 9),
    m=st.sampled_from((0, 1, 3, 16, 17, 255, 256, 257, 700)),
    k=st.sampled_from((0, 1, 2, 5, 65, 200, 1000)),
    similarity=st.sampled_from(EXACT),
    strange=st.booleans(),
    repeats=st.booleans(),
    level=st.sampled_from(isa_levels()),
    threads=st.sampled_from((1, 2)),
    seed=st.integers(0, 99),
)
def test_excluded_rows_give_their_places_to_others(q, m, k, similarity, strange, repeats, level, threads, seed):
    """As if they were not in the gallery: k answers wherever k others can be returned."""
    rng = random.Random(seed)
    queries, gallery = integers(q, 4, seed=seed), integers(m, 4, seed=seed + 1)
    if strange:
        queries, gallery = with_strange_rows(queries, seed), with_strange_rows(gallery, seed + 1)
    lists = some_exclusions(q, m, k, rng)
    expected = oracle(queries, gallery, k, similarity, lists)
    if repeats:  # what changes nothing: a row twice, rows that are not in the gallery
        lists = [[*rows, *rows[:5], -1, m, m + 1000, -(2**62), 2**62] for rows in lists]
    excluded = as_exclusions(lists)
    with using_isa(level), using_threads(threads):
        assert_topk(torch.ops.pairloom.topk(queries, gallery, k, similarity, *excluded), expected)
    assert_topk(pairloom.reference.topk(queries, gallery, k, similarity, *excluded), expected)


@pytest.mark.parametrize("level", isa_levels())
@pytest.mark.parametrize("threads", [1, 2, 7])
def test_exclusions_in_a_gallery_that_threads_split(threads, level):
    queries, gallery = integers(3, 16, seed=2), integers(30000, 16, seed=3)
    rng = random.Random(0)
    lists = [rng.sample(range(30000), 20000), list(range(29990)), []]
    scores, indices = oracle(queries, gallery, 500, "dot", lists)
    for k in (1, 10, 500):
        with using_isa(level), using_threads(threads):
            found = torch.ops.pairloom.topk(queries, gallery, k, "dot", *as_exclusions(lists))
        assert_topk(found, (scores[:, :k], indices[:, :k]))


@pytest.mark.parametrize("level", isa_levels())
@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_one_query_has_the_bits_of_the_batch(similarity, level):
    torch.manual_seed(0)
    for d in (3, 16, 100, 300):
        queries, gallery = torch.randn(40, d), torch.randn(777, d)
        gallery[5] = queries[3]
        with using_isa(level):
            scores, indices = pairloom.topk(queries, gallery, 20, similarity=similarity)
            matrix = pairloom.pairwise_similarity(queries, gallery, similarity=similarity)
            assert torch.equal(matrix.gather(1, indices), scores)
            for i in (0, 3, 17, 39):
                alone = pairloom.topk(queries[i : i + 1], gallery, 20, similarity=similarity)
                assert torch.equal(alone[0][0], scores[i])
                assert torch.equal(alone[1][0], indices[i])


@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_a_score_does_not_depend_on_the_place_in_the_gallery(similarity):
    """Equal rows tie exactly, wherever they stand: their indices come in order."""
    torch.manual_seed(1)
    row, queries = torch.randn(1, 77), torch.randn(5, 77)
    gallery = torch.cat([torch.randn(1000, 77), row.expand(300, 77)])[torch.randperm(1300)]
    copies = (gallery == row).all(1).nonzero().flatten()
    scores, indices = pairloom.topk(queries, gallery, 1300, similarity=similarity)
    for i in range(5):
        places = [n for n, j in enumerate(indices[i].tolist()) if j in set(copies.tolist())]
        assert places == list(range(places[0], places[0] + 300))
        assert torch.equal(indices[i, places], copies)
        assert len(scores[i, places].unique()) == 1


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_threads_split_a_large_gallery(threads):
    """Ties across the borders between threads go to the lowest index."""
    queries, gallery = integers(3, 16, seed=2), integers(30000, 16, seed=3)
    with using_threads(threads):
        for k in (1, 10, 500, 29999):
            assert_topk(pairloom.topk(queries, gallery, k, similarity="dot"), oracle(queries, gallery, k, "dot"))


class TopK(nn.Module):
    def __init__(self, k: int, similarity: str):
        super().__init__()
        self.k = k
        self.similarity = similarity

    def forward(self, queries: torch.Tensor, gallery: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return pairloom.topk(queries, gallery, self.k, similarity=self.similarity)


def onnx_session(path, *libraries):
    """A file as a function of (queries, gallery), with libraries of operators."""
    options = onnxruntime.SessionOptions()
    for library in libraries:
        options.register_custom_ops_library(library)
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def run(queries, gallery):
        names = [node.name for node in session.get_inputs()]
        outputs = session.run(None, dict(zip(names, (queries.numpy(), gallery.numpy()), strict=True)))
        return tuple(torch.as_tensor(output) for output in outputs)

    return run


def scorer(k, similarity, screen):
    """Without torch, but for the tensors here."""

    def run(queries, gallery):
        found = Scorer(gallery.numpy(), similarity=similarity, screen=screen)(queries.numpy(), k)
        return tuple(torch.as_tensor(output) for output in found)

    return run


def everywhere(k, similarity, folder, *, slow=False):
    """The same search on every backend, as functions of (queries, gallery)."""
    module = TopK(k, similarity).eval()
    example = (torch.randn(3, 4), torch.randn(6, 4))
    dynamic = ({0: torch.export.Dim("q")}, {0: torch.export.Dim("m")})
    yield "eager", module
    torch._dynamo.reset()
    yield "compile", torch.compile(module, fullgraph=True, dynamic=True, backend="inductor" if slow else "aot_eager")
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.script(module), buffer)
    buffer.seek(0)
    yield "torchscript", torch.jit.load(buffer)
    program = torch.export.export(module, example, dynamic_shapes=dynamic)
    yield "export", program.module()
    if slow:
        package = torch._inductor.aoti_compile_and_package(program, package_path=str(folder / "topk.pt2"))
        yield "aoti", torch._inductor.aoti_load_package(package)
    path = module_to_onnx(module, example, folder / "topk.onnx", dynamic_shapes=dynamic, dynamic_batch=False)
    yield "onnx", onnx_session(path)
    path = to_onnx(None, None, k=k, similarity=similarity, path=folder / "node.onnx")
    yield "onnx, body of the node", onnx_session(path)
    yield "onnx, kernel of the node", onnx_session(path, ort_library())
    for screen in (None, "int8"):
        yield f"scorer, screen {screen}", scorer(k, similarity, screen)


def hard_inputs():
    """(what, queries, gallery): batches of none, one and many; galleries of none, few and many; strange rows."""
    for seed, (q, m) in enumerate([(5, 40), (1, 300), (4, 2), (6, 9), (0, 20), (3, 0), (0, 0), (40, 1), (2, 1000)]):
        queries, gallery = integers(q, 4, seed=seed), integers(m, 4, seed=seed + 50)
        yield f"{q} queries, {m} rows", queries, gallery
        yield f"{q} queries, {m} rows, strange", with_strange_rows(queries, seed), with_strange_rows(gallery, seed + 9)
    yield "zero rows", torch.zeros(3, 4), torch.cat([torch.zeros(5, 4), integers(9, 4)])
    yield "duplicates", integers(3, 4), integers(1, 4, seed=1).expand(50, 4)
    yield "all NaN", torch.full((2, 4), torch.nan), integers(20, 4)
    yield "nothing to return", integers(2, 4), torch.full((20, 4), torch.nan)


def assert_the_same_everywhere(similarity, folder, **which):
    k = 9
    for name, function in everywhere(k, similarity, folder, **which):
        for what, queries, gallery in hard_inputs():
            try:
                assert_topk(function(queries, gallery.contiguous()), oracle(queries, gallery, k, similarity))
            except (AssertionError, RuntimeError) as error:
                raise AssertionError(f"{name}, {what}: {error}") from error


@pytest.mark.parametrize("similarity", EXACT)
def test_every_backend_gives_the_same(similarity, tmp_path):
    assert_the_same_everywhere(similarity, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("similarity", EXACT)
def test_every_backend_gives_the_same_compiled_too(similarity, tmp_path):
    assert_the_same_everywhere(similarity, tmp_path, slow=True)
