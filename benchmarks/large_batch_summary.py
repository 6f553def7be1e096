"""The files of ``large_batch.py`` as a Markdown table and a picture: each optimizer at the large batch beside the small one.

    python benchmarks/large_batch_summary.py RESULTS/large_batch_*.csv --picture RESULTS/large_batch.svg

RESULTS is benchmarks/results. The comparison is with the better of the small batch's optimizers, as chosen on the samples to
tune on, seed by seed: runs of one seed start from the same weights. The bar is 0.3 points of accuracy; for characters it is 1 %
of the loss. The mean alone decides whether it is met. Where the bar lies within the mean's 95 % interval (Student's, over the
seeds), the table says that these seeds do not settle it.
"""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from large_tasks import TASKS
from rows import show

BAR = {False: 0.3, True: 1.0}
"""Points of accuracy, percent of the loss, that the large batch may lose."""


@dataclass(frozen=True)
class Line:
    """One optimizer at one batch with one compression, its tuned rate.

    Attributes:
        scores: by seed: accuracy in percent, or the loss in nats.
        worse: by seed, what is lost to the small batch: points, or percent of its loss.
        trials: runs that the rate was chosen from. ``edge``: whether it is the smallest or largest of them.
    """

    optimizer: str
    batch: int
    compression: str
    lr: float
    scores: Mapping[int, float]
    worse: Mapping[int, float]
    trials: int
    edge: bool
    by_loss: bool

    @property
    def loss(self) -> float:
        """Mean of ``worse``; NaN without a common seed."""
        return statistics.fmean(self.worse.values()) if self.worse else math.nan

    @property
    def verdict(self) -> str:
        """Against the bar."""
        bar = BAR[self.by_loss]
        if math.isnan(self.loss):
            return "-"
        settled = len(self.worse) > 1 and abs(self.loss - bar) >= half_interval(list(self.worse.values()))
        return ("within" if self.loss <= bar else "**missed**") + ("" if settled else ", not settled")


def error(values: Sequence[float]) -> float:
    """Standard error of the mean; NaN for one."""
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan


def half_interval(values: Sequence[float]) -> float:
    """Half of the mean's 95 % interval."""
    from scipy.stats import t

    return float(t.ppf(0.975, len(values) - 1)) * error(values)


def read(path: Path) -> tuple[str, int, list[Line]]:
    """Task, epochs, and its lines: the small batch's first, each followed by its compressed ones."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    task, epochs = rows[0]["task"], int(rows[0]["epochs"])
    by_loss = TASKS[task].by_loss
    tuned: dict[tuple[str, int], list[dict[str, str]]] = {}
    for row in rows:
        if row["trial"] == "1":
            tuned.setdefault((row["optimizer"], int(row["batch"])), []).append(row)
    best = {key: max(trials, key=lambda row: held_out(row, by_loss)) for key, trials in tuned.items()}
    smallest = min(batch for _, batch in best)
    base = max((key for key in best if key[1] == smallest), key=lambda key: held_out(best[key], by_loss))
    scores: dict[tuple[str, int, str], dict[int, float]] = {}
    for row in rows:
        key = row["optimizer"], int(row["batch"])
        if row["lr"] == best[key]["lr"]:
            score = float(row["test_loss"]) if by_loss else 100 * float(row["test_accuracy"])
            scores.setdefault((*key, row["compression"]), {})[int(row["seed"])] = score
    small = scores[(*base, "dense")]
    lines = []
    for (optimizer, batch, compression), found in sorted(scores.items(), key=lambda item: (item[0][1], item[0][0])):
        rates = sorted(float(row["lr"]) for row in tuned[optimizer, batch])
        lr = float(best[optimizer, batch]["lr"])
        lost = {
            seed: 100 * (score / small[seed] - 1) if by_loss else small[seed] - score
            for seed, score in found.items()
            if seed in small
        }
        edge = lr in (rates[0], rates[-1])
        lines.append(Line(optimizer, batch, compression, lr, found, lost, len(rates), edge, by_loss))
    return task, epochs, lines


def held_out(row: Mapping[str, str], by_loss: bool) -> float:
    """What tuning makes large."""
    value = -float(row["tune_loss"]) if by_loss else float(row["tune_accuracy"])
    return value if math.isfinite(value) else -math.inf


def table(tasks: Sequence[tuple[str, int, list[Line]]]) -> str:
    """Markdown."""
    lines = [
        "| task | epochs | optimizer | batch | gradients | rate (trials) | test | seeds | lost to the small batch | bar |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for task, epochs, entries in tasks:
        smallest = min(line.batch for line in entries)
        for line in entries:
            values = list(line.scores.values())
            unit = "nats" if line.by_loss else "%"
            spread = f" ± {statistics.stdev(values):.{3 if line.by_loss else 2}f}" if len(values) > 1 else ""
            test = f"{statistics.fmean(values):.{3 if line.by_loss else 2}f}{spread} {unit}"
            apart = list(line.worse.values())
            sure = f" ± {error(apart):.2f}" if len(apart) > 1 else ""
            lost = f"{line.loss:+.2f}{sure} {'%' if line.by_loss else 'points'}"
            rate = f"{line.lr:g} ({line.trials}{', an end' if line.edge else ''})"
            bar = "-" if line.batch == smallest else line.verdict
            lines.append(
                f"| {task} | {epochs} | {line.optimizer} | {line.batch:,} | {line.compression} | {rate} | {test} "
                f"| {len(values)} | {lost} | {bar} |"
            )
    return "\n".join(lines)


def picture(found: Sequence[tuple[str, int, list[Line]]], path: Path) -> None:
    """What every seed lost to the small batch, one panel a task."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    colours = {"dense": "#1f4e79", "terngrad": "#c55a11", "inceptionn-scaled": "#548235"}
    figure, panels = pyplot.subplots(1, len(found), figsize=(4.8 * len(found), 4.2), squeeze=False, layout="constrained")
    for axes, (task, epochs, lines) in zip(panels[0], found, strict=True):
        rows = list(dict.fromkeys((line.optimizer, line.batch) for line in lines))
        for line in lines:
            place = rows.index((line.optimizer, line.batch)) + {"dense": -0.2, "terngrad": 0.0}.get(line.compression, 0.2)
            colour = colours.get(line.compression, "#7f7f7f")
            axes.plot(list(line.worse.values()), [place] * len(line.worse), "o", ms=4, alpha=0.5, color=colour)
            axes.plot([line.loss], [place], "|", ms=14, mew=2, color=colour, label=line.compression)
        by_loss = lines[0].by_loss
        axes.axvline(0, color="#7f7f7f", lw=0.8)
        axes.axvline(BAR[by_loss], color="#7f7f7f", lw=0.8, ls=":")
        axes.set_yticks(range(len(rows)), [f"{optimizer} {batch:,}" for optimizer, batch in rows])
        axes.invert_yaxis()
        epoch = "1 epoch" if epochs == 1 else f"{epochs} epochs"
        axes.set(title=f"{task}, {epoch}", xlabel=f"lost to the small batch, {'% of the loss' if by_loss else 'points'}")
        handles, labels = axes.get_legend_handles_labels()
        unique = dict(zip(labels, handles, strict=True))
        axes.legend(unique.values(), unique.keys(), fontsize=7)
    figure.savefig(path)
    pyplot.close(figure)


if __name__ == "__main__":
    show(__doc__ or "", read, table, picture)
