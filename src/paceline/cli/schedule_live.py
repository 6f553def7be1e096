"""``paceline schedule live``: jobs run for real under a policy, on this machine, Slurm, Ray or Kubernetes.

The simulator predicts their end times first, with the same predictor and policy.
"""

from __future__ import annotations

import argparse
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from paceline.cli.arguments.schedule_arguments import add_queues, add_stop_early
from paceline.cli.live_forecast import PREDICTED, check_decides, live_nodes, say, say_forecast, training_run_of
from paceline.cli.parser import Answer, Parser
from paceline.errors import Interrupted, UserError, known_name
from paceline.exit_codes import ExitCode
from paceline.reporting.text.screen import Paragraph, Screen, Table
from paceline.units import format_seconds, parse_seconds

if TYPE_CHECKING:
    from paceline.scheduling.executors import Executor
    from paceline.scheduling.job import Job
    from paceline.scheduling.live.journal import Journal
    from paceline.scheduling.queues.queues_file import Settings
    from paceline.scheduling.simulate.simulated import SimulatedSchedule

EXECUTORS = ("local", "slurm", "ray", "kubernetes")
KUBERNETES = {
    "image": ("IMAGE", "container image of the pods, with the programs of the jobs"),
    "claim": ("NAME:/PATH", "volume claim with the jobs' folders, and its path in pods and here"),
    "queue": ("NAME", "LocalQueue of Kueue (default: Jobs start without Kueue)"),
    "resource": ("R", "resource that is a device, such as nvidia.com/mig-1g.5gb (default: nvidia.com/gpu or cpu)"),
    "namespace": ("NAME", "namespace (default: the context's)"),
    "context": ("NAME", "context of the kubeconfig (default: the current one)"),
}
"""Options of the executor on Kubernetes with metavar and help."""
STATE = "runs/live"
LIVE = "example:\n  paceline schedule live examples/jobs.toml --executor local --slots 2 --policy las"


def add_live(live: Parser) -> None:
    """Add the arguments of ``paceline schedule live``."""
    live.runs(_live, LIVE)
    live.add_argument("file", metavar="JOBS.toml", help="a table [[job]] for each job: name, command, arrival, devices")
    live.add_argument("--executor", metavar="E", required=True, help="what runs them: local, slurm, ray, kubernetes")
    live.add_argument("--policy", metavar="P", required=True, help="what gives out devices: a policy by name, or even")
    add_queues(live)
    live.add_argument("--slots", metavar="N", type=int, help="with local: devices of this machine")
    live.add_argument("--gpus", action="store_true", help="not with local: a device is a GPU, not a CPU")
    devices = (
        "device of the nodes, for predictions: A100, NODES=A100 with a pattern such as gpu-*, a probe's FILE.json, or none; "
        "may be repeated (default: local, a probe of this machine; slurm --gpus, what Slurm says)"
    )
    live.add_argument("--device", metavar="D", action="append", help=devices)
    live.add_argument("--network", metavar="NAME", default="", help="between nodes, for predictions, such as 100Gb/s")
    live.add_argument("--lab", metavar="NAME", default="", help="with slurm: the lab whose Slurm it is")
    for option, (metavar, help_text) in KUBERNETES.items():
        live.add_argument(f"--{option}", metavar=metavar, default="", help=f"with kubernetes: {help_text}")
    live.add_argument("--round", metavar="TIME", default="10s", help="time between decisions (default 10s)")
    restart = "cost of a start before one was measured (default 30s)"
    live.add_argument("--restart", metavar="TIME", default="30s", help=restart)
    state = f"directory of the state; the same command continues from it (default {STATE})"
    live.add_argument("--state", metavar="DIR", default=STATE, help=state)
    add_stop_early(live)
    live.add_argument("--report", action="store_true", help="also write report.html there")
    live.set_defaults(own_progress=True)


