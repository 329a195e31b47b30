"""`stream_rows`: values and derivatives of a dense computation, in linear memory, for whatever the rule uses."""

import subprocess
import sys

import pytest
import torch

import pairloom
from pairloom import stream_rows
from pairloom.testing import using_threads

SIMILARITIES = ["cosine", "dot", "euclidean", "squared_euclidean"]


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64, requires_grad=True)


def dense(rule, a, b=None, similarity="cosine", row_args=(), column_args=()):
    """The rule on the whole matrix, one row at a time, with plain autograd."""
    from pairloom.streaming import RowContext

    s = pairloom.reference.pairwise_similarity(a, a if b is None else b, similarity)
    losses = []
    for i in range(a.shape[0]):
        rows = torch.tensor([i])
        context = RowContext(rows, tuple(x[rows] for x in row_args), tuple(column_args), s.shape[1], b is None)
        losses.append(rule(s[rows], context))
    return torch.cat(losses)


@pytest.mark.parametrize("similarity", SIMILARITIES)
@pytest.mark.parametrize("one_batch", [False, True])
def test_every_derivative_by_finite_differences(similarity, one_batch):
    a, b = normal(5, 3), None if one_batch else normal(4, 3, seed=1)
    m = 5 if one_batch else 4
    margin, target, base = normal(5, seed=2), normal(m, 2, seed=3), normal(m, seed=4)

    def loss(a, b, margin, target, base):
        scale = base.exp()  # no leaf, and base is used beside it

        def rule(s, ctx):
            z = torch.where(ctx.self_mask, 0.0, s * scale + base)
            return torch.logsumexp(z - ctx.row_args[0].unsqueeze(1) + ctx.column_args[0].sum(1), dim=1)

        return stream_rows(rule, a, b, similarity=similarity, row_args=[margin], column_args=[target], chunk_bytes=70)

    inputs = (a, b, margin, target, base)
    assert torch.autograd.gradcheck(loss, inputs)
    assert torch.autograd.gradgradcheck(loss, inputs)


def test_value_and_gradient_equal_the_dense_computation():
    a, b, w = normal(40, 6), normal(30, 6, seed=1), normal(30, seed=2)
    doubled = w * 2

    def rule(s, ctx):
        return (s * w + torch.sin(s * doubled)).square().sum(1) * (ctx.rows + 1)

    losses, expected = stream_rows(rule, a, b, chunk_bytes=1000), dense(rule, a, b)
    torch.testing.assert_close(losses, expected)
    upstream = torch.linspace(-1, 2, 40, dtype=torch.float64)
    # The same graph outside is used by others too, and later: each part of it must be differentiated once.
    both = (losses * upstream).sum() + doubled.sum()
    wanted = torch.autograd.grad((expected * upstream).sum() + doubled.sum(), [a, b, w], retain_graph=True)
    for found, want in zip(torch.autograd.grad(both, [a, b, w]), wanted, strict=True):
        torch.testing.assert_close(found, want)


def test_the_rule_may_be_a_module_and_use_the_embeddings_themselves():
    torch.manual_seed(0)
    head, a = torch.nn.Linear(20, 1).double(), normal(20, 3)

    def rule(s, ctx):
        return head(s).squeeze(1) + a[ctx.rows].square().sum(1) + a.sum()

    stream_rows(rule, a, chunk_bytes=1).sum().backward()
    found = [a.grad.clone(), head.weight.grad.clone(), head.bias.grad.clone()]
    wanted = torch.autograd.grad(dense(rule, a).sum(), [a, head.weight, head.bias])
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)


