"""The verb ``schedule``, which takes names of a file, a cluster and a policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypedDict, Unpack

from paceline.errors import UserError, shown
from paceline.prediction import StepPredictor
from paceline.scheduling.fleet import Fleet, Outage, with_costs
from paceline.scheduling.job import Job
from paceline.scheduling.policies.registry import check_queues
from paceline.scheduling.policies.wrappers.early_stop import EarlyStop
from paceline.scheduling.queues.kueue_settings import KueueSettings
from paceline.scheduling.queues.queues_file import read_queues
from paceline.scheduling.queues.slurm_settings import SlurmSettings
from paceline.scheduling.simulate.failures import BEYOND_S, drawn_outages
from paceline.scheduling.simulate.oversized_jobs import check_sizes, without_too_large
from paceline.scheduling.simulate.replayed_log import ReplayedLog
from paceline.scheduling.simulate.scenario import FairnessRule, Knowledge, Scenario
from paceline.scheduling.simulate.schedule import ClusterSettings
from paceline.scheduling.simulate.simulated import SimulatedSchedule
from paceline.scheduling.speeds.predicted_jobs import Predictions, profiled_networks
from paceline.scheduling.speeds.profiles import ModelProfile, read_profiles
from paceline.scheduling.state import Policy
from paceline.scheduling.traces.reader import read_trace
from paceline.scheduling.traces.trace import Trace
from paceline.scheduling.traces.type_names import on_types


class ScenarioKeywords(TypedDict, total=False):
    """Keywords of ``paceline.schedule``: the fields of ``ScenarioOptions``. A test compares them."""

    where: Mapping[str, str] | None
    profiles: Mapping[str, ModelProfile] | str | Path
    knowledge: Knowledge
    settings: ClusterSettings | None
    outages: Sequence[Outage]
    failures_s: float
    repair_s: float
    prices: Mapping[str, float] | None
    seed: int
    predictor: StepPredictor | None
    stop_early: EarlyStop | str | None
    fairness: FairnessRule
    ageing: bool
    drop_too_large: bool
    any_type: bool
    queues: SlurmSettings | KueueSettings | str | Path | None


@dataclass(frozen=True, kw_only=True)
class ScenarioOptions:
    """Keyword arguments of ``paceline.schedule``.

    Attributes:
        where: rows of the file to read, by the values of columns.
        profiles: measured profiles by model, or the folder that holds them.
        knowledge: knowledge of the policies: ``measured`` (the truth), ``online`` (a job's observations) or ``predicted``.
        settings: rounds, restarts, interference and checkpoints of the simulated cluster; None: the defaults.
        outages: periods in which nodes are away.
        failures_s: mean time between random failures of a node; 0: none. ``repair_s``: length of such an outage.
        prices: dollars a device and hour by device; None: the listed prices.
        seed: seed of the random failures.
        predictor: predictor of jobs whose model is a network; None: ordinary software and the built-in constants.
        stop_early: rule that ends jobs without progress. ``"5:1%"`` ends a job whose last 5 reports add less than 1 % of its
            earlier progress. None: never.
        fairness: ``estimate`` fairness from the devices that a job held, or simulate each job ``alone`` on its share.
        ageing: let no job starve under a named policy that could; False: the policy as published.
        drop_too_large: leave out jobs that ask for more devices than the cluster has of one type, and count them in a note.
        any_type: let jobs use every device type of the cluster, whatever types they name.
        queues: settings of the policy ``slurm`` or ``kueue``, or the file that holds them; None: their defaults.
    """

    where: Mapping[str, str] | None = None
    profiles: Mapping[str, ModelProfile] | str | Path = ""
    knowledge: Knowledge = "online"
    settings: ClusterSettings | None = None
    outages: Sequence[Outage] = ()
    failures_s: float = 0.0
    repair_s: float = 4 * 3600.0
    prices: Mapping[str, float] | None = None
    seed: int = 0
    predictor: StepPredictor | None = None
    stop_early: EarlyStop | str | None = None
    fairness: FairnessRule = "estimate"
    ageing: bool = True
    drop_too_large: bool = False
    any_type: bool = False
    queues: SlurmSettings | KueueSettings | str | Path | None = None


def schedule(
    jobs: Sequence[Job] | str | Path,
    cluster: Fleet | str,
    policy: str | Policy,
    *,
    progress: Callable[[float, int], None] | None = None,
    **options: Unpack[ScenarioKeywords],
) -> SimulatedSchedule:
    """Simulate jobs on a shared cluster: ``paceline.schedule("trace.csv", "16x4xT4", "las")``.

    Args:
        jobs: jobs, or the name of a file of them (``traces.reader``).
        cluster: nodes, or their names: ``6x4xT4 + 3x8x2080Ti`` is six nodes of four T4 and three of eight 2080 Ti.
        policy: name in ``policies.registry``, or a function from a ``State`` to a ``Decision``.
        progress: callback that receives the simulated time in seconds and the number of jobs that have ended.
        options: fields of ``ScenarioOptions``.

    Raises:
        UserError: a wrong name or file, a job larger than the cluster, or a job of unknown speed or length.
    """
    question = scenario(jobs, cluster, **options)
    check_queues([policy] if isinstance(policy, str) else (), question.queues)
    return question.run(policy, progress)


def scenario(jobs: Sequence[Job] | str | Path, cluster: Fleet | str, **options: Unpack[ScenarioKeywords]) -> Scenario:
    """Build the scenario that ``schedule`` simulates, before a policy is chosen. Arguments and errors as ``schedule``."""
    chosen = ScenarioOptions(**options)
    nodes = Fleet.named(cluster) if isinstance(cluster, str) else cluster
    trace = on_types(_read(jobs, chosen.where), nodes.types, chosen.any_type)
    every, notes, places = trace.jobs, trace.notes, trace.places
    if chosen.drop_too_large:
        every, dropped = without_too_large(every, nodes)
        notes = (*notes, *dropped)
    else:
        check_sizes(every, nodes, places)
    failures, failure_notes = _failures(every, nodes, chosen)
    fleet, costs = with_costs(replace(nodes, outages=(*nodes.outages, *chosen.outages, *failures)), chosen.prices)
    profiles = chosen.profiles
    measured = profiles if isinstance(profiles, Mapping) else read_profiles(profiles) if profiles else {}
    published = {name: network for name, network in profiled_networks().items() if name in measured} if measured else {}
    rule = chosen.stop_early
    return Scenario(
        jobs=every,
        fleet=fleet,
        profiles=measured,
        knowledge=chosen.knowledge,
        settings=chosen.settings or ClusterSettings(),
        predictions=Predictions(fleet, chosen.predictor, published),
        stop_early=EarlyStop.named(rule) if isinstance(rule, str) else rule,
        fairness=chosen.fairness,
        ageing=chosen.ageing,
        notes=(*notes, *failure_notes, *costs),
        queues=read_queues(chosen.queues) if isinstance(chosen.queues, str | Path) else chosen.queues,
        log=ReplayedLog.of(jobs, trace, every) if isinstance(jobs, str | Path) else None,
    )


def _read(jobs: Sequence[Job] | str | Path, where: Mapping[str, str] | None) -> Trace:
    """Return the jobs of a file, or given ones, which have no places."""
    if isinstance(jobs, str | Path):
        return read_trace(jobs, where)
    if where:
        raise UserError("`where` chooses rows of a file", "give a file of jobs, or leave it out")
    if wrong := next((job for job in jobs if not isinstance(job, Job)), None):
        raise UserError(f"{shown(wrong)} is not a job", "give jobs, or the name of a file of them")
    return Trace(tuple(jobs), ())


def _failures(jobs: Sequence[Job], nodes: Fleet, chosen: ScenarioOptions) -> tuple[list[Outage], tuple[str, ...]]:
    """Draw the random failures, and return them with a note on their number."""
    if not chosen.failures_s:
        return [], ()
    until_s = max((job.arrival_s for job in jobs), default=0.0) + BEYOND_S
    drawn = drawn_outages(len(nodes.node_types), chosen.failures_s, chosen.repair_s, until_s, chosen.seed)
    count = f"{len(drawn):,} failure{'' if len(drawn) == 1 else 's'}"
    return drawn, (f"{count} of nodes drawn, up to 30 days after the last arrival.",)
