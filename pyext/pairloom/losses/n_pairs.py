"""N-pairs loss: function and module over the operator of `info_nce`."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pairloom import _checks
from pairloom.losses.info_nce import info_nce


def n_pairs(
    embeddings: Tensor,
    labels: Tensor | None = None,
    *,
    similarity: str = "cosine",
    reduction: str = "mean",
    ignore_index: int | None = -100,
    generator: torch.Generator | None = None,
) -> Tensor:
    r"""N-pairs: one (anchor, positive) of every class; pick the positive of each anchor among those of all classes.

    With a_c and p_c two members of class c:

        L_c = log sum_k e^{s(a_c, p_k)} - s(a_c, p_c)

    There is no temperature: the paper has "dot" and embeddings of free length; with "cosine", the default of
    pytorch-metric-learning, logits lie in [-1, 1]. The paper also adds a small multiple of the mean squared norm,
    ``embeddings.square().sum(1).mean()``, which is left to the caller. Source: Sohn, "Improved Deep Metric Learning
    with Multi-class N-pair Loss Objective", NeurIPS 2016.

    Args:
        embeddings: (N, D) float32, float64, float16 or bfloat16, any strides.
        labels: (N,) integer or bool, the class of each embedding; classes of one member are left out.
        similarity: "cosine" or "dot".
        reduction: "mean" and "mean_all" (over the classes), "mean_nonzero", "sum", or "none": (N // 2,), one loss for
            each class in ascending order, and 0 for the rest.
        ignore_index: embeddings of this class take no part; None switches it off.
        generator: draws the two members of every class at random, on the device of the generator; None takes the first
            two in the batch.

    Returns:
        The loss: 0-d, or (N // 2,) for "none"; float64 if the embeddings are, else float32.

    Raises:
        TypeError: embeddings that are not float, labels that are not integer or bool, a generator that is none.
        ValueError: labels missing, shapes or devices that do not fit, an unknown word. Nothing is computed before.

    No class or one class with two members: 0. NaN in a row that takes part: NaN.

    Cost: 6 (N / 2)^2 D flops with gradients, and a sort of the labels; O(N D) memory. Shapes do not depend on labels.

    Example:
        >>> import torch, pairloom
        >>> x = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-0.8, 0.6]])
        >>> f"{pairloom.functional.n_pairs(x, torch.tensor([0, 0, 1, 1])).item():.4f}"
        '0.5093'
    """
    _checks.labelled_pairs(embeddings, labels, None, None, ignore_index, multi_hot=False)
    _checks.loss_settings(similarity, reduction, ignore_index)
    if generator is not None and not isinstance(generator, torch.Generator):
        raise TypeError(f"generator is a {type(generator).__name__}; it must be a torch.Generator, or None")
    assert labels is not None
    anchors, positives, ids = _one_pair_per_class(labels.to(torch.int64), ignore_index, generator)
    return info_nce(
        embeddings[anchors],
        embeddings[positives],
        temperature=1.0,
        ids=ids,
        similarity=similarity,
        reduction=reduction,
        ignore_index=-1,
    )


def _one_pair_per_class(
    labels: Tensor, ignore_index: int | None, generator: torch.Generator | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of anchors and of positives (N // 2,), and their ids: distinct, -1 where there are fewer classes."""
    count, device = labels.shape[0], labels.device
    rows = torch.arange(count, device=device)
    if generator is not None:  # the first two of a class, in random order, are two random members
        rows = torch.randperm(count, generator=generator, device=generator.device).to(device)
    order = rows[torch.argsort(labels[rows], stable=True)]
    sorted_labels = labels[order]
    # Where a class begins, and has a second member.
    same_as_next = sorted_labels[1:] == sorted_labels[:-1]
    begins = torch.cat([same_as_next.new_ones(min(count, 1)), ~same_as_next])[: max(count - 1, 0)]
    begins = begins & same_as_next
    if ignore_index is not None:
        begins = begins & (sorted_labels[: max(count - 1, 0)] != ignore_index)
    # Beginnings come first; there are at most N // 2 of them.
    first = torch.argsort((~begins).to(torch.int8), stable=True)[: count // 2]
    ids = torch.where(begins[first], torch.arange(count // 2, device=device), -1)
    return order[first], order[first + 1], ids


class NPairsLoss(nn.Module):
    """N-pairs as a module; all about it stands at `pairloom.functional.n_pairs`.

    Args:
        similarity: "cosine" or "dot".
        reduction: "mean", "mean_all", "mean_nonzero", "sum" or "none".
        ignore_index: embeddings of this class take no part; None switches it off.
        generator: draws the pair of every class; None takes the first two members.

    Raises:
        ValueError, TypeError: a setting that is not allowed; in the call, an index tuple or missing labels.

    Example:
        >>> import torch, pairloom
        >>> x = torch.eye(4, requires_grad=True)
        >>> pairloom.NPairsLoss(similarity="dot")(x, torch.tensor([0, 0, 1, 1])).backward()
        >>> tuple(x.grad.shape)
        (4, 4)
    """

    def __init__(
        self,
        *,
        similarity: str = "cosine",
        reduction: str = "mean",
        ignore_index: int | None = -100,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        _checks.loss_settings(similarity, reduction, ignore_index)
        self.similarity = similarity
        self.reduction = reduction
        self.ignore_index = ignore_index
        self.generator = generator

    def forward(self, embeddings: Tensor, labels: Tensor | None = None, indices_tuple: None = None) -> Tensor:
        """The loss; positions as in pytorch-metric-learning."""
        _checks.no_indices(indices_tuple)
        return n_pairs(
            embeddings,
            labels,
            similarity=self.similarity,
            reduction=self.reduction,
            ignore_index=self.ignore_index,
            generator=self.generator,
        )

    def extra_repr(self) -> str:
        """The settings."""
        return f"similarity={self.similarity!r}, reduction={self.reduction!r}, ignore_index={self.ignore_index}"
