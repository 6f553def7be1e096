"""Force regularisation and low rank beside low rank alone, at equal steps and an equal budget of latency: rows of a CSV file.

    python benchmarks/slim_low_rank.py --data cifar10:DIR --validate --seeds 100 --force L1 L2 --strength 0.002 0.01 --out FILE
    python benchmarks/slim_low_rank.py --data cifar10:DIR --seeds 0 1 2 --out RESULTS/slim_low_rank.csv
    python benchmarks/slim_low_rank.py --short --out FILE

RESULTS is benchmarks/results. For each seed one network is trained. It goes on with the force and without it for as many
epochs; both are split by `ranks_for` at the same budgets from one table of times, and fine-tuned for as many epochs. The whole
network goes on without force for all these epochs. A tenth of the training data is held out: --validate counts accuracy there,
which is how the force and its strength are chosen; else it is counted on the test data. Latencies are ONNX Runtime's, one
thread, batch 1, in turns.
"""

from __future__ import annotations

import argparse
import copy
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rows import append
from torch import Tensor, nn

from paceline.slimming.force import ForceRegularizer
from paceline.slimming.latency import Latency, latencies
from paceline.slimming.low_rank import rank_at
from paceline.slimming.low_rank_choice import RankChoice, ranks_for
from paceline.slimming.low_rank_times import chain_seconds
from paceline.slimming.onnx_export import to_onnx
from paceline.slimming.shrink import load
from paceline.training import data

COLUMNS = (
    "data",
    "samples",
    "network",
    "seed",
    "held_out",
    "arm",
    "strength",
    "epochs",
    "budget_speedup",
    "ranks_at_5_percent",
    "splits",
    "predicted_us",
    "us",
    "whole_us",
    "speedup",
    "accuracy_before",
    "accuracy_split",
    "accuracy",
    "whole_accuracy",
    "note",
)
SHOWN = ("seed", "arm", "strength", "splits", "speedup", "accuracy_split", "accuracy", "whole_accuracy")
BATCH, FIRST_RATE, RATE = 128, 0.1, 0.02


@dataclass(frozen=True)
class Pictures:
    """Training and held-out samples."""

    train_x: Tensor
    train_y: Tensor
    held_x: Tensor
    held_y: Tensor


