"""Partners, layers and coverage: hardest_negatives, MixAtLayer, utilization."""

import copy
import math
import pickle
import sys
import threading
from threading import get_ident

import pytest
import torch
from torch import nn
from torch.nn.functional import normalize

from pairloom.mixup import MixAtLayer, hardest_negatives, mix, utilization
from pairloom.testing import peak_memory_mb
from tests.ops.golden import A, B


# --- hardest_negatives ------------------------------------------------------------------------------------------------
def naive_partners(x, labels, k, ref, ref_labels, ignore):
    s = normalize(x.double()) @ normalize(ref.double()).T
    found = []
    for i, label in enumerate(labels.tolist()):
        allowed = [
            (-float(s[i, j]), j)
            for j, other in enumerate(ref_labels.tolist())
            if other != label and ignore not in (label, other) and not math.isnan(s[i, j])
        ]
        found.append(([j for _, j in sorted(allowed)] + [-1] * k)[:k])
    return torch.tensor(found).view(len(x), k)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("own", [True, False])
def test_hardest_negatives(seed, own, monkeypatch):
    generator = torch.Generator().manual_seed(seed)
    n, m, classes, k = [(40, 23, 5, 3), (9, 1, 2, 2), (30, 30, 1, 2), (25, 60, 40, 5)][seed]
    x, ref = (torch.randn(count, 6, generator=generator, dtype=torch.float64) for count in (n, m))
    labels, ref_labels = (torch.randint(classes, (count,), generator=generator) - 1 for count in (n, m))
    given = (x, labels) if own else (ref, ref_labels)
    for ignore in (-100, 0, None):
        expected = naive_partners(x, labels, k, *given, ignore)
        for entries, fewest in ((1 << 18, 64), (20, 1)):
            monkeypatch.setattr(sys.modules[hardest_negatives.__module__], "CHUNK_ENTRIES", entries)
            monkeypatch.setattr(sys.modules[hardest_negatives.__module__], "FEWEST_ROWS", fewest)
            others = {} if own else {"ref_emb": ref, "ref_labels": ref_labels}
            assert torch.equal(hardest_negatives(x, labels, k, ignore_index=ignore, **others), expected)


def test_hardest_negatives_ties_and_nan():
    x = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [torch.nan, 0.0]])
    found = hardest_negatives(x, torch.tensor([0, 1, 1, 1, 2]), 4)
    assert found.tolist() == [[1, 2, 3, -1], [0, -1, -1, -1], [0, -1, -1, -1], [0, -1, -1, -1], [-1] * 4]


def test_hardest_negatives_hold_no_matrix():
    """20,000 rows of two classes: the matrix is 1.5 GiB, and so would be lists of all rows of the own class."""
    x, labels = torch.randn(20_000, 8), torch.arange(20_000) % 2
    hardest_negatives(x[:2_000], labels[:2_000])
    before = peak_memory_mb()
    found = hardest_negatives(x, labels)
    assert peak_memory_mb() - before < 250
    assert bool((labels[found.flatten()] != labels).all())


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"k": -1}, ValueError, "k is -1"),
        ({"labels": torch.ones(3)}, TypeError, "labels has dtype float32"),
        ({"labels": torch.ones(2).long()}, ValueError, "labels"),
        ({"ref_emb": torch.ones(2, 2)}, ValueError, "ref_emb is given without ref_labels"),
        ({"ref_labels": torch.ones(2).long()}, ValueError, "ref_labels is given without ref_emb"),
        ({"similarity": "l1"}, ValueError, "similarity is 'l1'"),
        ({"ignore_index": 0.5}, TypeError, "ignore_index is 0.5"),
    ],
)
def test_hardest_negatives_errors(arguments, error, message):
    given = {"embeddings": torch.ones(3, 2), "labels": torch.arange(3), **arguments}
    with pytest.raises(error, match=message):
        hardest_negatives(**given)


# --- utilization ------------------------------------------------------------------------------------------------------
def test_utilization_golden():
    mixture = mix(A, torch.tensor([2]), 0.7, first=torch.tensor([1]), normalize=True)
    assert utilization(B, A) == pytest.approx(0.160000, abs=1e-6)
    assert utilization(B, A, mixture) == pytest.approx(0.147251, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_utilization_is_the_definition(dtype):
    queries, clean, mixed = (torch.randn(n, 7).to(dtype) for n in (31, 12, 20))
    unit = [normalize(x.double()) for x in (queries, clean, mixed)]
    for sets, given in ((unit[1], (clean,)), (torch.cat(unit[1:]), (clean, mixed))):
        expected = torch.cdist(unit[0], sets).square().amin(1).mean().item()
        assert utilization(queries, *given) == pytest.approx(expected, rel=1e-5)
    assert utilization(queries, clean, mixed) <= utilization(queries, clean)
    assert utilization(clean, clean) == 0.0


def test_utilization_of_nothing():
    x = torch.randn(3, 2)
    assert math.isnan(utilization(x[:0], x))
    assert math.isnan(utilization(x, x[:0]))
    assert utilization(x, x[:0], x) == 0.0
    assert math.isnan(utilization(torch.full((1, 2), torch.nan), x))
    assert math.isnan(utilization(x, torch.full((2, 2), torch.nan)))


# --- MixAtLayer -------------------------------------------------------------------------------------------------------
def encoder():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Sequential(nn.Flatten(), nn.Linear(4 * 36, 5)))


