"""Miners: which pairs or triplets of a batch a loss is made of, found chunk by chunk of the similarity matrix.

    indices = pairloom.MultiSimilarityMiner(epsilon=0.1)(embeddings, labels)
    loss = pairloom.ContrastiveLoss()(embeddings, labels, indices)

Names, arguments and index tuples are those of pytorch-metric-learning. A miner of pairs may also be handed to a loss
itself, as ``indices_tuple``: it then chooses in the very pass that makes the loss, and no tuple is built.
"""

from pairloom.miners._miner import Miner
from pairloom.miners.pairs import BatchHardMiner, MultiSimilarityMiner, PairMarginMiner
from pairloom.miners.sampling import DistanceWeightedMiner, UniformTripletMiner
from pairloom.miners.triplets import TripletMarginMiner

__all__ = [
    "BatchHardMiner",
    "DistanceWeightedMiner",
    "Miner",
    "MultiSimilarityMiner",
    "PairMarginMiner",
    "TripletMarginMiner",
    "UniformTripletMiner",
]
