"""Registry of policies: name, choices, and source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial

from paceline.errors import UserError, known_name
from paceline.scheduling.job import Choice
from paceline.scheduling.policies.backfill.conservative import conservative
from paceline.scheduling.policies.backfill.easy import easy, priority
from paceline.scheduling.policies.backfill.kueue import kueue
from paceline.scheduling.policies.backfill.slurm import slurm
from paceline.scheduling.policies.critical_first import critical_first
from paceline.scheduling.policies.deadline import deadline
from paceline.scheduling.policies.drf import drf
from paceline.scheduling.policies.edf import edf
from paceline.scheduling.policies.finish_time_fairness import finish_time_fairness
from paceline.scheduling.policies.goodput import goodput
from paceline.scheduling.policies.hesrpt import hesrpt
from paceline.scheduling.policies.las import las
from paceline.scheduling.policies.makespan import makespan
from paceline.scheduling.policies.max_min import max_min
from paceline.scheduling.policies.most_progress import cost, max_throughput
from paceline.scheduling.policies.optimus import optimus
from paceline.scheduling.policies.paceline import paceline
from paceline.scheduling.policies.queueing import queueing
from paceline.scheduling.policies.rubick import rubick
from paceline.scheduling.policies.serving_order import fifo, srtf
from paceline.scheduling.policies.sia import sia
from paceline.scheduling.policies.themis import themis
from paceline.scheduling.policies.wrappers.ageing import aged, aged_by_deadlines
from paceline.scheduling.queues.kueue_settings import KueueSettings
from paceline.scheduling.queues.slurm_settings import SlurmSettings
from paceline.scheduling.state import Policy


@dataclass(frozen=True)
class PolicyEntry:
    """Policy with its properties.

    Attributes:
        published: the policy as published.
        adapts: properties that it chooses for jobs whose owners allow it. Others stay as requested.
        source: paper and section.
        types: True if it distinguishes device types.
        settings: class of its keyword ``settings``, which describe the cluster's own scheduler; None: it has none.
        starves: True if a job may wait for ever while others arrive. ``decide`` then ages jobs. Stated priorities and the
            rules of the cluster's own scheduler stay as they are.
        needs_lengths: True if it asks for the remaining work of each job.
    """

    published: Policy
    adapts: frozenset[Choice]
    source: str
    types: bool = False
    settings: type | None = None
    starves: bool = True
    needs_lengths: bool = False

    @cached_property
    def decide(self) -> Policy:
        """The policy, with ageing if it could starve jobs."""
        if not self.starves:
            return self.published
        return aged_by_deadlines(self.published) if self.published is deadline else aged(self.published)


RIGID: frozenset[Choice] = frozenset()
ELASTIC: frozenset[Choice] = frozenset({"devices"})
ADAPTIVE: frozenset[Choice] = frozenset({"devices", "batch"})
REPLANNED: frozenset[Choice] = frozenset({"devices", "strategy"})

POLICIES: Mapping[str, PolicyEntry] = {
    "fifo": PolicyEntry(fifo, RIGID, "first in, first out", types=True, starves=False),
    "easy": PolicyEntry(easy, RIGID, "EASY backfill: Mu'alem and Feitelson, TPDS 2001, section 2", types=True, starves=False),
    "conservative": PolicyEntry(conservative, RIGID, "conservative backfill: the same", types=True, starves=False),
    "priority": PolicyEntry(priority, RIGID, "preemption by priority, with EASY backfill", types=True, starves=False),
    "slurm": PolicyEntry(
        slurm, RIGID, "Slurm's multifactor priority and backfill", types=True, settings=SlurmSettings, starves=False
    ),
    "kueue": PolicyEntry(
        kueue, RIGID, "Kueue's quotas, cohorts and preemption", types=True, settings=KueueSettings, starves=False
    ),
    "las": PolicyEntry(las, RIGID, "Tiresias, NSDI 2019, section 4", types=True),
    "optimus": PolicyEntry(optimus, ELASTIC, "Optimus, EuroSys 2018, section 4.1", starves=False),
    "paceline": PolicyEntry(paceline, ADAPTIVE | REPLANNED, "this package", types=True),
    "goodput": PolicyEntry(goodput, ADAPTIVE, "Pollux, OSDI 2021, section 4.2"),
    "sia": PolicyEntry(sia, ADAPTIVE, "Sia, SOSP 2023, section 3.4", types=True),
    "rubick": PolicyEntry(rubick, REPLANNED, "Rubick, MLSys 2025, section 5", types=True, starves=False),
    "max_min": PolicyEntry(max_min, RIGID, "Gavel, OSDI 2020, section 4.1", types=True),
    "finish_time_fairness": PolicyEntry(
        finish_time_fairness, RIGID, "Gavel, OSDI 2020, section 4.2", types=True, needs_lengths=True
    ),
    "makespan": PolicyEntry(makespan, RIGID, "Gavel, OSDI 2020, section 4.2", types=True, needs_lengths=True),
    "cost": PolicyEntry(cost, RIGID, "Gavel, OSDI 2020, section 4.2", types=True),
    "max_throughput": PolicyEntry(max_throughput, RIGID, "Gavel, OSDI 2020, section 4.2", types=True),
    "critical_first": PolicyEntry(
        critical_first, RIGID, "ours: shortest remaining time over types, critical jobs first", types=True, needs_lengths=True
    ),
    "drf": PolicyEntry(drf, RIGID, "dominant resource fairness, NSDI 2011, algorithm 1", types=True),
    "themis": PolicyEntry(themis, RIGID, "Themis, NSDI 2020, sections 3 and 4", types=True, needs_lengths=True),
    "srtf": PolicyEntry(srtf, RIGID, "shortest remaining time first, of predicted times", types=True, needs_lengths=True),
    "edf": PolicyEntry(edf, ELASTIC, "earliest deadline first (Liu and Layland, 1973)", types=True),
    "deadline": PolicyEntry(deadline, ELASTIC, "ElasticFlow, ASPLOS 2023, section 4", needs_lengths=True),
    "hesrpt": PolicyEntry(hesrpt, ELASTIC, "Berg, Vesilo, Harchol-Balter, heSRPT, 2020, theorem 1", needs_lengths=True),
    "queueing": PolicyEntry(queueing, ELASTIC, "Lin, Paolieri, Chou, Golubchik, MASCOTS 2018", needs_lengths=True),
}


ALIASES: Mapping[str, str] = {
    "tiresias": "las",
    "pollux": "goodput",
    "gavel": "max_min",
    "elasticflow": "deadline",
    "fcfs": "fifo",
    "srpt": "srtf",
}
"""Names of systems, and their policy here."""


def policy_name(name: str) -> str:
    """Return the name of a policy in ``POLICIES``. Raises UserError with the nearest names."""
    return known_name("policy", name, POLICIES, ALIASES)


def policy_named(name: str) -> PolicyEntry:
    """Return the policy of that name or alias. Raises UserError with the nearest names."""
    return POLICIES[policy_name(name)]


def configured(name: str, queues: SlurmSettings | KueueSettings | None, ageing: bool = True) -> Policy:
    """Return the policy of that name with these settings. A policy without such settings stays as it is.

    Args:
        ageing: False: the policy as published.
    """
    entry = policy_named(name)
    if queues is None or type(queues) is not entry.settings:
        return entry.decide if ageing else entry.published
    return partial(entry.published, settings=queues)  # type: ignore[call-arg]


def check_queues(names: Iterable[str], queues: SlurmSettings | KueueSettings | None) -> None:
    """Raise UserError for settings of queues that none of the policies takes."""
    if queues is None or any(policy_named(name).settings is type(queues) for name in names):
        return
    taking = next(name for name, entry in POLICIES.items() if entry.settings is type(queues))
    raise UserError(f"settings of {taking}, and none of the policies {', '.join(names)} takes them", f"add the policy {taking}")


def check_types(name: str, types: int) -> None:
    """Raise UserError if a policy for one device type is used on several."""
    if types > 1 and not policy_named(name).types:
        several = ", ".join(name for name, other in POLICIES.items() if other.types)
        raise UserError(f"the policy {name} shares out devices of one type only", f"on several types use {several}")
