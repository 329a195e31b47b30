"""Mixup of embeddings."""

from pairloom.mixup._forms import (
    GeneralForm,
    binomial_deviance_form,
    contrastive_form,
    lifted_form,
    multi_similarity_form,
    proxy_anchor_form,
    proxy_nca_form,
)
from pairloom.mixup.metrix import MetrixLoss, metrix, metrix_of_mixtures, metrix_public_code
from pairloom.mixup.mix import mix

__all__ = [
    "GeneralForm",
    "MetrixLoss",
    "binomial_deviance_form",
    "contrastive_form",
    "lifted_form",
    "metrix",
    "metrix_of_mixtures",
    "metrix_public_code",
    "mix",
    "multi_similarity_form",
    "proxy_anchor_form",
    "proxy_nca_form",
]
