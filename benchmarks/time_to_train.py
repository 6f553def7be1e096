"""Time to train, predicted beside published: MLPerf's ResNet-50 and BERT at every scale, and LAMB's BERT in 76 minutes.

    python benchmarks/time_to_train.py mlperf_training.csv --out RESULTS/time_to_train.csv --picture RESULTS/time_to_train.svg

The CSV holds MLPerf Training v0.7 to v1.1 (closed division; ``convergence.py`` says which columns). A submission is predicted

- from its batch and its measured samples a second alone: minutes = E(B) / rate. E(B) goes through MLPerf's reference points,
  and no submission enters those. Beside it stands E(B) through the submissions with other batches.
- from its hardware alone: E(B) / B steps as ``predict`` has them, by constants that never saw a board of its chip.

LAMB's table (You et al. 2020, LAMB, ICLR, table 1: steps and hours for 512M sequences on TPU v3, nine tenths of them with 128
tokens and one with 512) is predicted from the hardware, where no TPU v3 was fitted on, and again with its first row visible.
Without a CSV only that is done. The file holds means over submissions, by doublings of the devices. It holds no figure of a
single submission.
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean

from rows import append

from paceline.calibration.constants import efficiency
from paceline.csv_rows import Row, read
from paceline.hardware import device
from paceline.prediction import Predictor
from paceline.prediction.learning.convergence import Convergence, Point, fit, mlperf
from paceline.strategy import Strategy
from paceline.validation import Info
from paceline.validation.case import Case
from paceline.validation.informed_predictor import InformedPredictor
from paceline.validation.sets import adapter
from paceline.validation.sets.hardware_aliases import torus
from paceline.workload import Workload

NETWORKS = {"resnet": "resnet-50", "bert": "bert-large-mlm"}
NEEDED = ("division", "ttt_min_median", "samples_to_target_median")
SEQUENCES, LONG = 512e6, 0.1
"""Of LAMB's run, and the share of them with 512 tokens."""
LAMB = (
    (512, 512, 16, 82.8),
    (1024, 1024, 32, 43.2),
    (2048, 2048, 64, 21.4),
    (4096, 4096, 128, 693.6 / 60),
    (8192, 8192, 256, 390.5 / 60),
    (16384, 16384, 512, 200.0 / 60),
    (32768, 32768, 1024, 101.2 / 60),
    (65536, 32768, 1024, 76.19 / 60),
)
"""Batch with 128 tokens and with 512, TPU v3, hours."""
WAYS = ("rate, reference points", "rate, other batches", "hardware")
COLUMNS = (
    "what",
    "way",
    "devices",
    "batches",
    "rows",
    "published_min",
    "predicted_min",
    "low_min",
    "high_min",
    "mean_error",
    "inside",
)
SCALES = ((1, 8), (9, 64), (65, 512), (513, math.inf))
MIN = 60.0


@dataclass(frozen=True)
class Result:
    """A time to train in minutes, published and predicted; ``low`` to ``high`` holds 80 %."""

    what: str
    way: str
    devices: int
    batch: int
    published: float
    predicted: float
    low: float
    high: float
    release: str = ""

    @property
    def error(self) -> float:
        """Predicted over published, less one."""
        return self.predicted / self.published - 1


@dataclass
class Submission:
    """A row with a time to train; ``rate`` in samples a second and ``samples`` to the target are 0 where the log has none."""

    row: Row
    batch: float
    minutes: float
    rate: float
    samples: float
    devices: int = field(default=0)


def submissions(path: Path, benchmark: str) -> list[Submission]:
    """Those of a benchmark, closed division, v0.7 on."""
    logs = adapter("mlperf")
    logged = []
    for row in read(path, (*logs.texts, *logs.numbers, *NEEDED)):
        kept = row.text("benchmark") == benchmark and row.text("round") != "v0.6"
        batch, minutes = row.positive("global_batch"), row.positive("ttt_min_median")
        if kept and row.text("division").lower() in ("closed", "close") and batch and minutes:
            rate, samples = row.positive("throughput_samples_per_s"), row.positive("samples_to_target_median")
            devices = int(row.positive("num_accel") or 0)
            logged.append(Submission(row, batch, minutes, rate or 0.0, samples or 0.0, devices))
    return logged


def from_rates(benchmark: str, logged: Sequence[Submission]) -> list[Result]:
    """Each from its batch and rate: by the reference points, and by the submissions with other batches."""
    reference = mlperf(NETWORKS[benchmark])
    rated = [submission for submission in logged if submission.rate and submission.samples]
    results = []
    for submission in rated:
        others = [Point(o.batch, o.samples) for o in rated if o.batch != submission.batch]
        curves = [reference]
        if len(others) > 2 and len({p.global_batch_size for p in others}) > 1:
            curves.append(fit(others, reference.target, "other submissions"))
        results += [_of_curve(benchmark, way, submission, curve) for way, curve in zip(WAYS, curves, strict=False)]
    return results


