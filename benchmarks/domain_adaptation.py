"""Adaptation without labels of the target: MNIST to USPS to scikit-learn's digits, by method, by width and after slimming.

    python benchmarks/domain_adaptation.py --data FOLDER --out RESULTS/domain_adaptation.csv
    python benchmarks/domain_adaptation.py --out RESULTS/domain_adaptation.csv --table

RESULTS is benchmarks/results; FOLDER holds mnist/ (the four idx .gz files) and usps/ (usps_train.npz, usps_test.npz).
One row a training, network and target. --table prints medians over the seeds and measures nothing; --short runs a few steps on
scikit-learn's digits and altered copies of them. Rows that are there are not run again.

No label of a target is used but to count what is right. Strengths, schedules and widths of kernels were fixed beforehand, after
the publications that ``paceline.slimming.methods.domain_adaptation`` names. Of the rates 0.01, 0.1 and 0.3 the smallest was
taken that is within half a point of the best on 5,000 held-out images of MNIST, in batches of 64. 500 steps of 32 images are
what time allowed. Nothing stops early. USPS is enlarged to 28x28 as it is: its digits fill the image, those of MNIST do not.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

from paceline.models.vision.compact import ConvM, narrow
from paceline.slimming.methods.domain_adaptation import Strengths, normalised_for
from paceline.slimming.methods.group_lasso import GroupLasso, StructureNorms
from paceline.slimming.structures.shrink import shrunk
from paceline.slimming.structures.structures import Structures
from paceline.slimming.structures.tracing import structures_of
from paceline.training.runs import data

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

from adapt_without_labels import DomainAdaptation, Recipe, predictions
from rows import append, read

COLUMNS = (
    *("part", "network", "width", "parameters", "source", "target", "method", "seed", "steps", "batch", "rate"),
    *("source_accuracy", "target_accuracy", "seconds"),
)
NONE = Strengths(0, 0, 0, 0)
METHODS = {
    "none": NONE,
    "adversarial": replace(NONE, adversarial=1),
    "mmd": replace(NONE, mmd=1),
    "coral": replace(NONE, coral=1),
    "entropy": replace(NONE, entropy=0.1),
    "all": Strengths(),
}
"""``statistics`` is ``none`` with the target's statistics in its batch normalisations."""
WIDTHS = (1.0, 0.5, 0.25, 0.125)
PENALTY = 0.05
PARTS = ("adapted", "widths", "digits", "slimmed", "terms")
KEY = ("part", "network", "width", "source", "target", "method", "seed", "steps")
SAMPLES = 2560
"""Of a domain, from which the statistics of its batch normalisations are taken."""


@dataclass(frozen=True)
class Domain:
    """Images (B, 1, 28, 28) in 0 to 1 and classes, for training and for counting what is right."""

    name: str
    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor


Job = tuple[str, float, Domain, Domain, str, int, Callable[[], tuple[nn.Module, float]]]
"""Network, width, source, target, method and steps of a row, and what trains it."""


class Plain(nn.Module):
    """A block whose three branches are one plain convolution: as many parameters as Conv-M."""

    def __init__(self, inputs: int, squeeze: int, branch: int) -> None:
        super().__init__()
        self.body = nn.Sequential(*_normed(inputs, squeeze, 1), *_normed(squeeze, 3 * branch, 3))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x)
        return out


class Fire(nn.Module):
    """A fire module of SqueezeNet (Iandola et al. 2016), half of it 1x1, with batch normalisation."""

    def __init__(self, inputs: int, squeeze: int, branch: int) -> None:
        super().__init__()
        self.squeeze = nn.Sequential(*_normed(inputs, squeeze, 1))
        half = 3 * branch // 2
        self.one, self.three = (nn.Sequential(*_normed(squeeze, n, k)) for n, k in ((half, 1), (3 * branch - half, 3)))

    def forward(self, x: Tensor) -> Tensor:
        x = self.squeeze(x)
        return torch.cat([self.one(x), self.three(x)], 1)


