"""The verb ``schedule`` as a person writes it: a file, a cluster in words, a policy's name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from paceline.errors import UserError, shown
from paceline.prediction import Predictor
from paceline.scheduling.costs import with_costs
from paceline.scheduling.fleet import Fleet, Outage
from paceline.scheduling.job import Job
from paceline.scheduling.policies.early_stop import EarlyStop
from paceline.scheduling.simulate.failures import BEYOND_S, drawn_outages
from paceline.scheduling.simulate.oversized_jobs import check_sizes, without_too_large
from paceline.scheduling.simulate.scenario import FairnessRule, Knowledge, Scenario
from paceline.scheduling.simulate.schedule import ClusterSettings
from paceline.scheduling.simulate.simulated import SimulatedSchedule
from paceline.scheduling.speeds.predicted_jobs import Predictions, profiled_networks
from paceline.scheduling.speeds.profiles import ModelProfile, read_profiles
from paceline.scheduling.state import Policy
from paceline.scheduling.traces.reader import read_trace


def schedule(
    jobs: Sequence[Job] | str | Path,
    cluster: Fleet | str,
    policy: str | Policy,
    *,
    where: Mapping[str, str] | None = None,
    profiles: Mapping[str, ModelProfile] | str | Path = "",
    knowledge: Knowledge = "online",
    settings: ClusterSettings | None = None,
    outages: Sequence[Outage] = (),
    failures_s: float = 0.0,
    repair_s: float = 4 * 3600.0,
    prices: Mapping[str, float] | None = None,
    seed: int = 0,
    predictor: Predictor | None = None,
    stop_early: EarlyStop | str | None = None,
    fairness: FairnessRule = "estimate",
    drop_too_large: bool = False,
    progress: Callable[[float, int], None] | None = None,
) -> SimulatedSchedule:
    """Simulate jobs on a shared cluster: ``paceline.schedule("trace.csv", "16x4xT4", "las")``.

    Args:
        jobs: jobs, or a file of them (``traces.reader``); ``where`` chooses rows by the values of columns.
        cluster: nodes, or their names: ``6x4xT4 + 3x8x2080Ti`` are six nodes of four and three of eight (``Fleet.named``).
        policy: a name of ``policies.registry``, or a function from a ``State`` to a ``Decision``.
        profiles: measured profiles by model, or the folder of them.
        knowledge: what the policy knows: ``measured`` (the truth), ``online`` (what a job saw), ``predicted``.
        settings: rounds, restarts, interference, checkpoints.
        outages: nodes that are away; beside them nodes fail at random every ``failures_s`` in the mean, for ``repair_s``.
        prices: dollars a device and hour, by device; by default the listings.
        seed: of the failures that are drawn.
        predictor: of jobs whose model is a network; by default ordinary software and what the package knows.
        stop_early: ends jobs that no longer learn: ``"5:1%"`` where the last 5 reports add less than 1 % of what was learned.
        fairness: an ``estimate`` from what each job held, or each job simulated ``alone`` on its share.
        drop_too_large: leaves out jobs that ask for more devices than the cluster has of one type; a note says how many.
        progress: is told the moment and how many jobs have ended.

    Raises:
        UserError: a name or a file that is wrong, a job larger than the cluster, a job of which nothing is known.
    """
    return scenario(
        jobs,
        cluster,
        where=where,
        profiles=profiles,
        knowledge=knowledge,
        settings=settings,
        outages=outages,
        failures_s=failures_s,
        repair_s=repair_s,
        prices=prices,
        seed=seed,
        predictor=predictor,
        stop_early=stop_early,
        fairness=fairness,
        drop_too_large=drop_too_large,
    ).run(policy, progress)


def scenario(
    jobs: Sequence[Job] | str | Path,
    cluster: Fleet | str,
    *,
    where: Mapping[str, str] | None = None,
    profiles: Mapping[str, ModelProfile] | str | Path = "",
    knowledge: Knowledge = "online",
    settings: ClusterSettings | None = None,
    outages: Sequence[Outage] = (),
    failures_s: float = 0.0,
    repair_s: float = 4 * 3600.0,
    prices: Mapping[str, float] | None = None,
    seed: int = 0,
    predictor: Predictor | None = None,
    stop_early: EarlyStop | str | None = None,
    fairness: FairnessRule = "estimate",
    drop_too_large: bool = False,
) -> Scenario:
    """What ``schedule`` simulates, before a policy is chosen; the same arguments."""
    if isinstance(jobs, str | Path):
        trace = read_trace(jobs, where)
        every, notes, places = trace.jobs, trace.notes, trace.places
    elif where:
        raise UserError("`where` chooses rows of a file", "give a file of jobs, or leave it out")
    else:
        every, notes, places = tuple(jobs), (), ()
        if wrong := next((job for job in every if not isinstance(job, Job)), None):
            raise UserError(f"{shown(wrong)} is not a job", "give jobs, or the name of a file of them")
    nodes = Fleet.named(cluster) if isinstance(cluster, str) else cluster
    if drop_too_large:
        every, left_out = without_too_large(every, nodes)
        notes = (*notes, *left_out)
    else:
        check_sizes(every, nodes, places)
    away = [*nodes.outages, *outages]
    if failures_s:
        until_s = max((job.arrival_s for job in every), default=0.0) + BEYOND_S
        drawn = drawn_outages(len(nodes.node_types), failures_s, repair_s, until_s, seed)
        away += drawn
        notes = (
            *notes,
            f"{len(drawn):,} failure{'' if len(drawn) == 1 else 's'} of nodes drawn, up to 30 days after the last arrival.",
        )
    fleet, costs = with_costs(replace(nodes, outages=tuple(away)), prices)
    measured = profiles if isinstance(profiles, Mapping) else read_profiles(profiles) if profiles else {}
    published = {name: network for name, network in profiled_networks().items() if name in measured} if measured else {}
    return Scenario(
        jobs=every,
        fleet=fleet,
        profiles=measured,
        knowledge=knowledge,
        settings=settings or ClusterSettings(),
        predictions=Predictions(fleet, predictor, published),
        stop_early=EarlyStop.named(stop_early) if isinstance(stop_early, str) else stop_early,
        fairness=fairness,
        notes=(*notes, *costs),
    )


__all__ = ["scenario", "schedule"]
