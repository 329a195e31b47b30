"""Mixup: mixtures of embeddings, images and hidden states, and the losses that know what they are.

mix, MixAtLayer                    mixtures of pairs of rows, at any layer of an encoder
metrix, MetrixLoss                 metric learning over all mixtures of positives and negatives, none of them formed
imix, mixco, mochi                 contrastive learning without labels
supremix                           contrastive regression
hardest_negatives, utilization     whom to mix with, and what it wins
"""

from pairloom.mixup._forms import (
    GeneralForm,
    binomial_deviance_form,
    contrastive_form,
    lifted_form,
    multi_similarity_form,
    proxy_anchor_form,
    proxy_nca_form,
)
from pairloom.mixup.hardest_negatives import hardest_negatives
from pairloom.mixup.imix import IMix, imix, imix_byol
from pairloom.mixup.layers import MixAtLayer
from pairloom.mixup.metrix import MetrixLoss, metrix, metrix_of_mixtures, metrix_public_code
from pairloom.mixup.mix import mix
from pairloom.mixup.mixco import MixCo, mixco
from pairloom.mixup.mochi import HardMixtures, MoCHiLoss, draw_hard_mixtures, mochi
from pairloom.mixup.supremix import SupReMixLoss, supremix
from pairloom.mixup.utilization import utilization

__all__ = [
    "GeneralForm",
    "HardMixtures",
    "IMix",
    "MetrixLoss",
    "MixAtLayer",
    "MixCo",
    "MoCHiLoss",
    "SupReMixLoss",
    "binomial_deviance_form",
    "contrastive_form",
    "draw_hard_mixtures",
    "hardest_negatives",
    "imix",
    "imix_byol",
    "lifted_form",
    "metrix",
    "metrix_of_mixtures",
    "metrix_public_code",
    "mix",
    "mixco",
    "mochi",
    "multi_similarity_form",
    "proxy_anchor_form",
    "proxy_nca_form",
    "supremix",
    "utilization",
]
