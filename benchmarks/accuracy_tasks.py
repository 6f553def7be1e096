"""The tasks of ``accuracy_to_convergence.py``: a network, its data, and a recipe that is the same for every compression.

CIFAR-10: all 50,000 pictures, the network and the recipe of Jordan 2024, 94% on CIFAR-10 in 3.29 seconds on a single GPU
(arXiv:2404.00498), sections 2 and 3: fixed whitening filters first, convolutions that start as the identity, Nesterov
momentum, a triangular rate, larger rates for biases, mirrored pictures in alternate epochs and shifts. For two cores the
network is narrower and trains longer, in batches of 512 for its 1024. The last test adds up the logits of each picture and of
its mirror image. No lookahead, no shifted test pictures.

Language: words of a book, a small transformer, AdamW with a warm-up and a half cosine.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Container, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path

import torch
from language_tasks import Attention, Text, TransformerModel
from torch import Tensor, nn
from torch.nn import functional

from paceline.training.runs import cifar
from paceline.training.runs.starting_model import mixed_seed

Batch = tuple[Tensor, Tensor]
SHIFT = 2
"""Pixels that a picture is moved by at most, each way."""
SMOOTHING = 0.2
"""Of the labels of pictures."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What all compressions have in common.

    Attributes:
        samples: training pictures or tokens at most. ``batch``: pictures or windows of all workers in a step.
        decay: decoupled: each step multiplies the weights by 1 - rate x decay.
        bias_rate: times the rate, for biases of normalisations.
        vocabulary, context, dropout: of the language model; its blocks have the width ``widths[0]``.
        bf16: forward and backward under ``torch.autocast``.
    """

    task: str
    widths: tuple[int, ...]
    samples: int
    epochs: int
    batch: int
    rate: float
    momentum: float
    decay: float
    bias_rate: float = 1.0
    vocabulary: int = 0
    context: int = 0
    blocks: int = 0
    dropout: float = 0.0
    bf16: bool = True

    def __str__(self) -> str:
        return json.dumps({name: value for name, value in asdict(self).items() if name != "task"})


RECIPES = {
    recipe.task: recipe
    for recipe in (
        Recipe(
            task="cifar10",
            widths=(48, 192, 256),
            samples=50_000,
            epochs=16,
            batch=512,
            rate=0.75,
            momentum=0.85,
            decay=0.009,
            bias_rate=64,
        ),
        Recipe(
            task="language",
            widths=(128,),
            samples=1_000_000,
            epochs=8,
            batch=64,
            rate=2e-3,
            momentum=0.9,
            decay=0.1,
            vocabulary=4096,
            context=64,
            blocks=4,
            dropout=0.1,
        ),
    )
}


def shortened(recipe: Recipe) -> Recipe:
    """Seconds on made-up data, for tests."""
    if recipe.task == "cifar10":
        return replace(recipe, widths=(16, 16, 32), samples=192, epochs=2, batch=32, rate=0.1)
    return replace(recipe, widths=(32,), samples=4000, epochs=2, batch=16, vocabulary=64, context=16, blocks=1)


class Task(ABC):
    """A recipe with its data, on one of some workers."""

    measure: str
    least_is_best: bool

    def __init__(self, recipe: Recipe, seed: int, rank: int, workers: int) -> None:
        self.recipe, self.seed, self.rank, self.workers = recipe, seed, rank, workers
        self.own = slice(rank * recipe.batch // workers, (rank + 1) * recipe.batch // workers)

    def generator(self, *keys: int) -> torch.Generator:
        """Of the seed and ``keys``."""
        return torch.Generator().manual_seed(mixed_seed(self.seed, *keys))

    @property
    def epoch_steps(self) -> int:
        """A last partial batch is left out."""
        return self.rows // self.recipe.batch

    @property
    def steps(self) -> int:
        """Of the whole training."""
        return self.recipe.epochs * self.epoch_steps

    def autocast(self) -> torch.autocast:
        """The precision of forward passes."""
        return torch.autocast("cpu", torch.bfloat16, self.recipe.bf16)

    @property
    @abstractmethod
    def rows(self) -> int:
        """Training samples of an epoch."""

    @property
    @abstractmethod
    def data(self) -> str:
        """What it learns from."""

    @abstractmethod
    def model(self) -> nn.Module:
        """The same weights for the same seed."""

    @abstractmethod
    def batches(self, epoch: int) -> Iterator[Batch]:
        """This worker's part of every batch."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Of a training batch."""

    @abstractmethod
    def share(self, step: int) -> float:
        """Of the rate in a step."""

    @abstractmethod
    def optimizer(self, groups: Sequence[dict[str, object]]) -> torch.optim.Optimizer:
        """Of groups with ``params``, ``lr`` and ``momentum``; without weight decay."""

    @abstractmethod
    def sums(self, model: nn.Module, part: str) -> tuple[float, int]:
        """What this worker's share of the ``tune`` or ``test`` part sums up to, and of how many rows."""

    @abstractmethod
    def score(self, total: float, rows: float) -> float:
        """The measure of sums over all workers."""

    def parameter_groups(self, model: nn.Module, corrected: Container[str] = ()) -> list[dict[str, object]]:
        """One group a tensor that is trained. ``corrected``: names of those whose momentum is not the optimizer's."""
        norms = {f"{name}.bias" for name, module in model.named_modules() if isinstance(module, nn.BatchNorm2d)}
        return [
            {
                "params": [p],
                "lr": self.recipe.rate * (self.recipe.bias_rate if name in norms else 1.0),
                "momentum": 0.0 if name in corrected else self.recipe.momentum,
                "decay": self.recipe.decay * self.recipe.rate * (p.ndim > 1 or self.recipe.bias_rate != 1.0),
            }
            for name, p in model.named_parameters()
            if p.requires_grad
        ]


