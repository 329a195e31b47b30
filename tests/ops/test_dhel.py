"""dhel: golden values, the whole matrix in plain torch beside it, one sample, half precision."""

import pytest
import torch
import torch.nn.functional as F

from pairloom import DHELLoss
from pairloom.functional import dhel
from tests.ops import golden
from tests.ops.peers import SEEDS, assert_equal_peer


def test_golden_values():
    assert dhel(golden.A, golden.B, temperature=0.5).item() == pytest.approx(1.995990, abs=1e-6)
    assert dhel(golden.A, golden.B, temperature=0.5, both=False).item() == pytest.approx(0.120040, abs=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("both", [False, True])
def test_equals_the_whole_matrix(seed, both):
    torch.manual_seed(seed)
    inputs = [torch.randn(20, 6, dtype=torch.float64) for _ in range(2)]
    own = torch.eye(20, dtype=torch.bool)

    def dense(first, second):
        first, second = F.normalize(first), F.normalize(second)
        views = (first, second) if both else (first,)
        apart = sum((x @ x.T / 0.3).masked_fill(own, -torch.inf).logsumexp(1) for x in views)
        return (apart - (first * second).sum(1) / 0.3).mean()

    assert_equal_peer(DHELLoss(both=both), dense, *inputs)


def test_gradients_of_temperature_and_weights():
    torch.manual_seed(4)
    x, y = torch.randn(5, 3, dtype=torch.float64), torch.randn(5, 3, dtype=torch.float64)
    weights = torch.rand(5, dtype=torch.float64)

    def loss(x, y, temperature, weights):
        return dhel(x, y, temperature=temperature, weights=weights)

    for temperature in (torch.tensor(0.5), torch.linspace(0.3, 0.9, 5)):
        assert torch.autograd.gradcheck(loss, [v.double().requires_grad_() for v in (x, y, temperature, weights)])


@pytest.mark.parametrize("count", [0, 1])
def test_nobody_to_repel(count):
    x = torch.randn(count, 3, requires_grad=True)
    loss = dhel(x, torch.randn(count, 3))
    loss.backward()
    assert loss.item() == 0
    assert not x.grad.any()


def test_half_precision_low_temperature_and_nan():
    torch.manual_seed(5)
    x, y = torch.randn(16, 8), torch.randn(16, 8)
    half = x.to(torch.bfloat16).requires_grad_()
    value = dhel(half, y.to(torch.bfloat16), temperature=1e-3)
    value.backward()
    assert value.dtype == torch.float32
    assert value.isfinite()
    assert half.grad.isfinite().all()
    x[3, 2] = torch.nan
    assert dhel(x, y).isnan()


def test_inputs_are_checked():
    with pytest.raises(ValueError, match="second has 3 rows and first has 4"):
        dhel(golden.A, golden.B[:3])
    with pytest.raises(ValueError, match="temperature is 0"):
        DHELLoss(0)
    assert repr(DHELLoss()) == "DHELLoss(temperature=0.3, both=True, similarity='cosine', reduction='mean')"
