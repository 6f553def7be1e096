"""Options for the jobs, the nodes and the behaviour of a simulated cluster."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from paceline.cli.arguments.prediction_arguments import add_price_argument
from paceline.cli.guide.sections import common, section
from paceline.errors import UserError, known_name, shorten
from paceline.hardware.prices import parse_prices
from paceline.units import parse_seconds

if TYPE_CHECKING:
    from paceline.scheduling.simulate.scenario import Scenario


def add_cluster_of_jobs(parser: argparse.ArgumentParser) -> None:
    """Add the options for jobs, nodes, knowledge and behaviour of the cluster."""
    jobs = section(parser, "jobs")
    machines = section(parser, "machines")
    scheduler = section(parser, "scheduler")
    failures = section(parser, "failures")
    answers = section(parser, "answer")
    forms = "jobs: a CSV of your own, or the log of a cluster: sacct -P, sacct --json, Kueue, SWF, published traces"
    parser.add_argument("trace", metavar="TRACE", help=forms)
    where = "only rows with this value, such as set=1.0x; may be repeated"
    jobs.add_argument("--where", metavar="COLUMN=VALUE", action="append", help=where)
    racks = "'16x8xA100, 100Gb/s, leaf-nodes=4, oversubscription=2:1'"
    nodes = f"nodes: 16x4xT4, or '6x4xT4 + 3x8x2080Ti'; with a network and racks: {racks}"
    common(machines.add_argument("--cluster", metavar="C", required=True, help=nodes))
    drop = "leave out jobs larger than the cluster; the answer says how many"
    jobs.add_argument("--drop-too-large", action="store_true", help=drop)
    any_type = "let jobs use every device type of the cluster, whatever types the file names"
    jobs.add_argument("--any-type", action="store_true", help=any_type)
    profiles = "folder of measured step times and noise; jobs of these models run as measured"
    jobs.add_argument("--profiles", metavar="DIR", default="", help=profiles)
    knowledge = "what policies know: online (what a job saw, default), measured (the truth), predicted"
    jobs.add_argument("--knowledge", metavar="K", default="online", help=knowledge)
    rounds = "time between decisions (default 60s); 0: decide at every arrival, end and outage"
    scheduler.add_argument("--round", metavar="TIME", default="60s", help=rounds)
    scheduler.add_argument("--restart", metavar="TIME", default="30s", help="cost of a start or resize (default 30s)")
    add_queues(scheduler)
    ageing = "policies as published, under which a job may starve"
    scheduler.add_argument("--no-ageing", action="store_true", help=ageing)
    interference = "speed lost by jobs on several nodes that share one, from 0 to 1 (default 0)"
    scheduler.add_argument("--interference", metavar="SHARE", type=float, default=0.0, help=interference)
    checkpoint = "time between checkpoints; a failure costs the work since the last one (default 10min)"
    failures.add_argument("--checkpoint", metavar="TIME", default="10min", help=checkpoint)
    outage = "a node that fails, such as 3:2h-5h after the trace's start; may be repeated"
    failures.add_argument("--outage", metavar="NODE:START-END", action="append", help=outage)
    maintenance = "a node and the time of its maintenance, such as 3:2h-5h; jobs leave it before; may be repeated"
    failures.add_argument("--maintenance", metavar="NODE:START-END", action="append", help=maintenance)
    failures.add_argument(
        "--failures", metavar="TIME", default="", help="mean time between random failures of a node, such as 30d"
    )
    failures.add_argument(
        "--repair", metavar="TIME", default="4h", help="time to repair a node that failed at random (default 4h)"
    )
    add_price_argument(parser)
    add_stop_early(parser)
    answers.add_argument("--skipped", action="store_true", help="list the rows of a log that were left out, with the reason")
    fairness = "how fairness is found: estimate (from what jobs held, default), alone (each job simulated alone; slow)"
    answers.add_argument("--fairness", metavar="F", default="estimate", help=fairness)
    seed = "seed of random failures and confidence intervals (default 0)"
    answers.add_argument("--seed", metavar="S", type=int, default=0, help=seed)


QUEUES = "settings of the policy slurm or kueue: `scontrol show config`, ClusterQueues in YAML or JSON, or a TOML file"
"""Help of the option ``--queues``."""


def add_queues(parser: argparse._ActionsContainer, help_text: str = QUEUES) -> argparse.Action:
    """Add the option for the settings of the cluster's own scheduler."""
    return parser.add_argument("--queues", metavar="FILE", default="", help=help_text)


def add_stop_early(parser: argparse.ArgumentParser) -> None:
    """Add the option for early termination."""
    jobs = section(parser, "jobs")
    text = "end a job whose last REPORTS (epochs) add less than SHARE (default 1%%) of its earlier progress, such as 5:1%%"
    jobs.add_argument("--stop-early", metavar="REPORTS:SHARE", default="", help=text)


def scenario_of(o: argparse.Namespace) -> Scenario:
    """Return the scenario given by the options of ``add_cluster_of_jobs``. Raises UserError."""
    from paceline.scheduling.simulate.failures import parse_outages
    from paceline.scheduling.simulate.scenario import FAIRNESS, KNOWLEDGE
    from paceline.scheduling.simulate.schedule import ClusterSettings
    from paceline.scheduling.verb import scenario

    if not 0 <= o.interference < 1:
        raise UserError(f"--interference {o.interference:g} is not a share", "give a share of the speed from 0 to below 1")
    if o.seed < 0:
        raise UserError(f"--seed {o.seed}", "give a whole number from 0 up")
    settings = ClusterSettings(
        round_s=_seconds(o, "round", or_none=True),
        restart_s=_seconds(o, "restart", or_none=True),
        interference=o.interference,
        checkpoint_s=_seconds(o, "checkpoint"),
    )
    return scenario(
        o.trace,
        o.cluster,
        where=dict(map(_equation, o.where or ())),
        profiles=o.profiles,
        knowledge=known_name("knowledge", o.knowledge, KNOWLEDGE),  # type: ignore[arg-type]
        settings=settings,
        outages=[*parse_outages(o.outage or (), planned=False), *parse_outages(o.maintenance or (), planned=True)],
        failures_s=_seconds(o, "failures") if o.failures else 0.0,
        repair_s=_seconds(o, "repair"),
        prices=parse_prices(o.price or ()),
        seed=o.seed,
        stop_early=o.stop_early or None,
        fairness=known_name("fairness", o.fairness, FAIRNESS),  # type: ignore[arg-type]
        ageing=not o.no_ageing,
        drop_too_large=o.drop_too_large,
        queues=o.queues or None,
        any_type=o.any_type,
    )


def _seconds(o: argparse.Namespace, option: str, or_none: bool = False) -> float:
    """Return the time that an option gives. ``or_none``: ``0`` is legal too. Raises UserError that names the option."""
    from paceline.scheduling.job import LONGEST_S

    text: str = getattr(o, option)
    if or_none and text.strip() in ("0", "0s", "0 s"):
        return 0.0
    try:
        seconds = parse_seconds(text)
    except UserError as error:
        raise UserError(f"--{option}: {error.message}", error.fix) from None
    if seconds > LONGEST_S:
        raise UserError(f"--{option} {shorten(text, 40)}", "give at most 31 years")
    return seconds


def _equation(text: str) -> tuple[str, str]:
    column, equals, value = text.partition("=")
    if not (column.strip() and equals and value.strip()):
        raise UserError(f"--where {shorten(text, 40)!r}", "write COLUMN=VALUE, such as set=1.0x")
    return column.strip(), value.strip()
