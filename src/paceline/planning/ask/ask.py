"""``ask(workload, cluster)``: fit, speed, bottleneck, cost and advice for one training run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from paceline.errors import NotMet
from paceline.hardware import Cluster
from paceline.hardware.prices import Price, of_devices, price
from paceline.planning.ask.advice import SAFE, WAITS, advice
from paceline.planning.ask.answer import Asked, Upgrade, cluster_name, cluster_text
from paceline.planning.ask.candidate_devices import promising
from paceline.planning.ask.rentals import NODES, Rental, rentals
from paceline.planning.ask.training_question import TrainingQuestion
from paceline.planning.ask.upgrades import large, larger, upgrade_to, upgrades
from paceline.planning.compare.image_order import faster_format
from paceline.planning.compare.local_gain import local_gain
from paceline.planning.compare.speedup_range import speedup_factor
from paceline.planning.search.choice import Choice, Plan
from paceline.planning.search.goal import Goal
from paceline.planning.search.layouts import Progress, silent
from paceline.planning.search.lighter_jobs import AdjustableJob, lighter_jobs
from paceline.planning.search.nearest_fit import Fitting
from paceline.planning.search.ranking import TIE
from paceline.planning.search.training_target import TrainingTarget
from paceline.prediction import ORDINARY, StepPredictor
from paceline.prediction.mesh.expert_parallel import has_experts
from paceline.prediction.transports import steps_by_transport
from paceline.questions.own_settings import own_settings
from paceline.strategy import Strategy
from paceline.strategy.choices.values import plain
from paceline.strategy.strategy import CHOICES
from paceline.strategy.usual_precision import usual_precision
from paceline.workload.table import Workload

MORE_NODES = (16, 32, 64)
"""Numbers of nodes to try if fewer miss the deadline."""
FEW_DEVICES = 8
"""Most devices on which all layouts are searched at once; that takes a second."""
CLEARLY = 1.1
"""Least speedup, at the lower end of its range, for which a divided layout is the answer in place of a plain strategy."""


def ask(
    workload: Workload,
    cluster: Cluster | None,
    target: TrainingTarget | None = None,
    *,
    by_s: float | None = None,
    budget_usd: float | None = None,
    prices: Mapping[str, float | Price] | None = None,
    predictor: StepPredictor = ORDINARY,
    progress: Progress = silent,
    job: AdjustableJob | None = None,
    choices: Mapping[str, Any] | None = None,
    micro_batch_sizes: Sequence[int] = (),
) -> Asked:
    """Answer with the best plain strategy on ``cluster``, or with a divided layout if that is clearly faster.

    Args:
        cluster: None selects the cheapest listed cluster that meets the limits.
        target: amount of training; by default a million samples.
        by_s, budget_usd: most seconds and dollars of the run.
        prices: as for ``plan``.
        progress: called with a line at intervals during a search of layouts.
        job: adapters and length of the job, which are changed if it does not fit.
        choices: choices of every strategy, by name, each a value or several to try: ``{"precision": "fp8"}``.
        micro_batch_sizes: samples of a replica in a micro step; empty: any.

    Raises:
        NotMet: nothing fits the cluster, with the nearest that does; or as ``plan`` raises.
    """
    prices = of_devices(prices, {cluster.device.name} if cluster else ())
    question = TrainingQuestion(
        workload, target or TrainingTarget(), prices, predictor, choices or {}, tuple(micro_batch_sizes)
    )
    if cluster is not None and question.states:
        question.check(cluster)
    best, rental = (None if cluster is None else _plan_on(question, cluster, progress)), None
    if best is None:
        best, rental = _rented(question, by_s, budget_usd, cluster)
    at = question.rented([rental]) if rental else question
    divided, plain_choice = _divided(at, best.best), None
    if divided is not None and divided.best.prediction.samples_per_s > 0 and _clearly_faster(divided.best, best.best):
        plain_choice, best = best.best, divided
    choice, tool = best.best, predictor.uncorrected.typical.framework.tool
    more = upgrades(at, choice)
    fits = cluster is None or cluster == choice.cluster
    otherwise, dropped = (None, ()) if fits or cluster is None else _otherwise(question, cluster)
    awkward = bool(workload.frozen) and choice.strategy.parallelism.model_devices > 1 and not plain_choice
    asked = Asked(
        workload=workload.name,
        amount=question.target.title,
        choice=choice,
        named=cluster,
        tokens=workload.tokens * choice.strategy.task.sequences,
        by_s=by_s,
        budget_usd=budget_usd,
        in_time=chance(by_s, choice.time_s, choice.time_low_s, choice.time_high_s),
        in_budget=chance(budget_usd, choice.usd, choice.usd_low, choice.usd_high),
        price=str(rental.listing) if rental else next((x for x in best.prices if choice.cluster.device.name in x), ""),
        listing=price(choice.cluster.device.name, at.prices, choice.cluster.node_sizes),
        upgrades=more,
        keeping=_keeping(question, choice, more, by_s),
        said=said(question),
        settings=own_settings(tool, choice.strategy) if tool else (),
        tool=tool,
        plain=upgrade_to(choice, plain_choice, cluster_text(choice.cluster)) if plain_choice else None,
        otherwise=otherwise,
        dropped=dropped,
        divided_layout=_layout(at, choice, divided) if divided and plain_choice is None else None,
        memory_format=faster_format(workload, choice.cluster, choice.strategy, predictor, choice.prediction),
        local_steps=local_gain(workload, choice.cluster, choice.strategy, predictor, choice.prediction),
        may_divide=_may_divide(at, choice),
        lighter=() if job is None or cluster is None or (fits and not awkward) else _lighter(question, cluster, job),
        by_transport=steps_by_transport(predictor, workload, choice.cluster, choice.strategy),
        assumptions=best.assumptions,
    )
    return replace(asked, advice=advice(asked))


def chance(limit: float | None, value: float, low: float, high: float) -> float | None:
    """Return the probability that a quantity with this 80 % interval is within ``limit``; None without a limit or a value."""
    if limit is None or math.isnan(value):
        return None
    return Goal("deadline", limit).chance(value, low, high)


def _plan_on(question: TrainingQuestion, cluster: Cluster, progress: Progress) -> Plan | None:
    """Plan on a cluster, or on the next larger one of the same devices that fits; None if none does.

    If no plain strategy fits, it searches the usual layouts, then all; on a few devices it searches all at once.
    """
    if question.may_hold(cluster):
        quick = question.plain((cluster,)) or (question.quick(cluster) if cluster.world_size > FEW_DEVICES else None)
        if best := quick or question.divided((cluster,), progress):
            return best
    return larger(question, cluster)


def _clearly_faster(divided: Choice, plain: Choice) -> bool:
    """Return whether a divided layout is faster than the plain strategy beyond the range of their ratio."""
    ratio = divided.prediction.samples_per_s / plain.prediction.samples_per_s
    return ratio / speedup_factor(divided.prediction, plain.prediction, divided.cluster, plain.cluster) >= CLEARLY


def _otherwise(question: TrainingQuestion, cluster: Cluster) -> tuple[Choice | None, tuple[str, ...]]:
    """Return what fits a cluster without one of the user's choices of a layout, else without all, and those left out.

    Plain strategies come before divided ones. None without such choices, or if nothing fits.
    """
    able = [freed for freed in question.freed() if freed.may_hold(cluster)]
    for divided, freed in product((False, True), able):
        if best := freed.quick(cluster) if divided else freed.plain((cluster,)):
            return best.best, tuple(words for words in said(question) if words not in said(freed))
    return None, ()


def said(question: TrainingQuestion) -> tuple[str, ...]:
    """Return the user's choices in words: ``precision fp8``."""
    sizes = {"micro batch size": question.micro_batch_sizes} if question.micro_batch_sizes else {}
    stated = {CHOICES[name].word.replace("-", " ") or name: value for name, value in question.choices.items()}
    every = {name: value if isinstance(value, tuple | list) else (value,) for name, value in {**stated, **sizes}.items()}
    return tuple(f"{name} {' or '.join(str(plain(value)) for value in values)}" for name, values in every.items())


