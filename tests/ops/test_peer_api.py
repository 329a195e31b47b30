"""Code written for pytorch-metric-learning runs after one change of import: constructors, calls, values, gradients.

A loss that both libraries have joins by one line in PEERS.
"""

import inspect
import subprocess
import sys
from typing import NamedTuple

import pytest
import torch
from pytorch_metric_learning import distances, losses, reducers, regularizers

import pairloom


class Peer(NamedTuple):
    """A loss of both libraries."""

    settings: dict
    """Constructor arguments that differ from the defaults."""
    terms: str = "anchors"
    """What its losses belong to there; reducers see them."""
    columns: bool = False
    """Whether its losses come as (N, 1) there: weights (N,) of a class then meet every loss, and weight nothing."""
    middle: tuple = ()
    """Two numbers with some losses of anchors below, between and above."""
    required: dict = {}  # noqa: RUF012 - read only
    """Constructor arguments without a default."""
    references: bool = True
    """Whether it takes reference rows, and they mean the same there."""
    cosine: bool = False
    """Whether cosine is the only distance there; similarities are the only ones here."""


SIZES = {"num_classes": 11, "embedding_size": 6}
PEERS = {
    "SupConLoss": Peer({"temperature": 0.3}, middle=(3.8, 4.6)),
    "NTXentLoss": Peer({"temperature": 0.3}, middle=(3.8, 4.6), terms="pairs"),
    "MultiSimilarityLoss": Peer({"alpha": 3, "beta": 20, "base": 0.4}, middle=(1.3, 1.6), columns=True),
    "GeneralizedLiftedStructureLoss": Peer({"neg_margin": 0.8, "pos_margin": 0.1}, middle=(5.6, 5.9), columns=True),
    "LiftedStructureLoss": Peer(
        {"neg_margin": 0.8, "pos_margin": 0.1}, middle=(11.4, 12.1), terms="pairs", references=False
    ),
    "NPairsLoss": Peer({}, middle=(1.5, 2.1), terms="classes", references=False),
    "ProxyNCALoss": Peer({}, middle=(2.2, 2.8), required=SIZES, references=False),
    "NormalizedSoftmaxLoss": Peer({"temperature": 0.2}, middle=(2.0, 5.0), required=SIZES, references=False),
    "CircleLoss": Peer({"m": 0.3, "gamma": 8}, middle=(20.0, 24.5), columns=True, cosine=True),
}
WITH_PROXIES = [name for name in PEERS if PEERS[name].required]
WITH_REFERENCES = [name for name in PEERS if PEERS[name].references]


class FlatLifted(losses.LiftedStructureLoss):
    """Its losses of pairs come as (P, 1), which no reducer of pairs can take."""

    def _compute_loss(self, *arguments):
        found = super()._compute_loss(*arguments)
        found["loss"]["losses"] = found["loss"]["losses"].flatten()
        return found


def both(name, ours=None, **keywords):
    """The loss of both libraries, made by the same call."""
    settings = {**PEERS[name].required, **PEERS[name].settings, **keywords}
    theirs = FlatLifted if name == "LiftedStructureLoss" else getattr(losses, name)
    return sharing_proxies(getattr(pairloom, name)(**settings, **(ours or {})), theirs(**settings))


def sharing_proxies(ours, theirs):
    """Both losses with the same proxies, in float64."""
    if hasattr(ours, "proxies"):
        ours.double(), theirs.double()
        where = theirs.W if hasattr(theirs, "W") else theirs.proxies
        where.data = (ours.proxies.T if hasattr(theirs, "W") else ours.proxies).detach().clone()
    return ours, theirs


def batch():
    """Every anchor has a positive and a negative, classes differ in size, rows in length."""
    torch.manual_seed(0)
    labels = torch.arange(36).pow(2) % 11
    return torch.randn(36, 6, dtype=torch.float64) * torch.rand(36, 1, dtype=torch.float64).add(0.5), labels


