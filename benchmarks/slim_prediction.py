"""Latency of slimmed networks predicted from tables of layers, beside that of the exported networks: rows of a CSV file.

    python benchmarks/slim_prediction.py --out RESULTS/slim_prediction.csv
    python benchmarks/slim_prediction.py --out RESULTS/slim_prediction.csv --summary
    python benchmarks/slim_prediction.py --short --out FILE

RESULTS is benchmarks/results. One row a slimmed network. Removed are random structures of every layer (a quarter, a half, 0.7
of them, more in some layers and less in others), and those that the search of widths takes for a budget of a half, a third and
a fifth of the latency where they can meet it. "rank" is the whole network with each convolution of several points as two,
through a quarter of its outputs. The whole network and the slimmed ones take turns; the prediction starts from the whole
network's latency of the same turns. Times are the processor's time of one thread: other programs do not lengthen it, but
they share its caches. --summary measures nothing: it prints the median error by model and of all.
"""

from __future__ import annotations

import argparse
import copy
import os
import random
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rows import append, read
from torch import Tensor, nn

from paceline.errors import UserError
from paceline.models.sequences.gpt2 import Gpt2
from paceline.models.vision.alexnet import alexnet
from paceline.models.vision.googlenet import googlenet
from paceline.models.vision.lenet import lenet5
from paceline.models.vision.resnet import resnet18, resnet18_cifar
from paceline.slimming.export.onnx_export import to_onnx
from paceline.slimming.latency.latency import latencies
from paceline.slimming.latency.layer_times import LayerTimes
from paceline.slimming.methods.widths import widths_for
from paceline.slimming.structures.shrink import shrunk
from paceline.slimming.structures.structures import Structures
from paceline.slimming.structures.tracing import structures_of

COLUMNS = (
    "model",
    "removed",
    "structures",
    "of",
    "whole_ms",
    "predicted_ms",
    "measured_ms",
    "error",
    "table_s",
    "threads",
    "clock",
    "load",
)
SHARES = (0.25, 0.5, 0.7)
BUDGETS = (2, 3, 5)
ROUND_TO = 16
VOCABULARY = 1000


