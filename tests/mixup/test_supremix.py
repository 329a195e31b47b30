"""SupReMix equals the formula with every mixture formed: values, gradients with and without detaching, and edges."""

import copy
import pickle
import sys

import pytest
import torch
from torch.nn.functional import normalize

from pairloom.mixup import SupReMixLoss, supremix
from pairloom.testing import peak_memory_mb

WEIGHTS = {
    "l1_inv": lambda d: d + 1,
    "l1": lambda d: d,
    "l2": lambda d: d * d,
    "l2_inv": lambda d: d * d + 1,
    "none": lambda d: 1.0,
}


def naive(x, y, lam, window, t, weights="l1_inv", detach=True, partners=None):
    z = normalize(x)
    fixed = z.detach() if detach else z
    w, n, losses = WEIGHTS[weights], len(z), []
    for i in range(n):
        terms, positives = [], []
        for a in range(n):
            if a != i:
                logit = z[i] @ z[a] / t
                terms.append((w(abs(y[i] - y[a])), logit))
                if y[a] == y[i]:
                    positives.append(logit)
        for k in range(n) if partners is None else [p for p in partners[i].tolist() if p >= 0]:
            if y[k] == y[i]:
                continue
            part = float(
                lam if not isinstance(lam, torch.Tensor) or lam.dim() == 0 else lam[i] if lam.dim() == 1 else lam[i, k]
            )
            v = part * fixed[i] + (1 - part) * fixed[k]
            terms.append((w(abs(y[i] - (part * y[i] + (1 - part) * y[k]))), z[i] @ v / t))
        for j in range(n):
            for k in range(n):
                if y[j] < y[i] < y[k] and y[i] - y[j] < window and y[k] - y[i] < window:
                    part = (y[k] - y[i]) / (y[k] - y[j])
                    logit = z[i] @ (part * fixed[j] + (1 - part) * fixed[k]) / t
                    terms.append((w(0.0), logit))
                    positives.append(logit)
        if not positives:
            losses.append(0.0 * z[i].sum())
            continue
        terms = [(weight, logit) for weight, logit in terms if weight > 0]
        total = torch.tensor(0.0, dtype=z.dtype)
        if terms:
            total = torch.stack(
                [logit + torch.tensor(float(weight), dtype=z.dtype).log() for weight, logit in terms]
            ).logsumexp(0)
        losses.append(total - torch.stack(positives).mean())
    return torch.stack(losses) if losses else x.sum(1)


def batch(n, dim=4, seed=0, levels=5):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, dim, generator=generator, dtype=torch.float64)
    return x, torch.randint(levels, (n,), generator=generator).double() * 1.5


def test_golden():
    x = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [-0.6, 0.8]], dtype=torch.float64)
    y = torch.tensor([2, 2, 4, 1])
    partners = torch.tensor([[2], [-1], [-1], [-1]])
    for weights, expected in (("l1_inv", 2.468405), ("none", 2.209075)):
        found = supremix(x, y, lam=0.2, partners=partners, distance_weights=weights, reduction="none")
        assert found[0].item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("detach", [True, False])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_is_the_formula(weights, detach):
    x, y = batch(11, seed=1)
    x.requires_grad_()
    for window in (2.0, 100.0):
        found = supremix(
            x, y, lam=0.25, window=window, temperature=0.4, distance_weights=weights, detach=detach, reduction="none"
        )
        expected = naive(x, y.tolist(), 0.25, window, 0.4, weights, detach)
        torch.testing.assert_close(found, expected)
        upstream = torch.linspace(-1, 1, 11, dtype=torch.float64)
        ours, wanted = (torch.autograd.grad((losses * upstream).sum(), x)[0] for losses in (found, expected))
        torch.testing.assert_close(ours, wanted, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("shape", ["anchor", "pair"])
def test_shares(shape):
    x, y = batch(9, seed=2)
    lam = torch.rand((9,) if shape == "anchor" else (9, 9), generator=torch.Generator().manual_seed(0))
    partners = torch.randint(-1, 9, (9, 4), generator=torch.Generator().manual_seed(1))
    for chosen in (None, partners):
        found = supremix(x, y, lam=lam, partners=chosen, reduction="none")
        torch.testing.assert_close(found, naive(x, y.tolist(), lam.double(), 5.0, 0.3, partners=chosen))


def test_chunks_and_order_do_not_matter(monkeypatch):
    x, y = batch(23, seed=3)
    lam = torch.rand(23, dtype=torch.float64)
    whole = supremix(x, y, lam=lam, reduction="none")
    monkeypatch.setattr(sys.modules["pairloom.mixup.supremix"], "CHUNK_ENTRIES", 100)
    torch.testing.assert_close(supremix(x, y, lam=lam, reduction="none"), whole)
    order = torch.randperm(23)
    torch.testing.assert_close(supremix(x[order], y[order], lam=lam[order], reduction="none"), whole[order])


def test_one_shift_for_all():
    """Similarities over t = 0.002 differ by hundreds: nothing overflows, and no block is weighed against another."""
    x, y = batch(8, seed=4)
    found = supremix(x, y, lam=0.2, temperature=0.002, reduction="none")
    torch.testing.assert_close(found, naive(x, y.tolist(), 0.2, 5.0, 0.002))
    assert supremix(x.float(), y, lam=0.2, temperature=0.002).isfinite()


@pytest.mark.parametrize("y", [[], [1.0], [2.0, 2.0, 2.0], [0.0, 10.0, 20.0], [0.0, 0.0, 9.0]])
def test_edges(y):
    """Nobody; one; one label, which has no mixtures; labels too far apart: anchors without a positive give 0."""
    x = torch.randn(len(y), 3, dtype=torch.float64, requires_grad=True)
    found = supremix(x, torch.tensor(y, dtype=torch.float64), lam=0.3, reduction="none")
    torch.testing.assert_close(found, naive(x, y, 0.3, 5.0, 0.3))
    loss = supremix(x, torch.tensor(y), lam=0.3)
    loss.backward()
    assert loss.isfinite()
    assert x.grad.isfinite().all()


def test_labels_as_large_as_timestamps():
    """Nanoseconds: float64 has no numbers between y and y + window there."""
    x, y = batch(7, seed=5)
    stamps = 1.7e18 + 1e9 * y
    found = supremix(x, stamps, lam=0.3, reduction="none")
    torch.testing.assert_close(found, naive(x, stamps.tolist(), 0.3, 5.0, 0.3))


@pytest.mark.parametrize("lam", [0.0, 1.0])
def test_ends_of_lam(lam):
    x, y = batch(7, seed=5)
    torch.testing.assert_close(supremix(x, y, lam=lam, reduction="none"), naive(x, y.tolist(), lam, 5.0, 0.3))


def test_gradcheck_and_second_derivatives():
    x, y = batch(6, 3, seed=6)
    x.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: supremix(x, y, lam=0.3, detach=False), x)
    assert torch.autograd.gradgradcheck(lambda x: supremix(x, y, lam=0.3, detach=False), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_dtypes(dtype):
    x, y = batch(12, 8, seed=7)
    x = x.to(dtype)
    found = supremix(x, y, lam=0.2)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), supremix(x.double(), y, lam=0.2), rtol=1e-5, atol=1e-5)