def assert_same(ours, theirs, *more):
    x, labels = batch()
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    value, wanted = ours(a, labels, *more), theirs(b, labels, *more)
    torch.testing.assert_close(value, wanted)
    assert wanted.abs() > 1e-6
    value.backward()
    wanted.backward()
    torch.testing.assert_close(a.grad, b.grad)
    if hasattr(ours, "proxies"):
        wanted = theirs.W.grad.T if hasattr(theirs, "W") else theirs.proxies.grad
        assert wanted.any()
        torch.testing.assert_close(ours.proxies.grad, wanted)


@pytest.mark.parametrize("name", [*PEERS, "ProxyAnchorLoss"])
def test_constructors_and_calls_have_the_same_arguments(name):
    ours, theirs = (getattr(library, name) for library in (pairloom, losses))
    first, wanted = inspect.signature(ours).parameters, inspect.signature(theirs).parameters
    wanted = [p for p in wanted.values() if p.kind is not p.VAR_KEYWORD]
    assert [(p.name, p.default) for p in list(first.values())[: len(wanted)]] == [(p.name, p.default) for p in wanted]
    assert all(p.kind in (p.KEYWORD_ONLY, p.VAR_KEYWORD) for p in list(first.values())[len(wanted) :])
    call, wanted = inspect.signature(ours.forward).parameters, inspect.signature(theirs.forward).parameters
    assert list(call)[: len(wanted)] == list(wanted)
    assert [call[key].default for key in wanted] == [p.default for p in wanted.values()]


def test_keywords_are_those_of_the_base_class():
    from pytorch_metric_learning.utils.module_with_records_and_reducer import ModuleWithRecordsReducerAndDistance

    wanted = set()
    for base in inspect.getmro(losses.SupConLoss):
        if base in (torch.nn.Module, object) or "__init__" not in vars(base):
            continue
        wanted |= {p.name for p in inspect.signature(base.__init__).parameters.values() if p.kind is not p.VAR_KEYWORD}
    assert ModuleWithRecordsReducerAndDistance in inspect.getmro(losses.SupConLoss)
    assert wanted - {"self", "temperature", "mat_based_loss"} == set(pairloom.losses.PeerKeywords.__annotations__)


@pytest.mark.parametrize("name", PEERS)
def test_defaults(name):
    pair = [getattr(library, name)(**PEERS[name].required) for library in (pairloom, losses)]
    assert_same(*sharing_proxies(*pair))


@pytest.mark.parametrize("name", WITH_REFERENCES)
def test_positions_of_a_call(name):
    torch.manual_seed(1)
    ref, ref_labels = torch.randn(25, 6, dtype=torch.float64), torch.randint(0, 11, (25,))
    assert_same(*both(name), None, ref, ref_labels)


@pytest.mark.parametrize("name", WITH_REFERENCES)
def test_two_views_may_share_one_tensor_of_labels(name):
    """There (i, i) is then left out, a positive pair of two views; a copy of the labels shows what is meant."""
    (x, labels), ref = batch(), torch.randn(36, 6, dtype=torch.float64)
    ours, theirs = both(name)
    torch.testing.assert_close(ours(x, labels, None, ref, labels), theirs(x, labels, None, ref, labels.clone()))


SIMILARITIES = [distances.CosineSimilarity(), distances.DotProductSimilarity(normalize_embeddings=False)]
SIMILARITIES += [distances.DotProductSimilarity(), distances.DotProductSimilarity(normalize_embeddings=False, p=1)]
METRICS = [distances.LpDistance(power=power, normalize_embeddings=unit) for power in (1, 2) for unit in (True, False)]


def written(thing):
    """A test id."""
    shown = ("power", "normalize_embeddings", "low", "high")
    return type(thing).__name__ + "".join(f"-{key}={getattr(thing, key)}" for key in shown if hasattr(thing, key))


