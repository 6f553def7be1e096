"""Accuracy after whole trainings, every compression beside dense: two worker processes, one recipe a task, three seeds.

    python benchmarks/accuracy_to_convergence.py --data FOLDER --out RESULTS/accuracy_to_convergence.csv
    python benchmarks/accuracy_to_convergence.py --out FILE.csv --table --picture FILE.svg

FOLDER holds ``cifar10-jpeg/`` and ``war-and-peace/``. RESULTS is benchmarks/results. ``accuracy_tasks.py`` has the recipes: a
convolutional network on all of CIFAR-10 and a transformer on a book. Rates were chosen for dense alone. The workers are
processes over gloo, one thread each; each sees its half of every batch. Compressions have the options of ``attach``, but top-k
has momentum correction and a warm-up of its sparsity, and PowerSGD is dense before, both over a tenth of the steps.

One row a run, added when it ends, seed by seed. Rows that the file has of the same recipe are not run again, so an interrupted
study goes on.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from accuracy_tasks import RECIPES, Recipe, shortened
from rows import append, read

WORKERS = 2
COLUMNS = (
    *("task", "data", "workers", "compression", "exchange", "options", "seed", "recipe", "epochs", "batch", "precision"),
    *("parameters", "tflop", "steps", "nonfinite_steps", "sent_bytes", "measure", "final", "best", "test"),
    *("seconds", "cpu_seconds", "digest", "curve", "losses"),
)
ORDER = ("dense", "bf16", "int8", "int4", "terngrad", "inceptionn-scaled", "topk", "powersgd")
Row = dict[str, Any]


def main() -> None:
    """Run what is missing, or show what is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=list(RECIPES), nargs="+", default=list(RECIPES))
    parser.add_argument("--compressions", nargs="+", choices=ORDER, default=list(ORDER), metavar="COMPRESSION")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--data", type=Path, help="folder of the data sets")
    parser.add_argument("--precision", choices=("bf16", "fp32"), help="default: bf16 where oneDNN has it for this processor")
    parser.add_argument("--epochs", type=int, help="in place of the recipe's")
    parser.add_argument("--short", action="store_true", help="some steps on made-up data")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--table", action="store_true", help="run nothing: print medians and ranges")
    parser.add_argument("--picture", type=Path, help="run nothing: draw the curves")
    o = parser.parse_args()
    if o.table or o.picture:
        found = read(o.out)
        if o.table:
            print(table(found))
        if o.picture:
            picture(found, o.picture)
        return
    if o.data is None and not o.short:
        parser.error("name the folder of the data sets with --data, or give --short")
    bf16 = torch.ops.mkldnn._is_mkldnn_bf16_supported() if o.precision is None else o.precision == "bf16"
    for task, seed, compression in itertools.product(o.task, o.seeds, o.compressions):
        recipe = replace(RECIPES[task], bf16=bool(bf16))
        recipe = shortened(recipe) if o.short else recipe
        recipe = replace(recipe, epochs=o.epochs or recipe.epochs)
        if (task, compression, str(seed), str(recipe)) in finished(o.out):
            continue
        start = time.perf_counter()
        print(f"{task}, {compression}, seed {seed}", file=sys.stderr, flush=True)
        row = run(recipe, compression, seed, None if o.short else o.data)
        append(o.out, COLUMNS, row)
        print(
            f"{task}, {compression}, seed {seed}: {row['measure']} {row['final']}, test {row['test']}, "
            f"{time.perf_counter() - start:.0f} s",
            flush=True,
        )


def finished(path: Path) -> set[tuple[str, ...]]:
    """Task, compression, seed and recipe of the rows in the file."""
    if not path.exists():
        return set()
    with path.open(newline="") as file:
        return {tuple(row[k] for k in ("task", "compression", "seed", "recipe")) for row in csv.DictReader(file)}


