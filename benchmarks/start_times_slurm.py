"""Forecasts of the start of waiting jobs against their actual starts on a real Slurm, next to ``squeue --start``.

    python benchmarks/start_times_slurm.py TRACES/philly.csv --out RESULTS/start_times.csv

RESULTS is benchmarks/results. A lab of ``HOSTS`` hosts with one CPU each runs jobs that sleep. Their lengths and sizes are
those of every n-th job of one virtual cluster of Philly, shortened to a mean of ``MEAN_S``. Their limits are whole minutes, the
shortest that Slurm has, at or above the length over a published ratio. After each submission ``squeue`` and ``squeue --start``
are printed. The forecasts read these texts afterwards, and no later one. The row is as in ``start_times.py``, whose constants
it shares. The limits' rule is the start that Slurm itself expects, where it says one.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rows import append
from start_times import COLUMNS, Scores, _philly, forecasts_of

from paceline import lab
from paceline.scheduling.starts.forecast import Forecaster, ForecastOptions
from paceline.scheduling.starts.hindcast import Hindcast
from paceline.scheduling.starts.lengths import PUBLISHED_RATIOS
from paceline.scheduling.starts.live_source import SQUEUE, SQUEUE_HEADER
from paceline.scheduling.starts.nodes import parse_nodes
from paceline.scheduling.starts.waiting_queue import WaitingQueue, counted_by_node
from paceline.scheduling.traces.content import JobFile
from paceline.scheduling.traces.record import JobLog, LoggedJob
from paceline.scheduling.traces.snapshot import parse_queue

HOSTS, JOBS, MEAN_S, LONGEST_S = 8, 170, 18.0, 150.0
LOAD = 1.0
"""Mean load of the hosts while jobs arrive, without the seconds that Slurm takes for each start."""
QUEUE, SEED = "b436b2", 3
"""Virtual cluster of Philly whose jobs are taken, and seed of limits and arrivals."""
USED_FOR = {**dict.fromkeys(("ee9e8c", "6c71a0", "b436b2"), "development"), "103959": "score"}
"""Use of each queue's run, as in ``start_times.py``. On ``ee9e8c`` the weights of an owner's jobs and the periods of
correlated lengths were chosen too."""
WARM = 30
"""Jobs before the first that is scored."""
JOB = """#!/bin/sh
echo "start $(date +%s.%N)" >> {folder}/$SLURM_JOB_ID
sleep {seconds:.2f}
echo "end $(date +%s.%N)" >> {folder}/$SLURM_JOB_ID
"""


@dataclass(frozen=True)
class Planned:
    """Job to submit: its time after the first, its real length, nodes and limit in minutes."""

    after_s: float
    run_s: float
    nodes: int
    minutes: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("philly", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("--keep", type=Path, help="where the printed texts go, to score them again")
    parser.add_argument("--again", type=Path, help="score the texts of an earlier run")
    parser.add_argument("--queue", default=QUEUE)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--load", type=float, default=LOAD)
    options = parser.parse_args()
    if options.again:
        record = json.loads(options.again.read_text())
    else:
        record = run(plan(options.philly, options.jobs, options.queue, options.seed, options.load))
        if options.keep:
            options.keep.write_text(json.dumps(record))
    row = scored(record, options.queue)
    print(row)
    append(options.out, COLUMNS, row)


def plan(path: Path, number: int, queue: str, seed: int, load: float) -> list[Planned]:
    """Jobs with lengths and sizes of the trace, and exponential times between them."""
    rng = np.random.default_rng(seed)
    jobs = sorted((job for job in _philly(path) if job.queue == queue), key=lambda job: job.submit_s)
    chosen = [jobs[at] for at in np.linspace(0, len(jobs) - 1, number).astype(int).tolist()]
    scale = MEAN_S / float(np.mean([min(job.run_s, 20 * np.median([j.run_s for j in chosen])) for job in chosen]))
    planned: list[Planned] = []
    lengths = [min(max(job.run_s * scale, 2.0), LONGEST_S) for job in chosen]
    nodes = [min(-(-job.devices // 8), HOSTS // 2) for job in chosen]
    gap_s = float(np.dot(lengths, nodes)) / number / HOSTS / load
    moment = 0.0
    for run_s, count in zip(lengths, nodes, strict=True):
        part = int(rng.choice(len(PUBLISHED_RATIOS), p=[share for share, _, _ in PUBLISHED_RATIOS]))
        ratio = max(rng.uniform(*PUBLISHED_RATIOS[part][1:]), 0.05)
        planned.append(Planned(moment, run_s, count, max(1, math.ceil((run_s + 5) / ratio / 60))))
        moment += rng.exponential(gap_s)
    return planned


def run(planned: Sequence[Planned]) -> dict[str, object]:
    """Submit the jobs to a real Slurm. Returns the printed texts, and starts and ends as the jobs wrote them."""
    texts: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder, lab.up(HOSTS, "1Gb/s", name=f"st{os.getpid()}", slurm_slots=1) as cluster:
        enter = cluster.slurm()

        def said(*words: str) -> str:
            return subprocess.run([*enter, *words], capture_output=True, text=True, timeout=60, check=True).stdout

        nodes = said("sinfo", "-N", "-o", "%N|%P|%G|%c|%T")
        began = time.time()
        for number, job in enumerate(planned):
            time.sleep(max(0.0, began + job.after_s - time.time()))
            script = Path(folder) / f"job{number}.sh"
            script.write_text(JOB.format(folder=folder, seconds=job.run_s))
            submitted = time.time()
            words = ("--parsable", "-N", str(job.nodes), "--exclusive", "-t", str(job.minutes), "-o", "/dev/null")
            name = said("sbatch", *words, str(script)).strip()
            time.sleep(1.0)
            at = time.time()
            texts.append(
                {
                    "job": name,
                    "submit_s": submitted,
                    "now_s": at,
                    "queue": f"{SQUEUE_HEADER}\n{said(*SQUEUE)}",
                    "expected": said("squeue", "--start", "-h", "-o", "%i|%S"),
                }
            )
        until = time.time() + 900
        while said("squeue", "-h").strip() and time.time() < until:
            time.sleep(2.0)
        times = {path.name: path.read_text() for path in Path(folder).iterdir() if path.suffix == ""}
    limits = {str(text["job"]): job.minutes * 60.0 for text, job in zip(texts, planned, strict=True)}
    sizes = {str(text["job"]): job.nodes for text, job in zip(texts, planned, strict=True)}
    return {"nodes": nodes, "texts": texts, "times": times, "limits": limits, "sizes": sizes}


def scored(record: dict[str, object], queue_name: str) -> dict[str, object]:
    """Errors and coverage of jobs that still waited when the queue was printed."""
    texts: list[dict[str, object]] = record["texts"]  # type: ignore[assignment]
    times = {name: _times(text) for name, text in record["times"].items()}  # type: ignore[attr-defined]
    limits, sizes = record["limits"], record["sizes"]
    scores = Scores()
    kept: dict[str, Hindcast] = {}
    for text in texts[WARM:]:
        name, now_s = str(text["job"]), float(text["now_s"])  # type: ignore[arg-type]
        start_s = times.get(name, {}).get("start", math.nan)
        if not start_s > now_s:
            continue
        log = counted_by_node(parse_queue(str(text["queue"]), "squeue", now_s))
        offset_s = log.moment_s - now_s
        ended = [
            LoggedJob(
                name=other,
                state="ended",
                submit_s=float(each["submit_s"]) + offset_s,  # type: ignore[arg-type]
                start_s=moments["start"] + offset_s,
                end_s=moments["end"] + offset_s,
                run_s=moments["end"] - moments["start"],
                devices=sizes[other],  # type: ignore[index]
                nodes=sizes[other],  # type: ignore[index]
                limit_s=limits[other],  # type: ignore[index]
                queue="lab",
                user="root",
            )
            for each in texts
            if (other := str(each["job"])) in times and (moments := times[other]).get("end", math.inf) < now_s
        ]
        nodes = parse_nodes(JobFile.of(str(record["nodes"]), "sinfo"), by_node=True)
        queue = WaitingQueue.of(log, nodes, JobLog(jobs=tuple(ended)))
        target = next((job for job in queue.waiting if job.name == name), None)
        if target is None:
            continue
        began = time.process_time()
        simulated, one = forecasts_of(queue, target, kept)
        seconds = time.process_time() - began
        expected = dict(line.split("|") for line in str(text["expected"]).split() if "|" in line).get(name, "N/A")
        if expected == "N/A":
            by_limit = Forecaster(queue, ForecastOptions(futures=1, arrivals=False, lengths="limits")).forecast([target])
            slurm_s = by_limit.jobs[0].start()
        else:
            slurm_s = time.mktime(time.strptime(expected, "%Y-%m-%dT%H:%M:%S")) - now_s
        median_s = float(np.median([past.wait_s for past in queue.history] or [0.0]))
        scores.add(now_s, start_s - now_s, simulated, one, slurm_s, median_s, seconds)
    return {
        "source": f"slurm on {HOSTS} hosts, lengths of philly {queue_name}",
        "truth": "real",
        "used_for": USED_FOR.get(queue_name, "unseen"),
        "jobs": len(texts),
        "devices": HOSTS,
        **scores.columns(),
    }


def _times(text: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for line in text.splitlines():
        what, _, moment = line.partition(" ")
        found.setdefault(what, float(moment))
    return found


if __name__ == "__main__":
    main()
