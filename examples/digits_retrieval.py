"""Metric learning on handwritten digits: from images to one file that answers queries.

    data    1,797 scanned digits of 8 x 8 pixels, shipped with scikit-learn. The encoder trains on classes 0-4 and is
            judged on classes 5-9, which it never sees: it has to learn what makes digits alike, not five names.
    train   a small convolutional encoder with `pairloom.MultiSimilarityLoss`, which mines its pairs itself
    judge   retrieval among the unseen digits: every image asks for the others of its class
    export  encoder + normalisation + search of the gallery as ONE .onnx file
    serve   that file in ONNX Runtime, as it comes and with pairloom's kernel: the same ids and scores as PyTorch
    show    a picture of queries with their nearest neighbours

Run `make demo`, or `python examples/digits_retrieval.py --help`. README.md beside this file says how the settings below
were chosen and how far the result varies with the seed.
"""

from __future__ import annotations

import itertools
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, NamedTuple

try:
    import onnx
    import onnxruntime
    import torch
    import torch.nn.functional as F
    import typer
    from digits_picture import draw
    from rich.console import Console
    from rich.table import Table
    from sklearn import datasets
    from torch import Tensor, nn
    from tqdm import tqdm

    import pairloom
except ImportError as error:
    package = {"sklearn": "scikit-learn"}.get(error.name or "", error.name)
    sys.exit(f"This example needs {package} ({error}): `make demo` installs it, and so does the extra pairloom[dev].")

SEEN, UNSEEN = (0, 1, 2, 3, 4), (5, 6, 7, 8, 9)
STEPS = 200
PER_CLASS = 16  # images of each class in a batch: 80 images, 6,320 pairs
LEARNING_RATE = 5e-4
NEIGHBOURS = 5

console = Console()


# --- data -------------------------------------------------------------------------------------------------------------
def load_digits() -> tuple[Tensor, Tensor]:
    """Images (1797, 1, 8, 8) from 0 to 1, and their digits (1797,)."""
    digits = datasets.load_digits()
    return torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16, torch.tensor(digits.target)


