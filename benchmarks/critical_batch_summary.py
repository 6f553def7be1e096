"""The files of ``critical_batch.py`` as a Markdown table and a picture: steps to the target against the batch.

    python benchmarks/critical_batch_summary.py RESULTS/critical_batch_*.csv --picture RESULTS/critical_batch.svg

RESULTS is benchmarks/results. At each batch, of all rates the run with the fewest samples counts; every seed is a point. The
critical batch of the sweep is that of the fitted curve E(B) = Emin (1 + B / Bcrit). The predicted one comes from a single run,
at one batch and its best rate: the noise scale over the run, in windows of equal progress.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from rows import show

from paceline.errors import UserError
from paceline.prediction.learning.convergence import Convergence, Point, fit
from paceline.prediction.learning.noise_scale import critical_batch

WINDOWS = 8
"""Of a run, in equal steps; none shorter than ``LEAST_STEPS``."""
LEAST_STEPS = 4


@dataclass(frozen=True)
class Run:
    """The run of the best rate at one batch, of one seed.

    Attributes:
        predicted: critical batch from its noise scale; None where no norms were taken or they say nothing.
    """

    batch: int
    seed: int
    lr: float
    samples: float
    predicted: float | None


def read(path: Path) -> tuple[str, str, float, list[Run]]:
    """Task, optimizer, target, and the best run of every batch and seed, by batch."""
    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["reached"] == "True"]
    best: dict[tuple[int, int], dict[str, str]] = {}
    for row in rows:
        key = int(row["batch"]), int(row["seed"])
        if key not in best or float(row["samples"]) < float(best[key]["samples"]):
            best[key] = row
    runs = [
        Run(batch, seed, float(r["lr"]), float(r["samples"]), predicted(r["noise"], r["local_batch"], batch))
        for (batch, seed), r in sorted(best.items())
    ]
    return rows[0]["task"], rows[0]["optimizer"], float(rows[0]["target"]), runs


def predicted(noise: str, local_batch: str, batch: int) -> float | None:
    """Bcrit from the sums of a run: (step, |G|^2 summed, tr(Sigma)/b summed) at every look."""
    if not noise:
        return None
    looks = [(0, 0.0, 0.0), *(tuple(entry) for entry in json.loads(noise))]
    length = max(LEAST_STEPS, looks[-1][0] / WINDOWS)
    scales = []
    last = looks[0]
    for look in looks[1:]:
        if look[0] - last[0] >= length:
            signal, spread = look[1] - last[1], look[2] - last[2]
            if signal > 0 and spread > 0:
                scales.append(float(local_batch) * spread / signal)
            last = look
    return critical_batch(scales, batch)


def curve(runs: Sequence[Run], target: str) -> Convergence | None:
    """The fitted sweep; None where there are too few batches."""
    try:
        return fit([Point(run.batch, run.samples) for run in runs], target, "sweep")
    except UserError:
        return None


def first(runs: Sequence[Run]) -> Callable[[float], float] | None:
    """Samples to the target at a batch, from the smallest batch's run that has a noise scale, and from it alone."""
    for run in runs:
        if run.predicted:
            critical = run.predicted
            least = run.samples / (1 + run.batch / critical)
            return lambda batch: least * (1 + batch / critical)
    return None


def table(sweeps: Sequence[tuple[str, str, float, list[Run]]]) -> str:
    """Markdown: every batch of every task."""
    lines = [
        "| task | batch | best rate | samples to the target | steps | fitted | from one run | Bcrit from this run | / fitted |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for task, _, target, runs in sweeps:
        fitted, single = curve(runs, f"{target:g} nats"), first(runs)
        for batch in sorted({run.batch for run in runs}):
            here = [run for run in runs if run.batch == batch]
            samples = median(run.samples for run in here)
            guesses = [run.predicted for run in here if run.predicted]
            guess = median(guesses) if guesses else math.nan
            rates = ", ".join(dict.fromkeys(f"{run.lr:g}" for run in here))
            model = f"{fitted.samples(batch, beyond=True) / samples - 1:+.0%}" if fitted else "-"
            single_error = f"{single(batch) / samples - 1:+.0%}" if single else "-"
            ratio = f"{guess / fitted.critical_batch:.3f}" if fitted and guesses else "-"
            shown = f"{guess:,.0f}" if guesses else "-"
            lines.append(
                f"| {task} | {batch:,} | {rates} | {samples:,.0f} | {samples / batch:,.0f} "
                f"| {model} | {single_error} | {shown} | {ratio} |"
            )
        if fitted:
            least, critical = fitted.min_samples, fitted.critical_batch
            lines.append(
                f"| {task} | **fit** | | Emin {least:,.0f} | Smin {least / critical:,.0f} | off by {fitted.spread:.0%} | "
                f"| **Bcrit {critical:,.0f}** | |"
            )
    return "\n".join(lines)


def picture(sweeps: Sequence[tuple[str, str, float, list[Run]]], path: Path) -> None:
    """Steps against the batch, one panel a task: measured, fitted, and predicted from the first run that has a noise scale."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(sweeps), figsize=(4.6 * len(sweeps), 3.8), squeeze=False, layout="constrained")
    for axes, (task, optimizer, target, runs) in zip(panels[0], sweeps, strict=True):
        batches = sorted({run.batch for run in runs})
        fine = [batches[0] * (batches[-1] / batches[0]) ** (n / 60) for n in range(61)]
        steps = [run.samples / run.batch for run in runs]
        axes.plot([run.batch for run in runs], steps, "o", color="#1f4e79", label="measured, best rate")
        fitted = curve(runs, "")
        if fitted:
            modelled = [fitted.samples(b, beyond=True) / b for b in fine]
            axes.plot(fine, modelled, color="#1f4e79", lw=1, label="fitted to the sweep")
            axes.axvline(fitted.critical_batch, color="#1f4e79", lw=0.8, ls=":")
        single, run = first(runs), next((run for run in runs if run.predicted), None)
        if single and run and run.predicted:
            label = f"predicted from one run at batch {run.batch}"
            axes.plot(fine, [single(b) / b for b in fine], "--", color="#c55a11", lw=1, label=label)
            axes.axvline(run.predicted, color="#c55a11", lw=0.8, ls=":")
        axes.set(xscale="log", yscale="log", title=f"{task}, {optimizer}")
        axes.set(xlabel="batch, samples", ylabel=f"steps to {target:g} nats")
        axes.legend(fontsize=7)
    figure.savefig(path)
    pyplot.close(figure)


if __name__ == "__main__":
    show(__doc__ or "", read, table, picture)
