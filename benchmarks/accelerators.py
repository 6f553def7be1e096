"""Shares of the peak that products of TPUs and Trainium reach in a step, and errors of chips and networks left out.

    python benchmarks/accelerators.py FOLDER --out RESULTS/accelerators.csv

FOLDER holds ``maxtext_tpu_gpu.csv`` and ``aws_neuron_trn1.csv``. A share meets the median of the rows that it is solved on.
Then rows are predicted with the share of others: of the other TPU, of the other networks on Trainium, and of GPUs. The shares
in use are in ``src/paceline/calibration/accelerators.toml``. Each share is tried in another process, because predictions cache
the passes of a network.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import mean, median

from rows import append

from paceline.calibration import accelerators
from paceline.validation import Info, validate

FILES = {"TPU v4": "maxtext_tpu_gpu", "TPU v5e": "maxtext_tpu_gpu", "Trainium": "aws_neuron_trn1"}
LANGUAGE = ("Llama", "GPT")
GROUPS: dict[str, tuple[str, Callable[[str], bool]]] = {
    "TPU v4": ("TPU v4", lambda model: True),
    "TPU v5e": ("TPU v5e", lambda model: True),
    "Trainium, language models": ("Trainium", lambda model: model.startswith(LANGUAGE)),
    "Trainium, BERT and ViT": ("Trainium", lambda model: not model.startswith(LANGUAGE)),
    "Trainium": ("Trainium", lambda model: True),
}
"""Rows by name: their chip, and the models among its rows."""
OTHER = {
    "TPU v4": "TPU v5e",
    "TPU v5e": "TPU v4",
    "Trainium, language models": "Trainium, BERT and ViT",
    "Trainium, BERT and ViT": "Trainium, language models",
}
COLUMNS = ("rows", "products_of", "products", "number", "mean_error", "median_error", "median_ratio", "inside")
LEAST, MOST, TRIES = 0.15, 1.0, 7


def ratios(folder: Path, group: str, share: float) -> list[tuple[float, bool]]:
    """Return predicted over measured seconds of each row, and whether it lies in the range. ``share``: 0 is that of GPUs."""
    chip, chosen = GROUPS[group]
    known = tuple(replace(f, products={name: share for name in FILES if share}) for f in accelerators.families())
    accelerators.families = lambda: known  # type: ignore[assignment]
    done = validate("published", folder / f"{FILES[chip]}.csv", Info(), "scale")
    points = [p for p in done.points if p.case.keys.device == chip and chosen(p.case.keys.model)]
    return [(p.estimate.step_s / p.case.step_s, p.inside) for p in points]


def tried(folder: Path, group: str, share: float) -> list[tuple[float, bool]]:
    """Return ``ratios`` from a process of its own."""
    command = [sys.executable, __file__, str(folder), "--group", group, "--share", str(share)]
    found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return [(float(ratio), bool(inside)) for ratio, inside in json.loads(found.stdout)]


def solved(folder: Path, group: str) -> float:
    """Return the share with which half of the rows are predicted too slow."""
    low, high = LEAST, MOST
    for _ in range(TRIES):
        middle = (low * high) ** 0.5
        slow = median(ratio for ratio, _ in tried(folder, group, middle)) > 1
        low, high = (middle, high) if slow else (low, middle)
    return round((low * high) ** 0.5, 3)


def main() -> None:
    """Solve the shares, and append the errors of each group with its own share, another's and that of GPUs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--group", choices=GROUPS)
    parser.add_argument("--share", type=float, default=0.0)
    o = parser.parse_args()
    if o.group:
        print(json.dumps(ratios(o.folder, o.group, o.share)))
        return
    shares = {group: solved(o.folder, group) for group in GROUPS}
    for group in GROUPS:
        for of in (group, OTHER.get(group), "GPUs"):
            if of is None:
                continue
            found = tried(o.folder, group, shares.get(of, 0.0))
            errors = [abs(ratio - 1) for ratio, _ in found]
            values = (
                group,
                of,
                shares.get(of, ""),
                len(found),
                round(mean(errors), 4),
                round(median(errors), 4),
                round(median(ratio for ratio, _ in found), 4),
                round(mean(inside for _, inside in found), 4),
            )
            print(*values)
            if o.out:
                append(o.out, COLUMNS, dict(zip(COLUMNS, values, strict=True)))


if __name__ == "__main__":
    main()