def only(classes: tuple[int, ...], images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The images of some classes, and their labels."""
    chosen = torch.isin(labels, torch.tensor(classes))
    return images[chosen], labels[chosen]


def balanced_batch(labels: Tensor, per_class: int, generator: torch.Generator) -> Tensor:
    """Positions of as many images of every class, so that every anchor has positives and negatives."""
    rows = [(labels == label).nonzero().squeeze(1) for label in labels.unique()]
    return torch.cat([r[torch.randint(len(r), (per_class,), generator=generator)] for r in rows])


def distort(images: Tensor, generator: torch.Generator) -> Tensor:
    """Turn, stretch, slant and move every image at random, as other hands would have written it."""

    def between(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(len(images), generator=generator)

    angle = between(-math.radians(25), math.radians(25))
    width, height = between(-0.2, 0.2).exp(), between(-0.2, 0.2).exp()
    slant, right, down = between(-0.3, 0.3), between(-0.2, 0.2), between(-0.2, 0.2)
    first_row = torch.stack([width * angle.cos(), slant - height * angle.sin(), right], dim=1)
    second_row = torch.stack([width * angle.sin(), height * angle.cos(), down], dim=1)
    grid = F.affine_grid(torch.stack([first_row, second_row], dim=1), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, align_corners=False)


# --- train ------------------------------------------------------------------------------------------------------------
class Encoder(nn.Sequential):
    """(N, 1, 8, 8) images -> (N, 1024) embeddings: 64 learned features at each of 4 x 4 places.

    Convolutions only, because every place of every training image teaches them: what they learn holds for unseen
    digits. A linear layer on top would rather learn the five training classes by heart (README.md has the numbers).
    """

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 64, kernel_size=3, padding=1),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.AvgPool2d(2),
            nn.Conv2d(64, 64, kernel_size=3, padding=1),
            nn.BatchNorm2d(64),
            nn.Flatten(),
        )


class Curve(NamedTuple):
    """What training looked like, one value for each step."""

    loss: list[float]
    mined: list[float]
    """Share of the batch's pairs that mining kept."""


def train(
    encoder: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    steps: int,
    seed: int,
    augment: Callable[[Tensor, torch.Generator], Tensor] = distort,
    show: bool = True,
) -> Curve:
    """Teach the encoder that images of one class are alike, however they are written."""
    generator = torch.Generator().manual_seed(seed)
    loss_function = pairloom.MultiSimilarityLoss(epsilon=0.1)  # epsilon: mine pairs that are hard by this margin
    optimizer = torch.optim.AdamW(encoder.parameters(), weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=steps)
    curve = Curve([], [])

    encoder.train()
    bar = tqdm(range(steps), desc="training", unit="step", disable=not show)
    for _ in bar:
        batch = balanced_batch(labels, PER_CLASS, generator)
        embeddings = encoder(augment(images[batch], generator))
        # The statistics are counted in the same pass over the pairs as the loss and its gradient.
        loss, stats = loss_function.with_stats(embeddings, labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()

        mined, pairs = int(stats.mined_positives + stats.mined_negatives), int(stats.positives + stats.negatives)
        lonely = int(stats.anchors_without_positive)
        bar.set_postfix_str(
            f"loss {loss.item():.3f}, mined {mined:,}/{pairs:,} pairs, {lonely} anchors without positive"
        )
        curve.loss.append(loss.item())
        curve.mined.append(mined / pairs)
    return curve


# --- judge ------------------------------------------------------------------------------------------------------------
class Score(NamedTuple):
    """Retrieval among the unseen classes, leave-one-out."""

    recall_at_1: float
    map_at_r: float


@torch.no_grad()
def embed(encoder: nn.Module, images: Tensor) -> Tensor:
    """Embeddings of all images, in eval mode."""
    embeddings: Tensor = encoder.eval()(images)
    return embeddings


def judge(embeddings: Tensor, labels: Tensor) -> Score:
    """Every row asks for the others of its class."""
    return Score(pairloom.metrics.recall_at_k(embeddings, labels, k=1), pairloom.metrics.map_at_r(embeddings, labels))


def print_scores(scores: dict[str, Score], queries: int) -> None:
    """The table, and in words how much was won, or lost."""
    table = Table(title=f"Retrieval among {queries} images of the unseen classes {UNSEEN[0]}-{UNSEEN[-1]}")
    table.add_column("embedding")
    table.add_column("recall@1", justify="right")
    table.add_column("MAP@R", justify="right")
    table.add_column("MAP@R against raw pixels", justify="right")
    raw, trained = scores["raw pixels"], scores["trained encoder"]
    for name, score in scores.items():
        gain = "" if score is raw else f"{score.map_at_r - raw.map_at_r:+.4f}"
        table.add_row(name, f"{score.recall_at_1:.4f}", f"{score.map_at_r:.4f}", gain)
    console.print(table)
    best_other = max(score.map_at_r for score in scores.values() if score is not trained)
    verdict = "beats both" if trained.map_at_r > best_other else "does NOT beat both"
    say(
        f"On MAP@R the trained encoder {verdict} (best of the others: {best_other:.4f}). "
        f"Recall@1 moved by {trained.recall_at_1 - raw.recall_at_1:+.4f} from the pixels' {raw.recall_at_1:.4f}.\n"
    )


# --- export and serve -------------------------------------------------------------------------------------------------
def export(encoder: nn.Module, images: Tensor, path: Path) -> pairloom.export.Retriever:
    """Write encoder, normalisation and top-k search of the images' embeddings as one ONNX file."""
    gallery = embed(encoder, images)
    retriever = pairloom.export.Retriever(encoder, gallery, k=NEIGHBOURS + 1)  # one more: a gallery image finds itself
    pairloom.export.to_onnx(encoder, gallery, k=retriever.k, path=path, args=(images[:2],), input_names=["images"])
    operators = Counter(node.op_type for node in onnx.load(path).graph.node)
    say(f"{shown(path)}: {path.stat().st_size / 1e6:.1f} MB, gallery of {len(images)} embeddings included")
    say("nodes: " + ", ".join(f"{name} x{n}" if n > 1 else name for name, n in sorted(operators.items())))
    return retriever.eval()


def serve(path: Path, images: Tensor, *, library: bool = False) -> tuple[Tensor, Tensor]:
    """Ask the file, in ONNX Runtime: scores and ids, best first. PyTorch takes no part, pairloom's kernel if wanted."""
    options = onnxruntime.SessionOptions()
    if library:
        options.register_custom_ops_library(pairloom.deploy.ort_library())
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    scores, ids = session.run(["scores", "ids"], {"images": images.numpy()})
    return torch.from_numpy(scores), torch.from_numpy(ids)


@torch.no_grad()
def served_as_trained(retriever: pairloom.export.Retriever, path: Path, images: Tensor) -> bool:
    """Compare the file with PyTorch, with both kernels and several batch sizes: ids equal, scores within 1e-5."""
    table = Table(title="ONNX Runtime against PyTorch")
    for column in ("scoring by", "batch", "ids equal", "scores off by", "verdict"):
        table.add_column(column, justify="right")
    passed = True
    for library, size in itertools.product((False, True), (1, 2, 7, 64, len(images))):
        scores, ids = serve(path, images[:size], library=library)
        expected_scores, expected_ids = retriever(images[:size])
        difference = float((scores - expected_scores).abs().max())
        # Two answers that differ by rounding alone may trade places on some machine. So another id is right if PyTorch,
        # asked for the score of that very id, gives what it gave for its own answer at this rank.
        equal = ids == expected_ids
        all_scores = pairloom.pairwise_similarity(retriever.encoder(images[:size]), retriever.gallery)
        tied = (all_scores.gather(1, ids.clamp(min=0)) - expected_scores).abs() < 1e-6
        good = difference < 1e-5 and bool((equal | tied).all())
        passed &= good
        verdict = "FAILED" if not good else "ok" if equal.all() else "ok, but for ties"
        kernel = "pairloom" if library else "ONNX Runtime"
        table.add_row(kernel, str(size), f"{int(equal.sum())} of {ids.numel()}", f"{difference:.1e}", verdict)
    console.print(table)
    return passed


def without_self(ids: Tensor) -> Tensor:
    """Answers (N, k + 1) to the gallery's own N images -> (N, k), the image itself left out."""
    others = ids != torch.arange(len(ids)).unsqueeze(1)
    others[:, -1] &= ~others.all(dim=1)  # not among its own answers: one too many at the end
    return ids[others].view(len(ids), -1)


def say(text: str) -> None:
    """Print a sentence; a terminal wraps it as it likes."""
    console.print(text, soft_wrap=True)


def shown(path: Path) -> str:
    """The path as one would type it here."""
    return os.path.relpath(path)


# --- all of it --------------------------------------------------------------------------------------------------------
def main(
    steps: Annotated[int, typer.Option(min=4, help="Training steps.")] = STEPS,
    seed: Annotated[int, typer.Option(help="Start of all random numbers.")] = 0,
    output: Annotated[Path, typer.Option(help="Folder for what is written.", show_default="examples/output")] = Path(
        __file__
    ).parent
    / "output",
    quick: Annotated[bool, typer.Option("--quick", help="4 steps: does everything run? Scores mean nothing.")] = False,
) -> None:
    """Train on the digits 0-4, find similar digits among 5-9, export one ONNX file, serve it, draw a picture."""
    started = time.perf_counter()
    torch.set_num_threads(1)  # images this small do not repay a second one; results then do not depend on it
    steps = 4 if quick else steps
    output.mkdir(parents=True, exist_ok=True)
    images, labels = load_digits()
    seen, seen_labels = only(SEEN, images, labels)
    unseen, unseen_labels = only(UNSEEN, images, labels)
    say(f"Training on {len(seen)} images of the classes {SEEN[0]}-{SEEN[-1]}, {steps} steps, seed {seed}")

    torch.manual_seed(seed)
    encoder = Encoder()
    scores = {
        "raw pixels": judge(unseen.flatten(1), unseen_labels),
        "untrained encoder": judge(embed(encoder, unseen), unseen_labels),
    }
    curve = train(encoder, seen, seen_labels, steps=steps, seed=seed)
    scores["trained encoder"] = judge(embed(encoder, unseen), unseen_labels)
    print_scores(scores, len(unseen))

    model = output / "digits_retrieval.onnx"
    passed = served_as_trained(export(encoder, unseen, model), model, unseen)

    picture = output / "digits_retrieval.png"
    _, ids = serve(model, unseen)
    map_at_r = {name: score.map_at_r for name, score in scores.items()}
    draw(picture, unseen, unseen_labels, without_self(ids), curve.loss, curve.mined, map_at_r, seed)
    say(f"\n{shown(picture)}: queries with their nearest neighbours, and the training curve")
    say(f"done in {time.perf_counter() - started:.0f} s")
    if not passed:
        sys.exit("the ONNX file does not answer as PyTorch does")


if __name__ == "__main__":
    typer.run(main)
