"""Momentum contrast on handwritten digits: no labels, one queue of keys.

    query   a distorted image, through the encoder
    key     the same image distorted otherwise, through the momentum encoder: its weights trail those of the encoder
    queue   keys of earlier batches (`pairloom.EmbeddingQueue`): negatives that cost no encoding
    loss    `pairloom.functional.moco`: pick the own key among it and the queue

The encoder sees images of the classes 0-4 without their labels, and is judged on 5-9, like `digits_retrieval.py`.

    python examples/moco_digits.py --help
"""

from __future__ import annotations

import copy
from typing import Annotated

import torch
import torch.nn.functional as F
import typer
from digits_retrieval import SEEN, UNSEEN, Encoder, Score, distort, embed, judge, load_digits, only
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from tqdm import tqdm

import pairloom
from pairloom.functional import moco

BATCH = 64
QUEUE = 512
MOMENTUM = 0.99
TEMPERATURE = 0.2
LEARNING_RATE = 5e-4


class State(nn.Module):
    """All that a training is resumed from, besides the optimizer: one `state_dict`."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder()
        self.momentum_encoder = copy.deepcopy(self.encoder).requires_grad_(False)
        dim = self.encoder(torch.zeros(1, 1, 8, 8)).shape[1]
        self.queue = pairloom.EmbeddingQueue(QUEUE, dim, with_labels=False, with_ids=True)

    @torch.no_grad()
    def follow(self) -> None:
        """Weights and running statistics of the momentum encoder, one step behind the encoder's."""
        pairs = zip(self.momentum_encoder.state_dict().values(), self.encoder.state_dict().values(), strict=True)
        for kept, new in pairs:
            kept.lerp_(new, 1 - MOMENTUM) if kept.is_floating_point() else kept.copy_(new)


def train(state: State, images: Tensor, *, steps: int, seed: int, show: bool = True) -> list[float]:
    """The loss of every step."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(state.encoder.parameters(), LEARNING_RATE, weight_decay=1e-4)
    losses = []
    state.train()
    bar = tqdm(range(steps), desc="training", unit="step", disable=not show)
    for _ in bar:
        batch = torch.randperm(len(images), generator=generator)[:BATCH]
        query = F.normalize(state.encoder(distort(images[batch], generator)))
        with torch.no_grad():
            state.follow()
            key = F.normalize(state.momentum_encoder(distort(images[batch], generator)))
        loss = moco(query, key, state.queue.filled()[0], temperature=TEMPERATURE)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        state.queue.enqueue(key, ids=batch)
        losses.append(loss.item())
        bar.set_postfix_str(f"loss {loss.item():.3f}, {len(state.queue)} keys")
    return losses


def main(
    steps: Annotated[int, typer.Option(min=1, help="Batches of 64 images.")] = 400,
    seed: Annotated[int, typer.Option(help="Of weights, batches and distortions.")] = 0,
) -> None:
    """Train without labels, judge by retrieval among unseen classes."""
    torch.manual_seed(seed)
    images, labels = load_digits()
    unseen, classes = only(UNSEEN, images, labels)
    state = State()
    scores: dict[str, Score] = {"raw pixels": judge(unseen.flatten(1), classes)}
    scores["untrained encoder"] = judge(embed(state.encoder, unseen), classes)
    train(state, only(SEEN, images, labels)[0], steps=steps, seed=seed)
    scores["trained without labels"] = judge(embed(state.encoder, unseen), classes)

    table = Table(title="retrieval among unseen digits")
    for column in ("embedding", "recall@1", "MAP@R"):
        table.add_column(column)
    for name, score in scores.items():
        table.add_row(name, f"{score.recall_at_1:.4f}", f"{score.map_at_r:.4f}")
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
