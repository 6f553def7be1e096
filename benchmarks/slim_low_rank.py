"""Force regularisation and low rank beside low rank alone, at equal steps: rows of a CSV file.

    python benchmarks/slim_low_rank.py --data cifar10:DIR --seeds 0 1 2 --out RESULTS/slim_low_rank.csv
    python benchmarks/slim_low_rank.py --short --out FILE

RESULTS is benchmarks/results. For each seed one network is trained. It goes on with each force and without one for as many
epochs; all are split by `ranks_for` from one table of times, and fine-tuned for as many epochs. `--speedups` split at an equal
budget of latency. `--errors` are the paper's protocol: SVD alone, each layer at the same error, where its split is faster.
The whole network goes on without force for all these epochs. A tenth of the training data never trains: its accuracy chooses
the force and its strength; the test data's is what is then reported. Latencies are ONNX Runtime's, one thread, batch 1, in
turns: the least of many runs, as the table's are. A force makes the filters' mean larger, which alone lowers ranks: they are
counted without the mean too.
"""

from __future__ import annotations

import argparse
import copy
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from rows import append
from torch import Tensor, nn

from paceline.slimming.export.onnx_export import to_onnx
from paceline.slimming.latency.low_rank_times import chain_seconds, least_seconds
from paceline.slimming.methods.force import ForceRegularizer
from paceline.slimming.methods.low_rank import FORMS, rank_at
from paceline.slimming.methods.low_rank_choice import RankChoice, ranks_for
from paceline.slimming.structures.shrink import load
from paceline.training.runs import data

COLUMNS = (
    "data",
    "samples",
    "network",
    "seed",
    "arm",
    "strength",
    "epochs",
    "budget_speedup",
    "error",
    "forms",
    "ranks_at_5_percent",
    "ranks_without_mean",
    "splits",
    "predicted_us",
    "us",
    "whole_us",
    "speedup",
    "validation_before",
    "validation_split",
    "validation",
    "test",
    "whole_validation",
    "whole_test",
    "note",
)
SHOWN = (
    "seed",
    "arm",
    "strength",
    "budget_speedup",
    "error",
    "ranks_at_5_percent",
    "ranks_without_mean",
    "splits",
    "speedup",
    "validation_split",
    "validation",
    "test",
    "whole_test",
)
BATCH, FIRST_RATE, RATE = 128, 0.1, 0.02
TIMINGS = 3
K = TypeVar("K")
Labelled = tuple[Tensor, Tensor]
Seconds = Callable[[Mapping[Any, Sequence[nn.Module]], tuple[int, ...]], Mapping[Any, float]]


@dataclass(frozen=True)
class Pictures:
    """Samples and labels to train with, to choose by, and to report."""

    train: Labelled
    validation: Labelled
    test: Labelled


