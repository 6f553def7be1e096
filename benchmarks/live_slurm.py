"""Real training jobs under a policy on a real Slurm: four hosts behind 1 Gb/s links, resized, preempted, one host killed.

    python benchmarks/live_slurm.py --out RESULTS/live_slurm.csv --report live.html

RESULTS is benchmarks/results. A row a job: its accuracy, that of the same run alone, and its completion time (JCT) as it was
predicted and as it was. The jobs train LeNet-5 on digits with TernGrad; all are processes of this machine. Devices
are slots: a step sleeps ``--pace`` seconds a sample (``paced_lenet.py``), since the slots share the cores of one machine.
On the way slurmctld is started anew, the runner is dropped and goes on from its journal, and a host dies and comes back.

One predictor serves the simulator, the policy and the runner. A job that ran alone on one slot corrects it, as its steps sleep:
the speed on two and four slots, over TernGrad and the link, is predicted. It also says what a start costs. The simulator knows
arrivals and the host's absence besides, and nothing of the run.
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
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rows import append

from paceline import lab
from paceline.cli.live_forecast import training_run_of
from paceline.lab import slurm
from paceline.reporting.pages.schedule_page import render_schedules
from paceline.scheduling.executors.executor import Executor
from paceline.scheduling.executors.slurm import SlurmExecutor
from paceline.scheduling.fleet import Fleet, Outage
from paceline.scheduling.launch import Launch
from paceline.scheduling.live.finished import live_schedule
from paceline.scheduling.live.forecast import forecast
from paceline.scheduling.live.journal import Journal, LiveRow, Report
from paceline.scheduling.live.nodes import DeviceKind, LiveNodes
from paceline.scheduling.live.policy import LiveAdapter, Outlooks
from paceline.scheduling.live.prediction import LivePredictions
from paceline.scheduling.live.runner import Planner, Runner, Snapshot
from paceline.scheduling.policies.registry import policy_named
from paceline.scheduling.simulate.schedule import ClusterSettings
from paceline.scheduling.simulate.simulated import SimulatedSchedule
from paceline.training.runs.launcher import probe

HERE = Path(__file__).parent
SOURCE = Path(lab.__file__).parents[2]
HOSTS, SLOTS, LINK = 4, 2, "1Gb/s"
THERE = {f"h{n}": SLOTS for n in range(HOSTS)}
MOST = 4
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


def job(name: str, seed: int, base: Path, epochs: int, pace: float, **more: Any) -> Launch:
    """LeNet-5 on digits with TernGrad, on 1, 2 or 4 slots."""
    words = f"--model paced_lenet:net --data digits --compression terngrad --optimizer momentum --seed {seed} --epochs {epochs}"
    path = os.pathsep.join(map(str, (HERE, SOURCE)))
    settings = {"PYTHONPATH": path, "PACE_S": str(pace), "OMP_NUM_THREADS": "1"}
    command = ("paceline", "train", *words.split(), "--global-batch", str(BATCH))
    return Launch.of(
        **{
            "name": name,
            "command": command,
            "checkpoint": str(base / name),
            "model": "lenet5",
            "environment": settings,
            "max_devices": MOST,
            "grace_s": 20.0,
            **more,
        }
    )


def alone(one: Launch) -> float:
    """The accuracy of the job by itself, on two workers and without the sleep."""
    words = [sys.executable, "-m", *one.command, "--workers", "2", "--out", one.checkpoint]
    subprocess.run(words, env={**os.environ, **one.environment, "PACE_S": "0"}, check=True, capture_output=True, timeout=600)
    return float(json.loads((Path(one.checkpoint) / "progress.json").read_text())["accuracy"])


def profiled(executor: Executor, base: Path, pace: float, node: str) -> LiveRow:
    """A job of two epochs that ran alone on one slot: what it reported, and what its start cost."""
    one = job("before", 0, base, 2, pace, max_devices=1)
    executor.submit(one, {node: 1})
    began = time.time()
    while (seen := executor.poll()[one.name]).phase not in ("done", "failed"):
        time.sleep(0.5)
    if seen.phase == "failed":
        raise RuntimeError(f"{one.name} {seen.reason}")
    speed = seen.progress["samples_per_s"]
    start_s = max(seen.since - began - 2 * SAMPLES / speed, 0.0)
    row = LiveRow(launch=one, arrival_s=began, since=seen.since, phase="done", is_over=True, progress=seen.progress)
    return replace(row, restart_s=start_s).reporting(Report({node: 1}, speed, seen.progress.get("exchange_s")))


def predicted(
    policy: str, arriving: Sequence[LiveRow], before: LiveRow, outlooks: Outlooks, settings: ClusterSettings, fleet: Fleet
) -> SimulatedSchedule:
    """The jobs by the simulator."""
    now_s = min(row.arrival_s for row in arriving)
    live = Snapshot(now_s=now_s, rows=arriving, placed={}, nodes=tuple(THERE.items()), past=[before])
    expected = forecast(arriving, live, policy, fleet, outlooks, settings)
    if expected is None:
        raise RuntimeError("a job is not predicted")
    return expected.simulated


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
    machine = probe(SLOTS)
    with lab.up(HOSTS, LINK, name=f"live{os.getpid()}", slurm_slots=SLOTS) as cluster:
        before = profiled(SlurmExecutor(base / "profile", enter=cluster.slurm()), base, options.pace, "h0")
        speed, restart_s = before.reports[0].samples_per_s, before.restart_s or 0.0
        print(f"{speed:.0f} samples/s on a slot; a start takes {restart_s:.1f} s", flush=True)
        nodes = LiveNodes((DeviceKind("*", machine.device.name, machine),), LINK)
        outlooks = LivePredictions(nodes, training_run_of)
        settings = ClusterSettings(round_s=options.round, restart_s=restart_s, checkpoint_s=SAMPLES / speed)
        fleet = replace(nodes.fleet(THERE)[0], outages=(Outage(HOSTS - 1, options.kill, options.back),))
        start_s = time.time()
        jobs = [job(f"job{n}", n, base, options.epochs, options.pace) for n in range(options.jobs)]
        arriving = [LiveRow(launch=one, arrival_s=start_s + at) for one, at in zip(jobs, arrivals, strict=True)]
        expected = predicted(options.policy, arriving, before, outlooks, settings, fleet)
        policy = LiveAdapter(policy_named(options.policy).decide, options.round, nodes, outlooks, restart_s)
        drill = Drill(cluster, start_s, options.kill, options.back, options.controller)
        journal, runner = _begin(base, cluster, policy, options.round)
        journal.add(before.launch, before.arrival_s)
        journal.save([before])
        for row in arriving:
            journal.add(row.launch, row.arrival_s)
        while runner.round():
            if time.time() - start_s > options.longest:
                raise RuntimeError(f"not done after {options.longest:g} s: {journal.rows()}")
            if drill.go():
                journal.close()  # and the runner with it, as if it had been killed
                journal, runner = _begin(base, cluster, policy, options.round)
            time.sleep(options.round)
        rows = [row for row in journal.rows().values() if row.launch in jobs]
        if options.report:
            live = live_schedule(journal, THERE, options.policy, options.round, nodes)
            ran = tuple(outcome for outcome in live.schedule.outcomes if outcome.job.name != before.name)
            live = replace(live, schedule=replace(live.schedule, outcomes=ran))
            options.report.write_text(render_schedules({"predicted": expected, "live": live}))
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


def _begin(base: Path, cluster: lab.Lab, policy: Planner, round_s: float) -> tuple[Journal, Runner]:
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
