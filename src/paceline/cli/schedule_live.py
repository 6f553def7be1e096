"""``paceline schedule live``: jobs run for real under a policy, on this machine, on Slurm or on Ray."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

from paceline.cli.parser import Answer, Parser
from paceline.cli.schedule_arguments import add_stop_early
from paceline.errors import Interrupted, UserError, known_name
from paceline.reporting.screen import Paragraph, Screen, Table
from paceline.units import format_seconds, parse_seconds

if TYPE_CHECKING:
    from paceline.scheduling.executors import Executor
    from paceline.scheduling.journal import Journal
    from paceline.scheduling.simulated import Simulated

EXECUTORS = ("local", "slurm", "ray")
STATE = "runs/live"
LIVE = "example:\n  paceline schedule live examples/jobs.toml --executor local --slots 2 --policy las"


def add_live(live: Parser) -> None:
    """Add what ``paceline schedule live`` takes."""
    live.runs(_live, LIVE)
    live.add_argument("file", metavar="JOBS.toml", help="a table [[job]] for each job: name, command, arrival, devices")
    live.add_argument("--executor", metavar="E", required=True, help="what runs them: local, slurm, ray")
    live.add_argument("--policy", metavar="P", required=True, help="what gives out devices: a policy by name, or even")
    live.add_argument("--slots", metavar="N", type=int, help="with local: devices of this machine")
    live.add_argument("--gpus", action="store_true", help="with slurm and ray: a device is a GPU, not a CPU")
    live.add_argument("--lab", metavar="NAME", default="", help="with slurm: the lab whose Slurm it is")
    live.add_argument("--round", metavar="TIME", default="10s", help="time between decisions (default 10s)")
    state = f"directory of the state; the same command goes on from it (default {STATE})"
    live.add_argument("--state", metavar="DIR", default=STATE, help=state)
    add_stop_early(live)
    live.add_argument("--report", action="store_true", help="also write report.html there")
    live.set_defaults(own_progress=True)


def _live(o: argparse.Namespace) -> Answer:
    from paceline.scheduling.jobs_file import read_jobs
    from paceline.scheduling.journal import NAME, Journal
    from paceline.scheduling.live import LivePolicy, Runner, check_start
    from paceline.scheduling.live_policy import LiveAdapter, even
    from paceline.scheduling.live_schedule import live_schedule
    from paceline.scheduling.policies.early_stop import EarlyStop, stopping_early
    from paceline.scheduling.policies.registry import ALIASES, POLICIES

    executor_name, round_s = known_name("executor", o.executor, EXECUTORS), parse_seconds(o.round)
    policy_name = known_name("policy", o.policy, [*POLICIES, "even"], ALIASES)
    policy: LivePolicy = even
    if policy_name != "even":
        decide = POLICIES[policy_name].decide
        decide = stopping_early(decide, EarlyStop.named(o.stop_early)) if o.stop_early else decide
        policy = LiveAdapter(decide, "device", round_s)
    elif o.stop_early:
        raise UserError("the policy even reads no reports, so it cannot stop early", f"use one of {', '.join(POLICIES)}")
    jobs = read_jobs(o.file)
    with Journal(f"{o.state}/{NAME}") as journal:
        executor, known, began = _executor(o, executor_name), journal.rows(), time.time()
        new = [job for job, _ in jobs if job.name not in known]
        if new or not all(row.is_over for row in known.values()):
            check_start(executor, new)
        journal.remember(policy=policy_name, executor=executor_name)
        for job, arrival_s in jobs:
            journal.add(job, known[job.name].arrival_s if job.name in known else began + arrival_s)
        runner = Runner(executor, journal, policy, round_s, say=lambda text: print(text, file=sys.stderr, flush=True))
        try:
            runner.run()
        except KeyboardInterrupt as error:
            kept = "its jobs run on; the same command goes on with them"
            raise Interrupted(getattr(error, "number", signal.SIGINT), kept) from None
        data, screen = _answer(journal, o.state)
        files = _write(o, live_schedule(journal, dict(executor.nodes()), policy_name, round_s))
        return data, screen.writing(*files)


def _executor(o: argparse.Namespace, name: str) -> Executor:
    for option, of, is_given in (("--slots", "local", o.slots is not None), ("--lab", "slurm", bool(o.lab))):
        if is_given and name != of:
            raise UserError(f"{option} belongs to {of}, not to {name}", "leave it out")
    directory = f"{o.state}/jobs"
    if name == "local":
        from paceline.scheduling.executors.local import LocalExecutor

        if o.gpus:
            raise UserError("--gpus belongs to slurm and ray, not to local", "leave it out: local has slots")
        if o.slots is None:
            raise UserError("--slots is missing", "say how many devices this machine has, such as --slots 4")
        return LocalExecutor(directory, o.slots)
    if name == "slurm":
        from paceline import lab
        from paceline.scheduling.executors.slurm import SlurmExecutor

        return SlurmExecutor(directory, enter=lab.find(o.lab).slurm() if o.lab else (), gpus=o.gpus)
    from paceline.scheduling.executors.ray import RayExecutor

    return RayExecutor(directory, gpus=o.gpus)


def _write(o: argparse.Namespace, simulated: Simulated) -> list[str]:
    """The schedule in the state's directory, where ``schedule why`` reads it, and the page where it is asked for."""
    from paceline.rundir import RunDir
    from paceline.scheduling.saved import to_json

    directory, schedules = RunDir(o.state), {simulated.policy: simulated}
    directory.write_schedule(to_json(schedules))
    files = [f"schedule: {directory.schedule_path}"]
    if o.report:
        from paceline.reporting.schedule_page import render_schedules

        files.append(f"report: {directory.write_report(render_schedules(schedules))}")
    return files


def _answer(journal: Journal, state: str) -> tuple[dict[str, Any], Screen]:
    """A row a job: when it came, how long it took, what it held. The exit code is 1 where a job failed."""
    rows = list(journal.rows().values())
    data: list[dict[str, Any]] = [
        {
            "name": row.name,
            "phase": row.phase,
            "removed": row.is_removed,
            "arrival": row.arrival_s,
            "jct_s": row.since - row.arrival_s,
            "expected_jct_s": None if row.expected_end_s is None else row.expected_end_s - row.arrival_s,
            "starts": row.starts,
            "device_s": row.attained_s,
            "progress": dict(row.progress),
            "reason": row.reason,
            "spans": [span.__dict__ for span in journal.spans(row.name)],
            "events": [{"at": at, "what": what} for at, _, what in journal.events(row.name)],
        }
        for row in rows
    ]
    shown = [
        (
            job["name"],
            "removed" if job["removed"] else job["phase"],
            format_seconds(job["jct_s"]),
            str(job["starts"]),
            format_seconds(job["device_s"]),
        )
        for job in data
    ]
    removed = [f"{row.name}: {row.reason}" for row in rows if row.is_removed]
    failed = [
        f"{row.name}: {row.reason} ({state}/jobs/{row.name}.log)"
        for row in rows
        if row.phase == "failed" and not row.is_removed
    ]
    done = sum(job["phase"] == "done" for job in data)
    brief = f"{done} of {len(data)} jobs are done"
    table = Table(("job", "end", "completion", "starts", "device time"), shown, frozenset({0, 1}))
    lines = [*(Paragraph(line, "bad") for line in failed), *map(Paragraph, removed)]
    screen = Screen(title=brief, answer=(table, *lines), brief="; ".join([brief, *failed, *removed]))
    return {"jobs": data, "state": state, "exit_code": int(bool(failed))}, screen