PARTNER, LAM = torch.tensor([2, 0, 1]), torch.tensor([0.9, 0.4, 0.6])


@pytest.mark.parametrize("layer", ["input", "0", "1", "2.0", "2.1", "2", "output"])
def test_mixes_where_it_says(layer):
    whole, images = encoder(), torch.randn(3, 1, 8, 8)
    found = MixAtLayer(whole, layer)(images, PARTNER, LAM)
    parts = [whole[0], whole[1], whole[2][0], whole[2][1]]
    split = {"input": 0, "0": 1, "1": 2, "2.0": 3, "2.1": 4, "2": 4, "output": 4}[layer]
    hidden = images
    for part in parts[:split]:
        hidden = part(hidden)
    hidden = mix(hidden, PARTNER, LAM)
    for part in parts[split:]:
        hidden = part(hidden)
    torch.testing.assert_close(found, hidden)
    assert not any(module._forward_hooks for module in whole.modules())
    found.sum().backward()
    assert whole[0].weight.grad is not None


def test_normalised_embeddings():
    found = MixAtLayer(encoder(), "output", normalize=True)(torch.randn(3, 1, 8, 8), PARTNER, LAM)
    torch.testing.assert_close(found.norm(dim=1), torch.ones(3))


def test_the_encoder_stays_as_it_is():
    """Hooks go away, also when something fails; copies and pickles work; its parameters are found once."""
    whole = encoder()
    mixer = MixAtLayer(whole, "1")
    with pytest.raises(RuntimeError):
        mixer(torch.randn(3, 1, 2, 2), PARTNER, LAM)
    with pytest.raises(ValueError, match="partner"):
        mixer(torch.randn(3, 1, 8, 8), PARTNER + 1, LAM)
    assert not any(module._forward_hooks for module in whole.modules())
    images = torch.randn(3, 1, 8, 8)
    for again in (copy.deepcopy(mixer), pickle.loads(pickle.dumps(mixer))):
        assert torch.equal(again(images, PARTNER, LAM), mixer(images, PARTNER, LAM))
    assert len(list(mixer.parameters())) == len(list(whole.parameters()))


def test_threads_do_not_mix_for_each_other():
    """A plain call of the encoder, and another mixer, while this one is inside its layer."""
    whole, images = encoder(), torch.randn(3, 1, 8, 8)
    mixer, other = MixAtLayer(whole, "1"), MixAtLayer(whole, "1")
    expected = whole(images), other(images, PARTNER.flip(0), 0.2), mixer(images, PARTNER, LAM)
    found = {}

    def meanwhile(module, arguments, output):
        if get_ident() == main:
            for name, call in {
                "plain": lambda: whole(images),
                "other": lambda: other(images, PARTNER.flip(0), 0.2),
            }.items():
                thread = threading.Thread(target=lambda n=name, c=call: found.__setitem__(n, c()))
                thread.start()
                thread.join()

    main = get_ident()
    handle = whole[0].register_forward_hook(meanwhile)
    found["own"] = mixer(images, PARTNER, LAM)
    handle.remove()
    for name, wanted in zip(("plain", "other", "own"), expected, strict=True):
        assert torch.equal(found[name], wanted)


def test_under_autocast():
    with torch.autocast("cpu", torch.bfloat16):
        found = MixAtLayer(encoder(), "0")(torch.randn(3, 1, 8, 8), PARTNER, LAM)
    assert found.dtype == torch.bfloat16


class Odd(nn.Module):
    """Layers that cannot be mixed at."""

    def __init__(self):
        super().__init__()
        self.twice = nn.Linear(4, 4)
        self.never = nn.Linear(4, 4)
        self.recurrent = nn.GRU(4, 4, batch_first=True)
        self.flat = nn.Flatten(0)

    def forward(self, x):
        self.flat(x)
        return self.recurrent(self.twice(self.twice(x)).unsqueeze(1))[0].squeeze(1)


@pytest.mark.parametrize(
    ("layer", "error", "message"),
    [
        ("twice", RuntimeError, "layer 'twice' ran 2 times"),
        ("never", RuntimeError, "layer 'never' ran 0 times"),
        ("recurrent", TypeError, "layer 'recurrent' gives a tuple"),
        ("flat", ValueError, r"layer 'flat' gives shape \(12,\) for 3 items"),
        ("once", ValueError, "layer is 'once', which is no submodule of the encoder.*names such as"),
        ("", ValueError, "layer is ''"),
        (3, TypeError, "layer is 3"),
    ],
)
def test_layers_that_cannot_be_mixed_at(layer, error, message):
    with pytest.raises(error, match=message):
        MixAtLayer(Odd(), layer)(torch.randn(3, 4), PARTNER, LAM)


def test_other_errors():
    with pytest.raises(TypeError, match="encoder is a function"):
        MixAtLayer(lambda x: x, "input")
    with pytest.raises(ValueError, match="normalize is True with layer 'input'"):
        MixAtLayer(Odd(), "input", normalize=True)
    both = nn.ModuleDict({"input": nn.Linear(1, 1)})
    with pytest.raises(ValueError, match="an end of the encoder and a submodule too"):
        MixAtLayer(both, "input")