def _normed(inputs: int, outputs: int, kernel: int) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]


def size(model: nn.Module) -> int:
    """Parameters."""
    return sum(parameter.numel() for parameter in model.parameters())


def network(kind: str, width: float) -> nn.Sequential:
    """A network of a kind with as many parameters as Conv-M of this width."""
    if kind != "fire":
        return narrow(width, block={"conv-m": ConvM, "plain": Plain}[kind])
    wanted = size(narrow(width))
    tried = [width * (1 + step / 50) for step in range(51)]
    with torch.device("meta"):
        nearest = min(tried, key=lambda each: abs(size(narrow(each, block=Fire)) - wanted))
    return narrow(nearest, block=Fire)


def load(folder: Path) -> list[Domain]:
    """MNIST but for 5,000 images on which the rate was chosen, USPS, digits."""
    mnist, digits = data.load(f"mnist:{folder / 'mnist'}"), data.load("digits")
    parts = []
    for part in ("train", "test"):
        with np.load(folder / "usps" / f"usps_{part}.npz") as file:
            pixels = torch.from_numpy(file["x_milli"].astype(np.float32) / 2000 + 0.5)[:, None]
            parts += [_enlarged(pixels), torch.from_numpy(file["y"].astype(np.int64))]
    return [
        Domain("mnist", mnist.train_x[:-5000], mnist.train_y[:-5000], mnist.test_x, mnist.test_y),
        Domain("usps", *parts),
        Domain("digits", digits.train_x, digits.train_y, digits.test_x, digits.test_y),
    ]


def _enlarged(images: Tensor) -> Tensor:
    return functional.interpolate(images, size=(28, 28), mode="bilinear", align_corners=False)


def altered() -> list[Domain]:
    """Digits, the same without their margin, and blurred ones: what --short runs on."""
    d = data.load("digits")
    made = {
        "digits": lambda x: x,
        "enlarged": lambda x: _enlarged(x[:, :, 3:-3, 3:-3]),
        "blurred": lambda x: functional.avg_pool2d(x, 5, 1, 2),
    }
    x, y = d.train_x[:200], d.train_y[:200]
    return [Domain(name, of(x), y, of(d.test_x[:100]), d.test_y[:100]) for name, of in made.items()]