def _keeping(question: TrainingQuestion, choice: Choice, more: Sequence[Upgrade], by_s: float | None) -> Upgrade | None:
    """Return the cheapest rental that meets a deadline missed by ``choice`` and ``more``; None without one."""
    if by_s is None or min(x.choice.time_s for x in (upgrade_to(choice, choice, ""), *more)) <= by_s:
        return None
    for nodes in (NODES, *((many,) for many in MORE_NODES)):
        if chosen := _cheapest(question, _layers(_tried(question, nodes)), Goal("deadline", by_s)):
            best, rental = chosen
            return replace(upgrade_to(choice, best.best, cluster_name(best.best.cluster)), seller=rental.listing.seller)
    return None


def _may_divide(question: TrainingQuestion, choice: Choice) -> bool:
    """Return whether a divided layout may be much better: several nodes that wait for the network, or experts."""
    p = choice.prediction
    waits = choice.cluster.num_nodes > 1 and p.exposed.get("network", 0.0) > WAITS * p.step_time_s
    several = choice.strategy.world_size > 1 and choice.strategy.parallelism.model_devices == 1
    return several and (waits or has_experts(question.workload))


def _divided(question: TrainingQuestion, choice: Choice) -> Plan | None:
    """Return the best of the usual layouts on the batch of a plain choice, if it may be much better; else None."""
    if not _may_divide(question, choice):
        return None
    return question.quick(choice.cluster, choice.strategy.global_batch_size)