def _of_curve(what: str, way: str, submission: Submission, curve: Convergence) -> Result:
    low, high = curve.interval(submission.batch, beyond=True)
    samples = curve.samples(submission.batch, beyond=True)
    minutes = (x / submission.rate / MIN for x in (samples, low, high))
    return Result(
        what, way, submission.devices, int(submission.batch), submission.minutes, *minutes, submission.row.text("round")
    )


def from_hardware(benchmark: str, logged: Iterable[Submission]) -> list[Result]:
    """Each from what it ran on; those whose hardware the catalogue or the log leaves open are left out."""
    curve, model = mlperf(NETWORKS[benchmark]), InformedPredictor(lambda case: (), Info(), "device")
    results = []
    for submission in logged:
        # the adapter wants a rate, which is what it is to predict
        given = {**submission.row.values, "throughput_samples_per_s": "1", "throughput_source": "eval_slope"}
        case = adapter("mlperf").read(replace(submission.row, values=given))
        if isinstance(case, Case):
            step = model(case)
            steps = curve.samples(submission.batch, beyond=True) / case.samples
            spread = math.hypot(math.log(step.high_s / step.low_s) / 2, math.log(_width(curve, submission.batch)))
            middle = steps * step.step_s / MIN
            ends = middle * math.exp(-spread), middle * math.exp(spread)
            release = submission.row.text("round")
            results.append(
                Result(
                    benchmark, WAYS[2], submission.devices, int(submission.batch), submission.minutes, middle, *ends, release
                )
            )
    return results


def _width(curve: Convergence, batch: float) -> float:
    return curve.interval(batch, beyond=True)[1] / curve.samples(batch, beyond=True)


def lamb() -> list[Result]:
    """Every row from the hardware, and from the hardware with the first row in sight."""
    chip = device("TPU v3")
    networks, software = (
        (Workload.named("bert-large-mlm", 128), Workload.named("bert-large-mlm", 512)),
        efficiency("ordinary", chip.chip),
    )
    results = []
    for short, long, devices, hours in LAMB:
        ends = [0.0, 0.0, 0.0]
        for network, batch, share in zip(networks, (short, long), (1 - LONG, LONG), strict=True):
            way = Strategy.of(world_size=devices, global_batch_size=batch, precision="bf16", optimizer="lamb")
            p = Predictor(constants=software).step(network, torus(chip, devices), way)
            steps = share * SEQUENCES / batch
            ends = [x + steps * s / MIN for x, s in zip(ends, (p.step_time_s, p.low_s, p.high_s), strict=True)]
        results.append(Result("lamb", WAYS[2], devices, short, hours * 60, *ends))
    seen = results[0].published / results[0].predicted
    scaled = [(r, [seen * x for x in (r.predicted, r.low, r.high)]) for r in results[1:]]
    return results + [replace(r, way="first row", predicted=x[0], low=x[1], high=x[2]) for r, x in scaled]


def grouped(results: Sequence[Result], by: Callable[[Result], object]) -> list[list[Result]]:
    """Those of the same benchmark, way and ``by``, in order."""
    groups: dict[tuple[str, str, object], list[Result]] = defaultdict(list)
    for result in results:
        groups[result.what, result.way, by(result)].append(result)
    return list(groups.values())


def summed(group: Sequence[Result]) -> dict[str, object]:
    """One line of the file: geometric means of minutes, mean of the absolute errors, share inside the range."""
    mean = means(group)
    if len(group) == 1 and group[0].what != "lamb":
        del mean["published"]
    batches = sorted({r.batch for r in group})
    return {
        "what": group[0].what,
        "way": group[0].way,
        "devices": min(r.devices for r in group) if group[0].what == "lamb" else _doubling(group[0]),
        "batches": f"{batches[0]}-{batches[-1]}" if len(batches) > 1 else batches[0],
        "rows": len(group),
        **{f"{k}_min": f"{x:.4g}" for k, x in mean.items() if k != "devices"},
        "mean_error": f"{fmean(abs(r.error) for r in group):.4f}",
        "inside": f"{fmean(r.low <= r.published <= r.high for r in group):.3f}",
    }


def means(group: Sequence[Result]) -> dict[str, float]:
    """Geometric means of devices and of minutes."""
    names = ("published", "predicted", "low", "high")
    devices = math.exp(fmean(math.log(max(1, r.devices)) for r in group))
    return {"devices": devices, **{k: math.exp(fmean(math.log(getattr(r, k)) for r in group)) for k in names}}


def _doubling(result: Result) -> int:
    """The power of two that its devices reach."""
    return 1 << (max(1, result.devices).bit_length() - 1)


