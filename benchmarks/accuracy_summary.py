"""The files of ``accuracy.py`` as Markdown tables and as a picture: every compression beside dense, over the seeds.

    python benchmarks/accuracy_summary.py RESULTS/accuracy_*.csv --picture RESULTS/accuracy.svg

RESULTS is benchmarks/results. A difference to dense is between runs of the same seed, which start from the same weights and see
the same samples. Its standard error is over the seeds. The mean difference alone decides whether a target is met. Where it is
nearer to the target than two standard errors, the table says that these seeds do not settle it.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

TARGETS = {"bf16": 0.3, "int8": 0.3, "inceptionn-scaled": 0.3, "terngrad": 0.5}
"""Points that a compression may lose to dense; the others have no target."""
Setting = tuple[str, str, int, int, int, int, float]
"""Network, data, training samples, epochs, workers, samples of a step, learning rate."""


@dataclass
class Line:
    """One compression in one setting.

    Attributes:
        scores: accuracy in percent, by seed.
        dense: of dense, by seed.
    """

    compression: str
    scores: Mapping[int, float]
    dense: Mapping[int, float] = field(default_factory=dict)

    @property
    def differences(self) -> list[float]:
        """To dense, in points, of the seeds that both have."""
        return [self.scores[seed] - self.dense[seed] for seed in sorted(self.scores) if seed in self.dense]

    @property
    def mean(self) -> float:
        """Accuracy over the seeds."""
        return statistics.fmean(self.scores.values())

    @property
    def spread(self) -> float:
        """Standard deviation over the seeds; NaN for one."""
        return _deviation(list(self.scores.values()))

    @property
    def difference(self) -> float:
        """Mean difference to dense; NaN without a common seed."""
        return statistics.fmean(self.differences) if self.differences else math.nan

    @property
    def error(self) -> float:
        """Standard error of the mean difference; NaN for one seed."""
        return _deviation(self.differences) / math.sqrt(max(1, len(self.differences)))

    @property
    def verdict(self) -> str:
        """Against the target."""
        target = TARGETS.get(self.compression)
        if target is None or math.isnan(self.difference):
            return "-"
        verdict = "within" if -self.difference <= target else "**missed**"
        unsettled = math.isnan(self.error) or abs(self.difference + target) < 2 * self.error
        return f"{verdict} {target:g}" + (", not settled" if unsettled else "")


def _deviation(values: Sequence[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else math.nan


def read(paths: Iterable[Path]) -> dict[Setting, list[Line]]:
    """Every setting's lines, in the order of the files; dense first."""
    scores: dict[Setting, dict[str, dict[int, float]]] = {}
    for path in paths:
        with path.open() as file:
            for row in csv.DictReader(file):
                whole = (int(row[k]) for k in ("samples", "epochs", "workers", "batch"))
                samples, epochs, workers, batch = whole
                key = (row["network"], row["data"], samples, epochs, workers, batch, float(row["lr"]))
                by_seed = scores.setdefault(key, {}).setdefault(row["compression"], {})
                by_seed[int(row["seed"])] = 100 * float(row["accuracy"])
    return {
        key: [Line(name, runs[name], runs.get("dense", {})) for name in sorted(runs, key=lambda n: n != "dense")]
        for key, runs in sorted(scores.items())
    }


def heading(setting: Setting) -> str:
    """The setting in words."""
    network, data, samples, epochs, workers, batch, lr = setting
    passes = "one epoch" if epochs == 1 else f"{epochs} epochs"
    return (
        f"{network} on {_named(data)}, {samples:,} training samples, {passes}, {workers} workers as threads of one process,"
        f" {batch} a step, rate {lr:g}"
    )


def _named(data: str) -> str:
    return {"cifar10": "CIFAR-10 (JPEG copy)", "fashion-mnist": "Fashion-MNIST", "mnist": "MNIST"}.get(data, data)


def table(lines: Sequence[Line]) -> str:
    """Markdown."""
    rows = ["| compression | seeds | accuracy, % | difference, points | standard error | target |", "|---|---|---|---|---|---|"]
    for line in lines:
        compared = line.compression != "dense" and not math.isnan(line.difference)
        difference = f"{line.difference:+.2f}" if compared else "-"
        error = f"{line.error:.2f}" if compared and not math.isnan(line.error) else "-"
        spread = f" +- {line.spread:.2f}" if not math.isnan(line.spread) else ""
        verdict = line.verdict if compared else "-"
        rows.append(
            f"| {line.compression} | {len(line.scores)} | {line.mean:.2f}{spread} | {difference} | {error} | {verdict} |"
        )
    return "\n".join(rows)


def picture(settings: Mapping[Setting, Sequence[Line]], path: Path) -> None:
    """Differences to dense, one panel a setting: every seed a dot, the mean with two standard errors, the target dashed."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    style = {
        "svg.fonttype": "none",
        "svg.hashsalt": "paceline",
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    with rc_context(style):
        columns = 2
        height = -(-len(settings) // columns)
        figure = Figure(figsize=(9.6, 0.6 + 3.1 * height), layout="constrained", facecolor="white")
        panels = figure.subplots(height, columns, squeeze=False).ravel()
        for axes, (setting, lines) in zip(panels, settings.items(), strict=False):
            shown = [line for line in lines if line.compression != "dense" and line.differences][::-1]
            for y, line in enumerate(shown):
                axes.scatter(line.differences, [y] * len(line.differences), s=12, color="#9aa7b5", zorder=2)
                error = 0.0 if math.isnan(line.error) else 2 * line.error
                axes.errorbar(line.difference, y, xerr=error, fmt="o", ms=5, color="#1f5fa8", capsize=3, zorder=3)
                target = TARGETS.get(line.compression)
                if target is not None:
                    axes.plot([-target] * 2, [y - 0.35, y + 0.35], color="#c0392b", linewidth=1.6, zorder=4)
            axes.axvline(0, color="#444444", linewidth=0.8, zorder=1)
            axes.set_yticks(range(len(shown)), [line.compression for line in shown])
            axes.set_xscale("symlog", linthresh=1)
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
            network, data, samples, epochs, workers, *_ = setting
            axes.set_title(
                f"{network}, {_named(data)}:\n{samples:,} images, {epochs} ep., {workers} workers (threads)",
                fontsize=9,
                loc="left",
            )
            axes.set_xlabel("points from dense (linear within ±1)")
            axes.grid(axis="x", linewidth=0.4)
        for axes in panels[len(settings) :]:
            axes.set_visible(False)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def main() -> None:
    """Print the tables; draw the picture where one is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--picture", type=Path, help="write an .svg or .png")
    options = parser.parse_args()
    settings = read(options.files)
    for setting, lines in settings.items():
        print(f"\n{heading(setting)}:\n\n{table(lines)}")
    if options.picture:
        picture(settings, options.picture)


if __name__ == "__main__":
    main()
