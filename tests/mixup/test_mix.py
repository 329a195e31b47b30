"""Mixtures of pairs of rows, beyond what the generic tests ask of every operator."""

import pytest
import torch
from torch.nn.functional import normalize as unit

from pairloom.mixup import mix
from pairloom.testing import isa_levels, using_isa, using_threads


def naive(x, partner, lam, others=None, first=None, normalized=False):
    pool = x if others is None else others
    out = []
    for v, p in enumerate(partner.tolist()):
        row = x[v if first is None else first[v]]
        part = lam if not isinstance(lam, torch.Tensor) or lam.dim() == 0 else lam[v]
        mixed = row if p < 0 else part * row + (1 - part) * pool[p]
        out.append(unit(mixed, dim=0) if normalized else mixed)
    return torch.stack(out) if out else x[:0]


def random_case(seed, n, m, count, dim, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    x, others = (torch.randn(rows, dim, generator=generator, dtype=torch.float64).to(dtype) for rows in (n, m))
    first = torch.randint(n, (count,), generator=generator)
    partner = torch.randint(-1, m, (count,), generator=generator)
    lam = torch.rand(count, generator=generator, dtype=torch.float64)
    return x, others, first, partner, lam


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("normalized", [False, True])
def test_equals_the_loop(seed, normalized):
    n, m, count, dim = [(1, 1, 1, 1), (5, 3, 17, 7), (4, 9, 2, 33), (3, 3, 100, 65), (8, 2, 0, 4), (2, 64, 40, 128)][
        seed
    ]
    x, others, first, partner, lam = random_case(seed, n, m, count, dim)
    inputs = [t.requires_grad_() for t in (x, others, lam)]
    found = mix(x, partner, lam, others=others, first=first, normalize=normalized)
    expected = naive(x, partner, lam, others, first, normalized)
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)
    weights = torch.randn(found.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    ours = torch.autograd.grad((found * weights).sum(), inputs, allow_unused=True, materialize_grads=True)
    wanted = torch.autograd.grad((expected * weights).sum(), inputs, allow_unused=True, materialize_grads=True)
    for a, b in zip(ours, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("normalized", [False, True])
def test_both_roles_of_one_batch(normalized):
    """A row is mixed, and is a partner of others: its gradient is the sum of both."""
    x = torch.randn(7, 5, dtype=torch.float64, requires_grad=True)
    partner, lam = torch.tensor([3, 3, 3, 0, -1, 5, 1]), torch.rand(7, dtype=torch.float64)
    weights = torch.randn(7, 5, dtype=torch.float64)
    ours = torch.autograd.grad((mix(x, partner, lam, normalize=normalized) * weights).sum(), x)[0]
    wanted = torch.autograd.grad((naive(x, partner, lam, normalized=normalized) * weights).sum(), x)[0]
    torch.testing.assert_close(ours, wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_dtypes_stay(dtype):
    x, others, first, partner, lam = random_case(3, 6, 5, 20, 24, dtype)
    for normalized in (False, True):
        found = mix(x, partner, lam, others=others, first=first, normalize=normalized)
        assert found.dtype == dtype
        expected = naive(x.double(), partner, lam, others.double(), first, normalized)
        eps = torch.finfo(dtype).eps
        torch.testing.assert_close(found.double(), expected, rtol=eps, atol=4 * eps)
    assert mix(x, partner, lam, others=others.double(), first=first).dtype == torch.float64


@pytest.mark.parametrize("shape", [(4,), (4, 3), (4, 3, 8, 8), (4, 2, 5)])
def test_rows_of_any_shape(shape):
    """Images, feature maps and targets; also in channels-last memory and expanded."""
    x = torch.randn(shape)
    partner, lam = torch.tensor([1, 2, 3, 0]), torch.rand(4)
    part = lam.view(-1, *[1] * (len(shape) - 1))
    expected = part * x + (1 - part) * x[partner]
    torch.testing.assert_close(mix(x, partner, lam), expected)
    if len(shape) == 4:
        torch.testing.assert_close(mix(x.contiguous(memory_format=torch.channels_last), partner, lam), expected)
    same = x[:1].expand(shape)
    torch.testing.assert_close(mix(same, partner, lam), same)


def test_ends_of_lam_give_the_bits_of_a_row():
    x = torch.randn(6, 19)
    partner = torch.tensor([5, 4, 3, 2, 1, 0])
    assert torch.equal(mix(x, partner, 1.0), x)
    assert torch.equal(mix(x, partner, 0.0), x[partner])
    assert torch.equal(mix(x, torch.full((6,), -1), 0.2), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_antipodal_parents_and_large_rows(dtype):
    x = torch.tensor([[3.0, -4.0], [-3.0, 4.0], [0.0, 0.0]], dtype=dtype, requires_grad=True)
    mixed = mix(x, torch.tensor([1, 2, 2]), torch.tensor([0.5, 0.25, 0.5]), normalize=True)
    torch.testing.assert_close(mixed, torch.tensor([[0.0, 0.0], [-0.6, 0.8], [0.0, 0.0]], dtype=dtype))
    assert (mixed[[0, 2]] == 0).all()
    mixed.sum().backward()
    assert x.grad.isfinite().all()
    assert (x.grad[0] == 0).all()  # of the first mixture only, which has no direction
    huge = torch.full((2, 8), torch.finfo(dtype).max / 4, dtype=dtype)
    torch.testing.assert_close(mix(huge, torch.tensor([1, 0]), 0.5, normalize=True), torch.full_like(huge, 8**-0.5))


def test_nan_stays_in_its_mixtures():
    x = torch.randn(5, 4)
    x[2, 1] = torch.nan
    mixed = mix(x, torch.tensor([1, 0, 3, 2, -1]), 0.5, normalize=True)
    assert mixed.isnan().any(1).tolist() == [False, False, True, True, False]
    # A row without a partner looks at no other row.
    assert mix(x, torch.full((5,), -1), 0.5)[[0, 1, 3, 4]].isfinite().all()


@pytest.mark.parametrize("level", isa_levels())
def test_levels_and_threads(level):
    """One result for every number of threads, to the bit; levels differ by rounding alone."""
    x, others, first, partner, lam = random_case(5, 300, 40, 2000, 67, torch.float32)

    def step():
        leaves = [t.detach().requires_grad_() for t in (x, others)]
        mixed = mix(leaves[0], partner, lam, others=leaves[1], first=first, normalize=True)
        return mixed, *torch.autograd.grad(mixed.square().sum() + mixed[:, 0].sum(), leaves)

    expected = naive(x.double(), partner, lam, others.double(), first, True)
    with using_isa(level):
        with using_threads(1):
            one = step()
        with using_threads(2):
            two = step()
    for a, b in zip(one, two, strict=True):
        assert torch.equal(a, b)
    torch.testing.assert_close(one[0].double(), expected, rtol=1e-5, atol=1e-6)


def test_many_mixtures_of_one_row_do_not_lose_digits():
    """20,000 gradients of one sign meet in one row: sums are in double."""
    x, partner = torch.randn(20_000, 3, requires_grad=True), torch.zeros(20_000, dtype=torch.int64)
    lam = torch.rand(20_000)
    mix(x, partner, lam).sum().backward()
    exact = (1 - lam.double()).sum() + lam[0].double()
    assert abs(x.grad[0, 0].double() / exact - 1) < 1e-6


def test_second_derivatives():
    x, others, first, partner, lam = random_case(1, 4, 3, 6, 3)
    inputs = [t.requires_grad_() for t in (x, others, lam.clamp(0.1, 0.9).detach())]

    def call(x, others, lam):
        return mix(x, partner, lam, others=others, first=first, normalize=True)

    assert torch.autograd.gradcheck(call, inputs)
    assert torch.autograd.gradgradcheck(call, inputs)


def test_backward_in_a_compiled_graph_is_the_kernel():
    """Scattered sums of a compiled graph would be atomic additions."""
    from torch._dynamo.testing import CompileCounterWithBackend
    from torch._functorch.aot_autograd import aot_module_simplified, make_boxed_func

    seen = []

    def backend(graph, inputs):
        def keep(backward, _):
            seen.append(str(backward.graph))
            return make_boxed_func(backward)

        return aot_module_simplified(graph, inputs, fw_compiler=lambda g, _: make_boxed_func(g), bw_compiler=keep)

    torch._dynamo.reset()
    counter = CompileCounterWithBackend(backend)
    x = torch.randn(6, 4, requires_grad=True)
    partner = torch.tensor([1, 2, 3, 4, 5, 0])
    compiled = torch.compile(lambda x: mix(x, partner, 0.3, normalize=True).square()[:, 0].sum(), backend=counter)
    compiled(x).backward()
    assert len(seen) == 1
    assert "mix_gradients" in seen[0]
    assert "index" not in seen[0]
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"x": [1.0]}, TypeError, "x is a list; it must be a torch.Tensor"),
        ({"x": torch.ones(4, 3, dtype=torch.int64)}, TypeError, "x has dtype int64"),
        ({"x": torch.tensor(1.0)}, ValueError, r"x has shape \(\); expected \(rows, ...\)"),
        ({"x": torch.ones(4, 3, 2), "normalize": True}, ValueError, r"x has shape \(4, 3, 2\); expected \(rows, dim"),
        ({"others": torch.ones(4, 2)}, ValueError, r"others has shape \(4, 2\) and x \(4, 3\)"),
        ({"partner": torch.ones(4)}, TypeError, "partner has dtype float32; rows of x are named by int64"),
        ({"partner": torch.ones(4, 1).long()}, ValueError, r"partner has shape \(4, 1\); expected \(mixtures,\)"),
        (
            {"partner": torch.tensor([0, 1, 2, 4])},
            ValueError,
            "partner holds 4; rows of x: 0 to 3, and -1 for no partner",
        ),
        ({"partner": torch.tensor([0, 1, 2, -2])}, ValueError, "partner holds -2"),
        ({"partner": torch.tensor([0, 1])}, ValueError, "partner has 2 values for 4 rows of x"),
        ({"first": torch.tensor([0])}, ValueError, "first has 1 values and partner 4"),
        ({"first": torch.tensor([0, 1, 2, -1])}, ValueError, "first holds -1; rows of x: 0 to 3$"),
        ({"others": torch.ones(0, 3)}, ValueError, "partner holds 3; rows of others: none, there is no row"),
        ({"lam": -0.1}, ValueError, "lam is -0.1; it is the share"),
        ({"lam": torch.tensor([0.1, 2.0, 0, 0])}, ValueError, "lam holds 2; it is the share"),
        ({"lam": torch.ones(3)}, ValueError, r"lam has shape \(3,\); allowed: \(\), \(4,\)"),
        ({"lam": "half"}, TypeError, "lam is 'half'; it must be a number"),
        ({"normalize": 1}, TypeError, "normalize is 1; it must be True or False"),
    ],
)
def test_errors(arguments, error, message):
    given = {"x": torch.ones(4, 3), "partner": torch.tensor([1, 0, 3, 2]), "lam": 0.5, **arguments}
    with pytest.raises(error, match=message):
        mix(**given)


def test_operator_refuses_what_would_read_outside():
    x, partner, lam = torch.ones(4, 3), torch.tensor([0, 1, 2, 9]), torch.tensor(0.5)
    with pytest.raises(RuntimeError, match="partner holds 9, which is none of 4 rows"):
        torch.ops.pairloom.mix(x, None, None, partner, lam, False)
    with pytest.raises(RuntimeError, match="lam has 2 values for 4 mixtures"):
        torch.ops.pairloom.mix(x, None, None, partner.clamp(max=3), torch.ones(2), False)
    with pytest.raises(RuntimeError, match="d_mixed must have the shape of what mix returned"):
        torch.ops.pairloom.mix_gradients(x[:2], x, None, None, partner.clamp(max=3), lam, True, 7)


def test_scripted_as_eager():
    """Also where the partners have a wider type."""
    x, others, first, partner, lam = random_case(3, 6, 5, 20, 24, torch.float32)
    for pool in (others, others.double(), others.half()):
        found = torch.jit.script(mix)(x, partner, lam, pool, first, True)
        expected = mix(x, partner, lam, others=pool, first=first, normalize=True)
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)