class Hidden(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad


def test_tensors_that_cannot_be_seen_are_errors():
    a, w = normal(4, 3), normal(4, seed=1)
    with pytest.raises(RuntimeError, match=r"shape \(4,\) that requires a gradient where it cannot be seen"):
        stream_rows(lambda s, ctx: (s * Hidden.apply(w)).sum(1), a)
    w = w * 2
    with pytest.raises(RuntimeError, match="where it cannot be seen"):
        stream_rows(lambda s, ctx: (s * Hidden.apply(w)).sum(1), a)
    losses = stream_rows(lambda s, ctx: (s * w).sum(1) if ctx.rows[0] > 1 else s.sum(1), a, chunk_bytes=1)
    with pytest.raises(RuntimeError, match="in some blocks of rows only"):
        losses.sum().backward()


def test_own_function_inside_the_rule():
    a, w = normal(4, 3), normal(4, seed=1)

    def rule(s, ctx):
        return (Hidden.apply(s * w) * w).sum(1)

    found = torch.autograd.grad(stream_rows(rule, a, chunk_bytes=1).sum(), [a, w])
    for one, other in zip(found, torch.autograd.grad(dense(rule, a).sum(), [a, w]), strict=True):
        torch.testing.assert_close(one, other)


def test_changed_tensors_are_noticed():
    a, w = normal(4, 3), normal(4, seed=1)
    losses = stream_rows(lambda s, ctx: (s * w).sum(1), a)
    with torch.no_grad():
        w += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        losses.sum().backward()


def softmax_rule(s, ctx):
    return torch.logsumexp(s.masked_fill(ctx.self_mask, -torch.inf), dim=1)


@pytest.mark.parametrize("chunk_bytes", [None, 0, 1, 4 * 70 * 16, 10**9])
def test_blocks_and_threads_change_nothing(chunk_bytes):
    a = normal(70, 5).detach().float().requires_grad_()

    def run():
        losses = stream_rows(softmax_rule, a, chunk_bytes=chunk_bytes)
        return losses.detach(), *torch.autograd.grad(losses.square().sum(), a)

    first = run()
    whole = dense(softmax_rule, a)
    torch.testing.assert_close(first[0], whole)
    torch.testing.assert_close(first[1], *torch.autograd.grad(whole.square().sum(), a))
    with using_threads(1):
        assert all(torch.equal(x, y) for x, y in zip(run(), first, strict=True))


def test_sizes_of_blocks():
    sizes = []

    def rule(s, ctx):
        sizes.append(tuple(s.shape))
        return s.sum(1)

    with torch.no_grad():
        stream_rows(rule, torch.eye(10), chunk_bytes=4 * 10 * 4)
    assert sizes == [(4, 10), (4, 10), (2, 10)]


@pytest.mark.parametrize("n", [0, 3])
@pytest.mark.parametrize("m", [0, 4])
def test_empty(n, m):
    a, b = torch.ones(n, 2, requires_grad=True), torch.ones(m, 2, requires_grad=True)
    w = torch.ones(m, requires_grad=True)
    losses = stream_rows(lambda s, ctx: (s * w).sum(1), a, b)
    assert losses.tolist() == pytest.approx([float(m)] * n)
    losses.sum().backward()
    assert a.grad.shape == a.shape
    assert b.grad.shape == b.shape
    assert w.grad.tolist() == pytest.approx([float(n)] * m)
    assert stream_rows(lambda s, ctx: s.sum(1), a[:0]).shape == (0,)


def test_nan_stays_in_its_row():
    a = torch.eye(4)
    a[1, 1] = torch.nan
    losses = stream_rows(lambda s, ctx: s.sum(1), a, torch.eye(4))
    assert losses.isnan().tolist() == [False, True, False, False]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_sums_in_float32(dtype):
    a, w = normal(30, 8).detach().to(dtype).requires_grad_(), torch.ones(30, dtype=dtype, requires_grad=True)
    seen = []

    def rule(s, ctx):
        seen.append(s.dtype)
        return (s * w).sum(1)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        losses = stream_rows(rule, a, chunk_bytes=1)
    losses.sum().backward()
    assert set(seen) == {torch.float32}
    assert losses.dtype == torch.float32
    assert a.grad.dtype == w.grad.dtype == dtype
    wide = a.detach().float().requires_grad_()
    expected = pairloom.reference.pairwise_similarity(wide, wide).sum(0)
    # Autograd rounds the share of every block to the dtype of w; the sum over blocks is float32.
    torch.testing.assert_close(w.grad, expected.to(dtype), rtol=2 * torch.finfo(dtype).eps, atol=1e-2)


def test_strides_and_mixed_dtypes():
    a, b = normal(6, 8).detach(), normal(5, 4, seed=1).detach().float()
    expected = pairloom.reference.pairwise_similarity(a[:, ::2].contiguous(), b).sum(1)
    leaf = b.T.contiguous().T.requires_grad_()
    losses = stream_rows(lambda s, ctx: s.sum(1), a[:, ::2], leaf)
    torch.testing.assert_close(losses, expected)
    losses.sum().backward()
    assert leaf.grad.dtype == torch.float32


def test_only_some_gradients():
    a, b, w = normal(5, 3), normal(4, 3, seed=1), normal(4, seed=2)
    stream_rows(lambda s, ctx: (s * w).sum(1), a.detach(), b.detach()).sum().backward()
    assert w.grad is not None
    stream_rows(lambda s, ctx: s.square().sum(1), a, b.detach()).sum().backward()
    assert a.grad.any()
    assert b.grad is None
    with torch.no_grad():
        assert not stream_rows(lambda s, ctx: (s * w).sum(1), a, b).requires_grad


def test_transforms_and_graphs():
    a, b = normal(6, 3).detach(), normal(4, 3, seed=1).detach()

    def loss(a, b):
        return stream_rows(softmax_rule, a, b).square().sum()

    leaf = a.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(loss(leaf, b), leaf)
    torch.testing.assert_close(torch.func.grad(loss)(a, b), wanted)
    mapped = torch.func.vmap(loss, in_dims=(0, None))(torch.stack([a, 2 * a + 1]), b)
    torch.testing.assert_close(mapped, torch.stack([loss(a, b), loss(2 * a + 1, b)]))
    compiled = torch.compile(loss, fullgraph=True, dynamic=True)
    torch.testing.assert_close(compiled(leaf, b), loss(a, b))
    torch.testing.assert_close(*torch.autograd.grad(compiled(leaf, b), leaf), wanted)

    class Loss(torch.nn.Module):
        def forward(self, a, b):
            return loss(a, b)

    program = torch.export.export(Loss(), (a, b))
    torch.testing.assert_close(program.module()(a, b), loss(a, b))


@pytest.mark.parametrize("backward", [False, True])
def test_an_interrupt_comes_through(backward):
    a = normal(5, 3)
    armed = not backward

    def rule(s, ctx):
        if armed and ctx.rows[0] == 3:
            raise KeyboardInterrupt
        return s.square().sum(1)

    if not backward:
        with pytest.raises(KeyboardInterrupt):
            stream_rows(rule, a, chunk_bytes=1)
        return
    losses = stream_rows(rule, a, chunk_bytes=1)
    armed = True
    with pytest.raises(KeyboardInterrupt):
        losses.sum().backward()


def test_memory_grows_with_rows_not_with_pairs():
    """10,000 x 10,000 similarities are 400 MB, and autograd keeps some of them."""
    program = """
import torch
from pairloom import stream_rows
from pairloom.testing import peak_memory_mb
x, w = torch.randn(10_000, 8, requires_grad=True), torch.ones(10_000, requires_grad=True)
def rule(s, ctx):
    return torch.logsumexp(s * w, dim=1)
stream_rows(lambda s, ctx: s.square().sum(1), x[:64]).sum().backward()
before = peak_memory_mb()
stream_rows(rule, x).sum().backward()
print(peak_memory_mb() - before)
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 150


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: stream_rows(None, torch.eye(3)), TypeError, "rule is a NoneType"),
        (lambda: stream_rows(softmax_rule, torch.ones(3)), ValueError, r"a has shape \(3,\)"),
        (lambda: stream_rows(softmax_rule, torch.eye(3), torch.eye(4)), ValueError, "b has 4 dimensions per row"),
        (lambda: stream_rows(softmax_rule, torch.eye(3), similarity="l2"), ValueError, "similarity is 'l2'"),
        (lambda: stream_rows(softmax_rule, torch.eye(3), row_args=torch.ones(3)), TypeError, "row_args is a Tensor"),
        (lambda: stream_rows(softmax_rule, torch.eye(3), row_args=[1.0]), TypeError, r"row_args\[0\] is a float"),
        (
            lambda: stream_rows(softmax_rule, torch.eye(3), torch.ones(2, 3), column_args=[torch.ones(3)]),
            ValueError,
            r"column_args\[0\] has shape \(3,\); it must have 2 entries, one for each row of b",
        ),
        (lambda: stream_rows(softmax_rule, torch.eye(3), chunk_bytes=-1), ValueError, "chunk_bytes is -1"),
        (lambda: stream_rows(lambda s, ctx: s, torch.eye(3)), ValueError, r"rule returned shape \(1, 3\)"),
        (lambda: stream_rows(lambda s, ctx: 1.0, torch.eye(3)), TypeError, "rule returned a float"),
        (lambda: stream_rows(lambda s, ctx: s.argmax(1), torch.eye(3)), TypeError, "rule returned dtype torch.int64"),
    ],
)
def test_errors(call, error, message):
    with pytest.raises(error, match=message):
        call()
