"""Processor time of ``paceline schedule start`` under the settings of Slurm: a busy cluster with jobs to come.

    OMP_NUM_THREADS=1 python benchmarks/start_speed.py --out RESULTS/start_speed.csv

RESULTS is benchmarks/results. The queue is made up: 100 jobs run and 100 wait on 80 nodes of 8 devices, and 3,000 ended in the
four weeks before, from which jobs to come are drawn. Devices, limits and lengths are drawn by a seed: 1 to 32 devices, three in
four jobs on one node, limits of 1 to 48 h, lengths of 5 to 100 % of the limit. Jobs belong to 20 users in 5 accounts, in 2
qualities of service. The settings are Slurm's multifactor priorities with fair share, age and size, and a limit per account.

A row: the futures, the seconds of the processor and of the clock, and a digest of all starts, which must not change when the
code becomes faster. Other work on the machine lengthens ``wall_s`` alone. ``load`` is the load average at the end.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from rows import append

from paceline.scheduling.queues.slurm_settings import Account, Qos, SlurmSettings
from paceline.scheduling.starts.forecast import Forecaster, ForecastOptions
from paceline.scheduling.starts.queue_nodes import QueueNodes
from paceline.scheduling.starts.waiting_queue import WaitingQueue
from paceline.scheduling.traces.record import JobLog, LoggedJob

COLUMNS = ("running", "waiting", "history", "devices", "nodes", "futures", "cpu_s", "wall_s", "digest", "load", "note")
NOW_S, DAY_S = 1.7e9, 86_400.0
HISTORY = 3_000
SETTINGS = SlurmSettings(
    weight_age=1000,
    weight_fairshare=10_000,
    weight_job_size=100,
    weight_qos=500,
    accounts={f"lab{index}": Account(shares=index + 1, max_devices=160) for index in range(5)},
    qos={"normal": Qos(), "high": Qos(priority=100, max_jobs_per_user=8)},
)


def made_queue(running: int, waiting: int, nodes: int, history: int, seed: int = 0) -> WaitingQueue:
    """Return a queue that is drawn by a seed."""
    draw = np.random.default_rng(seed)
    free = nodes * 8
    jobs: list[LoggedJob] = []

    def made(name: str, state: str, devices: int, **more: object) -> LoggedJob:
        user = int(draw.integers(20))
        limit_s = float(draw.choice([1, 4, 12, 24, 48]) * 3600)
        given = {"user": f"u{user}", "account": f"lab{user % 5}", "qos": "high" if draw.random() < 0.2 else "normal"}
        single = devices <= 8 and draw.random() < 0.75
        return LoggedJob(name=name, state=state, devices=devices, limit_s=limit_s, nodes=int(single), **given, **more)  # type: ignore[arg-type]

    for index in range(running):
        devices = min(int(draw.choice([1, 2, 4, 8, 8, 16, 32], p=[0.3, 0.2, 0.2, 0.1, 0.1, 0.05, 0.05])), free)
        if not devices:
            break
        free -= devices
        job = made(f"r{index}", "running", devices)
        ran_s = float(draw.uniform(0.02, 0.6)) * job.limit_s
        jobs.append(_at(job, NOW_S - ran_s - 600.0, NOW_S - ran_s, ran_s))
    for index in range(waiting):
        devices = int(draw.choice([1, 2, 4, 8, 16, 32]))
        jobs.append(_at(made(f"w{index}", "waiting", devices), NOW_S - float(draw.uniform(60, DAY_S)), np.nan, np.nan))
    for index in range(history):
        job = made(f"h{index}", "ended", int(draw.choice([1, 2, 4, 8, 16, 32])))
        ran_s = float(draw.uniform(0.05, 1.0)) * job.limit_s
        end_s = NOW_S - float(draw.uniform(0.0, 28 * DAY_S))
        jobs.append(_at(job, end_s - ran_s - 600.0, end_s - ran_s, ran_s, end_s))
    names = tuple(f"n{index}" for index in range(nodes))
    on = QueueNodes(np.full(nodes, 8), ("A100 SXM 80GB",) * nodes, names)
    log = JobLog(jobs=tuple(jobs), form="squeue", file="made up", moment_s=NOW_S)
    return WaitingQueue.of(log, on, settings=SETTINGS)


def _at(job: LoggedJob, submit_s: float, start_s: float, run_s: float, end_s: float = np.nan) -> LoggedJob:
    return replace(job, submit_s=submit_s, start_s=start_s, run_s=run_s, end_s=end_s)


def main() -> None:
    """Forecast the queue and append a row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--running", type=int, default=100)
    parser.add_argument("--waiting", type=int, default=100)
    parser.add_argument("--nodes", type=int, default=80)
    parser.add_argument("--futures", type=int, default=0, help="0: as the command chooses")
    parser.add_argument("--note", default="")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    queue = made_queue(options.running, options.waiting, options.nodes, HISTORY)
    began, wall = time.process_time(), time.perf_counter()
    forecaster = Forecaster(queue, ForecastOptions(futures=options.futures))
    found = forecaster.forecast()
    starts = np.stack([job.start_s for job in found.jobs])
    lengths = np.stack([job.length_s for job in found.jobs])
    row = {
        "running": len(queue.running),
        "waiting": len(queue.waiting),
        "history": HISTORY,
        "devices": queue.nodes.total,
        "nodes": options.nodes,
        "futures": forecaster.options.futures,
        "cpu_s": round(time.process_time() - began, 2),
        "wall_s": round(time.perf_counter() - wall, 2),
        "digest": hashlib.sha256(starts.tobytes() + lengths.tobytes()).hexdigest()[:12],
        "load": round(os.getloadavg()[0], 1),
        "note": options.note,
    }
    print(row, f"never: {np.isinf(starts).mean():.2f}, jobs to come: {np.mean([len(m) for m, _ in forecaster._coming]):.0f}")
    if options.out:
        append(options.out, COLUMNS, row)


if __name__ == "__main__":
    main()