@pytest.mark.parametrize("distance", [*SIMILARITIES, *METRICS], ids=written)
@pytest.mark.parametrize("name", PEERS)
def test_distances(name, distance):
    if distance in METRICS and PEERS[name].cosine:
        with pytest.raises(ValueError, match=r"distance is LpDistance\(p=2, power=.\), .* allowed: CosineSimilarity"):
            both(name, distance=distance)
        return
    if name == "NormalizedSoftmaxLoss" and distance.p != 2:
        with pytest.raises(ValueError, match=r"distance is DotProductSimilarity\(p=1\); proxies of length 1"):
            both(name, distance=distance)
        return
    if PEERS[name].cosine and not isinstance(distance, distances.CosineSimilarity):
        ours, _ = both(name)
        ours.similarity = "cosine" if distance.normalize_embeddings else "dot"
        assert_same(both(name, {"distance": distance})[0], ours)
        return
    assert_same(*both(name, distance=distance))


@pytest.mark.parametrize(
    "distance",
    [
        distances.SNRDistance(),
        distances.LpDistance(p=1),
        distances.LpDistance(power=3),
        distances.CosineSimilarity(power=2),
        distances.DotProductSimilarity(p=1),
        distances.BatchedDistance(distances.CosineSimilarity()),
        type("MyDistance", (distances.CosineSimilarity,), {})(),
        "cosine",
    ],
    ids=written,
)
def test_distances_without_a_counterpart(distance):
    with pytest.raises(ValueError, match=r"distance is \w+\(.*allowed: LpDistance\(p=2\).* or similarity='euclidean'"):
        pairloom.GeneralizedLiftedStructureLoss(distance=distance)


CLASS_WEIGHTS = torch.linspace(0.2, 2.0, 11, dtype=torch.float64)


class Doubled(reducers.MeanReducer):
    """A user's own reducer."""

    def element_reduction(self, losses, *_):
        return 2 * losses.mean()


REDUCERS = [
    reducers.MeanReducer(),
    reducers.AvgNonZeroReducer(),
    reducers.SumReducer(),
    reducers.ClassWeightedReducer(CLASS_WEIGHTS),
    reducers.PerAnchorReducer(),
    reducers.PerAnchorReducer(reducers.ClassWeightedReducer(CLASS_WEIGHTS)),
    reducers.PerAnchorReducer(Doubled()),
    reducers.MultipleReducers({"loss": reducers.SumReducer()}),
    reducers.MultipleReducers({}, default_reducer=reducers.PerAnchorReducer()),
]


@pytest.mark.parametrize("reducer", REDUCERS, ids=[f"{i}-{written(reducer)}" for i, reducer in enumerate(REDUCERS)])
@pytest.mark.parametrize("name", PEERS)
def test_reducers(name, reducer):
    weighted = "ClassWeights" in str(both(name, reducer=reducer)[0])
    if weighted and PEERS[name].columns:
        assert_weighted_by_class(name, reducer)
    else:
        assert_same(*both(name, reducer=reducer))


def assert_weighted_by_class(name, reducer):
    """The formula of the reducer: mean of weight of the class times loss."""
    x, labels = batch()
    x.requires_grad_()
    rows = both(name, reducer=reducers.DoNothingReducer())[1](x, labels)["loss"]["losses"]
    wanted = (CLASS_WEIGHTS[labels] * rows.squeeze(1)).mean()
    value = both(name, reducer=reducer)[0](x, labels)
    torch.testing.assert_close(value, wanted)
    torch.testing.assert_close(torch.autograd.grad(value, x), torch.autograd.grad(wanted, x))


@pytest.mark.parametrize("name", PEERS)
def test_threshold_reducer(name):
    low, high = PEERS[name].middle
    for bounds in ({"low": low, "high": high}, {"low": low}, {"high": high}):
        assert_same(*both(name, reducer=reducers.PerAnchorReducer(reducers.ThresholdReducer(**bounds))))


