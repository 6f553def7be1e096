"""Forecasts of the start of waiting jobs against their actual starts, at submission, on traces and on logs.

    python benchmarks/start_times.py TRACES --out RESULTS/start_times.csv

TRACES holds philly.csv and elasticflow_itp.csv, RESULTS is benchmarks/results. A row a source: median error of the wait and the
coverage of the 80 % range, next to (a) a backfill that expects each job to run to its limit, as ``squeue --start`` does, and
(b) the median wait of the queue before.

The traces have neither limits nor a cluster. Each runs on as many devices as its work fills to ``LOAD``, under Slurm's rule in
order of arrival, and that simulated start is the truth. A limit is the length over a ratio of the published distribution,
rounded up to a usual value. The forecast sees the jobs that run, with the time they have run, those that wait, and those that
ended. It sees no length of a job that has not ended and no later submission. Scored are jobs that did not start when they were
submitted.

Chosen without the scored rows: ``LOAD``, the usual limits, and all constants of ``paceline.scheduling.starts`` are from
publications or round numbers. The column ``used_for`` says what a source was used for. On sources of ``development``, and on
runs of ``start_times_slurm.py``, the form of the lengths' distribution and the rule of ranges were chosen. Sources of
``score`` were forecast by an earlier version, whose misses were looked at. They have no part in the rule of ranges. Sources
``unseen`` were forecast at the end only.

Jobs that wait at the same time share their errors. ``disjoint_waits`` is the greatest number of scored jobs whose
waits do not overlap. The coverage is about as certain as that of so many independent forecasts.
"""

from __future__ import annotations

import argparse
import csv
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from rows import append

from paceline.scheduling.fleet import Fleet
from paceline.scheduling.starts.backfill import UNLIMITED_S, Shape, ShapeOnNodes
from paceline.scheduling.starts.forecast import Forecaster, ForecastOptions, StartForecast
from paceline.scheduling.starts.future import JobTable, starts_of_many
from paceline.scheduling.starts.hindcast import Hindcast, past_starts
from paceline.scheduling.starts.lengths import PUBLISHED_RATIOS
from paceline.scheduling.starts.queue_nodes import QueueNodes
from paceline.scheduling.starts.waiting_queue import WaitingQueue
from paceline.scheduling.traces.record import JobLog, LoggedJob

LOAD = 0.8
"""Mean load of the simulated cluster."""
FORECASTS = 60
"""Jobs scored of a source."""
WARM = 0.25
"""Share of the jobs before the first that is scored, which give the history."""
HISTORY = 3000
USUAL_H = (0.25, 0.5, 1, 2, 4, 8, 12, 24, 48, 72, 168, 336, 720, 1440)
"""Usual limits in hours: users choose few values (Tsafrir, Etsion and Feitelson, JSSPP 2005)."""
USED_FOR = {
    **dict.fromkeys(("philly 6c71a0", "philly ed69ec", "philly ee9e8c", "itp cluster03", "itp cluster06"), "development"),
    **dict.fromkeys(("philly whole", "philly 0e4a51", "philly 103959", "itp cluster01"), "score"),
}
"""Use of each source; others: ``unseen``."""
COLUMNS = (
    "source",
    "truth",
    "used_for",
    "jobs",
    "devices",
    "forecasts",
    "disjoint_waits",
    "median_wait_s",
    "error_s",
    "limits_error_s",
    "queue_median_error_s",
    "error_ratio",
    "coverage_80",
    "coverage_simulated",
    "width_s",
    "width_over_wait",
    "width_over_wait_simulated",
    "seconds_each",
)


@dataclass(frozen=True)
class Source:
    """Jobs with their actual starts on a cluster of equal devices. Times are seconds after the first submission."""

    name: str
    jobs: tuple[LoggedJob, ...]
    devices: int
    truth: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="", help="sources whose name contains this text")
    parser.add_argument("--forecasts", type=int, default=FORECASTS)
    options = parser.parse_args()
    for source in sources(options.traces, options.only):
        row = scored(source, options.forecasts)
        print({name: row[name] for name in COLUMNS})
        append(options.out, COLUMNS, row)


def sources(folder: Path, only: str) -> Iterator[Source]:
    """The virtual clusters of Philly and the clusters of ITP with enough jobs, each alone, and Philly as a whole."""
    philly, itp = list(_philly(folder / "philly.csv")), list(_itp(folder / "elasticflow_itp.csv"))
    month = [job for job in philly if 40 * 86400 <= job.submit_s < 62 * 86400]
    groups = {"philly whole": month}
    for name, jobs in (("philly", philly), ("itp", itp)):
        for queue in sorted({job.queue for job in jobs}):
            chosen = [job for job in jobs if job.queue == queue]
            if len(chosen) >= 1000:
                groups[f"{name} {queue}"] = chosen[:6000]
    for name, jobs in groups.items():
        if only in name:
            yield simulated(name, jobs)


