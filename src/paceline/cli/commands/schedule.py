"""``paceline schedule``: simulate jobs on a shared cluster, compare policies, explain waits."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.cli.arguments.schedule_arguments import add_cluster_of_jobs, scenario_of
from paceline.cli.guide.sections import common, section
from paceline.cli.parser import BRIEF, Answer, Parser
from paceline.cli.schedule_live import STATE, add_live
from paceline.cli.schedule_start import add_start
from paceline.errors import UserError, known_name
from paceline.rundir import RunDir

if TYPE_CHECKING:
    from paceline.scheduling.simulate.simulated import SimulatedSchedule

OUT = "runs/schedule"
EXAMPLE = """example:
  paceline schedule examples/jobs.csv --cluster 2x4xT4 --policy las
  paceline schedule compare examples/jobs.csv --cluster 2x4xT4 --policies fifo,las
  paceline schedule why nightly-2"""
RUN = "example:\n  paceline schedule run examples/jobs.csv --cluster 2x4xT4 --policy las"
COMPARE = "example:\n  paceline schedule compare examples/jobs.csv --cluster 2x4xT4 --policies fifo,las --jobs 2"
WHY = "example:\n  paceline schedule why nightly-2"


def add(parser: Parser) -> None:
    """Add the actions of ``paceline schedule``. The default action simulates."""
    action = parser.group(EXAMPLE, usual="run")
    run = action("run", "simulate one policy (this is what schedule TRACE does)")
    run.runs(_run, RUN)
    add_cluster_of_jobs(run)
    policy = "what gives out devices: paceline (default), fifo, las, optimus, goodput and more"
    common(section(run, "scheduler").add_argument("--policy", metavar="P", default="paceline", help=policy))
    _add_out(run)

    compare = action("compare", "several policies on the same jobs, differences job by job")
    compare.runs(_compare, COMPARE)
    add_cluster_of_jobs(compare)
    policies = "names; the others are compared with the first"
    common(section(compare, "scheduler").add_argument("--policies", metavar="P,P", required=True, help=policies))
    compare.add_argument("--jobs", metavar="N", type=int, default=1, help="processes that simulate at once (default 1)")
    _add_out(compare)

    add_live(action("live", "run jobs for real under a policy: on this machine, on Slurm, on Ray"))

    add_start(action("start", "when the waiting jobs of a live queue start and end"))

    why = action("why", "why a job waited, and why it got its devices")
    why.runs(_why, WHY, shapes=BRIEF)
    directory = f"run directory of a schedule, or state of a live one (default: the newest of {OUT} and {STATE} with that job)"
    why.add_argument("directory", metavar="DIR", nargs="?", default="", help=directory)
    why.add_argument("job", metavar="JOB", help="the job's name")
    why.add_argument("--policy", metavar="P", default="", help="which one, where the directory holds several")


def _add_out(parser: Parser) -> None:
    answers = section(parser, "answer")
    common(answers.add_argument("--out", metavar="DIR", default=OUT, help=f"run directory of schedule.json (default {OUT})"))
    common(answers.add_argument("--report", action="store_true", help="also write report.html there"))


def _run(o: argparse.Namespace) -> Answer:
    from paceline.reporting.text.schedule_text import schedule_screen
    from paceline.scheduling.policies.registry import check_queues

    question, directory = scenario_of(o), RunDir(o.out)
    directory.check_writable()
    check_queues([o.policy], question.queues)
    simulated = question.run(o.policy, _progress(o, len(question.jobs)))
    data = simulated.to_json(o.skipped)
    screen = schedule_screen(simulated, _named(o), o.skipped).missing(*_missed(simulated))
    return _saved(o, directory, {simulated.policy: simulated}, data, screen)


def _named(o: argparse.Namespace) -> str:
    """Return the run directory as ``schedule why`` needs it; empty: the usual one."""
    return "" if o.out == OUT else str(o.out)


def _missed(simulated: SimulatedSchedule) -> Iterator[str]:
    """Yield the number of jobs that missed their deadlines, if any."""
    if late := simulated.metrics.deadlines - simulated.metrics.met:
        yield f"TOO LATE: {late:,} of {simulated.metrics.deadlines:,} deadlines"


def _compare(o: argparse.Namespace) -> Answer:
    from paceline.reporting.text.schedule_text import compare_screen
    from paceline.scheduling.policies.registry import check_queues, policy_name
    from paceline.scheduling.simulate.compare import compare, run_policies

    question, directory = scenario_of(o), RunDir(o.out)
    directory.check_writable()
    names = [policy_name(name.strip()) for name in o.policies.split(",") if name.strip()]
    check_queues(names, question.queues)
    finished: list[str] = []

    def done(name: str) -> None:
        finished.append(name)
        o.say(f"{len(finished)} of {len(names)} policies are done: {', '.join(finished)}")

    steps = {name: _progress(o, len(question.jobs), f"{name}, ") for name in names}
    simulated = run_policies(question, names, o.jobs, done, lambda name, moment, ended: steps[name](moment, ended))
    pairs = compare(simulated, o.seed)
    data = {"policies": [one.to_json(o.skipped) for one in simulated.values()], "paired": [pair.to_json() for pair in pairs]}
    late = [" ".join(_missed(each)) for each in simulated.values()]
    screen = compare_screen(simulated, pairs, _named(o), o.skipped)
    return _saved(o, directory, simulated, data, screen.missing("TOO LATE under each policy") if all(late) else screen)


def _saved(o: argparse.Namespace, directory: RunDir, simulated: Any, data: dict[str, Any], screen: Any) -> Answer:
    """Save the schedules in the run directory and the page, if requested. Returns the answer."""
    from paceline.scheduling.simulate.saved import to_json

    o.say("writing schedule.json")
    with directory.locked():
        directory.write_schedule(to_json(simulated))
        files = [f"schedule: {directory.schedule_path}"]
        data["schedule"] = str(directory.schedule_path)
        if o.report:
            from paceline.reporting.pages.schedule_page import render_schedules

            data["report"] = str(directory.write_report(render_schedules(simulated, o.seed)))
            files.append(f"report: {directory.report_path}")
    return data, screen.writing(*files)


def _why(o: argparse.Namespace) -> Answer:
    from paceline.reporting.text.schedule_text import why_screen
    from paceline.scheduling.simulate.wait_reasons import why

    given, job = o.directory, o.job
    if given and Path(job).is_dir() and not Path(given).is_dir():
        given, job = job, given
    if not given and Path(job).is_dir():
        raise UserError(f"{job} is a run directory, and no job is named", f"add a job: paceline schedule why {job} JOB")
    directory, simulated = _schedule_of(given, job)
    if not o.policy and len(simulated) > 1:
        names = ", ".join(simulated)
        raise UserError(f"{directory} holds several policies: {names}", f"choose `policy` {next(iter(simulated))}")
    name = known_name("policy", o.policy, simulated) if o.policy else next(iter(simulated))
    answer = why(simulated[name], job)
    return answer.to_json(), why_screen(answer)


def _schedule_of(directory: str, job: str) -> tuple[str, Mapping[str, SimulatedSchedule]]:
    """Return a directory and its schedules by policy.

    Without a directory, it is the newest of the usual ones that has a job of this name, else the newest.
    """
    if directory:
        return directory, _read_schedule(directory)
    usual = [name for name in (OUT, STATE) if Path(name).is_dir()]
    usual.sort(key=lambda name: max(path.stat().st_mtime for path in (Path(name), *Path(name).iterdir())), reverse=True)
    found = []
    for name in usual:
        with suppress(UserError):
            found.append((name, _read_schedule(name)))
    for name, schedules in found:
        if any(outcome.job.name == job for one in schedules.values() for outcome in one.schedule.outcomes):
            return name, schedules
    return found[0] if found else (OUT, _read_schedule(OUT))


def _read_schedule(name: str) -> Mapping[str, SimulatedSchedule]:
    """Read the schedules of a run directory by policy. Raises UserError if it has none."""
    from paceline.scheduling.live.finished import newer_journal, schedule_so_far
    from paceline.scheduling.simulate.saved import from_json

    directory = RunDir(name)
    journal = newer_journal(directory.path, directory.schedule_path)
    live = None if journal is None else schedule_so_far(journal, time.time())
    return directory.read_schedule(from_json) if live is None else {live.policy: live}


def _progress(o: argparse.Namespace, jobs: int, before: str = "") -> Callable[[float, int], None]:
    """Report the progress of the simulation at each hundredth of the jobs and at each day of the trace."""
    last = (-1, -1)

    def step(moment_s: float, ended: int) -> None:
        nonlocal last
        reached = 100 * ended // max(jobs, 1), int(moment_s // 86400)
        if reached != last:
            last = reached
            o.say(f"{before}day {reached[1]:,}, {reached[0]} % of the jobs done ({ended:,} of {jobs:,})")

    return step
