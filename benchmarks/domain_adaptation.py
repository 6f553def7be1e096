"""Adaptation without labels of the target: MNIST to USPS to scikit-learn's digits, by method, by width and after slimming.

    python benchmarks/domain_adaptation.py --data FOLDER --out RESULTS/domain_adaptation.csv
    python benchmarks/domain_adaptation.py --out RESULTS/domain_adaptation.csv --table

RESULTS is benchmarks/results; FOLDER holds mnist/ (the four idx .gz files) and usps/ (usps_train.npz, usps_test.npz).
One row a training, network and target. --table prints medians over the seeds and measures nothing; --short runs a few steps on
scikit-learn's digits and altered copies of them. Rows of 500 steps of Conv-M at width 1 are of the parts methods and digits.

No label of a target is used but to count what is right. Strengths, schedules, widths of kernels were fixed beforehand, after
the publications that ``paceline.slimming.domain_adaptation`` names. Of the rates 0.01, 0.1 and 0.3 the smallest was taken within
half a point of the best on 5,000 held-out images of MNIST. 500 steps are what time allowed. Nothing stops early.
USPS is enlarged to 28x28 as it is: its digits fill the image, those of MNIST do not.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from rows import append, read
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

from paceline.models.compact import ConvM, narrow
from paceline.slimming.domain_adaptation import (
    DomainAdaptation,
    Recipe,
    Strengths,
    normalised_for,
    predictions,
)
from paceline.slimming.group_lasso import GroupLasso, StructureNorms
from paceline.slimming.shrink import shrunk
from paceline.slimming.structures import Structures
from paceline.slimming.tracing import structures_of
from paceline.training import data

COLUMNS = (
    *("part", "network", "width", "parameters", "source", "target", "method", "seed", "steps", "rate"),
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
PARTS = ("methods", "digits", "widths", "slimmed")


@dataclass(frozen=True)
class Domain:
    """Images (B, 1, 28, 28) in 0 to 1 and classes, for training and for counting what is right."""

    name: str
    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor


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
    return [Domain(name, of(d.train_x), d.train_y, of(d.test_x), d.test_y) for name, of in made.items()]


class Study:
    """Trainings of one seed, each at most once, as rows."""

    def __init__(self, domains: Sequence[Domain], seed: int, recipe: Recipe) -> None:
        self.mnist, self.usps, self.digits = domains
        self.recipe = replace(recipe, seed=seed)
        self._made: dict[tuple[str, float, str, str, int], tuple[nn.Module, float]] = {}

    def trained(self, kind: str, width: float, method: str, target: Domain, steps: int) -> tuple[nn.Module, float]:
        """A network from its first weights, and the seconds that it took. Without adaptation the target does not matter."""
        key = kind, width, method, "" if method == "none" else target.name, steps
        if key not in self._made:
            with torch.random.fork_rng():
                torch.manual_seed(self.recipe.seed)
                model = network(kind, width)
            self._made[key] = self._run(model, (self.mnist.x, self.mnist.y), target, method, steps)
        return self._made[key]

    def _run(
        self,
        model: nn.Module,
        source: tuple[Tensor, Tensor],
        target: Domain,
        method: str,
        steps: int,
        wrap: Callable[[Optimizer], Optimizer] = lambda optimizer: optimizer,
    ) -> tuple[nn.Module, float]:
        recipe = replace(self.recipe, steps=steps, strengths=METHODS[method])
        start = time.perf_counter()
        adaptation = DomainAdaptation(model, source, target.x, recipe, wrap)
        adaptation.run()
        return model, time.perf_counter() - start

    def row(self, model: nn.Module, target: Domain, method: str, source: Domain | None = None) -> dict[str, object]:
        """Both accuracies, in per cent; the source's with its own statistics, the target's with its own but for ``none``."""
        source = source or self.mnist
        own = normalised_for(model, source.x[:10_000])
        other = own if method == "none" else normalised_for(model, target.x)
        return {
            "parameters": size(model),
            "source": source.name,
            "target": target.name,
            "method": method,
            "seed": self.recipe.seed,
            "rate": self.recipe.rate,
            "source_accuracy": accuracy(own, source),
            "target_accuracy": accuracy(other, target),
        }

    def of(self, kind: str, width: float, method: str, target: Domain, steps: int = 0) -> dict[str, object]:
        """A row of one training."""
        steps = steps or self.recipe.steps
        model, seconds = self.trained(kind, width, "none" if method == "statistics" else method, target, steps)
        row = self.row(model, target, method)
        return {"network": kind, "width": width, "steps": steps, "seconds": round(seconds, 1), **row}

    def methods(self) -> Iterator[dict[str, object]]:
        """Each term alone, and all."""
        for method in ("none", "statistics", *list(METHODS)[1:]):
            yield self.of("conv-m", 1.0, method, self.usps)

    def on_digits(self) -> Iterator[dict[str, object]]:
        """MNIST to digits, and by USPS, whose labels are the adapted network's own."""
        for method in ("none", "statistics", "all"):
            yield self.of("conv-m", 1.0, method, self.digits)
        first, before = self.trained("conv-m", 1.0, "all", self.usps, self.recipe.steps)
        first = normalised_for(first, self.usps.x)
        labels = predictions(first, self.usps.x)
        model, seconds = self._run(first, (self.usps.x, labels), self.digits, "all", self.recipe.steps)
        row = self.row(model, self.digits, "all", self.usps) | {"source": f"{self.mnist.name} by {self.usps.name}"}
        yield {"network": "conv-m", "width": 1.0, "steps": 2 * self.recipe.steps, "seconds": round(before + seconds, 1), **row}

    def widths(self) -> Iterator[dict[str, object]]:
        """Networks of three kinds with equal parameters."""
        for kind in ("conv-m", "plain", "fire"):
            for width in WIDTHS[kind == "conv-m" :]:
                for method in ("none", "statistics", "all"):
                    yield self.of(kind, width, method, self.usps)

    def slimmed(self) -> Iterator[dict[str, object]]:
        """From the adapted network, by group Lasso and then by norms; beside small ones that were trained as long."""
        whole, before = self.trained("conv-m", 1.0, "all", self.usps, self.recipe.steps)
        found = structures_of(whole, (self.usps.x[:2],))
        part = max(self.recipe.steps // 2, 1)
        source = self.mnist.x, self.mnist.y
        pulled = normalised_for(whole, self.usps.x)
        _, lasso = self._run(pulled, source, self.usps, "all", part, lambda inner: GroupLasso(inner, pulled, found, PENALTY))
        for width in WIDTHS[1:]:
            small, tuned = self._run(shrunk(pulled, found, least(pulled, found, width)), source, self.usps, "all", part)
            row = self.row(small, self.usps, "all")
            total = self.recipe.steps + 2 * part
            spent = round(before + lasso + tuned, 1)
            yield {"network": "conv-m slimmed", "width": width, "steps": total, "seconds": spent, **row}
            yield self.of("conv-m", width, "all", self.usps, total)


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
    """Medians over the seeds, and the least and the largest on the target."""
    groups = defaultdict(list)
    for row in read(path):
        groups[tuple(row[name] for name in ("part", "network", "width", "source", "target", "method", "steps"))].append(row)
    lines = [
        "part, network, width, source, target, method, steps | parameters | seeds | source % | target % (least to largest)"
    ]
    for key, rows in groups.items():
        ours, theirs = ([float(row[f"{of}_accuracy"]) for row in rows] for of in ("source", "target"))
        spread = f"{statistics.median(theirs):.1f} ({min(theirs):.1f} to {max(theirs):.1f})"
        parts = [", ".join(map(str, key)), rows[0]["parameters"], len(rows), f"{statistics.median(ours):.1f}", spread]
        lines.append(" | ".join(map(str, parts)))
    return "\n".join(lines)


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
    recipe = Recipe(steps=6 if options.short else 500, rate=0.1)
    for seed in options.seeds:
        study = Study(domains, seed, recipe)
        runs = {"methods": study.methods, "digits": study.on_digits, "widths": study.widths, "slimmed": study.slimmed}
        for part in options.parts:
            for row in runs[part]():
                append(options.out, COLUMNS, {"part": part, **row})
                print(part, *(row[name] for name in COLUMNS[1:]), flush=True)


if __name__ == "__main__":
    main()