def _layout(question: TrainingQuestion, choice: Choice, divided: Plan) -> Upgrade | None:
    """Return a divided layout as an upgrade of a plain choice if its gain exceeds its range; else None."""
    layout = upgrade_to(choice, divided.best, cluster_text(choice.cluster))
    return layout if layout.speedup_low > 1 else None


def _lighter(question: TrainingQuestion, cluster: Cluster, job: AdjustableJob) -> tuple[Fitting, ...]:
    """Return lighter jobs that fit the cluster, at one sample a device and step."""
    workload, devices = question.workload, cluster.world_size
    precision = usual_precision(workload, cluster.device).name
    strategy = Strategy.of(world_size=devices, global_batch_size=devices, precision=precision)
    return lighter_jobs(job, cluster, strategy, predictor=question.predictor)


def _rented(
    question: TrainingQuestion, by_s: float | None, budget_usd: float | None, cluster: Cluster | None
) -> tuple[Plan, Rental | None]:
    """Plan on the cheapest rental that is safely within ``by_s``, or the fastest within ``budget_usd``, else what may be.

    If none meets the limits, take the one that misses them least. ``cluster``: the cluster that was too small.
    Raises NotMet if nothing fits.
    """
    goal = Goal("deadline", by_s) if by_s else Goal("budget", budget_usd) if budget_usd else Goal("cheapest")
    usual, more = _layers(_tried(question, NODES)), _layers(_tried(question, MORE_NODES)) if by_s else []
    passes = dict.fromkeys([goal, Goal("fastest" if by_s else "cheapest")])
    for wanted, layers in [(goal, usual), (goal, more), *((wanted, more or usual) for wanted in list(passes)[1:])]:
        if chosen := _cheapest(question, layers, wanted):
            return chosen
    if cluster is not None:
        if best := large(question, cluster):
            return best, None
        raise NotMet(
            f"{question.workload.name} does not fit on {cluster_text(cluster)}, nor on any larger one that was tried",
            "name more nodes and their network, such as '8x8 H100, 400Gb/s InfiniBand'",
        )
    raise NotMet(f"{question.workload.name} fits on nothing that is listed", "name a cluster: --on '8x8 H100, 400Gb/s'")


def _is_safe(choice: Choice, goal: Goal) -> bool:
    """Return whether a choice keeps the limit of a goal as good as certainly; False without a limit."""
    if goal.limit == math.inf:
        return False
    if goal.kind == "budget":
        return (goal.chance(choice.usd, choice.usd_low, choice.usd_high) or 0.0) >= SAFE
    return (goal.chance(choice.time_s, choice.time_low_s, choice.time_high_s) or 0.0) >= SAFE


def _tried(question: TrainingQuestion, nodes: Sequence[int]) -> list[Rental]:
    """Return the rentals to plan on."""
    return promising(question, rentals(question.prices, nodes))


def _cheapest(question: TrainingQuestion, layers: Sequence[Sequence[Rental]], goal: Goal) -> tuple[Plan, Rental] | None:
    """Return the best rental by a goal, with its plan; None if none meets the goal.

    If rentals keep a limit safely, it is the best of these. Otherwise the other quantity breaks ties.
    """
    plans = []
    for layer in layers:
        clusters = list(filter(question.may_hold, (rental.cluster for rental in layer)))
        if clusters and (best := question.rented(layer).plain(clusters, goal)):
            plans.append((best, layer))
    if not plans:
        return None
    safe = [(choice, layer) for best, layer in plans for choice in best.by_devices if _is_safe(choice, goal)]
    if safe:
        choice, layer = min(safe, key=lambda of: of[0].usd if goal.by_cost else of[0].time_s)
        if best := question.rented(layer).plain((choice.cluster,), goal):
            return best, next(rental for rental in layer if rental.cluster == choice.cluster)
    least = min(_score(best, goal) for best, _ in plans)
    near = [(best, layer) for best, layer in plans if _score(best, goal) <= least * (1 + TIE)]
    best, layer = min(near, key=lambda of: _score(of[0], Goal("fastest" if goal.by_cost else "cheapest")))
    return best, next(rental for rental in layer if rental.cluster == best.best.cluster)


def _layers(every: Sequence[Rental]) -> list[list[Rental]]:
    """Split rentals into as few groups as possible with one listing per device, because one plan handles a group."""
    listed: dict[str, list[Price]] = {}
    parts: dict[int, list[Rental]] = {}
    for rental in every:
        of_device = listed.setdefault(rental.cluster.device.name, [])
        if rental.listing not in of_device:
            of_device.append(rental.listing)
        parts.setdefault(of_device.index(rental.listing), []).append(rental)
    return list(parts.values())


def _score(best: Plan, goal: Goal) -> float:
    """Return the quantity that the goal minimizes."""
    return best.best.usd if goal.by_cost else best.best.time_s
