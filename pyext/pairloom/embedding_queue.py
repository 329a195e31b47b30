"""Embeddings of earlier batches as references of the next: `EmbeddingQueue`."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pairloom import _checks


class EmbeddingQueue(nn.Module):
    """The last ``size`` embeddings that were enqueued, with a label each; the oldest make room.

        loss(x, y, ref_emb=queue.embeddings, ref_labels=queue.labels)      cross-batch memory, any loss on labels
        moco(query, key, queue.filled()[0])                                MoCo: keys of the momentum encoder
        queue.enqueue(x, y)                                                after the loss, before the next batch

    Slots that nothing was put in yet carry the label ``ignore_index``: losses leave them out, and the shape never
    changes. All state is in buffers: it follows ``.to()`` and ``state_dict()``, and a training that is resumed from one
    goes on with the same bits. What is enqueued is detached.

    Args:
        size: number of slots, at least 1.
        dim: D of the embeddings.
        with_labels: whether every embedding has a label; otherwise labels are 0 in filled slots.
        with_ids: whether every embedding also has the id of its sample: the buffer ``ids``, -1 in empty slots.
        ignore_index: label of empty slots.
        dtype: of the embeddings as they are kept; default: torch's.

    Raises:
        TypeError: sizes that are no integers, embeddings that are not float, labels that are not integer.
        ValueError: sizes out of range, shapes that do not fit, labels missing or not asked for.

    Source: He et al., "Momentum Contrast for Unsupervised Visual Representation Learning", CVPR 2020; Wang et al.,
    "Cross-Batch Memory for Embedding Learning", CVPR 2020.

    Example:
        >>> import torch, pairloom
        >>> queue = pairloom.EmbeddingQueue(4, 2)
        >>> queue.enqueue(torch.eye(2), torch.tensor([5, 6]))
        >>> queue.labels.tolist(), len(queue)
        ([5, 6, -100, -100], 2)
        >>> queue.enqueue(torch.ones(3, 2), torch.tensor([7, 8, 9]))
        >>> queue.labels.tolist(), queue.filled()[1].tolist()
        ([9, 6, 7, 8], [9, 6, 7, 8])
    """

    embeddings: Tensor
    """(size, dim); zeros where nothing is."""
    labels: Tensor
    """(size,) int64; ``ignore_index`` where nothing is."""
    ids: Tensor | None
    """(size,) int64, -1 where nothing is; None without ids."""
    enqueued: Tensor
    """0-d int64: how many embeddings were ever enqueued. The next one goes into slot ``enqueued % size``."""

    def __init__(
        self,
        size: int,
        dim: int,
        *,
        with_labels: bool = True,
        with_ids: bool = False,
        ignore_index: int = -100,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        for name, value in (("size", size), ("dim", dim)):
            _checks.count(name, value)
            if value < 1:
                raise ValueError(f"{name} is {value}; it must be 1 or more")
        _checks.flag("with_labels", with_labels)
        _checks.flag("with_ids", with_ids)
        _checks.label_value("ignore_index", ignore_index)
        if ignore_index is None:
            raise ValueError("ignore_index is None; empty slots need a label that losses leave out")
        self.size, self.dim, self.with_labels, self.with_ids = size, dim, with_labels, with_ids
        self.ignore_index = ignore_index
        self.register_buffer("embeddings", torch.zeros(size, dim, dtype=dtype))
        self.register_buffer("labels", torch.full((size,), ignore_index, dtype=torch.int64))
        self.register_buffer("ids", torch.full((size,), -1, dtype=torch.int64) if with_ids else None)
        self.register_buffer("enqueued", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def enqueue(
        self,
        embeddings: Tensor,
        labels: Tensor | None = None,
        ids: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> None:
        """Put (B, dim) embeddings in, and their (B,) labels and ids; of more than ``size`` only the last stay.

        Only those rows that a (B,) bool ``mask`` marks, if there is one.
        """
        _checks.embeddings("embeddings", embeddings)
        if embeddings.shape[1] != self.dim:
            raise ValueError(f"embeddings has shape {tuple(embeddings.shape)}; its second size must be {self.dim}")
        named = [(self.labels, self._numbers("labels", labels, embeddings, self.with_labels))]
        given_ids = self._numbers("ids", ids, embeddings, self.with_ids)
        if self.ids is not None:
            named.append((self.ids, given_ids))
        if mask is not None:
            _checks.row_mask("mask", mask, "embeddings", embeddings)
            embeddings = embeddings[mask]
            named = [(buffer, numbers[mask]) for buffer, numbers in named]
        count = embeddings.shape[0]
        kept = min(count, self.size)
        first = self.enqueued + (count - kept)
        slots = (first + torch.arange(kept, device=self.enqueued.device)) % self.size
        self.embeddings[slots] = embeddings[count - kept :].to(self.embeddings)
        for buffer, numbers in named:
            buffer[slots] = numbers[count - kept :].to(buffer)
        self.enqueued += count

    @staticmethod
    def _numbers(name: str, given: Tensor | None, embeddings: Tensor, wanted: bool) -> Tensor:
        """Labels or ids of a batch, as checked; zeros where the queue takes none."""
        if wanted != (given is not None):
            needed = f"{name} of all embeddings" if wanted else f"no {name}"
            raise ValueError(f"{name} is {'None' if given is None else 'given'}; this queue takes {needed}")
        if given is None:
            return torch.zeros(embeddings.shape[0], dtype=torch.int64, device=embeddings.device)
        _checks.labels(name, given, "embeddings", embeddings)
        return given

    def __len__(self) -> int:
        """How many slots are filled."""
        return min(int(self.enqueued), self.size)

    def filled(self) -> tuple[Tensor, Tensor]:
        """Embeddings and labels of the slots that hold something, in the order of the slots."""
        return self.embeddings[: len(self)], self.labels[: len(self)]

    def clear(self) -> None:
        """Forget everything."""
        self.embeddings.zero_()
        self.labels.fill_(self.ignore_index)
        if self.ids is not None:
            self.ids.fill_(-1)
        self.enqueued.zero_()

    def extra_repr(self) -> str:
        """The settings."""
        kinds = f"with_labels={self.with_labels}, with_ids={self.with_ids}"
        return f"size={self.size}, dim={self.dim}, {kinds}, ignore_index={self.ignore_index}"
