"""What papers on slimming published, and what the same sizes take here: rows of a CSV file.

    python benchmarks/edge_published.py --out RESULTS/edge_published.csv
    python benchmarks/edge_published.py --short --out FILE.csv

RESULTS is benchmarks/results; the published figures are those of validation/edge. Three papers:

- SSL (Wen et al., NIPS 2016): AlexNet's convolutions with the published share of zero columns and filters. Here columns go as
  whole input channels, so that an ordinary smaller convolution is left; widths are rounded to 8. The published speed-ups are of
  matrix products alone, ours of the whole layer.
- ISS (Wen et al., ICLR 2018): two LSTM layers of 1500 units and the smaller sizes, 10 x 30 tokens, with the output layer of
  10,000 words.
- SkimCaffe (Park et al., ICLR 2017): the sparse kernel on AlexNet's conv2 to conv5 at the published range of zeros.

Whole and smaller layers run on ONNX Runtime on one thread, weights at random. They take turns, and the least of many runs
counts. What a trained network loses at these sizes is not measured here.
"""

from __future__ import annotations

import argparse
import csv
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from language_tasks import LstmModel
from rows import append
from sparse_convolution import LAYERS, sparse_model
from torch import Tensor, nn

from paceline.slimming.export.onnx_export import to_onnx
from paceline.slimming.latency.low_rank_times import least_seconds, onnx_chain
from paceline.slimming.latency.sparse_roofline import dense_model

PUBLISHED = Path(__file__).parents[1] / "validation" / "edge"
COLUMNS = ("paper", "what", "sizes", "published_speedup", "published_on", "whole_ms", "ms", "speedup", "threads", "note")
ALEXNET = {"conv1": (3, 96, 11, 4, 0, 1, 227), **{name[8:]: () for name in LAYERS if name.startswith("AlexNet")}}
"""The first layer: channels, filters, kernel, stride, padding, groups, side of the image. Of the others see ``LAYERS``."""
WIDTH = 8
WORDS, BATCH, STEPS = 10_000, 10, 30
Row = dict[str, object]


def main(arguments: list[str] | None = None) -> None:
    """Measure and add rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="one layer, a small LSTM, one sparse layer")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    for row in (*ssl(options.short), *iss(options.short), *skimcaffe(options.short)):
        times = {"threads": 1, "note": f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"}
        append(options.out, COLUMNS, {name: f"{v:.4g}" if isinstance(v, float) else v for name, v in (row | times).items()})
        print(f"{row['paper']}, {row['what']}: published {row['published_speedup']}x, here {row['speedup']:.2f}x", flush=True)


def published(name: str) -> list[dict[str, str]]:
    """Rows of a file."""
    with (PUBLISHED / name).open(newline="") as file:
        return list(csv.DictReader(file))


def beside(whole_s: float, small_s: float) -> Row:
    """Times of a row."""
    return {"whole_ms": whole_s * 1e3, "ms": small_s * 1e3, "speedup": whole_s / small_s}


def ssl(short: bool) -> Iterator[Row]:
    """AlexNet's convolutions."""
    rows = [row for row in published("ssl_alexnet.csv") if row["zero_columns_percent"] and row["device"] == "cpu"]
    for row in rows[4:] if short else rows:
        channels, filters, kernel, stride, padding, groups, side = alexnet(row["layer"])
        entering = left(channels, float(row["zero_columns_percent"]), groups) if channels > 3 else channels
        leaving = left(filters, float(row["zero_filters_percent"]), groups)
        sizes = {"whole": (channels, filters), "small": (entering, leaving)}
        taken = {}
        for name, (enter, leave) in sizes.items():
            layer = nn.Conv2d(enter, leave, kernel, stride, padding, groups=groups)
            taken[name] = [layer], (1, enter, side, side)
        times = least_of(taken)
        yield {
            "paper": "SSL",
            "what": f"AlexNet {row['layer']}",
            "sizes": f"{channels}->{filters} to {entering}->{leaving}",
            "published_speedup": row["speedup"],
            "published_on": "CPU, matrix product",
            **beside(times["whole"], times["small"]),
        }