def test_nan_stays_with_those_who_meet_it():
    x, y = torch.randn(6, 3), torch.tensor([0.0, 0.0, 1.0, 1.0, 2.0, 2.0])
    x[0, 0] = torch.nan
    assert supremix(x, y, lam=0.2, reduction="none").isnan().all()


def test_memory():
    """At 1,024 rows the negative mixtures alone are 512 MiB of vectors, the positive ones many times that."""
    x, y = torch.randn(1024, 128, requires_grad=True), torch.randint(60, (1024,))
    supremix(x[:256], y[:256], lam=0.2, window=5).backward()
    before = peak_memory_mb()
    supremix(x, y, lam=0.2, window=5).backward()
    assert peak_memory_mb() - before < 250


def test_module():
    x, y = batch(10, seed=8)
    one, again = (SupReMixLoss(4.0, generator=torch.Generator().manual_seed(1)) for _ in range(2))
    values = [one(x, y).item() for _ in range(3)]
    assert values == [again(x, y).item() for _ in range(3)]
    assert len(set(values)) == 3
    for copied in (copy.deepcopy(one), pickle.loads(pickle.dumps(SupReMixLoss(4.0)))):
        assert repr(copied) == repr(one)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"targets": [1.0]}, TypeError, "targets is a list"),
        ({"targets": torch.ones(4, 1)}, ValueError, r"targets has shape \(4, 1\); it must be \(4,\)"),
        ({"targets": torch.tensor([0, 1, 2, torch.nan])}, ValueError, "targets holds values that are not finite"),
        ({"targets": torch.ones(4, dtype=torch.bool)}, TypeError, "targets has dtype bool"),
        ({"lam": 1.5}, ValueError, "lam is 1.5"),
        ({"lam": torch.ones(4, 3)}, ValueError, r"lam has shape \(4, 3\); allowed: \(\), \(4,\), \(4, 4\)"),
        ({"window": 0}, ValueError, "window is 0"),
        ({"temperature": -1}, ValueError, "temperature is -1"),
        ({"distance_weights": "l3"}, ValueError, "distance_weights is 'l3'; allowed: l1_inv, l1"),
        ({"detach": 1}, TypeError, "detach is 1"),
        ({"partners": torch.ones(4)}, ValueError, r"partners has shape \(4,\); it must be \(4, partners\)"),
        ({"partners": torch.full((4, 2), 4)}, ValueError, "partners holds 4; rows of embeddings: 0 to 3"),
        ({"reduction": "max"}, ValueError, "reduction is 'max'"),
    ],
)
def test_errors(arguments, error, message):
    given = {"embeddings": torch.randn(4, 3), "targets": torch.arange(4), "lam": 0.2, **arguments}
    with pytest.raises(error, match=message):
        supremix(given.pop("embeddings"), given.pop("targets"), **given)