def table(results: Sequence[Result]) -> str:
    """Markdown: mean errors, by number of devices and by round."""
    spans = [f"{low} to {high}" if high < math.inf else f"{low} and more" for low, high in SCALES]
    head = ("what", "from", "rows", "mean error", "bias", "worst", "in 80 %", *spans, "v0.7", "v1.0, v1.1")
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for group in grouped(results, lambda r: 0):
        inside = f"{fmean(r.low <= r.published <= r.high for r in group):.0%}"
        worst = max(group, key=lambda r: abs(r.error))
        cells = [group[0].what, group[0].way, f"{len(group)}", _mean(group), f"{fmean(r.error for r in group):+.0%}"]
        cells += [f"{worst.error:+.0%}", inside]
        cells += [_mean([r for r in group if low <= max(1, r.devices) <= high]) for low, high in SCALES]
        old = [r for r in group if r.release == "v0.7"]
        cells += [_mean(old), _mean([r for r in group if r.release > "v0.7"])]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _mean(group: Sequence[Result]) -> str:
    return f"{fmean(abs(r.error) for r in group):.1%}" if group else "-"


def lamb_table(results: Sequence[Result]) -> str:
    """Markdown: each row of LAMB's table."""
    head = ("batch", "TPU v3", "published, h", "from the hardware, h (80 %)", "error", "first row visible, h", "error")
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    scaled = {(r.batch, r.devices): r for r in results if r.way == "first row"}
    for r in (r for r in results if r.way == WAYS[2]):
        other = scaled.get((r.batch, r.devices))
        beside = f"{other.predicted / 60:.3g} | {other.error:+.0%}" if other else "- | -"
        span = f"{r.predicted / 60:.3g} ({r.low / 60:.3g} to {r.high / 60:.3g})"
        lines.append(f"| {r.batch:,} | {r.devices:,} | {r.published / 60:.3g} | {span} | {r.error:+.0%} | {beside} |")
    return "\n".join(lines)


def picture(results: Sequence[Result], path: Path) -> None:
    """Minutes against devices: published as points, predicted as bars, a panel for each benchmark."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    titles = {"resnet": "ResNet-50, MLPerf", "bert": "BERT, MLPerf", "lamb": "BERT with LAMB, TPU v3"}
    style = {"svg.fonttype": "none", "svg.hashsalt": "paceline", "font.size": 9}
    with rc_context({**style, "axes.spines.top": False, "axes.spines.right": False}):
        shown = [name for name in titles if any(r.what == name for r in results)]
        figure = Figure(figsize=(3.5 * len(shown), 3.3), layout="constrained", facecolor="white")
        for axes, name in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
            for way, colour, move in ((WAYS[2], "#1f5fa8", 1.0), (WAYS[0], "#c0392b", 1.06), ("first row", "#c0392b", 1.06)):
                group_means = [means(g) for g in grouped(results, _line) if (g[0].what, g[0].way) == (name, way)]
                if not group_means:
                    continue
                numbers = {k: [group[k] for group in group_means] for k in group_means[0]}
                at = [n * move for n in numbers["devices"]]
                axes.scatter(at, numbers["published"], s=14, color="#9aa7b5", zorder=2)
                axes.vlines(at, numbers["low"], numbers["high"], color=colour, lw=0.8, zorder=3)
                axes.plot(at, numbers["predicted"], "_", color=colour, ms=8, mew=1.6, zorder=4, label=f"from {way}")
            axes.set(xscale="log", yscale="log", xlabel="devices")
            axes.set_title(titles[name], fontsize=9, loc="left")
            axes.grid(linewidth=0.3)
            axes.legend(fontsize=7, frameon=False, title="grey: published", title_fontsize=7)
        figure.axes[0].set_ylabel("minutes to train")
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def write(results: Sequence[Result], out: Path | None, drawn: Path | None) -> None:
    """The file anew, and the picture, where they are asked for."""
    if out:
        out.unlink(missing_ok=True)
        for group in sorted(grouped(results, _line), key=_place):
            append(out, COLUMNS, summed(group))
    if drawn:
        picture(results, drawn)


def main() -> None:
    """Predict, print the tables, write the file and the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csv", type=Path, nargs="?")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--picture", type=Path)
    o = parser.parse_args()
    results = []
    for benchmark in NETWORKS if o.csv else ():
        logged = submissions(o.csv, benchmark)
        results += [*from_rates(benchmark, logged), *from_hardware(benchmark, logged)]
    published = lamb()
    print(table([*results, *published]))
    print(f"\n{lamb_table(published)}")
    write([*results, *published], o.out, o.picture)


def _line(result: Result) -> tuple[int, int]:
    return (result.devices, result.batch) if result.what == "lamb" else (_doubling(result), 0)


def _place(group: Sequence[Result]) -> tuple[str, str, int, int]:
    return group[0].what, group[0].way, group[0].devices, group[0].batch


if __name__ == "__main__":
    main()