def run(recipe: Recipe, compression: str, seed: int, folder: Path | None) -> Row:
    """Start the workers and wait. Raises RuntimeError when one fails; the others are then stopped."""
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        spec = {
            "recipe": asdict(recipe),
            "compression": compression,
            "seed": seed,
            "workers": WORKERS,
            "folder": str(folder.resolve()) if folder else "",
            "join": str(place / "join"),
            "result": str(place / "result.json"),
        }
        (place / "spec.json").write_text(json.dumps(spec))
        program = [sys.executable, str(Path(__file__).with_name("accuracy_rank.py")), str(place / "spec.json")]
        workers = [subprocess.Popen([*program, str(rank)], start_new_session=True) for rank in range(WORKERS)]
        try:
            while None in (codes := [worker.poll() for worker in workers]) and not any(codes):
                time.sleep(0.05)
        finally:
            for worker in workers:
                if worker.poll() is None:
                    worker.kill()
                worker.wait()
        if any(codes):
            raise RuntimeError(f"{recipe.task}, {compression}, seed {seed}: workers ended with {codes}")
        result: Row = json.loads((place / "result.json").read_text())
    return {
        "task": recipe.task,
        "workers": WORKERS,
        "compression": compression,
        "seed": seed,
        "recipe": str(recipe),
        "epochs": recipe.epochs,
        "batch": recipe.batch,
        "precision": "bf16" if recipe.bf16 else "fp32",
        **result,
    }


def table(rows: Sequence[Row]) -> str:
    """Median and range over the seeds; differences from dense are of the same seed. Processor time is one worker's: the wall
    clock's depends on what else the machine did."""
    lines = []
    for task in dict.fromkeys(row["task"] for row in rows):
        own = [row for row in rows if row["task"] == task]
        accuracy = own[0]["measure"].startswith("accuracy")
        dense = {row["seed"]: row for row in own if row["compression"] == "dense"}
        lines += [
            f"{own[0]['data']}; {own[0]['epochs']} epochs, {own[0]['parameters']:,} parameters, {own[0]['tflop']:g} TFLOP",
            "",
            f"| compression | seeds | {'picture and mirror image, ' if accuracy else 'test, '}{own[0]['measure']} |"
            f" {'points' if accuracy else '%'} from dense | {'picture alone' if accuracy else 'held out'} | bytes |"
            " processor minutes |",
            "|---|---|---|---|---|---|---|",
        ]
        for compression in (name for name in ORDER if any(row["compression"] == name for row in own)):
            here = [row for row in own if row["compression"] == compression]
            pairs = [(row, dense[row["seed"]]) for row in here if row["seed"] in dense]
            apart = [r["test"] - d["test"] if accuracy else 100 * (r["test"] / d["test"] - 1) for r, d in pairs]
            fewer = f"{median(d['sent_bytes'] / r['sent_bytes'] for r, d in pairs):.1f}x fewer" if pairs else "-"
            lines.append(
                f"| {compression} | {len(here)} | {ranged([row['test'] for row in here], '.2f')} "
                f"| {ranged(apart, '+.2f') if compression != 'dense' else '-'} | {ranged([r['final'] for r in here], '.2f')} "
                f"| {fewer if compression != 'dense' else '-'} "
                f"| {median(row['cpu_seconds'] for row in here) / 60:.1f} |"
            )
        lines.append("")
    return "\n".join(lines).rstrip()


def ranged(values: Sequence[float], form: str) -> str:
    """Median, and least to largest of several."""
    if len(values) < 2:
        return f"{values[0]:{form}}" if values else "-"
    return f"{median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def picture(rows: Sequence[Row], path: Path) -> None:
    """The measure after each epoch, one panel a task: the median over the seeds, and their range."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    tasks = list(dict.fromkeys(row["task"] for row in rows))
    figure, panels = pyplot.subplots(1, len(tasks), figsize=(5.2 * len(tasks), 3.8), squeeze=False, layout="constrained")
    for axis, task in zip(panels[0], tasks, strict=True):
        own = [row for row in rows if row["task"] == task]
        for number, compression in enumerate(name for name in ORDER if any(row["compression"] == name for row in own)):
            curves = list(zip(*(json.loads(row["curve"]) for row in own if row["compression"] == compression), strict=True))
            epochs, color = range(1, len(curves) + 1), "black" if compression == "dense" else f"C{number}"
            axis.plot(epochs, [median(values) for values in curves], color=color, lw=1.2, label=compression)
            axis.fill_between(epochs, [min(v) for v in curves], [max(v) for v in curves], color=color, alpha=0.15, lw=0)
        axis.set(title=own[0]["data"], xlabel="epoch", ylabel=own[0]["measure"])
        if not own[0]["measure"].startswith("accuracy"):
            axis.set_yscale("log")
        axis.legend(frameon=False, fontsize=7)
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


if __name__ == "__main__":
    main()