def _live(o: argparse.Namespace) -> Answer:
    from paceline.scheduling.jobs_file import read_jobs
    from paceline.scheduling.live.finished import live_schedule
    from paceline.scheduling.live.journal import NAME, Journal, LiveRow
    from paceline.scheduling.live.policy import LiveAdapter, even, restarts, with_grace
    from paceline.scheduling.live.prediction import LivePredictions
    from paceline.scheduling.live.runner import Planner, Runner, Snapshot, check_start, first_look
    from paceline.scheduling.policies.registry import ALIASES, POLICIES, configured
    from paceline.scheduling.policies.wrappers.early_stop import EarlyStop, stopping_early
    from paceline.scheduling.simulate.schedule import ClusterSettings

    executor_name = known_name("executor", o.executor, EXECUTORS)
    round_s, restart_s = parse_seconds(o.round), parse_seconds(o.restart)
    policy_name = known_name("policy", o.policy, [*POLICIES, "even"], ALIASES)
    if o.stop_early and policy_name == "even":
        raise UserError("the policy even reads no reports, so it cannot stop early", f"use one of {', '.join(POLICIES)}")
    jobs = read_jobs(o.file)
    queues = _queues(o, policy_name, [job.job for job, _ in jobs])
    jobs = [(with_grace(job, queues), after_s) for job, after_s in jobs]
    with Journal(f"{o.state}/{NAME}") as journal:
        executor, known = _executor(o, executor_name), journal.rows()
        new = [job for job, _ in jobs if job.name not in known]
        nodes = live_nodes(o, executor, [*new, *(row.launch for row in known.values() if not row.is_over)])
        if new or not all(row.is_over for row in known.values()):
            check_start(executor, new, nodes)
        there = first_look(executor)
        devices = sum(count for _, count in there)
        for row in known.values():
            if not row.is_over and row.launch.sizes[0] > devices:
                say(f"{row.name} waits: it asks for {row.launch.sizes[0]:,} devices, and the executor has {devices:,}")
        began = time.time()
        arriving = [
            LiveRow(launch=job, arrival_s=began + after_s, since=began + after_s) for job, after_s in jobs if job in new
        ]
        rows = [*(row for row in known.values() if not row.is_over), *arriving]
        policy: Planner = even
        ends: dict[str, float] = {}
        if policy_name != "even":
            decide = configured(policy_name, queues)
            decide = stopping_early(decide, EarlyStop.named(o.stop_early)) if o.stop_early else decide
            predictions = LivePredictions(nodes, training_run_of)
            policy = LiveAdapter(decide, round_s, nodes, predictions, restart_s)
            if new:
                past = [row for row in known.values() if row.is_over]
                live = Snapshot(now_s=began, rows=rows, placed={}, nodes=there, past=past)
                check_decides(policy, live)
                settings = ClusterSettings(round_s=round_s, restart_s=float(restarts(live, restart_s).mean()))
                ends, forecast = say_forecast(live, policy_name, nodes, predictions, settings, queues)
                journal.remember(forecast=forecast)
        if journal.facts().get("policy") != policy_name:
            journal.remember(memory=None)
        journal.remember(policy=policy_name, executor=executor_name, devices=nodes.patterns)
        for job, after_s in jobs:  # an existing job is compared with its earlier declaration
            journal.add(job, began + after_s)
        journal.save([replace(row, expected_end_s=ends.get(row.name)) for row in arriving])
        runner = Runner(executor, journal, policy, round_s, say=say)
        try:
            runner.run()
        except KeyboardInterrupt as error:
            kept = "its jobs run on; the same command continues with them"
            raise Interrupted(getattr(error, "number", signal.SIGINT), kept) from None
        data, screen = _answer(journal, o.state)
        achieved = live_schedule(journal, journal.facts().get("nodes", {}), policy_name, round_s)
        files = _write(o, achieved, journal.facts().get("forecast"))
        return data, screen.writing(*files)


def _queues(o: argparse.Namespace, policy: str, jobs: Sequence[Job]) -> Settings | None:
    """Return the settings of the cluster's scheduler, and say what they lack. Raises UserError if the policy takes none."""
    from paceline.scheduling.policies.registry import check_queues
    from paceline.scheduling.queues.queues_file import read_queues
    from paceline.scheduling.queues.unknown_names import ignored_limits, unknown_names

    if not o.queues:
        return None
    if policy == "even":
        raise UserError("the policy even takes no --queues", "use slurm or kueue")
    queues = read_queues(o.queues)
    check_queues([policy], queues)
    for remark in (*unknown_names(jobs, queues), *ignored_limits(queues)):
        say(remark)
    return queues