def main(arguments: list[str] | None = None) -> None:
    """Train, split, measure, add rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--samples", type=int, help="of the training data; all by default")
    parser.add_argument("--widths", type=int, nargs=3, default=[32, 128, 128])
    parser.add_argument("--kernel", type=int, default=3)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--force", nargs="+", default=["L2:0.002", "L2:0.008", "L1:0.004"], help="kinds and strengths")
    parser.add_argument("--epochs", type=int, nargs=3, default=[8, 4, 4], help="whole, with force, after the split")
    parser.add_argument("--speedups", type=float, nargs="*", default=[2.2], help="budgets of latency")
    parser.add_argument("--forms", nargs="+", default=FORMS, help="of layers at these budgets")
    parser.add_argument("--errors", type=float, nargs="*", default=[], help="of each layer, by SVD alone, instead of a budget")
    parser.add_argument("--note", default="")
    parser.add_argument("--short", action="store_true", help="a tiny network on a few digits: a test of this script")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    if options.short:
        options.widths, options.epochs, options.speedups, options.samples = [8, 32, 48], [1, 1, 1], [1.05], 256
        options.force, options.errors = ["L2:0.002"], [0.2]
    torch.set_num_threads(1)
    loaded = data.load(options.data)
    pictures = parted(loaded, options.samples)
    for seed in options.seeds:
        for row in rows(pictures, seed, options):
            row = {name: f"{each:.4g}" if isinstance(each, float) else each for name, each in row.items()}
            append(options.out, COLUMNS, row | {"data": loaded.name, "note": options.note})
            print(*(f"{name}={row[name]}" for name in SHOWN if name in row), flush=True)


def parted(loaded: data.Dataset, most: int | None) -> Pictures:
    """A tenth of the training data, by lot, is for validation; of the rest at most so many train."""
    order = torch.randperm(len(loaded.train_x), generator=torch.Generator().manual_seed(2017))  # files may be sorted by class
    aside, rest = order.tensor_split([len(order) // 10])
    train, validation = ((loaded.train_x[part], loaded.train_y[part]) for part in (rest[:most], aside))
    return Pictures(train, validation, (loaded.test_x, loaded.test_y))


def network(samples: Tensor, classes: int, widths: Sequence[int], kernel: int) -> nn.Sequential:
    """Three convolutions, each with batch norm, ReLU and pooling by two, and a linear layer."""
    channels, side = samples.shape[1:3]
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for number, width in enumerate(widths, 1):
        layers[f"conv{number}"] = nn.Conv2d(channels, width, kernel, padding=kernel // 2, bias=False)
        layers[f"norm{number}"], layers[f"relu{number}"] = nn.BatchNorm2d(width), nn.ReLU()
        layers[f"pool{number}"] = nn.MaxPool2d(2) if number < len(widths) else nn.AvgPool2d(2)
        channels, side = width, side // 2
    layers["flat"], layers["output"] = nn.Flatten(), nn.Linear(channels * side * side, classes)
    return nn.Sequential(layers).to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def train(model: nn.Module, labelled: Labelled, epochs: int, rates: tuple[float, float], seed: int, **force: Any) -> None:
    """SGD with momentum, mirrored pictures, bfloat16 products; the rate goes from the first to the last on a line."""
    samples, labels = labelled
    generator = torch.Generator().manual_seed(seed)
    inner = torch.optim.SGD(model.parameters(), lr=rates[0], momentum=0.9, weight_decay=5e-4)
    optimizer = ForceRegularizer(inner, model, layers=["conv2", "conv3"], **force) if force else inner
    steps, done = epochs * (len(samples) // BATCH), 0
    model.train()
    for _ in range(epochs):
        order = torch.randperm(len(samples), generator=generator)
        for batch in order[: len(samples) // BATCH * BATCH].split(BATCH):
            x = samples[batch]
            mirrored = torch.rand(BATCH, generator=generator) < 0.5
            x = torch.where(mirrored[:, None, None, None], x.flip(3), x).contiguous(memory_format=torch.channels_last)
            for group in inner.param_groups:
                group["lr"] = rates[0] + (rates[1] - rates[0]) * done / steps
            with torch.autocast("cpu", torch.bfloat16):
                loss = nn.functional.cross_entropy(model(x), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            done += 1
    model.eval()


@torch.no_grad()
def accuracy(model: nn.Module, held: Labelled) -> float:
    """Per cent of the held-out pictures."""
    parts = zip(*(each.split(500) for each in held), strict=True)
    return 100 * sum(int((model.eval()(x).argmax(1) == y).sum()) for x, y in parts) / len(held[1])


def remembered() -> Seconds:
    """``chain_seconds`` that times each shape once, so that all arms have one table."""
    known: dict[object, float] = {}

    def seconds(chains: Mapping[Any, Sequence[nn.Module]], shape: tuple[int, ...]) -> Mapping[Any, float]:
        keys = {way: (shape, tuple(str(layer) for layer in layers)) for way, layers in chains.items()}
        if new := {way: chains[way] for way, key in keys.items() if key not in known}:
            taken = least_of(chain_seconds(new, shape) for _ in range(TIMINGS))
            known.update({keys[way]: each for way, each in taken.items()})
        return {way: known[key] for way, key in keys.items()}

    return seconds


def least_of(timings: Iterable[Mapping[K, float]]) -> dict[K, float]:
    """The least of several timings of the same networks: on a busy machine one may find no quiet moment."""
    every = list(timings)
    return {name: min(each[name] for each in every) for name in every[0]}


def by_weights(chains: Mapping[Any, Sequence[nn.Module]], shape: tuple[int, ...]) -> Mapping[Any, float]:
    """A nanosecond a weight: the short form must not depend on a busy machine."""
    return {way: sum(each.numel() for layer in layers for each in layer.parameters()) * 1e-9 for way, layers in chains.items()}


def kind_and_strength(text: str) -> tuple[str, float]:
    """``L2:0.002`` in two."""
    kind, _, strength = text.partition(":")
    return kind, float(strength)


def rows(pictures: Pictures, seed: int, options: argparse.Namespace) -> Iterator[dict[str, object]]:
    """One row a budget or an error and an arm."""
    torch.manual_seed(seed)
    first, forced, tuned = options.epochs
    samples, labels = pictures.train
    start = network(samples, int(labels.max()) + 1, options.widths, options.kernel)
    train(start, pictures.train, first, (FIRST_RATE, RATE), seed)
    arms: dict[tuple[str, float], nn.Module] = {}
    for force, strength in [("none", 0.0), *map(kind_and_strength, options.force)]:
        arms[force, strength] = model = copy.deepcopy(start)
        more = {} if force == "none" else {"force": force, "strength": strength}
        train(model, pictures.train, forced, (RATE, RATE), seed + 1000, **more)
    whole = copy.deepcopy(arms["none", 0.0])
    train(whole, pictures.train, tuned, (RATE, 0.0), seed + 2000)
    shared = {
        "network": "-".join(map(str, options.widths)) + f" {options.kernel}x{options.kernel}",
        "seed": seed,
        "samples": len(samples),
        "epochs": "+".join(map(str, options.epochs)),
        "whole_validation": accuracy(whole, pictures.validation),
        "whole_test": accuracy(whole, pictures.test),
    }
    seconds, given = by_weights if options.short else remembered(), (samples[:1].contiguous(),)
    with tempfile.TemporaryDirectory() as folder:
        file = to_onnx(whole, given, Path(folder) / "whole.onnx")
        timed: dict[int, tuple[Path, tuple[Tensor, ...]]] = {0: (file, given)}  # the whole network, then a network a row
        made: list[dict[str, Any]] = []
        whole_s = least_of(least_seconds(timed) for _ in range(TIMINGS))[0]
        for named, limit in limits(options, whole_s):
            for (force, strength), model in arms.items():
                choice = ranks_for(model, given, whole_s=whole_s, seconds=seconds, **limit)
                small = load(choice.plan, model).to(memory_format=torch.channels_last)
                row = {"arm": force, "strength": strength, "forms": " ".join(limit["forms"]), **named}
                row |= {"validation_before": accuracy(model, pictures.validation)}
                row |= {"validation_split": accuracy(small, pictures.validation)}
                train(small, pictures.train, tuned, (RATE, 0.0), seed + 2000)
                row |= {"validation": accuracy(small, pictures.validation), "test": accuracy(small, pictures.test)}
                made.append(row | figures(start, model, choice))
                timed[len(made)] = to_onnx(small, given, Path(folder) / f"{len(made)}.onnx"), given
        taken = least_of(least_seconds(timed) for _ in range(TIMINGS))
    for number, row in enumerate(made, 1):
        times = {"us": taken[number] * 1e6, "whole_us": taken[0] * 1e6, "speedup": taken[0] / taken[number]}
        yield {**shared, **row, **times}


def limits(options: argparse.Namespace, whole_s: float) -> Iterator[tuple[dict[str, float], dict[str, Any]]]:
    """What a row names and what ``ranks_for`` is given, for each budget and each error."""
    for speedup in options.speedups:
        yield {"budget_speedup": speedup}, {"budget_s": whole_s / speedup, "forms": options.forms}
    for error in options.errors:
        yield {"error": error}, {"error": error, "forms": ["svd"]}


def figures(start: nn.Module, model: nn.Module, choice: RankChoice) -> dict[str, object]:
    """Ranks and the predicted time of a row."""
    weights = {
        name: [each.get_submodule(name).get_parameter("weight").detach() for each in (start, model)] for name in choice.whole
    }
    centred = {name: [weight - weight.mean(0) for weight in pair] for name, pair in weights.items()}
    splits = [f"{name} {each.form} {'x'.join(map(str, each.ranks))} ({each.error:.2f})" for name, each in choice.splits.items()]
    return {
        "ranks_at_5_percent": falls(weights),
        "ranks_without_mean": falls(centred),
        "splits": "; ".join(splits),
        "predicted_us": choice.seconds * 1e6,
    }


def falls(weights: Mapping[str, Sequence[Tensor]]) -> str:
    """Ranks at 5 % before and after, by layer."""
    return "; ".join(f"{name} {rank_at(before)}->{rank_at(after)}" for name, (before, after) in weights.items())


if __name__ == "__main__":
    main()
