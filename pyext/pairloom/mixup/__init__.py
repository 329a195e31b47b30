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
from pairloom.mixup.batch_mixup import BatchMixup, Mixed
from pairloom.mixup.hardest_negatives import hardest_negatives
from pairloom.mixup.imix import IMix, imix, imix_byol
from pairloom.mixup.intra_cluster import IntraClusterMixup, complementary_mixup, intra_cluster_partners
from pairloom.mixup.layers import MixAtLayer
from pairloom.mixup.metrix import MetrixLoss, metrix, metrix_of_mixtures, metrix_public_code
from pairloom.mixup.mix import mix
from pairloom.mixup.mixco import MixCo, mixco
from pairloom.mixup.mochi import HardMixtures, MoCHiLoss, draw_hard_mixtures, mochi
from pairloom.mixup.rankmixup import rankmixup_mrl, rankmixup_ndcg
from pairloom.mixup.regmixup import RegMixup, regmixup
from pairloom.mixup.selecmix import SelecMix, SelectedMixtures, biased_contrastive, selecmix_partners
from pairloom.mixup.selmix import (
    SelectedPairs,
    SelMix,
    coverage_gradient,
    coverage_multipliers,
    mean_recall_gradient,
    selmix_gain,
    selmix_probabilities,
    worst_recall_gradient,
    worst_recall_weights,
)
from pairloom.mixup.supremix import SupReMixLoss, supremix
from pairloom.mixup.utilization import utilization

__all__ = [
    "BatchMixup",
    "GeneralForm",
    "HardMixtures",
    "IMix",
    "IntraClusterMixup",
    "MetrixLoss",
    "MixAtLayer",
    "MixCo",
    "Mixed",
    "MoCHiLoss",
    "RegMixup",
    "SelMix",
    "SelecMix",
    "SelectedMixtures",
    "SelectedPairs",
    "SupReMixLoss",
    "biased_contrastive",
    "binomial_deviance_form",
    "complementary_mixup",
    "contrastive_form",
    "coverage_gradient",
    "coverage_multipliers",
    "draw_hard_mixtures",
    "hardest_negatives",
    "imix",
    "imix_byol",
    "intra_cluster_partners",
    "lifted_form",
    "mean_recall_gradient",
    "metrix",
    "metrix_of_mixtures",
    "metrix_public_code",
    "mix",
    "mixco",
    "mochi",
    "multi_similarity_form",
    "proxy_anchor_form",
    "proxy_nca_form",
    "rankmixup_mrl",
    "rankmixup_ndcg",
    "regmixup",
    "selecmix_partners",
    "selmix_gain",
    "selmix_probabilities",
    "supremix",
    "utilization",
    "worst_recall_gradient",
    "worst_recall_weights",
]