class Pictures(Task):
    """CIFAR-10. The accuracy of all epochs is that on the test pictures: nothing is chosen by it."""

    measure, least_is_best = "accuracy %", False

    def __init__(self, recipe: Recipe, seed: int, rank: int, workers: int, folder: Path | None) -> None:
        super().__init__(recipe, seed, rank, workers)
        if folder is None:
            made = torch.Generator().manual_seed(0)
            labels = torch.arange(recipe.samples + 64) % 10
            pixels = (labels[:, None, None, None] * 20 + torch.randint(60, (len(labels), 3, 32, 32), generator=made)).byte()
            count = recipe.samples
            train_x, self.train_y, test_x, self.test_y = pixels[:count], labels[:count], pixels[count:], labels[count:]
        else:
            found = {name: torch.from_numpy(array) for name, array in cifar.pictures(folder / "cifar10-jpeg").items()}
            train_x, self.train_y = found["train_x"][: recipe.samples], found["train_y"][: recipe.samples].long()
            test_x, self.test_y = found["test_x"], found["test_y"].long()
        self.made_up = folder is None
        self.mean, self.deviation = moments(train_x)
        # Channels innermost, with the margin that shifts need: a gather then gives a batch.
        mirror = torch.arange(-SHIFT, 32 + SHIFT).abs()
        mirror = torch.where(mirror > 31, 62 - mirror, mirror)
        self.train_x = train_x.permute(0, 2, 3, 1)[:, mirror][:, :, mirror].contiguous()
        self.test_x = test_x.permute(0, 2, 3, 1).contiguous()

    @property
    def rows(self) -> int:
        return len(self.train_y)

    @property
    def data(self) -> str:
        return "made up" if self.made_up else f"CIFAR-10 (JPEG copy), {self.rows} pictures"

    def normal(self, pixels: Tensor) -> Tensor:
        """Bytes (n, 32, 32, 3) to numbers (n, 3, 32, 32), channels innermost in memory."""
        return pixels.float().sub_(self.mean).div_(self.deviation).permute(0, 3, 1, 2)

    def model(self) -> nn.Module:
        torch.manual_seed(mixed_seed(self.seed))
        some = self.normal(self.train_x[:2000, SHIFT:-SHIFT, SHIFT:-SHIFT])
        return network(whitening(some), self.recipe.widths).to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]

    def batches(self, epoch: int) -> Iterator[Batch]:
        random = self.generator(1, epoch)
        order = torch.randperm(self.rows, generator=random)
        moves = torch.randint(2 * SHIFT + 1, (2, self.rows, 1), generator=random)
        mirrored = (torch.rand(self.rows, generator=self.generator(2)) < 0.5) ^ bool(epoch % 2)
        there = torch.arange(32)
        for start in range(0, self.epoch_steps * self.recipe.batch, self.recipe.batch):
            mine = order[start : start + self.recipe.batch][self.own]
            rows = there + moves[0, mine]
            columns = torch.where(mirrored[mine, None], 31 - there, there) + moves[1, mine]
            yield self.normal(self.train_x[mine[:, None, None], rows[:, :, None], columns[:, None]]), self.train_y[mine]

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        x, y = batch
        return functional.cross_entropy(model(x), y, label_smoothing=SMOOTHING)

    def share(self, step: int) -> float:
        """From a fifth up to the whole at 23 % of the steps, then down to nothing, both in a straight line.

        The source ends at 7 %, and averages the last weights.
        """
        done = step / self.steps
        return 0.2 + 0.8 * done / 0.23 if done < 0.23 else (1 - done) / 0.77

    def optimizer(self, groups: Sequence[dict[str, object]]) -> torch.optim.Optimizer:
        return torch.optim.SGD([{**group, "nesterov": group["momentum"] != 0} for group in groups])

    def sums(self, model: nn.Module, part: str) -> tuple[float, int]:
        """Pictures classified right; ``tune`` has the test pictures as well, seen once."""
        x, y = self.test_x[self.rank :: self.workers], self.test_y[self.rank :: self.workers]
        right = 0.0
        for pixels, labels in zip(x.split(500), y.split(500), strict=True):
            logits = model(self.normal(pixels)).float()
            if part == "test":
                logits += model(self.normal(pixels.flip(2))).float()
            right += float((logits.argmax(-1) == labels).sum())
        return right, len(y)

    def score(self, total: float, rows: float) -> float:
        return round(100 * total / rows, 3)


