"""Real training jobs under a policy on a real Slurm: four hosts behind 1 Gb/s links, resized, preempted, one host killed.

    python benchmarks/live_slurm.py --out RESULTS/live_slurm.csv --report live.html

RESULTS is benchmarks/results. A row a job: its accuracy, that of the same run alone, and its completion time (JCT) as the
simulator has it and as it was. The jobs train LeNet-5 on digits with TernGrad; all are processes of this machine. Devices
are slots: a step sleeps ``--pace`` seconds a sample (``paced_lenet.py``), since the slots share the cores of one machine.
On the way slurmctld is started anew, the runner is dropped and goes on from its journal, and a host dies and comes back.

The simulator knows arrivals, the host's absence, the speed on 1, 2 and 4 slots, measured before on one job, and how long a
start took there. It knows nothing of the run.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rows import append

from paceline import lab
from paceline.array_types import Array
from paceline.lab import slurm
from paceline.reporting.schedule_page import render_schedules
from paceline.scheduling.executors.executor import Executor, LiveJob
from paceline.scheduling.executors.slurm import SlurmExecutor
from paceline.scheduling.fleet import Fleet, NodeGroup, Outage
from paceline.scheduling.job import Job
from paceline.scheduling.journal import Journal
from paceline.scheduling.live import LivePolicy, Runner
from paceline.scheduling.live_policy import LiveAdapter
from paceline.scheduling.live_schedule import live_schedule
from paceline.scheduling.policies.registry import policy_named
from paceline.scheduling.schedule import Settings
from paceline.scheduling.simulated import Simulated
from paceline.scheduling.simulator import simulate

HERE = Path(__file__).parent
SOURCE = Path(lab.__file__).parents[2]
HOSTS, SLOTS, LINK, DEVICE = 4, 2, "1Gb/s", "T4"  # the name of a device of the catalogue; only its number counts
SIZES = (1, 2, 4)
BATCH, SAMPLES = 64, 1437
COLUMNS = (
    "policy",
    "job",
    "hosts",
    "slots",
    "link",
    "pace_s",
    "epochs",
    "arrival_s",
    "starts",
    "failures",
    "device_s",
    "accuracy_alone",
    "accuracy",
    "predicted_jct_s",
    "jct_s",
    "restart_s",
)


def job(name: str, seed: int, base: Path, epochs: int, pace: float, **more: Any) -> LiveJob:
    """LeNet-5 on digits with TernGrad, on 1, 2 or 4 slots."""
    words = f"--model paced_lenet:net --data digits --compression terngrad --optimizer momentum --seed {seed} --epochs {epochs}"
    path = os.pathsep.join(map(str, (HERE, SOURCE)))
    settings = {"PYTHONPATH": path, "PACE_S": str(pace), "OMP_NUM_THREADS": "1"}
    command = ("paceline", "train", *words.split(), "--global-batch", str(BATCH))
    return LiveJob(
        **{
            "name": name,
            "command": command,
            "checkpoint": str(base / name),
            "environment": settings,
            "max_devices": SIZES[-1],
            "grace_s": 20.0,
            **more,
        }
    )


def alone(one: LiveJob) -> float:
    """The accuracy of the job by itself, on two workers and without the sleep."""
    words = [sys.executable, "-m", *one.command, "--workers", "2", "--out", one.checkpoint]
    subprocess.run(words, env={**os.environ, **one.environment, "PACE_S": "0"}, check=True, capture_output=True, timeout=600)
    return float(json.loads((Path(one.checkpoint) / "progress.json").read_text())["accuracy"])


def profile(executor: Executor, base: Path, pace: float, nodes: Sequence[str]) -> tuple[dict[int, float], float]:
    """Samples a second on each number of slots, and seconds from a submission to its first step."""
    speeds, starts = {}, []
    for size in SIZES:
        name = f"profile{size}"
        executor.submit(job(name, 0, base, 2, pace), {node: min(size, SLOTS) for node in nodes[: -(-size // SLOTS)]})
        began = time.time()
        while (seen := executor.poll()[name]).phase not in ("done", "failed"):
            time.sleep(0.5)
        if seen.phase == "failed":
            raise RuntimeError(f"{name} {seen.reason}")
        speeds[size] = seen.progress["samples_per_s"]
        starts.append(seen.since - began - 2 * SAMPLES / speeds[size])
    return speeds, float(np.median(starts))


class MeasuredRun:
    """A job of the simulator with measured speeds, its progress in samples."""

    def __init__(self, samples: float, speeds: Mapping[int, float]) -> None:
        self.to_next, self.speed, self.finished, self.batch, self.strategy = samples, 0.0, False, BATCH, ""
        self._speeds = speeds

    @property
    def outlook(self) -> MeasuredRun:
        return self

    def goodput(self, device_type: int, most: int) -> Array:
        table = np.zeros(most + 1)
        for size, speed in sorted(self._speeds.items()):
            table[size:] = speed
        return table

    def max_devices(self) -> int:
        return SIZES[-1]

    def seconds_left(self, device_type: int, most: int) -> Array:
        speed = self.goodput(device_type, most)
        return np.where(speed > 0, self.to_next / np.where(speed > 0, speed, 1.0), math.inf)

    def relative_spread(self) -> float:
        return 0.0

    def place(self, device: str, shape: tuple[int, ...], crossed: int = 0) -> None:
        self.speed = float(self.goodput(0, max(sum(shape), SIZES[-1]))[sum(shape)])

    def cross(self) -> None:
        self.finished = True

    def refresh(self) -> None:
        """It learns nothing."""

    def goes_to(self, left: float) -> None:
        self.to_next = left


def predicted(
    policy: str, arrivals: Sequence[float], epochs: int, speeds: Mapping[int, float], settings: Settings, outage: Outage
) -> Simulated:
    """The jobs by the simulator."""
    jobs = [
        Job(name=f"job{n}", arrival_s=at, devices=1, max_devices=SIZES[-1], adapts=frozenset({"devices"}), epochs=epochs)
        for n, at in enumerate(arrivals)
    ]
    fleet = Fleet((NodeGroup(DEVICE, HOSTS, SLOTS),), (outage,))
    samples = float(epochs * (SAMPLES // BATCH) * BATCH)
    schedule = simulate(jobs, fleet, policy_named(policy).decide, lambda _: MeasuredRun(samples, speeds), settings)
    return Simulated(policy=policy, schedule=schedule, settings=settings, knowledge="measured")


class Drill:
    """What goes wrong on the way, each once, at seconds after the start."""

    def __init__(self, cluster: lab.Lab, start_s: float, kill_s: float, back_s: float, controller_s: float) -> None:
        self._due: list[tuple[float, str, Callable[[], object]]] = [
            (start_s + controller_s, "slurmctld is started anew", cluster.restart_slurm_controller),
            (start_s + kill_s, "host 3 dies", lambda: cluster.power_off(HOSTS - 1)),
            (start_s + back_s, "host 3 is back", lambda: cluster.power_on(HOSTS - 1)),
        ]

    def go(self) -> bool:
        """Do what is due; whether a host has just died."""
        died = False
        for entry in [entry for entry in self._due if entry[0] <= time.time()]:
            print(f"--- {entry[1]}", flush=True)
            entry[2]()
            self._due.remove(entry)
            died |= "dies" in entry[1]
        return died


def measure(options: argparse.Namespace, base: Path) -> list[dict[str, object]]:
    """A row a job."""
    os.environ["PYTHONPATH"] = os.pathsep.join([str(SOURCE), str(HERE)])
    apart = [alone(job(f"alone{n}", n, base, options.epochs, 0.0)) for n in range(options.jobs)]
    print("alone: " + ", ".join(f"{100 * value:.1f} %" for value in apart), flush=True)
    arrivals = [n * options.every for n in range(options.jobs)]
    with lab.up(HOSTS, LINK, name=f"live{os.getpid()}", slurm_slots=SLOTS) as cluster:
        speeds, restart_s = profile(SlurmExecutor(base / "profile", enter=cluster.slurm()), base, options.pace, ["h0", "h1"])
        print(f"samples/s by slots: {speeds}; a start takes {restart_s:.1f} s", flush=True)
        settings = Settings(round_s=options.round, restart_s=restart_s, checkpoint_s=SAMPLES / speeds[1])
        outage = Outage(HOSTS - 1, options.kill, options.back)
        expected = predicted(options.policy, arrivals, options.epochs, speeds, settings, outage)
        policy = LiveAdapter(policy_named(options.policy).decide, DEVICE, options.round, restart_s=restart_s)
        start_s = time.time()
        drill = Drill(cluster, start_s, options.kill, options.back, options.controller)
        journal, runner = _begin(base, cluster, policy, options.round)
        for n, at in enumerate(arrivals):
            journal.add(job(f"job{n}", n, base, options.epochs, options.pace), start_s + at)
        while runner.round():
            if time.time() - start_s > options.longest:
                raise RuntimeError(f"not done after {options.longest:g} s: {journal.rows()}")
            if drill.go():
                journal.close()  # and the runner with it, as if it had been killed
                journal, runner = _begin(base, cluster, policy, options.round)
            time.sleep(options.round)
        rows = list(journal.rows().values())
        if options.report:
            live = live_schedule(journal, {f"h{n}": SLOTS for n in range(HOSTS)}, options.policy, options.round, DEVICE)
            options.report.write_text(render_schedules({"simulated": expected, "live": live}))
        journal.close()
    return [
        {
            "policy": options.policy,
            "job": row.name,
            "hosts": HOSTS,
            "slots": SLOTS,
            "link": LINK,
            "pace_s": options.pace,
            "epochs": options.epochs,
            "arrival_s": round(row.arrival_s - start_s, 1),
            "starts": row.starts,
            "failures": row.failures,
            "device_s": round(row.attained_s, 1),
            "accuracy_alone": round(apart[n], 4),
            "accuracy": round(row.progress["accuracy"], 4) if row.phase == "done" else math.nan,
            "predicted_jct_s": round(expected.schedule.outcomes[n].jct_s, 1),
            "jct_s": round(row.since - row.arrival_s, 1) if row.phase == "done" else math.nan,
            "restart_s": round(restart_s, 1),
        }
        for n, row in enumerate(sorted(rows, key=lambda row: row.arrival_s))
    ]


def _begin(base: Path, cluster: lab.Lab, policy: LivePolicy, round_s: float) -> tuple[Journal, Runner]:
    journal = Journal(base / "state")
    executor = SlurmExecutor(base / "jobs", enter=cluster.slurm())
    return journal, Runner(executor, journal, policy, round_s, say=lambda text: print(text, flush=True))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--report", type=Path, help="a page with both schedules, the simulated and the live")
    parser.add_argument("--policy", default="goodput", help="a policy by name, simulated and live")
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--every", type=float, default=20.0, help="seconds between arrivals")
    parser.add_argument("--pace", type=float, default=0.003, help="seconds a sample")
    parser.add_argument("--round", type=float, default=5.0, help="seconds between decisions")
    parser.add_argument("--controller", type=float, default=50.0, help="when slurmctld is started anew, seconds")
    parser.add_argument("--kill", type=float, default=90.0, help="when a host dies")
    parser.add_argument("--back", type=float, default=150.0, help="when it is back")
    parser.add_argument("--longest", type=float, default=1500.0)
    options = parser.parse_args()
    if lacking := lab.missing() + slurm.missing():
        sys.exit(f"Slurm on a lab needs {', '.join(lacking)}")
    with tempfile.TemporaryDirectory() as directory:
        rows = measure(options, Path(directory))
    print("job     arrival  starts  alone  reached  predicted JCT  JCT")
    for row in rows:
        append(options.out, COLUMNS, row)
        line = "{job:7} {arrival_s:6.0f} s {starts:6}  {accuracy_alone:6.2%} {accuracy:7.2%}  "
        line += "{predicted_jct_s:11.0f} s {jct_s:4.0f} s"
        print(line.format(**row))


if __name__ == "__main__":
    main()