def _philly(path: Path) -> Iterator[LoggedJob]:
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            yield _logged(row["job_id"], row, row["vc"], "")


def _itp(path: Path) -> Iterator[LoggedJob]:
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            yield _logged(row["job_id"], row, row["cluster"], f"{row['model']} {row['batch_size']}")


def _logged(name: str, row: dict[str, str], queue: str, title: str) -> LoggedJob:
    run_s = max(float(row["duration_s"]), 1.0)
    submit_s = float(row["submit_time_s"])
    return LoggedJob(
        name=name, title=title, state="ended", submit_s=submit_s, run_s=run_s, devices=int(row["num_gpus"]), queue=queue
    )


def simulated(name: str, jobs: Sequence[LoggedJob]) -> Source:
    """A trace on a cluster that its work fills to ``LOAD``, with stated limits and the starts of Slurm's rule."""
    ordered = sorted(jobs, key=lambda job: job.submit_s)
    first_s = ordered[0].submit_s
    rng = np.random.default_rng(1)
    ordered = [replace(job, submit_s=job.submit_s - first_s, limit_s=limit(job.run_s, rng)) for job in ordered]
    span_s = np.quantile([job.submit_s for job in ordered], 0.98)
    work = sum(job.run_s * job.devices for job in ordered if job.submit_s <= span_s)
    devices = max(math.ceil(work / span_s / LOAD / 8) * 8, *(job.devices for job in ordered))
    starts = actual_starts(ordered, devices)
    done = [
        replace(job, start_s=start, end_s=start + job.run_s)
        for job, start in zip(ordered, starts.tolist(), strict=True)
        if math.isfinite(start)
    ]
    return Source(name, tuple(done), devices, "simulated")


def limit(run_s: float, rng: np.random.Generator) -> float:
    """A usual limit at or above the length over a published ratio of real length to limit."""
    part = int(rng.choice(len(PUBLISHED_RATIOS), p=[probability for probability, _, _ in PUBLISHED_RATIOS]))
    ratio = max(rng.uniform(*PUBLISHED_RATIOS[part][1:]), 0.005)
    wanted = min(run_s / ratio, max(run_s, 30 * 86400.0))
    return next((hours * 3600.0 for hours in USUAL_H if hours * 3600.0 >= wanted), math.ceil(wanted / 86400) * 86400.0)


def actual_starts(jobs: Sequence[LoggedJob], devices: int) -> np.ndarray:
    """Starts of all jobs under backfill in order of arrival, with their real lengths."""
    shapes: dict[int, int] = {}
    shape_of = tuple(shapes.setdefault(job.devices, len(shapes)) for job in jobs)
    table = JobTable(
        free=np.array([devices]),
        shapes=tuple(ShapeOnNodes(Shape((0,), count)) for count in shapes),
        shape_of=shape_of,
        limit_s=tuple(job.limit_s or UNLIMITED_S for job in jobs),
        ran_s=(0.0,) * len(jobs),
        held=((),) * len(jobs),
        priority=(0.0,) * len(jobs),
        submit_s=tuple(job.submit_s for job in jobs),
        waiting=(),
        depth=500,
    )
    arrives = np.array([max(job.submit_s, 1e-3) for job in jobs])
    lengths = np.array([[job.run_s for job in jobs]])
    rows = np.arange(len(jobs))
    return starts_of_many(table, lengths, [(arrives, rows)], rows.tolist())[0]


def queue_at(source: Source, now_s: float) -> WaitingQueue:
    """The view of an operator at a moment: no length of a job that has not ended, no later submission."""
    there = [job for job in source.jobs if job.submit_s <= now_s]
    ended = [job for job in there if job.end_s <= now_s][-4 * HISTORY :]
    ended = sorted(ended, key=lambda job: job.end_s)[-HISTORY:]
    present = [
        replace(job, state="running", run_s=now_s - job.start_s, end_s=math.nan)
        if job.start_s <= now_s
        else replace(job, state="waiting", run_s=math.nan, start_s=math.nan, end_s=math.nan)
        for job in there
        if job.end_s > now_s
    ]
    nodes = QueueNodes.of(Fleet.named(f"{max(source.devices // 8, 1)}x8xV100"))
    nodes = replace(nodes, devices=np.array([source.devices]), types=("V100",), names=())
    return WaitingQueue.of(JobLog(jobs=tuple(present), moment_s=now_s), nodes, JobLog(jobs=tuple(ended)))


