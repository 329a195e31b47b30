"""Plain-torch definition of every operator: what a kernel is right about when it equals it.

One file per operator, the formula and its source on top. Every function takes the arguments of the operator of the same
name (without ``needs_grad``) and returns what the operator returns (without the gradients). They work in float64, under
``torch.func`` transforms and for second derivatives, and hold the whole matrix of pairs: O(N M) memory.
"""

from pairloom.reference.info_nce import info_nce
from pairloom.reference.multi_similarity import multi_similarity
from pairloom.reference.similarity import pairwise_similarity
from pairloom.reference.sup_con import sup_con
from pairloom.reference.topk import topk

__all__ = ["info_nce", "multi_similarity", "pairwise_similarity", "sup_con", "topk"]
