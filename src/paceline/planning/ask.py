"""``ask(workload, cluster)``: does it fit, how fast, what limits it, what it costs, is more worth it, and what to do."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from paceline.errors import UserError
from paceline.hardware import Cluster
from paceline.hardware.prices import of_devices
from paceline.planning.advice import advice
from paceline.planning.asked import Asked, cluster_text
from paceline.planning.choice import Plan
from paceline.planning.goal import Goal
from paceline.planning.layouts import Progress, silent
from paceline.planning.question import Question
from paceline.planning.ranking import TIE
from paceline.planning.rentals import Rental, rentals
from paceline.planning.training_target import TrainingTarget
from paceline.planning.upgrades import larger, upgrades
from paceline.prediction import ORDINARY, Predictor
from paceline.prediction.transports import steps_by_transport
from paceline.workload.table import Workload

MORE_NODES = (16, 32, 64)
"""Nodes that are tried where fewer miss a date."""


def ask(
    workload: Workload,
    cluster: Cluster | None,
    target: TrainingTarget | None = None,
    *,
    by_s: float | None = None,
    budget_usd: float | None = None,
    prices: Mapping[str, float] | None = None,
    predictor: Predictor = ORDINARY,
    progress: Progress = silent,
) -> Asked:
    """Answer with the best plain strategy on ``cluster``.

    Args:
        cluster: None: the cheapest of what can be rented that keeps the limits.
        target: how much is trained; by default a million samples.
        by_s, budget_usd: seconds and dollars that the training may take.
        prices: as ``plan`` takes them.
        progress: called with a line now and then where layouts are searched.

    Raises:
        UserError: nothing fits the cluster, with the nearest that does; or as ``plan``.
    """
    prices = of_devices(prices, {cluster.device.name} if cluster else ())
    question = Question(workload, target or TrainingTarget(), prices, predictor)
    rental: Rental | None = None
    if cluster is None:
        best, rental = _rented(question, by_s, budget_usd)
        question = question.rented([rental])
    else:
        best = _on(question, cluster, progress)
    choice = best.best
    asked = Asked(
        workload=workload.name,
        amount=question.target.title,
        choice=choice,
        named=cluster,
        tokens=workload.tokens,
        by_s=by_s,
        budget_usd=budget_usd,
        in_time=chance(by_s, choice.time_s, choice.time_low_s, choice.time_high_s),
        in_budget=chance(budget_usd, choice.usd, choice.usd_low, choice.usd_high),
        price=str(rental.listing) if rental else next((x for x in best.prices if choice.cluster.device.name in x), ""),
        provider=rental.listing.provider if rental else "",
        upgrades=upgrades(question, choice),
        by_transport=steps_by_transport(predictor, workload, choice.cluster, choice.strategy),
        assumptions=best.assumptions,
    )
    return replace(asked, advice=advice(asked))


def chance(limit: float | None, value: float, low: float, high: float) -> float | None:
    """Probability that a quantity with that 80 % interval is within ``limit``; None without a limit or a value."""
    if limit is None or math.isnan(value):
        return None
    return Goal("deadline", limit).chance(value, low, high)


def _on(question: Question, cluster: Cluster, progress: Progress) -> Plan:
    """The plan on a cluster, or on the next that holds the network. Raises UserError where none does."""
    here = question.may_hold(cluster)
    best = (question.plain((cluster,)) or question.divided((cluster,), progress) if here else None) or larger(question, cluster)
    if best is None:
        raise UserError(
            f"{question.workload.name} does not fit on {cluster_text(cluster)}, nor on any larger one that was tried",
            "name more nodes and their network, such as '8x8 H100, 400Gb/s InfiniBand'",
        )
    return best


def _rented(question: Question, by_s: float | None, budget_usd: float | None) -> tuple[Plan, Rental]:
    """The cheapest of what can be rented within ``by_s``, or the fastest within ``budget_usd``, and that; what misses
    least where nothing keeps them."""
    goal = Goal("deadline", by_s) if by_s else Goal("budget", budget_usd) if budget_usd else Goal("cheapest")
    usual, more = _layers(rentals(question.prices)), _layers(rentals(question.prices, MORE_NODES)) if by_s else []
    for wanted, layers in ((goal, usual), (goal, more), (Goal("fastest" if by_s else "cheapest"), more or usual)):
        plans = [
            (best, layer)
            for layer in layers
            if (best := question.rented(layer).plain([rental.cluster for rental in layer], wanted))
        ]
        if plans:
            least = min(_score(best, wanted) for best, _ in plans)
            near = [(best, layer) for best, layer in plans if _score(best, wanted) <= least * (1 + TIE)]
            best, layer = min(near, key=lambda of: _score(of[0], Goal("fastest" if wanted.by_cost else "cheapest")))
            return best, next(rental for rental in layer if rental.cluster == best.best.cluster)
    raise UserError(f"{question.workload.name} fits on nothing that is listed", "name a cluster: --on '8x8 H100, 400Gb/s'")


def _layers(every: Sequence[Rental]) -> list[list[Rental]]:
    """Rentals in as few parts as can be planned at once: in each part a device has one price."""
    prices: dict[str, list[float]] = {}
    parts: dict[int, list[Rental]] = {}
    for rental in every:
        of_device = prices.setdefault(rental.cluster.device.name, [])
        if rental.usd_per_device_hour not in of_device:
            of_device.append(rental.usd_per_device_hour)
        parts.setdefault(of_device.index(rental.usd_per_device_hour), []).append(rental)
    return list(parts.values())


def _score(best: Plan, goal: Goal) -> float:
    """What the goal makes small."""
    return best.best.usd if goal.by_cost else best.best.time_s