@pytest.mark.parametrize("reducer", [reducers.ThresholdReducer(low=0.3), Doubled()], ids=written)
@pytest.mark.parametrize("name", PEERS)
def test_reducers_of_single_losses(name, reducer):
    if PEERS[name].terms == "pairs":
        with pytest.raises(ValueError, match=r"needs the losses of single pairs; .* PerAnchorReducer"):
            both(name, reducer=reducer)
        return
    assert_same(*both(name, reducer=reducer))


@pytest.mark.parametrize("name", PEERS)
def test_do_nothing_makes_the_vector_of_losses(name):
    """pytorch-metric-learning returns a dictionary around it."""
    x, labels = batch()
    ours, theirs = both(name, reducer=reducers.DoNothingReducer())
    losses_there = theirs(x, labels)["loss"]["losses"].flatten()
    assert ours(x, labels).shape == (18 if PEERS[name].terms == "classes" else 36,)
    torch.testing.assert_close(ours(x, labels).sum(), losses_there.sum())
    if PEERS[name].terms == "anchors":
        torch.testing.assert_close(ours(x, labels), losses_there)


@pytest.mark.parametrize("name", PEERS)
def test_reducers_leave_ignored_anchors_out(name):
    """A reducer is given what is left of the batch: the batch without the anchors that are ignored."""
    x, labels = batch()
    ignored = torch.where(torch.arange(36) % 3 == 0, -100, labels)
    rest = ignored != -100
    for reducer in (reducers.ClassWeightedReducer(CLASS_WEIGHTS), reducers.PerAnchorReducer(Doubled())):
        ours, _ = both(name, reducer=reducer)
        torch.testing.assert_close(ours(x, ignored), ours(x[rest], labels[rest]))
        nothing = ours(x.requires_grad_(), torch.full((36,), -100))
        nothing.backward()
        assert nothing == 0
        assert not x.grad.any()


def test_reducers_without_a_use():
    for reducer in (reducers.DivisorReducer(), "mean"):
        with pytest.raises(ValueError, match=r"reducer is a \w+, .* allowed: MeanReducer.* or reduction='mean'"):
            pairloom.SupConLoss(reducer=reducer)
    own = reducers.PerAnchorReducer(aggregation_func=lambda losses, count: losses.sum(1))
    with pytest.raises(ValueError, match="reducer has its own aggregation_func"):
        pairloom.NTXentLoss(reducer=own)
    x, labels = batch()
    weighted = pairloom.SupConLoss(reducer=reducers.ClassWeightedReducer(CLASS_WEIGHTS))
    with pytest.raises(ValueError, match="weights is given, but the reducer"):
        weighted(x, labels, weights=torch.ones(36))


REGULARIZERS = [
    regularizers.LpRegularizer(),
    regularizers.LpRegularizer(p=1, power=2),
    regularizers.ZeroMeanRegularizer(),
    regularizers.CenterInvariantRegularizer(),
    regularizers.RegularFaceRegularizer(),
    regularizers.LpRegularizer(reducer=reducers.SumReducer()),
]


@pytest.mark.parametrize("regularizer", REGULARIZERS, ids=[f"{i}-{written(r)}" for i, r in enumerate(REGULARIZERS)])
@pytest.mark.parametrize("name", PEERS)
def test_embedding_regularizers(name, regularizer):
    assert_same(*both(name, embedding_regularizer=regularizer, embedding_reg_weight=0.3))


@pytest.mark.parametrize("regularizer", REGULARIZERS, ids=[f"{i}-{written(r)}" for i, r in enumerate(REGULARIZERS)])
@pytest.mark.parametrize("name", WITH_PROXIES)
def test_weight_regularizers(name, regularizer):
    assert_same(*both(name, weight_regularizer=regularizer, weight_reg_weight=0.3))
    assert_same(*both(name, weight_regularizer=regularizer, embedding_regularizer=regularizers.LpRegularizer()))