def scored(source: Source, forecasts: int) -> dict[str, object]:
    """Errors and coverage on jobs that did not start when they were submitted."""
    first = int(len(source.jobs) * WARM)
    waited = [job for job in source.jobs[first:] if job.start_s > job.submit_s + 1.0]
    rng = np.random.default_rng(0)
    chosen = [waited[at] for at in sorted(rng.choice(len(waited), min(forecasts, len(waited)), replace=False).tolist())]
    scores = Scores()
    kept: dict[str, Hindcast] = {}
    for job in chosen:
        now_s = job.submit_s
        queue = queue_at(source, now_s)
        began = time.process_time()
        simulated, one = forecasts_of(queue, queue.job(job.name), kept)
        seconds = time.process_time() - began
        by_limit = Forecaster(queue, ForecastOptions(futures=1, arrivals=False, lengths="limits")).forecast(
            [queue.job(job.name)]
        )
        median_s = float(np.median([past.wait_s for past in queue.history] or [0.0]))
        scores.add(now_s, job.start_s - now_s, simulated, one, by_limit.jobs[0].start(), median_s, seconds)
    return {
        "source": source.name,
        "truth": source.truth,
        "used_for": USED_FOR.get(source.name, "unseen"),
        "jobs": len(source.jobs),
        "devices": source.devices,
        **scores.columns(),
    }


def forecasts_of(queue: WaitingQueue, target: LoggedJob, kept: dict[str, Hindcast]) -> tuple[StartForecast, StartForecast]:
    """The simulation's forecast of a job, and the same with the range checked on past starts.

    ``kept`` has the hindcasts of earlier forecasts: each is of what was known at its own moment.
    """
    options = ForecastOptions(seed=1)
    simulated = Forecaster(queue, options).forecast([target]).jobs[0]
    return simulated, past_starts(queue, options, kept=kept).stretched(simulated)


class Scores:
    """Actual waits and forecasts of one source, in seconds."""

    def __init__(self) -> None:
        self._rows: list[tuple[float, ...]] = []

    def add(
        self,
        moment_s: float,
        wait_s: float,
        simulated: StartForecast,
        one: StartForecast,
        limits_s: float,
        median_s: float,
        seconds: float,
    ) -> None:
        """Add a forecast, next to those by limits and by the median wait."""
        ranges = [end for each in (simulated, one) for end in (each.start(0.1), each.start(0.9))]
        self._rows.append((moment_s, wait_s, one.start(), max(limits_s, 0.0), median_s, *ranges, seconds))

    def columns(self) -> dict[str, object]:
        """Return the columns of the row."""
        moment, wait, one, limits, median, first_low, first_high, low, high, seconds = np.array(self._rows).T
        error, of_limits = (float(np.median(np.abs(each - wait))) for each in (one, limits))
        return {
            "forecasts": len(wait),
            "disjoint_waits": disjoint(moment, moment + wait),
            "median_wait_s": round(float(np.median(wait)), 1),
            "error_s": round(error, 1),
            "limits_error_s": round(of_limits, 1),
            "queue_median_error_s": round(float(np.median(np.abs(median - wait))), 1),
            "error_ratio": round(error / of_limits, 3) if of_limits else math.nan,
            "coverage_80": round(float(np.mean((low <= wait) & (wait <= high))), 3),
            "coverage_simulated": round(float(np.mean((first_low <= wait) & (wait <= first_high))), 3),
            "width_s": round(float(np.median(high - low)), 1),
            "width_over_wait": round(float(np.sum(high - low) / np.sum(wait)), 3),
            "width_over_wait_simulated": round(float(np.sum(first_high - first_low) / np.sum(wait)), 3),
            "seconds_each": round(float(np.mean(seconds)), 2),
        }


def disjoint(starts: np.ndarray, ends: np.ndarray) -> int:
    """Return how many intervals can be chosen so that no two overlap: always the one that ends first.

    Source: Kleinberg and Tardos, "Algorithm Design", 2005, section 4.1.
    """
    number, until = 0, -math.inf
    for start, end in sorted(zip(starts.tolist(), ends.tolist(), strict=True), key=lambda pair: pair[1]):
        if start >= until:
            number, until = number + 1, end
    return number


if __name__ == "__main__":
    main()
