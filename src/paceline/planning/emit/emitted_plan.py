"""Plan for a target: the best strategy that the target supports, with a note about better ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from paceline.errors import UserError
from paceline.hardware import Cluster
from paceline.planning.emit.job import EmittedJob
from paceline.planning.emit.targets import TARGETS, Emitted, check_machine, emitted, searched
from paceline.planning.search.choice import Choice, Plan
from paceline.planning.search.space import UNDIVIDED
from paceline.prediction import StepPredictor
from paceline.strategy import Strategy
from paceline.units import format_seconds
from paceline.workload.table import Workload


class Search(Protocol):
    """Function that finds a plan."""

    def __call__(self, fields: Mapping[str, Any], offers: bool) -> Plan:
        """Return the plan with other fields of ``Space``. ``offers`` as for ``plan``."""
        ...


def emitted_plan(
    target: str, workload: Workload, clusters: Sequence[Cluster], search: Search, predictor: StepPredictor
) -> tuple[Plan, Emitted]:
    """Return the best plan that ``target`` supports, and its file, with a remark if something else is better.

    Raises:
        UserError: as ``search`` without fields; the target runs on none of ``clusters``, lacks a choice that the user named, or
            has no strategy equivalent to the best of all.
    """
    check_machine(target, clusters)
    try:
        best = search(searched(target), False)
    except UserError as error:
        return _without_one(target, workload, search, error)
    chosen = emitted(_job(target, workload, best.best, best))
    remark = _not_tried(target, workload, best.best, predictor)
    if best.best.strategy.parallelism.model_devices == 1:  # what divides the network takes long to search
        wider = search(UNDIVIDED, False)
        try:
            chosen, best = emitted(_job(target, workload, wider.best, wider)), wider
        except UserError as refusal:
            lacks = f"This is the best of what {target} has, not of all: {refusal.message}."
            remark = " ".join(filter(None, (f"{lacks} Better: {_title(wider.best)}.", remark)))
    tuned = predictor.uncorrected.typical.level == "tuned"
    return best, emitted(replace(chosen.job, remark=remark, tuned=tuned))


def _without_one(target: str, workload: Workload, search: Search, error: UserError) -> tuple[Plan, Emitted]:
    """Return the best of all if the target supports it. Raises UserError with what the target lacks, as ``error`` says."""
    best = search({}, True)
    try:
        return best, emitted(_job(target, workload, best.best, best))
    except UserError as refusal:
        message = f"{refusal.message}. The best here has it: {_title(best.best)}. Without it {error.message}"
        raise UserError(message, _advice(workload, best.best)) from refusal


def _title(choice: Choice) -> str:
    return f"{choice.title}: {format_seconds(choice.time_s)}, {format_seconds(choice.prediction.step_time_s)} a step"


def _not_tried(target: str, workload: Workload, best: Choice, predictor: StepPredictor) -> str:
    """Describe what else a plan without the target would try if no device can hold the network; empty if one can."""
    devices, precision = best.cluster.world_size, best.strategy.precision
    whole = Strategy.of(world_size=devices, global_batch_size=devices, precision=precision, optimizer=best.strategy.optimizer)
    if devices == 1 or predictor.step(workload, best.cluster, whole).fits:
        return ""
    divided = "networks divided by tensor, context, pipeline or experts"
    lacks = divided if searched(target).get("tensors") == (1,) else "other schedules of pipelines"
    return f"Not tried, since {target} has no option for it: {lacks}, and offload. A plan without --emit tries both."


def _job(target: str, workload: Workload, choice: Choice, plan: Plan | None = None) -> EmittedJob:
    price = plan.listed.get(choice.cluster.device.name) if plan else None
    return EmittedJob(target, choice.strategy, workload, choice.cluster, choice.recipe, samples=choice.samples, price=price)


def targets_with(workload: Workload, choice: Choice) -> list[str]:
    """Return the targets that have the choice."""
    return [target for target in TARGETS if _writes(target, workload, choice)]


def _advice(workload: Workload, choice: Choice) -> str:
    """Name the targets that have the choice."""
    able = targets_with(workload, choice)
    return (
        f"give --emit {' or '.join(able)}, which has it" if able else "no target has it: leave --emit out, and write it by hand"
    )


def _writes(target: str, workload: Workload, choice: Choice) -> bool:
    try:
        emitted(_job(target, workload, choice))
    except UserError:
        return False
    return True