@pytest.mark.parametrize("name", WITH_PROXIES)
def test_proxies_begin_as_told_and_weights_reach_the_function(name):
    def fill(proxies):
        torch.nn.init.constant_(proxies, 2.0)

    module, _ = both(name, weight_init_func=fill)
    assert (module.proxies == 2).all()
    with pytest.raises(TypeError, match="weight_regularizer is a str; it must be callable with the proxies"):
        both(name, weight_regularizer="l2")
    with pytest.raises(ValueError, match="weight_regularizer is given, but reduction is 'none'"):
        both(name, {"weight_regularizer": torch.sum, "reduction": "none"})
    assert torch.equal(*(made.eval().proxies for made in (module, both(name, weight_init_func=fill)[0])))


@pytest.mark.parametrize(
    "name", [name for name in PEERS if not PEERS[name].references and name != "LiftedStructureLoss"]
)
def test_losses_without_references_say_so(name):
    x, labels = batch()
    with pytest.raises(ValueError, match="ref_emb is given, but this loss takes no reference rows"):
        both(name)[0](x, labels, ref_emb=x, ref_labels=labels)
    with pytest.raises(ValueError, match="ref_emb is not supported"):
        both(name)[1](x, labels, ref_emb=x + 1, ref_labels=labels)


@pytest.mark.parametrize("name", ["ProxyNCALoss", "NormalizedSoftmaxLoss", "NPairsLoss"])
def test_weights_of_anchors_in_the_call(name):
    x, labels = batch()
    weights = torch.rand(36, dtype=torch.float64)
    ours, _ = both(name)
    rows = both(name, {"reduction": "none"})[0]
    if name != "NPairsLoss":
        rows.load_state_dict(ours.state_dict())
        chosen = weights
    else:
        first = {label: i for i, label in reversed(list(enumerate(labels.tolist())))}
        chosen = weights[[first[label] for label in sorted(first) if (labels == label).sum() > 1]]
    wanted = (rows(x, labels)[: len(chosen)] * chosen).sum() / chosen.sum()
    torch.testing.assert_close(ours(x, labels, weights=weights), wanted)
    torch.testing.assert_close(ours.with_stats(x, labels, weights=weights)[0], wanted)


@pytest.mark.parametrize("name", PEERS)
def test_regularizer_and_reducer_together(name):
    several = reducers.MultipleReducers({"loss": reducers.SumReducer(), "embedding_reg_loss": reducers.MeanReducer()})
    assert_same(*both(name, reducer=several, embedding_regularizer=regularizers.LpRegularizer()))
    single = reducers.PerAnchorReducer(Doubled())
    assert_same(*both(name, reducer=single, embedding_regularizer=regularizers.LpRegularizer()))


def test_regularizers_are_checked_and_half_precision_is_summed_in_float32():
    with pytest.raises(TypeError, match="embedding_regularizer is a str; it must be callable"):
        pairloom.SupConLoss(embedding_regularizer="l2")
    with pytest.raises(ValueError, match="there is no loss to add it to"):
        pairloom.SupConLoss(reduction="none", embedding_regularizer=torch.sum)
    with pytest.raises(ValueError, match="embedding_reg_weight is nan; it must be finite"):
        pairloom.SupConLoss(embedding_regularizer=torch.sum, embedding_reg_weight=float("nan"))
    x, labels = batch()
    with pytest.raises(ValueError, match=r"returned shape \(36,\); it must be one value"):
        pairloom.SupConLoss(embedding_regularizer=lambda rows: rows.sum(1))(x, labels)
    half = (300 * x).half()
    squares = pairloom.SupConLoss(embedding_regularizer=lambda rows: rows.pow(2).sum())(half, labels)
    assert squares.isfinite()
    empty = pairloom.SupConLoss(embedding_regularizer=regularizers.LpRegularizer())
    assert empty(x[:0].requires_grad_(), labels[:0]).item() == 0