def moments(pictures: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation (3,) of bytes (n, 3, 32, 32), from how often each value occurs."""
    counts = torch.stack([channel.flatten().bincount(minlength=256) for channel in pictures.unbind(1)]).double()
    share, values = counts / counts.sum(1, keepdim=True), torch.arange(256.0, dtype=torch.float64)
    mean = (share * values).sum(1)
    return mean.float(), ((share * values**2).sum(1) - mean**2).sqrt().float()


def whitening(pictures: Tensor) -> Tensor:
    """Filters (24, 3, 2, 2): the directions of the 2x2 patches, each divided by its deviation, and their negatives."""
    patches = pictures.unfold(2, 2, 1).unfold(3, 2, 1).permute(0, 2, 3, 1, 4, 5).reshape(-1, 12)
    values, vectors = torch.linalg.eigh(torch.cov(patches.double().T))
    filters = (vectors / (values + 5e-4).sqrt()).T.reshape(12, 3, 2, 2).float()
    return torch.cat([filters, -filters])


class Stage(nn.Sequential):
    """Two convolutions, the first with pooling that halves each side."""

    def __init__(self, inputs: int, outputs: int) -> None:
        def convolution(count: int) -> nn.Conv2d:
            layer = nn.Conv2d(count, outputs, 3, padding=1, bias=False)
            nn.init.dirac_(layer.weight.data[:count])
            return layer

        def norm() -> nn.BatchNorm2d:
            layer = nn.BatchNorm2d(outputs, momentum=0.4)
            layer.weight.requires_grad_(False)
            return layer

        super().__init__(
            *(convolution(inputs), nn.MaxPool2d(2), norm(), nn.GELU()),
            *(convolution(outputs), norm(), nn.GELU()),
        )


class Scaled(nn.Module):
    """Logits times a constant."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


def network(filters: Tensor, widths: Sequence[int]) -> nn.Module:
    """Pictures (n, 3, 32, 32) to logits (n, 10): fixed filters, three stages, one linear layer."""
    first = nn.Conv2d(3, len(filters), 2)
    first.weight.data.copy_(filters)
    first.weight.requires_grad_(False)
    nn.init.zeros_(first.bias)  # type: ignore[arg-type]
    counts = [len(filters), *widths]
    stages = [Stage(a, b) for a, b in pairwise(counts)]
    last = nn.Linear(widths[-1], 10, bias=False)
    return nn.Sequential(first, nn.GELU(), *stages, nn.MaxPool2d(3), nn.Flatten(), last, Scaled(1 / 9))


class Words(Task):
    """War and Peace. The perplexity after each epoch is that of the tuning part."""

    measure, least_is_best = "perplexity", True

    def __init__(self, recipe: Recipe, seed: int, rank: int, workers: int, folder: Path | None) -> None:
        super().__init__(recipe, seed, rank, workers)
        if folder is None:
            made = torch.Generator().manual_seed(0)
            start, steps = torch.randint(recipe.vocabulary, (), generator=made), torch.randint(3, (5000,), generator=made)
            tokens = (start + steps.cumsum(0)) % recipe.vocabulary
            self.text = Text(tokens[: recipe.samples], tokens[4000:4500], tokens[4500:], recipe.vocabulary)
        else:
            self.text = Text.read("war-and-peace", folder, recipe.vocabulary, recipe.samples)
        self.made_up = folder is None

    @property
    def rows(self) -> int:
        return len(self.text.train) // self.recipe.context - 1

    @property
    def data(self) -> str:
        return "made up" if self.made_up else f"War and Peace, {len(self.text.train)} words"

    def model(self) -> nn.Module:
        torch.manual_seed(mixed_seed(self.seed))
        r, width = self.recipe, self.recipe.widths[0]
        blocks = [(width // 32, 4 * width)] * r.blocks
        made = TransformerModel(r.vocabulary, width, 32, blocks, r.dropout, r.context)
        for module in made.modules():
            if isinstance(module, Attention):
                module.dropout = 0.0  # the fast kernel has none
        torch.manual_seed(mixed_seed(self.seed, 3, self.rank))  # what each worker drops is its own
        return made

    def windows(self, tokens: Tensor, at: Tensor) -> Batch:
        """Words from each of ``at`` on, and those that follow them."""
        places = at[:, None] + torch.arange(self.recipe.context)
        return tokens[places], tokens[places + 1]

    def batches(self, epoch: int) -> Iterator[Batch]:
        """The text is cut anew in each epoch, at multiples of the context from a drawn word on."""
        random = self.generator(1, epoch)
        offset = int(torch.randint(self.recipe.context, (), generator=random))
        order = torch.randperm(self.rows, generator=random) * self.recipe.context + offset
        for start in range(0, self.epoch_steps * self.recipe.batch, self.recipe.batch):
            yield self.windows(self.text.train, order[start : start + self.recipe.batch][self.own])

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        logits, _ = model(batch[0])
        return functional.cross_entropy(logits.flatten(0, 1), batch[1].flatten())

    def share(self, step: int) -> float:
        """Up in the first twentieth, then down to nothing along a half cosine."""
        warm = max(self.steps // 20, 1)
        if step < warm:
            return (step + 1) / warm
        return 0.5 + 0.5 * math.cos(math.pi * (step - warm) / (self.steps - warm))

    def optimizer(self, groups: Sequence[dict[str, object]]) -> torch.optim.Optimizer:
        named = [{**{k: v for k, v in g.items() if k != "momentum"}, "betas": (g["momentum"], 0.99)} for g in groups]
        return torch.optim.AdamW(named, weight_decay=0.0, fused=True)

    def sums(self, model: nn.Module, part: str) -> tuple[float, int]:
        """Nats of the words, each with at most ``context`` words before it."""
        tokens = self.text.tune if part == "tune" else self.text.test
        starts = torch.arange(0, len(tokens) - self.recipe.context, self.recipe.context)[self.rank :: self.workers]
        total = 0.0
        for at in starts.split(32):
            x, y = self.windows(tokens, at)
            total += float(functional.cross_entropy(model(x)[0].float().flatten(0, 1), y.flatten(), reduction="sum"))
        return total, len(starts) * self.recipe.context

    def score(self, total: float, rows: float) -> float:
        return round(math.exp(total / rows), 3)


def task_of(recipe: Recipe, seed: int, rank: int, workers: int, folder: Path | None) -> Task:
    """The task of a recipe; its data are made up where there is no folder."""
    kind = Pictures if recipe.task == "cifar10" else Words
    return kind(recipe, seed, rank, workers, folder)


__all__ = ["RECIPES", "Recipe", "Task", "shortened", "task_of"]