def main(arguments: list[str] | None = None) -> None:
    """Train, split, measure, add rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--widths", type=int, nargs=3, default=[32, 128, 128])
    parser.add_argument("--kernel", type=int, default=3)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--force", nargs="+", default=["L2"])
    parser.add_argument("--strength", type=float, nargs="+", default=[0.002])
    parser.add_argument(
        "--epochs", type=int, nargs=3, default=[8, 4, 4], help="of the whole network, with force, after the split"
    )
    parser.add_argument("--samples", type=int, help="of the training data; all by default")
    parser.add_argument("--speedups", type=float, nargs="+", default=[1.8, 2.3])
    parser.add_argument("--validate", action="store_true")
    parser.add_argument("--note", default="")
    parser.add_argument("--short", action="store_true", help="a tiny network on a few digits: a test of this script")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    if options.short:
        options.widths, options.epochs, options.speedups, options.samples = [8, 32, 48], [1, 1, 1], [1.01], 256
    torch.set_num_threads(1)
    loaded = data.load(options.data)
    pictures = held(loaded, validate=options.validate, most=options.samples)
    for seed in options.seeds:
        for row in rows(pictures, seed, options):
            row |= {"data": loaded.name, "held_out": "validation" if options.validate else "test", "note": options.note}
            append(options.out, COLUMNS, {name: f"{v:.4g}" if isinstance(v, float) else v for name, v in row.items()})
            print(*(f"{name}={row[name]}" for name in SHOWN), flush=True)


def held(loaded: data.Dataset, *, validate: bool, most: int | None) -> Pictures:
    """A tenth of the training data never trains; it is held out in place of the test data where strengths are chosen."""
    order = torch.randperm(len(loaded.train_x), generator=torch.Generator().manual_seed(2017))  # files may be sorted by class
    aside, rest = order.tensor_split([len(order) // 10])
    train = loaded.train_x[rest[:most]], loaded.train_y[rest[:most]]
    held_out = (loaded.train_x[aside], loaded.train_y[aside]) if validate else (loaded.test_x, loaded.test_y)
    return Pictures(*train, *held_out)


def network(pictures: Pictures, widths: Sequence[int], kernel: int) -> nn.Sequential:
    """Three convolutions, each with batch norm, ReLU and pooling by two, and a linear layer."""
    channels, side = pictures.train_x.shape[1:3]
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for number, width in enumerate(widths, 1):
        layers[f"conv{number}"] = nn.Conv2d(channels, width, kernel, padding=kernel // 2, bias=False)
        layers[f"norm{number}"], layers[f"relu{number}"] = nn.BatchNorm2d(width), nn.ReLU()
        layers[f"pool{number}"] = nn.MaxPool2d(2) if number < len(widths) else nn.AvgPool2d(2)
        channels, side = width, side // 2
    layers["flat"], layers["output"] = nn.Flatten(), nn.Linear(channels * side * side, int(pictures.train_y.max()) + 1)
    return nn.Sequential(layers).to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def train(model: nn.Module, pictures: Pictures, epochs: int, rates: tuple[float, float], seed: int, **force: Any) -> None:
    """SGD with momentum, mirrored pictures, bfloat16 products; the rate goes from the first to the last on a line."""
    generator = torch.Generator().manual_seed(seed)
    inner = torch.optim.SGD(model.parameters(), lr=rates[0], momentum=0.9, weight_decay=5e-4)
    optimizer = ForceRegularizer(inner, model, layers=["conv2", "conv3"], **force) if force else inner
    count = len(pictures.train_x)
    steps, done = epochs * (count // BATCH), 0
    model.train()
    for _ in range(epochs):
        order = torch.randperm(count, generator=generator)
        for batch in order[: count // BATCH * BATCH].split(BATCH):
            x = pictures.train_x[batch]
            mirrored = torch.rand(BATCH, generator=generator) < 0.5
            x = torch.where(mirrored[:, None, None, None], x.flip(3), x).contiguous(memory_format=torch.channels_last)
            for group in inner.param_groups:
                group["lr"] = rates[0] + (rates[1] - rates[0]) * done / steps
            with torch.autocast("cpu", torch.bfloat16):
                loss = nn.functional.cross_entropy(model(x), pictures.train_y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            done += 1
    model.eval()


@torch.no_grad()
def accuracy(model: nn.Module, pictures: Pictures) -> float:
    """Per cent of the held-out pictures."""
    right = sum(
        int((model.eval()(x).argmax(1) == y).sum())
        for x, y in zip(pictures.held_x.split(500), pictures.held_y.split(500), strict=True)
    )
    return 100 * right / len(pictures.held_y)


def remembered() -> Callable[..., Mapping[Any, float]]:
    """``chain_seconds`` that times each shape once, so that both arms have one table."""
    known: dict[object, float] = {}

    def seconds(chains: Mapping[Any, Sequence[nn.Module]], shape: tuple[int, ...]) -> Mapping[Any, float]:
        keys = {way: (shape, tuple(str(layer) for layer in layers)) for way, layers in chains.items()}
        if new := {way: chains[way] for way, key in keys.items() if key not in known}:
            known.update({keys[way]: each for way, each in chain_seconds(new, shape).items()})
        return {way: known[key] for way, key in keys.items()}

    return seconds


def rows(pictures: Pictures, seed: int, options: argparse.Namespace) -> Iterator[dict[str, object]]:
    """One row an arm and a budget."""
    torch.manual_seed(seed)
    first, forced, tuned = options.epochs
    start = network(pictures, options.widths, options.kernel)
    train(start, pictures, first, (FIRST_RATE, RATE), seed)
    arms: dict[tuple[str, float], nn.Module] = {}
    for force, strength in [("none", 0.0), *((f, s) for f in options.force for s in options.strength)]:
        arms[force, strength] = model = copy.deepcopy(start)
        more = {} if force == "none" else {"force": force, "strength": strength}
        train(model, pictures, forced, (RATE, RATE), seed + 1000, **more)
    whole = copy.deepcopy(arms["none", 0.0])
    train(whole, pictures, tuned, (RATE, 0.0), seed + 2000)
    shared = {
        "network": "-".join(map(str, options.widths)) + f" {options.kernel}x{options.kernel}",
        "seed": seed,
        "samples": len(pictures.train_x),
        "epochs": "+".join(map(str, options.epochs)),
        "whole_accuracy": accuracy(whole, pictures),
    }
    seconds, given = remembered(), (pictures.train_x[:1].contiguous(),)
    with tempfile.TemporaryDirectory() as folder:
        file = to_onnx(whole, given, Path(folder) / "whole.onnx")
        whole_s = latencies({"whole": (file, given)})["whole"].median_s
        for budget in options.speedups:
            for (force, strength), model in arms.items():
                choice = ranks_for(model, given, budget_s=whole_s / budget, whole_s=whole_s, seconds=seconds)
                small = load(choice.plan, model).to(memory_format=torch.channels_last)
                split = accuracy(small, pictures)
                train(small, pictures, tuned, (RATE, 0.0), seed + 2000)
                files = {"whole": file, "small": to_onnx(small, given, Path(folder) / "small.onnx")}
                taken = latencies({name: (each, given) for name, each in files.items()})
                row = {"arm": force, "strength": strength, "budget_speedup": budget, "accuracy_split": split}
                row |= {"accuracy_before": accuracy(model, pictures), "accuracy": accuracy(small, pictures)}
                yield {**shared, **row, **figures(start, model, choice, taken)}


def figures(start: nn.Module, model: nn.Module, choice: RankChoice, taken: Mapping[str, Latency]) -> dict[str, object]:
    """Ranks and times of a row."""
    ranks = []
    for name in choice.whole:
        before, after = (rank_at(each.get_submodule(name).weight) for each in (start, model))  # type: ignore[arg-type]
        ranks.append(f"{name} {before}->{after}")
    splits = [f"{name} {each.form} {'x'.join(map(str, each.ranks))} ({each.error:.2f})" for name, each in choice.splits.items()]
    return {
        "ranks_at_5_percent": "; ".join(ranks),
        "splits": "; ".join(splits),
        "predicted_us": choice.seconds * 1e6,
        "us": taken["small"].median_s * 1e6,
        "whole_us": taken["whole"].median_s * 1e6,
        "speedup": taken["whole"].median_s / taken["small"].median_s,
    }


if __name__ == "__main__":
    main()