def test_words_beside_objects():
    with pytest.raises(ValueError, match="similarity is 'dot', but distance stands for 'cosine'; give one of them"):
        pairloom.SupConLoss(similarity="dot", distance=distances.CosineSimilarity())
    with pytest.raises(ValueError, match="reduction is 'sum', but reducer stands for 'mean_all'"):
        pairloom.SupConLoss(reduction="sum", reducer=reducers.MeanReducer())
    with pytest.raises(TypeError, match="distanze"):
        pairloom.SupConLoss(distanze=distances.CosineSimilarity())


def test_collected_statistics_are_those_of_the_last_call():
    x, labels = batch()
    loss = pairloom.MultiSimilarityLoss(collect_stats=True)
    loss(x, labels)
    wanted = pairloom.MultiSimilarityLoss().with_stats(x, labels)[1]
    assert all(torch.equal(a, b) or (a.isnan() and b.isnan()) for a, b in zip(loss.pair_stats, wanted, strict=True))
    assert not hasattr(pairloom.MultiSimilarityLoss(collect_stats=False), "pair_stats")


def test_weights_and_changed_settings_reach_the_function():
    x, labels = batch()
    weights = torch.rand(36, dtype=torch.float64)
    loss = pairloom.DCLLoss(temperature=0.5)
    loss.temperature, loss.reduction = 0.2, "sum"
    wanted = pairloom.functional.dcl(x, labels, temperature=0.2, reduction="sum", weights=weights)
    assert loss(x, labels, weights=weights) == wanted
    assert loss.with_stats(x, labels, weights=weights)[0] == wanted
    assert "temperature=0.2" in repr(loss)


def test_labels_follow_the_embeddings():
    x, labels = batch()
    assert pairloom.SupConLoss()(x.to("meta"), labels, ref_emb=x.to("meta"), ref_labels=labels).device.type == "meta"


def test_scripted_modules_refuse_what_they_cannot_hold():
    for keywords in ({"embedding_regularizer": regularizers.LpRegularizer()}, {"reducer": Doubled()}):
        (name,) = keywords
        with pytest.raises(RuntimeError, match=f"SupConLoss has a {name}, which TorchScript cannot compile"):
            torch.jit.script(pairloom.SupConLoss(**keywords))
    with pytest.raises(RuntimeError, match="MarginLoss has no TorchScript form"):
        torch.jit.script(pairloom.MarginLoss())


@pytest.mark.parametrize("name", ["SupConLoss", "NTXentLoss", "MultiSimilarityLoss"])
@pytest.mark.parametrize("reducer", [None, reducers.SumReducer()], ids=written)
def test_scripted_modules_take_weights_and_stay_as_they_were(name, reducer, tmp_path):
    x, labels = batch()
    module, _ = both(name, {"ignore_index": None}, reducer=reducer, distance=distances.CosineSimilarity())
    torch.jit.save(torch.jit.script(module), tmp_path / "loss.pt")
    scripted = torch.jit.load(tmp_path / "loss.pt")
    weights = torch.rand(36, dtype=torch.float64)
    for arguments in ((x, labels), (x, labels, None, x + 1, labels, weights)):
        for _ in range(3):  # the profiling executor changes its mind after the first calls
            torch.testing.assert_close(scripted(*arguments), module(*arguments))
    assert module.with_stats(x, labels)[1].positives > 0
    assert type(module) is getattr(pairloom, name)


def test_compile_with_a_regularizer_and_class_weights():
    torch._dynamo.reset()
    x, labels = batch()
    ours, theirs = both(
        "SupConLoss",
        reducer=reducers.ClassWeightedReducer(CLASS_WEIGHTS),
        embedding_regularizer=regularizers.LpRegularizer(),
    )
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, labels), theirs(x, labels))


def test_nothing_of_it_is_imported_unasked():
    program = """
import sys, torch, pairloom
pairloom.SupConLoss(embedding_regularizer=torch.sum)(torch.eye(4), torch.arange(4) // 2)
assert not any(name.startswith("pytorch_metric_learning") for name in sys.modules)
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True)