class Study:
    """Trainings of one seed, each at most once, as rows.

    Args:
        done: keys of rows that are there.
    """

    def __init__(self, domains: Sequence[Domain], seed: int, recipe: Recipe, done: Set[tuple[str, ...]]) -> None:
        self.mnist, self.usps, self.digits = domains
        self.recipe, self.done = replace(recipe, seed=seed), done
        self.parts = dict(zip(PARTS, (self.adapted, self.widths, self.by_usps, self.slimmed, self.terms), strict=True))
        self._made: dict[tuple[str, float, str, str, int], tuple[nn.Module, float]] = {}

    def rows(self, part: str) -> Iterator[dict[str, object]]:
        """Those of a part that are not there."""
        for kind, width, source, target, method, steps, train in self.parts[part]():
            values = (part, kind, width, source.name, target.name, method, self.recipe.seed, steps)
            key = dict(zip(KEY, values, strict=True))
            if tuple(map(str, values)) not in self.done:
                model, seconds = train()
                own = normalised_for(model, source.x[:SAMPLES])
                other = own if method == "none" else normalised_for(model, target.x[:SAMPLES])
                yield {
                    **key,
                    "parameters": size(model),
                    "batch": self.recipe.batch,
                    "rate": self.recipe.rate,
                    "source_accuracy": accuracy(own, source),
                    "target_accuracy": accuracy(other, target),
                    "seconds": round(seconds, 1),
                }

    def trained(self, kind: str, width: float, method: str, target: Domain, steps: int = 0) -> tuple[nn.Module, float]:
        """A network from its first weights, and the seconds that it took. Without adaptation the target does not matter."""
        method = "none" if method == "statistics" else method
        key = kind, width, method, "" if method == "none" else target.name, steps
        if key not in self._made:
            with torch.random.fork_rng():
                torch.manual_seed(self.recipe.seed)
                model = network(kind, width).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            self._made[key] = self.run(model, (self.mnist.x, self.mnist.y), target, method, steps)
        return self._made[key]

    def run(
        self,
        model: nn.Module,
        source: tuple[Tensor, Tensor],
        target: Domain,
        method: str = "all",
        steps: int = 0,
        wrap: Callable[[Optimizer], Optimizer] = lambda optimizer: optimizer,
    ) -> tuple[nn.Module, float]:
        """Train a model in place."""
        recipe = replace(self.recipe, steps=steps or self.recipe.steps, strengths=METHODS[method])
        start = time.perf_counter()
        DomainAdaptation(model, source, target.x, recipe, wrap).run()
        return model, time.perf_counter() - start

    def one(self, kind: str, width: float, method: str, target: Domain, steps: int = 0) -> Job:
        """A row of one training on MNIST."""
        train = partial(self.trained, kind, width, method, target, steps)
        return kind, width, self.mnist, target, method, steps or self.recipe.steps, train

    def adapted(self) -> Iterator[Job]:
        """MNIST to USPS."""
        for method in ("none", "statistics", "all"):
            yield self.one("conv-m", 1.0, method, self.usps)

    def terms(self) -> Iterator[Job]:
        """Each term alone."""
        for method in list(METHODS)[1:-1]:
            yield self.one("conv-m", 1.0, method, self.usps)

    def widths(self) -> Iterator[Job]:
        """Networks of three kinds with equal parameters; Conv-M of width 1 is in ``adapted``."""
        for kind in ("conv-m", "plain", "fire"):
            for width in WIDTHS[kind == "conv-m" :]:
                for method in ("none", "statistics", "all"):
                    yield self.one(kind, width, method, self.usps)

    def by_usps(self) -> Iterator[Job]:
        """MNIST to digits, and from USPS, whose labels are those that the adapted network gives it."""
        for method in ("none", "statistics", "all"):
            yield self.one("conv-m", 1.0, method, self.digits)
        yield "conv-m", 1.0, self.usps, self.digits, "all", 2 * self.recipe.steps, self._chained

    def _chained(self) -> tuple[nn.Module, float]:
        first, before = self.trained("conv-m", 1.0, "all", self.usps)
        first = normalised_for(first, self.usps.x[:SAMPLES])
        model, seconds = self.run(first, (self.usps.x, predictions(first, self.usps.x)), self.digits)
        return model, before + seconds

    def slimmed(self) -> Iterator[Job]:
        """From the adapted network, by group Lasso and then by norms; beside small ones that were trained as long."""
        part = max(self.recipe.steps // 2, 1)
        total = self.recipe.steps + 2 * part
        pulled = cache(partial(self._pulled, part))
        for width in WIDTHS[1:]:
            yield "conv-m slimmed", width, self.mnist, self.usps, "all", total, partial(self._slim, pulled, width, part)
            yield self.one("conv-m", width, "all", self.usps, total)

    def _pulled(self, steps: int) -> tuple[nn.Module, Structures, float]:
        whole, before = self.trained("conv-m", 1.0, "all", self.usps)
        model = normalised_for(whole, self.usps.x[:SAMPLES])
        found = structures_of(model, (self.usps.x[:2],)).without_kernels()
        source = self.mnist.x, self.mnist.y
        _, seconds = self.run(
            model, source, self.usps, steps=steps, wrap=lambda inner: GroupLasso(inner, model, found, PENALTY)
        )
        return model, found, before + seconds

    def _slim(
        self, pulled: Callable[[], tuple[nn.Module, Structures, float]], width: float, steps: int
    ) -> tuple[nn.Module, float]:
        model, found, before = pulled()
        small = shrunk(model, found, least(model, found, width))
        small, seconds = self.run(small, (self.mnist.x, self.mnist.y), self.usps, steps=steps)
        return small, before + seconds


def least(model: nn.Module, found: Structures, width: float) -> set[int]:
    """Numbers of the structures with the least norms of each layer, all but as many as a network of this width has."""
    groups = StructureNorms(model, found)
    norms = dict(zip(groups.numbers, groups.norms().tolist(), strict=True))
    removed: set[int] = set()
    for every in found.layers().values():
        ranked = sorted((each.number for each in every), key=lambda number: norms[number])
        removed |= set(ranked[: len(ranked) - max(2, round(width * len(ranked)))])
    return removed


def accuracy(model: nn.Module, domain: Domain) -> float:
    """Per cent of its test set."""
    return round(100 * float((predictions(model, domain.test_x) == domain.test_y).float().mean()), 2)


def table(path: Path) -> str:
    """Medians over the seeds, and the least and the largest on the target; widths side by side."""
    rows = read(path)
    head = "network         width  domains         method      steps  seeds  source  target"
    lines = [head]
    for part in PARTS:
        groups = defaultdict(list)
        for row in rows:
            if row["part"] == part != "widths":
                groups[tuple(row[name] for name in ("network", "width", "source", "target", "method", "steps"))].append(row)
        for (kind, width, source, target, method, steps), own in groups.items():
            ours, theirs = ([float(row[f"{of}_accuracy"]) for row in own] for of in ("source", "target"))
            spread = f"{statistics.median(theirs):6.1f} ({min(theirs):.1f} to {max(theirs):.1f})"
            name = f"{kind:<14} {width:>6g}  {f'{source} to {target}':<14}  {method:<11} {steps:>5}"
            lines.append(f"{name}  {len(own):>5}  {statistics.median(ours):>6.1f}  {spread}")
    return "\n".join([*lines, "", *_by_width(rows)])


def _by_width(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Of each network: the source's accuracy, the target's without adaptation, and with it."""
    kinds = ("conv-m", "plain", "fire")
    yield "width  seeds  " + "  ".join(f"{kind:<18}" for kind in kinds).rstrip()
    for width in WIDTHS:
        own = [row for row in rows if row["part"] in ("widths", "adapted") and row["width"] == width]
        seeds = set[int].intersection(
            *({row["seed"] for row in own if row["network"] == kind and row["method"] == "all"} for kind in kinds)
        )
        if not seeds:
            continue
        cells = []
        for kind in kinds:
            found = {
                (method, of): statistics.median(
                    row[f"{of}_accuracy"]
                    for row in own
                    if row["network"] == kind and row["method"] == method and row["seed"] in seeds
                )
                for method, of in (("none", "source"), ("none", "target"), ("all", "target"))
            }
            cells.append("  ".join(f"{value:>4.1f}" for value in found.values()))
        yield f"{width:>5g}  {len(seeds):>5}  " + "    ".join(cells)


def main(arguments: list[str] | None = None) -> None:
    """Train and add rows, or print medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(5)))
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--short", action="store_true")
    options = parser.parse_args(arguments)
    if options.table:
        print(table(options.out))
        return
    torch.set_num_threads(1)
    domains = load(options.data) if options.data else altered()
    recipe = Recipe(steps=2 if options.short else 500, batch=32, rate=0.1)
    there = read(options.out) if options.out.exists() else []
    done = {tuple(str(row[name]) for name in KEY) for row in there}
    studies = [Study(domains, seed, recipe, done) for seed in options.seeds]
    for part in options.parts:
        for study in studies:
            for row in study.rows(part):
                append(options.out, COLUMNS, row)
                print(*(row[name] for name in COLUMNS), flush=True)


if __name__ == "__main__":
    main()
