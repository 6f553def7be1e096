"""The tasks of the large-batch studies: a network, its data in three parts, and how it is trained and judged.

The part to tune on is the end of the training samples. The test part is looked at once a run. A sample of the character model
is a character with the characters before it; batches of language models are counted in tokens in the same way.
"""

from __future__ import annotations

import gzip
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from replica import quick
from torch import Tensor, nn
from torch.nn import functional

from paceline.training.runs.data import Dataset, load
from paceline.training.runs.starting_model import build_model, mixed_seed

CONTEXT = 16
"""Characters that the next is predicted from."""


class Characters(nn.Module):
    """The 16 characters before one (B, 16) to logits of it (B, 65): embeddings, 128 hidden units; 42 k weights.

    Bengio et al. 2003, A Neural Probabilistic Language Model, section 2, with a rectifier for its hyperbolic tangent.
    """

    def __init__(self, vocabulary: int = 65, width: int = 16, hidden: int = 128) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.hidden = nn.Linear(CONTEXT * width, hidden)
        self.logits = nn.Linear(hidden, vocabulary)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of the character after each row."""
        out: Tensor = self.logits(functional.relu(self.hidden(self.embedding(x).flatten(1))))
        return out


@dataclass(frozen=True)
class Task:
    """A network and what it learns from.

    Attributes:
        data: what ``load`` takes before the directory; ``text`` for characters.
        held: training samples set apart to tune on. ``glance``: those of them that say when a target is reached.
        piece: samples of one forward and backward: what the caches of a processor hold.
        by_loss: judged by the loss, not by accuracy.
    """

    name: str
    network: str
    data: str
    held: int
    glance: int
    piece: int = 256
    by_loss: bool = False

    def model(self, seed: int) -> nn.Module:
        """The same weights for the same seed."""
        if self.network != "characters":
            return quick(build_model(self.network, seed))
        torch.manual_seed(mixed_seed(seed))
        return Characters()


TASKS = {
    task.name: task
    for task in (
        Task("lenet", "lenet5", "fashion-mnist", 5000, 1000),
        Task("cifar", "cifar10-terngrad", "cifar10", 5000, 1000),
        Task("characters", "characters", "text", 50_000, 4000, piece=4096, by_loss=True),
        Task("digits", "lenet5", "digits", 200, 200),
    )
}
"""``digits`` is there for short tests alone."""


@dataclass(frozen=True)
class Part:
    """Rows and what they should give."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def first(self, rows: int) -> Part:
        """The first ``rows``."""
        return Part(self.x[:rows], self.y[:rows])


@dataclass(frozen=True)
class Data:
    """Three parts that share no row."""

    train: Part
    tune: Part
    test: Part


def read(task: Task, directory: str) -> Data:
    """The task's data from ``directory``."""
    if task.data == "text":
        return _text(Path(directory), task.held)
    dataset: Dataset = load(task.data if task.data == "digits" else f"{task.data}:{directory}")
    order = torch.randperm(len(dataset.train_y), generator=torch.Generator().manual_seed(2018))
    x, y = dataset.train_x[order], dataset.train_y[order]
    train, tune = Part(x[: -task.held], y[: -task.held]), Part(x[-task.held :], y[-task.held :])
    return Data(train, tune, Part(dataset.test_x, dataset.test_y))


def _text(directory: Path, held: int) -> Data:
    """``input.txt.gz``: its last ``held`` characters to test, as many before them to tune, what comes before to train."""
    raw = gzip.decompress((directory / "input.txt.gz").read_bytes()).decode()
    place = {letter: n for n, letter in enumerate(sorted(set(raw)))}
    codes = torch.tensor([place[letter] for letter in raw])
    x, y = codes[:-1].unfold(0, CONTEXT, 1), codes[CONTEXT:]
    end = len(y) - 2 * held
    train, tune, test = (Part(x[a:b], y[a:b]) for a, b in ((0, end), (end, end + held), (end + held, len(y))))
    # What tells when a target is reached is the front of the second part: drawn from all of it.
    order = torch.randperm(held, generator=torch.Generator().manual_seed(2018))
    return Data(train, Part(tune.x[order], tune.y[order]), test)


def batches(rows: int, size: int, seed: int) -> Iterator[Tensor]:
    """Indices of ``size`` rows, epoch after epoch without end; a last partial batch is left out."""
    epoch = 0
    while True:
        order = torch.randperm(rows, generator=torch.Generator().manual_seed(mixed_seed(seed, epoch)))
        yield from (order[n : n + size] for n in range(0, rows - size + 1, size))
        epoch += 1


def loss_of(model: nn.Module, part: Part) -> Tensor:
    """Mean cross entropy over the part's samples."""
    return functional.cross_entropy(model(part.x), part.y)


def evaluate(model: nn.Module, part: Part) -> tuple[float, float]:
    """Share of the samples told right, and the mean loss in nats."""
    model.eval()
    right, total = 0, 0.0
    with torch.no_grad():
        for x, y in zip(part.x.split(LOOK), part.y.split(LOOK), strict=True):
            logits = model(x)
            right += int((logits.argmax(1) == y).sum())
            total += float(functional.cross_entropy(logits, y, reduction="sum"))
    model.train()
    return right / len(part), total / len(part)


LOOK = 256
"""Samples that are looked at at once without gradients."""
say = partial(print, file=sys.stderr, flush=True)
