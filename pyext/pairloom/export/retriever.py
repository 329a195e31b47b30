"""A deployed retriever as one module: encoder, then top-k against a fixed gallery."""

from torch import Tensor, nn

from pairloom import _checks
from pairloom.scoring import topk


class Retriever(nn.Module):
    """Encode a batch and return the k most similar gallery rows of each of its items.

    The gallery is a buffer: it moves with the module and is part of every exported file. With ``similarity="cosine"``
    rows need not be normalised beforehand.

    Args:
        encoder: module from a batch of items to embeddings (B, D).
        gallery: embeddings to search, (M, D) float; row i has id i.
        k: results per item; k > M pads with id -1 and score -inf.
        similarity: "cosine", "dot", "euclidean" or "squared_euclidean" (the last two cost O(B M D) memory in ONNX).

    Example:
        >>> import torch, pairloom
        >>> gallery = torch.eye(3)
        >>> scores, ids = pairloom.export.Retriever(torch.nn.Identity(), gallery, k=2)(torch.tensor([[0.0, 3.0, 1.0]]))
        >>> ids.tolist()
        [[1, 2]]
    """

    # TorchScript reads this annotation: it must not be a string, so no `from __future__ import annotations` here.
    gallery: Tensor

    def __init__(self, encoder: nn.Module, gallery: Tensor, k: int, similarity: str = "cosine") -> None:
        super().__init__()
        _checks.embeddings("gallery", gallery)
        _checks.count("k", k)
        _checks.choice("similarity", similarity, _checks.SIMILARITIES)
        self.encoder = encoder
        self.register_buffer("gallery", gallery.detach().clone().contiguous())
        self.k = k
        self.similarity = similarity

    def forward(self, items: Tensor) -> tuple[Tensor, Tensor]:
        """Items (B, ...) -> scores (B, k), ids (B, k) int64."""
        return topk(self.encoder(items), self.gallery, self.k, similarity=self.similarity)

    def extra_repr(self) -> str:
        """The settings."""
        return f"gallery={tuple(self.gallery.shape)}, k={self.k}, similarity={self.similarity!r}"