def alexnet(layer: str) -> tuple[int, ...]:
    """Channels, filters, kernel, stride, padding, groups, side."""
    if found := ALEXNET[layer]:
        return found
    shape = LAYERS[f"AlexNet {layer}"]
    window = shape.window
    return (
        shape.image[1],
        shape.weight[0],
        shape.weight[2],
        window.stride[0],
        window.padding[0],
        window.groups,
        shape.image[2],
    )


def left(width: int, zero_percent: float, groups: int) -> int:
    """Of a width, to the nearest multiple of 8 in each group."""
    own = width // groups * (1 - zero_percent / 100)
    return max(WIDTH, round(own / WIDTH) * WIDTH) * groups


def least_of(layers: dict[str, tuple[list[nn.Module], tuple[int, ...]]]) -> dict[str, float]:
    """Seconds of each by name, in turns."""
    return least_seconds({name: (onnx_chain(chain, shape), (torch.rand(shape),)) for name, (chain, shape) in layers.items()})


class Words(nn.Module):
    """An LSTM language model without its states: tokens (B, T) to logits (B, T, V)."""

    def __init__(self, width: int, hidden: tuple[int, int]) -> None:
        super().__init__()
        self.model = LstmModel(WORDS, width, hidden, 0.0)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.model(tokens)[0]
        return logits


def iss(short: bool) -> Iterator[Row]:
    """The LSTM of Penn Treebank."""
    rows = [row for row in published("iss.csv") if row["what"].startswith("speed-up")]
    whole = (64, 64) if short else (1500, 1500)
    tokens = torch.randint(WORDS, (BATCH, STEPS))
    sizes = {row["network"]: tuple(map(int, row["network"].split()[1:3])) for row in rows}
    models = {"whole": Words(whole[0], whole)} | {name: Words(whole[0], (a, b)) for name, (a, b) in sizes.items()}
    with tempfile.TemporaryDirectory() as folder:
        files = {
            name: (to_onnx(model, (tokens,), Path(folder) / f"{number}.onnx"), (tokens,))
            for number, (name, model) in enumerate(models.items())
        }
        times = least_seconds(files)
    for row in rows:
        yield {
            "paper": "ISS",
            "what": row["network"],
            "sizes": f"{whole[0]} {whole[1]} to {row['network'].removeprefix('LSTM ')}",
            "published_speedup": row["value"],
            "published_on": "24-core Xeon, MKL",
            **beside(times["whole"], times[row["network"]]),
        }


def skimcaffe(short: bool) -> Iterator[Row]:
    """The sparse kernel as an operator of ONNX Runtime."""
    rows = {(row["network"], row["quantity"]): row for row in published("skimcaffe.csv")}
    gain, zeros = rows["AlexNet", "speed-up over dense on Atom Xeon and Xeon Phi"], rows["CaffeNet", "zero weights"]
    for layer in [name for name in LAYERS if name.startswith("AlexNet")][: 1 if short else None]:
        shape = LAYERS[layer]
        given = (torch.rand(shape.image),)
        random = torch.Generator().manual_seed(1)
        for percent in (zeros["low"], zeros["high"]):
            weight = torch.randn(shape.weight, generator=random)
            weight.view(-1)[torch.randperm(weight.numel(), generator=random)[: weight.numel() * int(percent) // 100]] = 0
            models = {"whole": dense_model(shape, weight.numpy()), "sparse": sparse_model(shape, weight.numpy())}
            times = least_seconds({name: (model, given) for name, model in models.items()})
            yield {
                "paper": "SkimCaffe",
                "what": f"{layer}, {percent} % zeros",
                "sizes": "x".join(map(str, shape.weight)),
                "published_speedup": f"{gain['low']} to {gain['high']}",
                "published_on": "Atom, Xeon, Xeon Phi: AlexNet's convolutions",
                **beside(times["whole"], times["sparse"]),
            }


if __name__ == "__main__":
    main()