def _executor(o: argparse.Namespace, name: str) -> Executor:
    for option, of, is_given in (("--slots", "local", o.slots is not None), ("--lab", "slurm", bool(o.lab))):
        if is_given and name != of:
            raise UserError(f"{option} belongs to {of}, not to {name}", "leave it out")
    for option in KUBERNETES:
        if getattr(o, option) and name != "kubernetes":
            raise UserError(f"--{option} belongs to kubernetes, not to {name}", "leave it out")
    directory = f"{o.state}/jobs"
    if name == "kubernetes":
        from paceline.scheduling.executors.kubernetes.executor import KubernetesExecutor
        from paceline.scheduling.executors.kubernetes.settings import GPU, KubernetesSettings

        claim, _, mount = o.claim.partition(":")
        stated = {option: getattr(o, option) for option in ("image", "queue", "namespace", "context")}
        resource = o.resource or (GPU if o.gpus else "cpu")
        return KubernetesExecutor(directory, KubernetesSettings(claim=claim, mount=mount, resource=resource, **stated))
    if name == "local":
        from paceline.scheduling.executors.local import LocalExecutor

        if o.gpus:
            raise UserError("--gpus belongs to slurm, ray and kubernetes, not to local", "leave it out: local has slots")
        if o.slots is None:
            raise UserError("--slots is missing", "say how many devices this machine has, such as --slots 4")
        return LocalExecutor(directory, o.slots)
    if name == "slurm":
        from paceline import lab
        from paceline.scheduling.executors.slurm import SlurmExecutor

        return SlurmExecutor(directory, enter=lab.find(o.lab).slurm() if o.lab else (), gpus=o.gpus)
    from paceline.scheduling.executors.ray import RayExecutor

    return RayExecutor(directory, gpus=o.gpus)


def _write(o: argparse.Namespace, achieved: SimulatedSchedule, forecast: Mapping[str, Any] | None) -> list[str]:
    """Write the schedule to the state directory, for ``schedule why``, and the page, if requested.

    The page also shows the forecast, if it was for the same jobs.
    """
    from paceline.rundir import RunDir
    from paceline.scheduling.simulate.saved import from_json, to_json

    directory, schedules = RunDir(o.state), {achieved.policy: achieved}
    directory.write_schedule(to_json(schedules))
    files = [f"schedule: {directory.schedule_path}"]
    if o.report:
        from paceline.reporting.pages.schedule_page import render_schedules

        before = from_json(forecast) if forecast else {}
        if before and [row["name"] for row in before[PREDICTED].rows()] == [row["name"] for row in achieved.rows()]:
            schedules = {**before, **schedules}
        files.append(f"report: {directory.write_report(render_schedules(schedules))}")
    return files


def _answer(journal: Journal, state: str) -> tuple[dict[str, Any], Screen]:
    """Return the rows of the jobs and the screen, with the exit code if a job failed."""
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
            "" if job["expected_jct_s"] is None else format_seconds(job["expected_jct_s"]),
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
    table = Table(("job", "end", "completion", "predicted", "starts", "device time"), shown, frozenset({0, 1}))
    told = any(job["expected_jct_s"] is not None for job in data)
    source = "Predicted: before a job ran, or where that could not be told, by its first report that tells."
    lines = [*(Paragraph(line, "bad") for line in failed), *map(Paragraph, removed), *([Paragraph(source)] if told else [])]
    screen = Screen(title=brief, answer=(table, *lines), brief="; ".join([brief, *failed, *removed]))
    late = [row.name for row in rows if row.is_over and row.since > row.arrival_s + row.launch.job.deadline_s]
    code = {"exit_code": int(ExitCode.FAILED)} if failed else {}
    return {"jobs": data, "state": state, **code}, screen.missing(*(f"TOO LATE: {name}" for name in late))
