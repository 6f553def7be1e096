"""ONNX files that a study keeps, so that their latencies can be measured again when the machine is quiet.

A study of several networks trains for long, often beside other work, which slows large networks more than small ones. It keeps
the files of each run with their inputs; `time_again` measures them in alternation and puts the latencies into the run's rows.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from paceline.slimming.export.onnx_export import to_onnx
from paceline.slimming.latency.latency import Latency, latencies

INPUTS = "inputs.pt"
Row = dict[str, str]


def kept(models: Mapping[str, nn.Module], example: tuple[Any, ...], folder: Path) -> dict[str, Path]:
    """The file of each network, by name, in a folder that is made."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(example, folder / INPUTS)
    return {name: to_onnx(model, example, folder / f"{name}.onnx") for name, model in models.items()}


def timed(files: Mapping[str, Path], folder: Path, turns: int = 15) -> dict[str, Latency]:
    """Latencies of a run's files in alternation."""
    example = torch.load(folder / INPUTS, weights_only=True)
    return latencies({name: (file, example) for name, file in files.items()}, turns=turns)


def time_again(
    path: Path, folder: Path, run_of: Callable[[Row], str], way: str, write: Callable[[Row, Latency, Latency], None]
) -> None:
    """Measure all that is kept, and rewrite the rows of the CSV file.

    Args:
        folder: with a folder for each run. ``run_of``: the name of a row's run. ``way``: the column of the network's name.
        write: puts a latency, and that of the run's whole network, into a row.
    """
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    for run in dict.fromkeys(map(run_of, rows)):
        own = folder / run
        if not own.is_dir():
            print(f"{run}: nothing is kept")
            continue
        found = timed({file.stem: file for file in sorted(own.glob("*.onnx"))}, own)
        for row in rows:
            if run_of(row) == run:
                write(row, found[row[way]], found["whole"])
                row["note"] = f"timed again at a load of {os.getloadavg()[0]:.1f}"
        print(f"{run}: " + ", ".join(f"{name} {found['whole'].median_s / each.median_s:.2f}x" for name, each in found.items()))
    draft = path.with_suffix(".draft")
    with draft.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    draft.replace(path)


__all__ = ["kept", "time_again", "timed"]
