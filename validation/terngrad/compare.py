"""Predicted against published speed-ups of TernGrad.

    python validation/terngrad/compare.py [--json] [--out FILE]

Exit code 1 when the prediction violates an ordering that it must keep.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from paceline.calibration.constants import HIGH, LOW, TYPICAL
from paceline.hardware import cluster as make_cluster
from paceline.prediction import Prediction, Predictor
from paceline.record import environment
from paceline.strategy import Strategy
from paceline.workload import Workload

PUBLISHED = Path(__file__).with_name("published.toml")
ORDER = ("vgg-a", "alexnet", "googlenet")  # the biggest gain first: by share of fully connected parameters
# The figure compares fp32 and ternary gradients over the same push and pull, so both are predicted over `sharded`,
# after the backward pass: the authors' code averages the gradients of all towers at one synchronization point.
FP32, TERNARY, RING = ("dense", "sharded"), ("terngrad", "sharded"), ("dense", "allreduce")
FROM = 8  # GPUs: two nodes, where the network begins


@dataclass(frozen=True, kw_only=True)
class Row:
    """One net on one cluster at one GPU count. Rates in images/s; published ones None where the figure was not read."""

    cluster: str
    net: str
    gpus: int
    local_batch: int
    published_fp32: float | None
    published_terngrad: float | None
    fp32: float
    terngrad: float
    low: float
    high: float
    ring: float

    @property
    def vs_ring(self) -> float:
        """Predicted TernGrad rate / rate of fp32 over a ring all-reduce, which the figure does not have."""
        return self.terngrad / self.ring

    @property
    def speedup(self) -> float:
        """Predicted TernGrad rate / fp32 rate. ``low`` and ``high`` are its range."""
        return self.terngrad / self.fp32

    @property
    def published(self) -> float | None:
        """Published TernGrad rate / fp32 rate."""
        if self.published_fp32 is None or self.published_terngrad is None:
            return None
        return self.published_terngrad / self.published_fp32

    @property
    def error(self) -> float | None:
        """Relative error of the speed-up."""
        return None if self.published is None else self.speedup / self.published - 1


@dataclass(frozen=True, slots=True)
class Check:
    """An ordering: in how many of the places where it can be looked up the published and the predicted rows keep it."""

    name: str
    required: bool
    published: tuple[int, int]
    predicted: tuple[int, int]

    @property
    def failed(self) -> bool:
        """Whether the prediction violates an ordering it must keep."""
        return self.required and self.predicted[0] < self.predicted[1]


def one_step(
    data: dict[str, Any], place: str, net: str, gpus: int, how: tuple[str, str], factor: float, overlap: bool
) -> Prediction:
    """Predict ``how``, (compression, exchange), with the compute seconds of one device multiplied by ``factor``."""
    facts, per_node = data["clusters"][place], data["gpus_per_node"]
    where = make_cluster(facts["device"], min(gpus, per_node), max(1, gpus // per_node), facts["network"])
    batch = gpus * data["nets"][net]["local_batch"]
    strategy = Strategy.of(world_size=gpus, global_batch_size=batch, compression=how[0], exchange=how[1])
    levels = (LOW.timed(factor), TYPICAL.timed(factor), HIGH.timed(factor))
    return Predictor(constants=levels, overlap=overlap).step(Workload.named(net), where, strategy)


def compute_factor(data: dict[str, Any], net: str) -> float:
    """Published / predicted seconds of one GPU of cluster (a): the only one-GPU bars that were read."""
    seconds: float = data["nets"][net]["local_batch"] / data["clusters"]["ethernet"][net]["fp32"][0]
    return seconds / one_step(data, "ethernet", net, 1, FP32, 1.0, False).step_time_s


def make_rows(data: dict[str, Any], overlap: bool = False) -> Iterator[Row]:
    """Every net, cluster and GPU count."""
    for place, facts in data["clusters"].items():
        known = facts.get("only_gpus", data["gpus"])
        for net in ORDER:
            factor = compute_factor(data, net)
            bars = {n: (facts[net]["fp32"][i], facts[net]["terngrad"][i]) for i, n in enumerate(known)}
            for gpus in data["gpus"]:
                dense, ternary, ring = (one_step(data, place, net, gpus, how, factor, overlap) for how in (FP32, TERNARY, RING))
                ratios = [
                    dense.step_time_s / ternary.step_time_s,
                    dense.low_s / ternary.low_s,
                    dense.high_s / ternary.high_s,
                ]
                yield Row(
                    cluster=place,
                    net=net,
                    gpus=gpus,
                    local_batch=data["nets"][net]["local_batch"],
                    published_fp32=bars.get(gpus, (None, None))[0],
                    published_terngrad=bars.get(gpus, (None, None))[1],
                    fp32=dense.samples_per_s,
                    terngrad=ternary.samples_per_s,
                    low=min(ratios),
                    high=max(ratios),
                    ring=ring.samples_per_s,
                )


Value = Callable[[Row], float | None]


def count(rows: Iterable[tuple[Row, ...]], value: Value, decreasing: bool = True) -> tuple[int, int]:
    """How many of the tuples are strictly ordered by ``value``, of those where all values are known."""
    known = [[v for v in map(value, group) if v is not None] for group in rows if all(value(row) is not None for row in group)]
    return sum(all(a > b if decreasing else a < b for a, b in pairwise(values)) for values in known), len(known)


def checks(rows: list[Row]) -> list[Check]:
    """The orderings of the figure."""
    by = {(r.cluster, r.net, r.gpus): r for r in rows}
    counts = sorted({r.gpus for r in rows if r.gpus >= FROM})
    places = sorted({r.cluster for r in rows})
    nets = [tuple(by[place, net, n] for net in ORDER) for place in places for n in counts]
    links = [(by["ethernet", net, n], by["infiniband", net, n]) for net in ORDER for n in counts]
    series = [[by[place, net, n] for n in counts] for place in places for net in ORDER]
    steps = [pair for line in series for pair in pairwise(line)]
    alone = [(row, by[row.cluster, row.net, n]) for line in series for row in line for n in (1, 2, 4)]

    def check(
        name: str, groups: list[Any], published: Value, predicted: Value, down: bool = True, required: bool = True
    ) -> Check:
        return Check(name, required, count(groups, published, down), count(groups, predicted, down))

    def ratio(row: Row) -> float | None:
        return row.published

    def speedup(row: Row) -> float:
        return row.speedup

    return [
        check("speed-up: VGG-A > AlexNet > GoogLeNet", nets, ratio, speedup),
        check("speed-up: Ethernet > InfiniBand", links, ratio, speedup),
        check("images/s of fp32: more GPUs > fewer", steps, lambda r: r.published_fp32, lambda r: r.fp32, False),
        check("images/s of TernGrad: more GPUs > fewer", steps, lambda r: r.published_terngrad, lambda r: r.terngrad, False),
        check("speed-up: several nodes > one node", alone, ratio, speedup),
        check("speed-up grows row by row (not required)", steps, ratio, speedup, False, False),
    ]


def summary(rows: list[Row]) -> dict[str, float]:
    """Median absolute relative errors, over the rows from 8 GPUs on that were published."""
    known = [r for r in rows if r.gpus >= FROM and r.published_fp32 and r.published_terngrad]
    return {
        "median_error_speedup": median(abs(r.error) for r in known if r.error is not None),
        "median_error_fp32": median(abs(r.fp32 / r.published_fp32 - 1) for r in known if r.published_fp32),
        "median_error_terngrad": median(abs(r.terngrad / r.published_terngrad - 1) for r in known if r.published_terngrad),
        "published_rows": len(known),
    }


def report(data: dict[str, Any], rows: list[Row], done: list[Check]) -> Iterator[str]:
    """The table, the orderings and the errors as lines of at most 100 columns."""
    yield f"Published: {data['source'].partition(' (')[0]}: a model, not a run. Rates in images/s."
    for place, facts in data["clusters"].items():
        yield ""
        yield f"{facts['title']}: {facts['device']}, {facts['network']}, {data['gpus_per_node']} GPUs a node"
        yield f"  {facts['note'].partition(';')[0]}"
        yield f"{'':16}{'-------- published -------'}  {'--------------------- predicted ---------------------'}"
        yield (
            f"{'net':<9}{'GPUs':>5}  {'fp32':>8} {'TernGrad':>8} {'speedup':>8}  {'fp32':>8} {'TernGrad':>8} "
            f"{'speedup':>7} {'range':>12} {'error':>5} {'vs ring':>7}"
        )
        for r in (row for row in rows if row.cluster == place):
            bars = [f"{x:8.0f}" if x is not None else f"{'-':>8}" for x in (r.published_fp32, r.published_terngrad)]
            known = f"{r.published:8.2f}" if r.published is not None else f"{'-':>8}"
            error = f"{r.error:+5.0%}" if r.error is not None else f"{'-':>5}"
            spread = f"{r.low:.2f} to {r.high:.2f}"
            yield (
                f"{data['nets'][r.net]['title']:<9}{r.gpus:>5}  {bars[0]} {bars[1]} {known}  {r.fp32:8.0f} {r.terngrad:8.0f} "
                f"{r.speedup:7.2f} {spread:>12} {error} {r.vs_ring:7.2f}"
            )
    yield ""
    yield "One GPU, images/s: published in (a), which sets the compute time; catalogue alone, with range"
    for net in ORDER:
        bar = data["clusters"]["ethernet"][net]["fp32"][0]
        batch = data["nets"][net]["local_batch"]
        line = f"  {data['nets'][net]['title']:<10} batch {batch:>3}  published {bar:>4}"
        for place, facts in data["clusters"].items():
            alone = one_step(data, place, net, 1, FP32, 1.0, False)
            line += f"  {facts['device']} {alone.samples_per_s:.0f} ({batch / alone.high_s:.0f} to {batch / alone.low_s:.0f})"
        yield line
    yield "  (b) has no one-GPU bar here: its device keeps the factor of (a), published / catalogue."
    yield ""
    yield f"Orderings, from {FROM} GPUs on: places where it holds / places where it can be looked up"
    yield f"  {'':<44}{'published':>10} {'predicted':>10}"
    for c in done:
        verdict = "FAILS" if c.failed else ""
        counts = f"{c.published[0]:>6}/{c.published[1]:<3} {c.predicted[0]:>6}/{c.predicted[1]:<3}"
        yield f"  {c.name:<44}{counts} {verdict}".rstrip()
    errors = {name: f"{value:.0%}" for name, value in summary(rows).items() if name != "published_rows"}
    yield ""
    yield (
        f"Median error over {summary(rows)['published_rows']} published rows: speed-up {errors['median_error_speedup']}, "
        f"images/s of fp32 {errors['median_error_fp32']}, of TernGrad {errors['median_error_terngrad']}"
    )


def write_csv(path: Path, rows: list[Row]) -> None:
    """The rows with date, commit and environment in every line."""
    where = environment(packages=("numpy",))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        head = list(asdict(rows[0]))
        table.writerow([*head, "published_speedup", "speedup", "error", *where])
        for row in rows:
            values = [*asdict(row).values(), row.published, row.speedup, row.error]
            table.writerow([f"{v:.6g}" if isinstance(v, float) else v for v in values] + list(where.values()))


def main(argv: list[str] | None = None) -> int:
    """Print the comparison; 1 when a required ordering fails."""
    parser = argparse.ArgumentParser(description="Predicted against published speed-ups of TernGrad.")
    parser.add_argument("--json", action="store_true", help="print rows, orderings and errors as JSON")
    parser.add_argument("--overlap", action="store_true", help="let the exchange overlap the backward pass, as DDP does")
    parser.add_argument("--out", type=Path, help="write the rows as CSV")
    options = parser.parse_args(argv)
    data = tomllib.loads(PUBLISHED.read_text(encoding="utf-8"))
    rows = list(make_rows(data, options.overlap))
    done = checks(rows)
    if options.json:
        extra = [{**asdict(r), "published": r.published, "speedup": r.speedup, "error": r.error} for r in rows]
        print(json.dumps({"rows": extra, "orderings": [asdict(c) for c in done], **summary(rows)}, indent=1))
    else:
        print("\n".join(report(data, rows, done)))
    if options.out:
        write_csv(options.out, rows)
    return int(any(c.failed for c in done))


if __name__ == "__main__":
    sys.exit(main())