class Words(nn.Module):
    """A language model of two recurrent layers."""

    def __init__(self, kind: type[nn.RNNBase], width: int = 256) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, width // 2)
        self.layers = kind(width // 2, width, 2, batch_first=True)
        self.output = nn.Linear(width, VOCABULARY)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.output(self.layers(self.table(x))[0])
        return result


class Encoder(nn.Module):
    """PyTorch's own transformer, causal."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, 128)
        layer = nn.TransformerEncoderLayer(128, 8, 512, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.output = nn.Linear(128, VOCABULARY)

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        result: Tensor = self.output(self.encoder(self.table(x), mask=mask, is_causal=True))
        return result


def tiny() -> nn.Module:
    """Of less than 0.1 ms."""
    first = [nn.Conv2d(1, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.BatchNorm2d(32)]
    return nn.Sequential(
        *first, nn.ReLU(), nn.Conv2d(32, 64, 3, 1, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)
    )


def depthwise() -> nn.Module:
    """The first blocks of MobileNet (Howard et al. 2017, table 1), and a classifier."""
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU6()]
    for inputs, outputs, stride in ((32, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2)):
        layers += [nn.Conv2d(inputs, inputs, 3, stride, 1, groups=inputs, bias=False), nn.BatchNorm2d(inputs), nn.ReLU6()]
        layers += [nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU6()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 100))


def images(*shape: int) -> tuple[Tensor, ...]:
    return (torch.randn(*shape),)


def tokens(batch: int, length: int) -> tuple[Tensor, ...]:
    return (torch.randint(0, VOCABULARY, (batch, length)),)


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[Tensor, ...]]] = {
    "tiny": (tiny, images(1, 1, 28, 28)),
    "lenet": (lenet5, images(1, 1, 28, 28)),
    "resnet-18-cifar": (resnet18_cifar, images(1, 3, 32, 32)),
    "resnet-18": (resnet18, images(1, 3, 224, 224)),
    "googlenet": (googlenet, images(1, 3, 224, 224)),
    "alexnet": (alexnet, images(1, 3, 227, 227)),
    "mobilenet-like": (depthwise, images(1, 3, 128, 128)),
    "lstm": (lambda: Words(nn.LSTM), tokens(1, 35)),
    "gru": (lambda: Words(nn.GRU), tokens(4, 35)),
    "gpt-2-like": (lambda: Gpt2(4, 256, 8), tokens(1, 64)),
    "encoder": (Encoder, tokens(1, 64)),
}
SHORT = ("tiny", "lstm")


def main(arguments: list[str] | None = None) -> None:
    """Measure and add rows, or print their summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--short", action="store_true", help="two small models, few turns")
    parser.add_argument("--summary", action="store_true")
    options = parser.parse_args(arguments)
    if options.summary:
        print(summary(read(options.out)))
        return
    torch.set_num_threads(1)
    for name in SHORT if options.short else options.models:
        torch.manual_seed(0)
        make, inputs = MODELS[name]
        for row in measured(name, make(), inputs, 3 if options.short else options.turns):
            append(options.out, COLUMNS, row)


def measured(name: str, model: nn.Module, inputs: tuple[Any, ...], turns: int) -> Iterator[dict[str, object]]:
    """A row for each slimmed form of a model."""
    found = structures_of(model, inputs)
    with tempfile.TemporaryDirectory() as folder:
        files = {"whole": (to_onnx(model, inputs, Path(folder) / "whole.onnx"), inputs)}
        first = latencies(files, turns=turns, clock=time.thread_time)["whole"]
        start = time.thread_time()
        times = LayerTimes(found, first, round_to=ROUND_TO)
        took = time.thread_time() - start
        cases = dict(removals(found, times))
        for case, removed in cases.items():
            file = Path(folder) / f"{case.replace(' ', '-')}.onnx"
            files[case] = to_onnx(shrunk(model, found, removed), inputs, file), inputs
        thin, ranks = low_rank(model)
        if ranks:
            files["rank"] = to_onnx(thin, inputs, Path(folder) / "rank.onnx"), inputs
        seconds = latencies(files, turns=turns, clock=time.thread_time)
    times = times.rescaled(seconds["whole"])
    predictions = {case: times.seconds(removed) for case, removed in cases.items()}
    if ranks:
        predictions["rank"] = times.low_rank(ranks)
    for case, predicted in predictions.items():
        real = seconds[case].median_s
        yield {
            "model": name,
            "removed": case,
            "structures": len(cases.get(case, ())),
            "of": len(found.every),
            "whole_ms": f"{seconds['whole'].median_s * 1e3:.4f}",
            "predicted_ms": f"{predicted * 1e3:.4f}",
            "measured_ms": f"{real * 1e3:.4f}",
            "error": f"{predicted / real - 1:.3f}",
            "table_s": f"{took:.1f}",
            "threads": 1,
            "clock": "processor time of the thread",
            "load": f"{os.getloadavg()[0]:.1f}",
        }


def removals(found: Structures, times: LayerTimes) -> Iterator[tuple[str, set[int]]]:
    """What is removed, by its name."""
    random_numbers = random.Random(0)
    for share in SHARES:
        yield f"random {share}", random_removal(found, share, random_numbers)
    importance = {each.number: random_numbers.random() for each in found.every}
    for budget in BUDGETS:
        try:
            yield f"{budget}x", widths_for(found, importance, times.seconds, times.whole.median_s / budget, ROUND_TO)
        except UserError as error:
            print(f"{budget}x: {error}", flush=True)


def random_removal(found: Structures, share: float, random_numbers: random.Random) -> set[int]:
    """About this share of each layer, in some more and in others less; what stays is a multiple of 8."""
    removed = set()
    for layer, every in found.without_kernels().layers().items():
        width = max(len(part.indices) for part in every[0].slices if part.parameter == layer)
        step = min(max(8 // width, 1), len(every))
        stay = round(len(every) * (1 - share * random_numbers.uniform(0.6, 1.4)) / step) * step
        gone = len(every) - min(max(stay, step), len(every))
        removed |= {each.number for each in random_numbers.sample(every, gone)}
    return removed


def low_rank(model: nn.Module) -> tuple[nn.Module, dict[str, int]]:
    """A copy in which each convolution of several points is two, and their ranks."""
    thin, ranks = copy.deepcopy(model), {}
    for name, old in model.named_modules():
        if isinstance(old, nn.Conv2d) and old.groups == 1 and max(old.kernel_size) > 1 and old.in_channels > 3:
            rank = max(old.out_channels // 4 // ROUND_TO, 1) * ROUND_TO
            window = {"stride": old.stride, "padding": old.padding, "dilation": old.dilation}
            first = nn.Conv2d(old.in_channels, rank, old.kernel_size, **window)  # type: ignore[arg-type]
            parent, _, own = name.rpartition(".")
            setattr(thin.get_submodule(parent), own, nn.Sequential(first, nn.Conv2d(rank, old.out_channels, 1)))
            ranks[name] = rank
    return thin, ranks


def summary(rows: list[dict[str, Any]]) -> str:
    """The median error of each model, and over all rows."""
    by_model: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        by_model[row["model"]].append(abs(row["error"]))
    lines = [
        f"{name:18}{median(errors):7.1%}  of {len(errors)}, at most {max(errors):.1%}" for name, errors in by_model.items()
    ]
    every = [error for errors in by_model.values() for error in errors]
    return "\n".join([*lines, f"{'all':18}{median(every):7.1%}  of {len(every)}"])


if __name__ == "__main__":
    main()
