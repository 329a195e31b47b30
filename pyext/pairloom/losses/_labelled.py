"""What losses on labelled embeddings share whose operator is a streamed rule: the call, and the module around it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from pairloom import _checks, reference
from pairloom._dispatch import as_temperature, gradient_bits, no_torchscript, pair_loss, twin_of
from pairloom._labels import operator_labels
from pairloom._stats import PairStats
from pairloom._stream import RULES
from pairloom.losses._distances import compared_rows
from pairloom.losses._mined import MinedPairs, mined_loss, mined_pairs
from pairloom.losses._translate import Reducer, reduction_of, similarity_of
from pairloom.reference._rows import labels_equal
from pairloom.reference.similarity import compute_dtype

if TYPE_CHECKING:
    IndexTuple = tuple[Tensor, ...] | None
else:
    IndexTuple = type(None)  # all that TorchScript, which knows no tuples of unknown length, can take

DISTANCES = ("euclidean", "squared_euclidean", "cosine", "dot")


def labelled_loss(
    name: str,
    embeddings: Tensor,
    labels: Tensor | None,
    ref_emb: Tensor | None,
    ref_labels: Tensor | None,
    settings: Sequence[Any],
    *,
    similarity: str,
    reduction: str,
    weights: Tensor | None,
    ignore_index: int | None,
    return_stats: bool,
    allowed: Sequence[str] = _checks.LOSS_SIMILARITIES,
    normalize: bool = False,
    temperature: Tensor | float | None = None,
    bias: Tensor | float | None = None,
    boundary: Tensor | float | None = None,
    indices_tuple: Any = None,
) -> Any:
    """Check what all of these losses take, and call operator ``name``.

    ``settings`` are its own, in their order and checked before; learned ones come before them: temperature, bias,
    boundary, as far as the loss has them. Each is a number or a float tensor, 0-d or (N,). ``normalize`` divides rows
    by their length where a distance is taken ("cosine" always does).
    """
    check_labelled(
        embeddings,
        labels,
        ref_emb,
        ref_labels,
        similarity,
        reduction,
        weights,
        ignore_index,
        allowed,
        normalize,
        indices_tuple,
    )
    if temperature is not None:
        _checks.temperature(temperature, "embeddings", embeddings)
    _checks.learned("bias", bias, "embeddings", embeddings)
    _checks.learned("boundary", boundary, "embeddings", embeddings)
    learned = [None if value is None else as_temperature(value, embeddings) for value in (temperature, bias, boundary)]
    settings = (*(value for value in learned if value is not None), *settings)
    embeddings, ref_emb = compared_rows(embeddings, ref_emb, similarity, normalize)
    if indices_tuple is not None:
        streamed = RULES[name]
        pairs = mined_pairs(
            indices_tuple,
            embeddings,
            ref_emb,
            labels,
            ref_labels,
            ignore_index,
            similarity,
            normalize,
            as_triplets=streamed.triplet_rule is not None,
        )
        return mined_loss(
            streamed.rule if streamed.triplet_rule is None or not pairs.are_triplets else streamed.triplet_rule,
            dict(zip(streamed.settings, settings, strict=True)),
            pairs,
            embeddings,
            ref_emb,
            similarity=similarity,
            reduction=reduction,
            weights=weights,
            return_stats=return_stats,
            mean=streamed.mean,
        )
    assert labels is not None
    return pair_loss(
        getattr(torch.ops.pairloom, name),
        getattr(reference, name),
        embeddings,
        ref_emb,
        operator_labels(labels, ignore_index),
        None if ref_labels is None else operator_labels(ref_labels, ignore_index),
        weights,
        *settings,
        similarity,
        reduction,
        ignore_index,
        gradient_bits(embeddings, ref_emb, learned[0], reduction, learned[1], learned[2], weights),
        return_stats,
    )


def scripted_pairs(
    embeddings: Tensor,
    labels: Tensor | None,
    ref_emb: Tensor | None,
    ref_labels: Tensor | None,
    similarity: str,
    normalize: bool,
    ignore_index: int | None,
) -> tuple[Tensor, Tensor | None, Tensor, Tensor | None]:
    """Rows, columns and their labels as the operators take them. TorchScript compiles this."""
    if labels is None:
        raise ValueError("labels is None; pass the class of each embedding, an integer tensor of shape (N,)")
    rows, columns = compared_rows(embeddings, ref_emb, similarity, normalize)
    others = None if ref_labels is None else operator_labels(ref_labels, ignore_index)
    return rows, columns, operator_labels(labels, ignore_index), others


def check_labelled(
    embeddings: Tensor,
    labels: Tensor | None,
    ref_emb: Tensor | None,
    ref_labels: Tensor | None,
    similarity: str,
    reduction: str,
    weights: Tensor | None,
    ignore_index: int | None,
    allowed: Sequence[str] = _checks.LOSS_SIMILARITIES,
    normalize: bool = False,
    indices_tuple: Any = None,
) -> None:
    """The arguments that all losses on labelled embeddings have; an index tuple says more than labels do."""
    if labels is None and ref_labels is None and indices_tuple is not None:
        _checks.embeddings("embeddings", embeddings, ref_emb=ref_emb)
        _checks.label_value("ignore_index", ignore_index)
    else:
        _checks.labelled_pairs(embeddings, labels, ref_emb, ref_labels, ignore_index)
    _checks.choice("similarity", similarity, allowed)
    _checks.choice("reduction", reduction, _checks.REDUCTIONS)
    _checks.flag("normalize", normalize)
    _checks.weights(weights, "embeddings", embeddings)


class LabelledLoss(nn.Module):
    """``loss(embeddings, labels, ref_emb=..., ref_labels=...)``, as in pytorch-metric-learning.

    A subclass names its ``function`` and the similarities it allows, and hands its own settings to ``__init__``, in the
    order of the function. All settings are attributes that may be changed between calls.
    """

    function: ClassVar[Callable[..., Any]]
    similarities: ClassVar[Sequence[str]] = _checks.LOSS_SIMILARITIES
    instead_of_indices: ClassVar[str | None] = None
    """Why no index tuple is taken, for losses that take none."""
    means_over: ClassVar[str] = "anchors"
    """What a mean runs over. Losses of single pairs or triplets are never held: no reducer can be given them."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        similarity: str,
        reduction: str,
        ignore_index: int | None,
        *,
        distance: Any = None,
        reducer: Any = None,
        embedding_regularizer: Any = None,
        embedding_reg_weight: float = 1.0,
        collect_stats: bool | None = None,
    ) -> None:
        super().__init__()
        _checks.choice("similarity", similarity, self.similarities)
        _checks.choice("reduction", reduction, _checks.REDUCTIONS)
        _checks.label_value("ignore_index", ignore_index)
        _checks.finite_number("embedding_reg_weight", embedding_reg_weight)
        check_regularizer("embedding_regularizer", embedding_regularizer, "embeddings")
        settings = dict(settings)
        if distance is not None:
            word, normalize = similarity_of(distance, self.similarities)
            similarity = self._one_of("similarity", similarity, "distance", word)
            if "normalize" in settings:
                settings["normalize"] = normalize
        self.reducer: Reducer | None = None
        if reducer is not None:
            found = reduction_of(reducer)
            if isinstance(found, str):
                reduction = self._one_of("reduction", reduction, "reducer", found)
            elif self.means_over != "anchors":
                raise ValueError(
                    f"reducer is a {type(reducer).__name__}, but the means of this loss run over {self.means_over}; "
                    "allowed: MeanReducer, AvgNonZeroReducer, SumReducer, DoNothingReducer of pytorch-metric-learning, "
                    "or reduction='mean'"
                )
            else:
                self.reducer = found
        if reduction == "none" and embedding_regularizer is not None:
            raise ValueError("embedding_regularizer is given, but reduction is 'none'; there is no loss to add it to")
        self.similarity = similarity
        self.reduction = reduction
        self.ignore_index = ignore_index
        self.own_settings = tuple(settings)
        for name, value in settings.items():
            setattr(self, name, value)
        self.embedding_regularizer = embedding_regularizer
        self.embedding_reg_weight = embedding_reg_weight
        self.collect_stats = bool(collect_stats)

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor | None = None,
        indices_tuple: IndexTuple = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
        weights: Tensor | None = None,
    ) -> Tensor:
        """The loss; arguments as in the function, positions as in pytorch-metric-learning."""
        if not torch.jit.is_scripting():
            return self._loss_and_stats(
                embeddings, labels, indices_tuple, ref_emb, ref_labels, weights, self.collect_stats
            )[0]
        return self.function(
            embeddings, labels, ref_emb, ref_labels, *self.scripted_settings, weights, self.ignore_index
        )

    def with_stats(
        self,
        embeddings: Tensor,
        labels: Tensor | None = None,
        indices_tuple: IndexTuple = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
        weights: Tensor | None = None,
    ) -> tuple[Tensor, PairStats]:
        """The loss and the statistics of its pairs, from the same pass."""
        return self._loss_and_stats(embeddings, labels, indices_tuple, ref_emb, ref_labels, weights, True)

    def arguments(self) -> dict[str, Any]:
        """The settings, as the function takes them."""
        return {name: getattr(self, name) for name in (*self.own_settings, "similarity", "reduction", "ignore_index")}

    def arguments_for(self, labels: Tensor | None) -> dict[str, Any]:
        """The same and what else the function takes that depends on the labels."""
        return self.arguments()

    def extra_repr(self) -> str:
        """The settings."""
        return ", ".join(f"{name}={value!r}" for name, value in self.arguments().items())

    def terms(self, labels: Tensor, ref_labels: Tensor | None, keep: Tensor) -> Tensor:
        """How many losses a mean is taken over, 0-d: anchors that are not ignored."""
        return keep.sum()

    def named_terms(self, pairs: MinedPairs) -> Tensor:
        """The same for the pairs of an index tuple."""
        return pairs.keep.sum()

    def losses_of(self, labels: Tensor, keep: Tensor) -> tuple[Tensor | None, Tensor]:
        """Which entries of the losses by "none" count (None: all), and the embedding that each of them belongs to."""
        everyone = torch.arange(keep.shape[0], device=keep.device)
        return None if self.ignore_index is None else keep, everyone

    def call(
        self,
        embeddings: Tensor,
        labels: Tensor | None,
        ref_emb: Tensor | None,
        ref_labels: Tensor | None,
        **others: Any,
    ) -> Any:
        """The function."""
        return self.function(embeddings, labels, ref_emb, ref_labels, **others)

    def regularized(self, value: Tensor, embeddings: Tensor) -> Tensor:
        """The loss and what regularizers add to it."""
        if self.embedding_regularizer is None or embeddings.shape[0] == 0:
            return value
        return value + self.embedding_reg_weight * regularization(
            "embedding_regularizer", self.embedding_regularizer, embeddings
        )

    def _one_of(self, name: str, word: str, peer: str, meaning: str) -> str:
        """The meaning of an object, unless a word beside it says otherwise."""
        if word not in (meaning, inspect.signature(self.function).parameters[name].default):
            raise ValueError(f"{name} is {word!r}, but {peer} stands for {meaning!r}; give one of them")
        return meaning

    def _loss_and_stats(
        self,
        embeddings: Tensor,
        labels: Tensor | None,
        indices_tuple: IndexTuple,
        ref_emb: Tensor | None,
        ref_labels: Tensor | None,
        weights: Tensor | None,
        want_stats: bool,
    ) -> Any:
        """(loss, statistics or None)."""
        if self.instead_of_indices is not None:
            _checks.no_indices(indices_tuple, self.instead_of_indices)
        labels, ref_labels = _beside(labels, embeddings), _beside(ref_labels, ref_emb)
        arguments = self.arguments_for(labels)
        if indices_tuple is not None:
            arguments["indices_tuple"] = indices_tuple
        if self.reducer is None:
            found = self.call(
                embeddings, labels, ref_emb, ref_labels, weights=weights, return_stats=want_stats, **arguments
            )
            value, stats = found if want_stats else (found, None)
        else:
            value, stats = self._reduced(embeddings, labels, ref_emb, ref_labels, weights, arguments, want_stats)
        value = self.regularized(value, embeddings)
        if self.collect_stats:
            self.pair_stats = stats
        return value, stats

    def _reduced(
        self,
        embeddings: Tensor,
        labels: Tensor | None,
        ref_emb: Tensor | None,
        ref_labels: Tensor | None,
        weights: Tensor | None,
        arguments: dict[str, Any],
        want_stats: bool,
    ) -> Any:
        """(loss, statistics or None) by the reducer."""
        assert self.reducer is not None
        if labels is None:
            raise ValueError("labels is None; the reducer of this loss needs the class of each embedding")
        _checks.labelled_pairs(embeddings, labels, ref_emb, ref_labels, self.ignore_index)
        if weights is not None:
            raise ValueError("weights is given, but the reducer of this loss weights anchors itself; give one of them")
        keep = ~labels_equal(operator_labels(labels, self.ignore_index), self.ignore_index, embeddings)
        weights = self.reducer.weights(labels, keep)
        arguments = {**arguments, "reduction": self.reducer.reduction, "weights": weights}
        found = self.call(embeddings, labels, ref_emb, ref_labels, return_stats=want_stats, **arguments)
        value, stats = found if want_stats else (found, None)
        terms, entries = self.terms(labels, ref_labels, keep), self.losses_of(labels, keep)
        if "indices_tuple" in arguments:
            terms = self.named_terms(
                mined_pairs(
                    arguments["indices_tuple"],
                    embeddings,
                    ref_emb,
                    labels,
                    ref_labels,
                    self.ignore_index,
                    self.similarity,
                    getattr(self, "normalize", False),
                )
            )
        return self.reducer.finish(value, terms, embeddings, labels, *entries), stats

    def __prepare_scriptable__(self) -> LabelledLoss:
        """TorchScript has no keywords that are known at run time only: it gets the settings as one tuple."""
        name = type(self).__name__
        twin = twin_of(self.function)
        if twin is None:
            raise no_torchscript(name)
        for given in ("reducer", "embedding_regularizer", "collect_stats"):
            if getattr(self, given) not in (None, False):
                raise RuntimeError(f"{name} has a {given}, which TorchScript cannot compile; leave it out")
        # In the order of the function that is compiled: between labels of the references and weights.
        names = list(inspect.signature(twin).parameters)[4:-2]
        self.scripted_settings = tuple(getattr(self, name) for name in names)
        return self


def _beside(labels: Any, embeddings: Tensor | None) -> Any:
    """Labels where the embeddings are, as in pytorch-metric-learning."""
    if not isinstance(labels, Tensor) or not isinstance(embeddings, Tensor) or labels.device == embeddings.device:
        return labels
    return labels.to(embeddings.device)


def check_regularizer(name: str, regularizer: Any, of: str) -> None:
    """None, or something to call with rows."""
    if regularizer is not None and not callable(regularizer):
        raise TypeError(f"{name} is a {type(regularizer).__name__}; it must be callable with the {of}")


def regularization(name: str, regularizer: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    """Its value for the rows, half precision as float32."""
    value = regularizer(rows.to(compute_dtype(rows)))
    if value.numel() != 1:
        raise ValueError(f"{name} returned shape {tuple(value.shape)}; it must be one value")
    return value.reshape(())
