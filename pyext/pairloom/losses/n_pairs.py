"""N-pairs loss: function and module over the operator of `info_nce`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pairloom import _checks
from pairloom._dispatch import not_scripted
from pairloom.losses._labelled import LabelledLoss
from pairloom.losses._proxies import no_references
from pairloom.losses._translate import PeerKeywords
from pairloom.losses.info_nce import info_nce

if TYPE_CHECKING:
    from typing_extensions import Unpack


@not_scripted
def n_pairs(
    embeddings: Tensor,
    labels: Tensor | None = None,
    *,
    similarity: str = "cosine",
    normalize: bool = True,
    reduction: str = "mean",
    weights: Tensor | None = None,
    ignore_index: int | None = -100,
    generator: torch.Generator | None = None,
    return_stats: bool = False,
) -> Any:
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
        similarity: "cosine", "dot", "euclidean" or "squared_euclidean" (negated).
        normalize: whether the two distances are those of the rows divided by their length; "cosine" always divides.
        reduction: "mean" and "mean_all" (over the classes), "mean_nonzero", "sum", or "none": (N // 2,), one loss for
            each class in ascending order, and 0 for the rest.
        weights: (N,) float, >= 0; a class has the weight of its anchor. Gets a gradient.
        ignore_index: embeddings of this class take no part; None switches it off.
        generator: draws the two members of every class at random, on the device of the generator; None takes the first
            two in the batch.
        return_stats: also return `PairStats`, counted in the same pass.

    Returns:
        The loss: 0-d, or (N // 2,) for "none"; float64 if the embeddings are, else float32. With ``return_stats`` the
        tuple (loss, `PairStats`).

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
    _checks.loss_settings(similarity, reduction, ignore_index, normalize=normalize, allowed=_checks.SIMILARITIES)
    _checks.weights(weights, "embeddings", embeddings)
    _check_generator(generator)
    assert labels is not None
    anchors, positives, ids = _one_pair_per_class(labels.to(torch.int64), ignore_index, generator)
    loss: Any = info_nce  # its overloads want a literal return_stats
    return loss(
        embeddings[anchors],
        embeddings[positives],
        temperature=1.0,
        ids=ids,
        similarity=similarity,
        normalize=normalize,
        reduction=reduction,
        weights=None if weights is None else weights[anchors],
        ignore_index=-1,
        return_stats=return_stats,
    )


def _check_generator(generator: Any) -> None:
    if generator is not None and not isinstance(generator, torch.Generator):
        raise TypeError(f"generator is a {type(generator).__name__}; it must be a torch.Generator, or None")


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


class NPairsLoss(LabelledLoss):
    """N-pairs as a module; all about it stands at `pairloom.functional.n_pairs`.

    Args:
        similarity: "cosine", "dot", "euclidean" or "squared_euclidean".
        normalize: whether the two distances are those of the rows divided by their length.
        reduction: "mean", "mean_all", "mean_nonzero", "sum" or "none".
        ignore_index: embeddings of this class take no part; None switches it off.
        generator: draws the pair of every class; None takes the first two members.
        **peer: ``distance``, ``reducer``, ``embedding_regularizer``, ``embedding_reg_weight``, ``collect_stats`` as in
            pytorch-metric-learning, see `pairloom.losses.PeerKeywords`. Reducers see one loss for each class, that of
            its first member.

    Raises:
        ValueError, TypeError: a setting that is not allowed; in the call, an index tuple or missing labels.

    Example:
        >>> import torch, pairloom
        >>> x = torch.eye(4, requires_grad=True)
        >>> pairloom.NPairsLoss(similarity="dot")(x, torch.tensor([0, 0, 1, 1])).backward()
        >>> tuple(x.grad.shape)
        (4, 4)
    """

    function = staticmethod(n_pairs)
    similarities = _checks.SIMILARITIES
    instead_of_indices = "it takes one pair of every class itself"

    def __init__(
        self,
        *,
        similarity: str = "cosine",
        normalize: bool = True,
        reduction: str = "mean",
        ignore_index: int | None = -100,
        generator: torch.Generator | None = None,
        **peer: Unpack[PeerKeywords],
    ) -> None:
        _check_generator(generator)
        own = {"normalize": normalize, "generator": generator}
        super().__init__(own, similarity, reduction, ignore_index, **peer)

    def call(
        self,
        embeddings: Tensor,
        labels: Tensor | None,
        ref_emb: Tensor | None,
        ref_labels: Tensor | None,
        **others: Any,
    ) -> Any:
        """The function, which has no reference rows."""
        no_references(ref_emb, ref_labels, "anchors and positives are rows of the batch")
        return self.function(embeddings, labels, **others)

    def losses_of(self, labels: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
        """One for each class with two members, that of its first."""
        anchors, _, ids = _one_pair_per_class(labels.to(torch.int64), self.ignore_index, None)
        return ids >= 0, anchors

    def terms(self, labels: Tensor, ref_labels: Tensor | None, keep: Tensor) -> Tensor:
        """How many losses a mean is taken over: classes with two members."""
        return self.losses_of(labels, keep)[0].sum()
