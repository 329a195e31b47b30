"""Losses in the general form of Metrix: terms of single pairs, and what their two sums become."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pairloom import _checks
from pairloom.losses import (
    BinomialDevianceLoss,
    ContrastiveLoss,
    GeneralizedLiftedStructureLoss,
    MultiSimilarityLoss,
    ProxyAnchorLoss,
    ProxyNCALoss,
)
from pairloom.mixup._mixtures import MixtureTerm, MixtureTerms
from pairloom.reference._rows import softplus


@dataclass(frozen=True)
class GeneralForm:
    """A loss of an anchor, combine(sum over positives of f+(s), sum over negatives of f-(s)).

    Of exponential terms ``combine`` gets the logarithm of the sum, -inf where there is none.
    """

    positive: MixtureTerm
    negative: MixtureTerm
    combine: Callable[[Tensor, Tensor], Tensor]

    @property
    def terms(self) -> MixtureTerms:
        """The two halves."""
        return MixtureTerms(self.positive, self.negative)

    def losses(self, sums: Tensor) -> Tensor:
        """(N, 2) -> (N,)."""
        return self.combine(sums[:, 0], sums[:, 1])


def contrastive_form(margin: float = 0.5) -> GeneralForm:
    """-s of positives, [s - margin]_+ of negatives, added up."""
    return GeneralForm(MixtureTerm("linear", -1.0, 0.0), MixtureTerm("hinge", 1.0, margin), _added)


def lifted_form(margin: float = 1.0) -> GeneralForm:
    """[log sum e^-s + log sum e^(s - margin)]_+; an empty half is left out."""
    positive, negative = MixtureTerm("exponential", -1.0, 0.0), MixtureTerm("exponential", 1.0, margin)
    return GeneralForm(positive, negative, _hinge_of_both)


def binomial_deviance_form(alpha: float = 2.0, beta: float = 50.0, base: float = 0.5) -> GeneralForm:
    """log(1 + e^(-alpha (s - base))) of positives, log(1 + e^(beta (s - base))) of negatives, added up."""
    return GeneralForm(MixtureTerm("softplus", -alpha, base), MixtureTerm("softplus", beta, base), _added)


def multi_similarity_form(alpha: float = 18.0, beta: float = 75.0, base: float = 0.77) -> GeneralForm:
    """log(1 + sum e^(-alpha (s - base))) / alpha + log(1 + sum e^(beta (s - base))) / beta."""
    _checks.positive_number("alpha", alpha)
    _checks.positive_number("beta", beta)
    combine = partial(_softplus_of_each, positive_weight=1 / alpha, negative_weight=1 / beta)
    return GeneralForm(MixtureTerm("exponential", -alpha, base), MixtureTerm("exponential", beta, base), combine)


def proxy_anchor_form(alpha: float = 32.0, margin: float = 0.1) -> GeneralForm:
    """log(1 + sum e^(-alpha (s - margin))) + log(1 + sum e^(alpha (s + margin))); anchors are proxies."""
    positive, negative = MixtureTerm("exponential", -alpha, margin), MixtureTerm("exponential", alpha, -margin)
    return GeneralForm(positive, negative, _softplus_of_each)


def proxy_nca_form(scale: float = 1.0) -> GeneralForm:
    """-log sum e^(scale s) of positives + log sum e^(scale s) of negatives; what is mixed are proxies.

    With one lam for all mixtures of an anchor the two sums differ by a factor, and the loss is constant: lam must vary
    from pair to pair.
    """
    term = MixtureTerm("exponential", scale, 0.0)
    return GeneralForm(term, term, _log_ratio)


def check_form(name: str, form: Any) -> None:
    """A `GeneralForm`."""
    if not isinstance(form, GeneralForm):
        raise TypeError(
            f"{name} is {form!r}; it must be a GeneralForm, such as pairloom.mixup.multi_similarity_form() makes"
        )


def form_of(loss: Any) -> GeneralForm:
    """The form of a loss of this package, with its settings.

    Raises:
        TypeError: another loss.
        ValueError: a similarity that mixtures do not have: they are on the sphere, so it must be the cosine.
    """
    make = next((make for kind, make in _FORMS.items() if isinstance(loss, kind)), None)
    if make is None:
        allowed = ", ".join(kind.__name__ for kind in _FORMS)
        raise TypeError(
            f"loss is a {type(loss).__name__}, which has no general form; allowed: {allowed}, or a GeneralForm"
        )
    settings = loss.arguments()
    if isinstance(loss, ProxyNCALoss) and loss.similarity == "squared_euclidean" and settings["normalize"]:  # 2 - 2 cos
        return proxy_nca_form(2 * settings["softmax_scale"])
    if loss.similarity != "cosine":
        raise ValueError(f"loss has similarity {loss.similarity!r}; mixtures have length 1, so it must be 'cosine'")
    return make(loss)


_FORMS: dict[type, Callable[[Any], GeneralForm]] = {
    MultiSimilarityLoss: lambda loss: multi_similarity_form(loss.alpha, loss.beta, loss.base),
    ContrastiveLoss: lambda loss: contrastive_form(loss.neg_margin),
    GeneralizedLiftedStructureLoss: lambda loss: lifted_form(loss.neg_margin),
    BinomialDevianceLoss: lambda loss: binomial_deviance_form(loss.alpha, loss.beta, loss.base),
    ProxyAnchorLoss: lambda loss: proxy_anchor_form(loss.alpha, loss.margin),
    ProxyNCALoss: lambda loss: proxy_nca_form(loss.softmax_scale),
}


# Of functions of the module a form can be pickled, and with it a loss that holds one.
def _added(positive: Tensor, negative: Tensor) -> Tensor:
    return positive + negative


def _softplus_of_each(
    positive: Tensor, negative: Tensor, positive_weight: float = 1.0, negative_weight: float = 1.0
) -> Tensor:
    return softplus(positive) * positive_weight + softplus(negative) * negative_weight


def _log_ratio(positive: Tensor, negative: Tensor) -> Tensor:
    return _or_zero(negative) - _or_zero(positive)


def _or_zero(logarithm: Tensor) -> Tensor:
    return torch.where(logarithm == -torch.inf, 0.0, logarithm)


def _hinge_of_both(positive: Tensor, negative: Tensor) -> Tensor:
    return (_or_zero(positive) + _or_zero(negative)).clamp(min=0)
