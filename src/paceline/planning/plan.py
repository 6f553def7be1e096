"""``plan(workload, space, goal)``: the best strategy, what comes next, what was left out, and what compression is worth."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from paceline.calibration.uncertainty import LINKS
from paceline.errors import UserError
from paceline.hardware.prices import Price, listings, price
from paceline.planning.choice import Choice, Plan
from paceline.planning.comparison import illegal, lacking
from paceline.planning.divided import Searches, divides, narrowed, search_divided
from paceline.planning.goal import Goal, money
from paceline.planning.layout_view import layout_view
from paceline.planning.layouts import Progress, silent
from paceline.planning.nearest_fit import nearest_fit
from paceline.planning.ranking import PLAIN, TIE, RankedTable, by_devices, distinct, front, preferred, ranked, table_of
from paceline.planning.scaling import scaling
from paceline.planning.space import Space, Tally, candidates
from paceline.planning.strategy_text import POINTLESS, Wanted, describe, matches, saves_memory
from paceline.planning.training_target import TrainingTarget
from paceline.prediction import ORDINARY, Predictor
from paceline.prediction.batch import Candidate, Steps
from paceline.prediction.convergence import accuracies, accuracy_notes, networks
from paceline.prediction.expert_parallel import has_experts
from paceline.prediction.memory import FRAGMENTED, usable_bytes
from paceline.strategy.optimizer import usual_optimizer
from paceline.units import format_gib
from paceline.workload.table import Workload

_TOO_LARGE = f"does not fit the device's memory with a headroom of {FRAGMENTED:.0%} for fragments"
SHOWN = 8
"""Strategies in the ranking."""
TRIED = (
    "Batches tried: those given, else powers of two for each worker, up to 1024 and as large as one micro step holds. The "
    f"smallest batch within {TIE:.0%} of the best wins."
)


def plan(
    workload: Workload,
    space: Space,
    goal: Goal,
    target: TrainingTarget | None = None,
    *,
    prices: Mapping[str, float] | None = None,
    why_not: Wanted | None = None,
    predictor: Predictor = ORDINARY,
    progress: Progress = silent,
    offers: bool = True,
) -> Plan:
    """The best strategy and cluster within ``space`` to train ``workload`` to ``target``.

    Where sizes of a division are named, or no device holds the whole training state, layouts that divide the network are
    searched on every cluster (``layouts``).

    Args:
        prices: dollars a device and hour by device, or for all under the empty name; else the listings.
        why_not: choices of a strategy that is to be set beside the best.
        progress: called with a line now and then while layouts are searched.
        offers: whether the error where nothing fits names what would (``nearest_fit``), which takes up to seconds.

    Raises:
        UserError: nothing legal; nothing fits, with the least number of GiB that are missing; no price where the goal needs
            one; a deadline or budget that nothing meets, with the nearest that does.
    """
    target = target or TrainingTarget()
    if not space.optimizer:
        space = replace(space, optimizer=target.optimizer(space.batches) or usual_optimizer(workload))
    listed = {c.device.name: price(c.device.name, prices) for c in space.clusters}
    if goal.needs_price and (unknown := [name for name, listing in listed.items() if listing is None]):
        raise UserError(
            f"goal {goal} needs prices, and no price of {unknown[0]} is known",
            f"give its price in dollars for a device and hour: {unknown[0]}=DOLLARS",
        )
    left_out = Tally()
    pointless = len(space.recomputes) > 1 and not saves_memory(workload)
    if pointless:
        space = replace(space, recomputes=(False,))
    legal = candidates(space, target, left_out, workload)
    if pointless:
        left_out.add(POINTLESS, len(legal))
    steps = predictor.many(workload, legal)
    for why in steps.refused.values():
        left_out.add(why)
    whole, searches = len(legal), Searches(())
    if divides(space, legal, steps):
        searches = search_divided(workload, space, target, left_out, predictor, progress)
        if space.offloads and not searches.fitting and not steps.fits.any():
            offloaded = search_divided(workload, space, target, left_out, predictor, progress, "optimizer")
            searches = offloaded if offloaded.fitting else searches
        legal, steps = searches.added(legal, steps)
    if not whole and not searches.legal:
        raise UserError("no strategy is legal here", "; ".join(f"{x.count}: {x.reason}" for x in left_out.excluded()[:2]))
    grouped = max(space.experts) > 1 if space.experts else bool(searches.searches)
    fitting = _fitting(workload, legal, steps, left_out, searches, grouped, predictor if offers else None)
    if not space.batches and target.curve is None:
        fitting = _at_once(legal, fitting, left_out)
    notice = _notice(workload, space, target)
    table = table_of(workload, target, goal, listed, [legal[i] for i in fitting], steps.step_s[fitting], predictor)
    order = ranked(goal, table, left_out)
    best = table.choice(order[0])
    best = replace(best, preference=preferred(table, order))
    why, asked = _why_not(why_not, table, best, goal, space, target)
    ranking = (best, *(table.choice(i, best) for i in distinct(order, table.candidates)[1:SHOWN]))
    pareto = tuple(table.choice(i) for i in front(table))
    counts = tuple(table.choice(i) for i in by_devices(table, order[0]))
    shown = dict.fromkeys(
        choice.strategy.gradient_exchange.compression for choice in (*ranking, *pareto, *counts, *filter(None, [asked]))
    )
    others = [note for name in shown if name != best.strategy.gradient_exchange.compression for note in accuracy_notes(name)]
    return Plan(
        workload=workload.name,
        target=target.title,
        goal=goal,
        ranking=ranking,
        front=pareto,
        excluded=tuple(left_out.excluded()),
        considered=whole + searches.legal,
        layouts=searches.sentence,
        layout=layout_view(workload, best.cluster, best.strategy, predictor),
        compression=_compression(table, order, goal),
        prices=_price_notes(listed),
        notice=notice,
        assumptions=(*((notice, TRIED) if notice else ()), *target.notes(best.strategy), *best.prediction.assumptions, *others),
        why_not=why,
        asked=asked,
        scaling=scaling(workload, best.cluster, best.strategy, predictor),
        by_devices=counts,
        critical_batch=target.curve.critical_batch if target.curve and math.isfinite(target.curve.critical_batch) else None,
        learning_rates=_learning_rates(target, best),
    )


def _fitting(
    workload: Workload,
    legal: Sequence[Candidate],
    steps: Steps,
    left_out: Tally,
    searches: Searches,
    experts: bool,
    asked: Predictor | None,
) -> NDArray[np.intp]:
    """Indices of the candidates that fit their device.

    Args:
        experts: whether groups of experts were tried.
        asked: by whom the error where nothing fits names what would; None: it does not.
    """
    too_large = ~steps.fits
    missed = steps.memory_bytes - steps.available_bytes
    where = np.flatnonzero(too_large)
    if len(where) + searches.too_large:
        nearest = [(float(missed[i]), legal[i]) for i in where[missed[where].argsort()][:1].tolist()]
        missing, candidate = min((*nearest, *((lack, layout) for layout, lack in searches.least)), key=lambda of: of[0])
        if too_large.all():
            groups = "" if experts or not has_experts(workload) else ", or groups that share the experts (`expert`)"
            short = lacking(missing + usable_bytes(candidate[0].device), candidate[0])
            larger = f"give a device with more memory, more nodes or a smaller global batch{groups}"
            offers = nearest_fit(workload, *candidate, predictor=asked) if asked else ()
            raise UserError(
                f"{workload.name} fits nowhere here: at least {short}, with {describe(*candidate)}",
                "; ".join([larger, *(f"this fits: {offer}" for offer in offers)]),
            )
        example = f"least missing {format_gib(missing)}, with {describe(*candidate)}"
        left_out.add(_TOO_LARGE, len(where) + searches.too_large, example)
    return np.flatnonzero(~too_large & np.isfinite(steps.step_s))


def _at_once(legal: Sequence[Candidate], fitting: NDArray[np.intp], left_out: Tally) -> NDArray[np.intp]:
    """Those whose batch some strategy holds in one micro step on the same cluster: where nobody knows what a larger batch
    costs, micro steps must not make it larger."""
    largest: dict[int, int] = {}
    for cluster, strategy in (legal[i] for i in fitting.tolist()):
        if strategy.parallelism.micro_batches == 1:
            largest[id(cluster)] = max(largest.get(id(cluster), 0), strategy.global_batch_size)
    kept = [
        i
        for i in fitting.tolist()
        if legal[i][1].parallelism.model_devices > 1 or legal[i][1].global_batch_size <= largest.get(id(legal[i][0]), math.inf)
    ]
    left_out.add(
        "the batch does not fit in one micro step, and the cost of a larger batch is unknown", len(fitting) - len(kept)
    )
    return np.array(kept, dtype=np.intp)


def _notice(workload: Workload, space: Space, target: TrainingTarget) -> str:
    """That the batch was chosen by speed alone; empty where it was not."""
    if target.curve or len(space.batches) == 1:
        return ""
    unknown = f"unknown for {workload.name} and not counted; a target RUNS.csv counts it from runs of your own"
    return (
        "The batch is chosen by speed alone. The extra samples that a larger batch needs to the same accuracy are "
        f"{'not counted; the target mlperf counts it' if workload.name in networks() else unknown}."
    )


def _learning_rates(target: TrainingTarget, best: Choice) -> str:
    """Learning rates of the best in words, or why they are unknown; empty where nobody asked for any."""
    if target.recipes is None:
        return ""
    return str(best.recipe) if best.recipe else f"unknown: {target.recipes.why_not(best.strategy.optimizer)}"


def _compression(table: RankedTable, order: Sequence[int], goal: Goal) -> str:
    """What compression is worth: the best with it against the best without."""
    score = goal.score(table.time_s, table.usd)
    lossy = np.array([s.gradient_exchange.compression != "dense" for _, s in table.candidates])
    limited = goal.limited(table.time_s, table.usd) <= goal.limit
    if not lossy.any():
        return "Compression was not tried."
    dense = next((i for i in order if not lossy[i]), None)
    if dense is None:
        return f"Nothing without compression meets {goal}."
    with_it = np.flatnonzero(lossy & limited)
    if not len(with_it):
        return f"Compression does not pay: no strategy with it meets {goal}."
    other = int(with_it[score[with_it].argmin()])
    gain = float(score[dense] / score[other])
    exchange = table.candidates[other][1].gradient_exchange
    own, name = exchange.compression, str(exchange)
    what = "costs" if goal.by_cost else "takes"
    if abs(gain - 1) < PLAIN:
        return f"Compression does not pay: its best strategy ({name}) gains less than {PLAIN:.0%} over dense."
    if gain < 1:
        waits = _network_share(table, dense)
        return (
            f"Compression does not pay: its best strategy ({name}) {what} {1 / gain - 1:.1%} more than "
            f"dense. Steps with dense wait {waits:.1%} of the time for links."
        )
    if not table.target.known(own):
        return (
            f"Compression pays only if its penalty is small: {name} {what} {1 - 1 / gain:.1%} less than dense for equal "
            f"samples. It breaks even at {gain - 1:.1%} more samples to the target. How many more it needs is unknown; give "
            "the factor as its penalty."
        )
    basis = "for equal samples" if table.target.curve is None else "to the same target"
    if table.target.curve is None and table.workload.name not in {a.network for a in accuracies(own)}:
        basis += f"; its effect on the accuracy of {table.workload.name} is unknown"
    return f"Compression pays: {name} {what} {1 - 1 / gain:.1%} less than the best strategy without it, {basis}."


def _network_share(table: RankedTable, index: int) -> float:
    p = table.predictor.step(table.workload, *table.candidates[index])
    return sum(p.exposed.get(name, 0.0) for name in LINKS) / p.step_time_s


def _why_not(
    wanted: Wanted | None, table: RankedTable, best: Choice, goal: Goal, space: Space, target: TrainingTarget
) -> tuple[str, Choice | None]:
    """Why the strategy that the user asked for is not the best, and its choice where it was tried."""
    if not wanted:
        return "", None
    there = [i for i, candidate in enumerate(table.candidates) if matches(candidate, wanted)]
    if not there:
        if (layouts := narrowed(wanted, best, table.workload, space)) is None:
            return illegal(wanted, best, table.workload, space, space.barred(target), table.predictor), None
        search = search_divided(table.workload, layouts, target, Tally(), table.predictor)
        if not search.fitting:
            return illegal(wanted, best, table.workload, space, space.barred(target), table.predictor, search.least), None
        candidates, step_s = search.fitting
        table = table_of(table.workload, target, goal, table.prices, candidates, step_s, table.predictor)
        there = list(range(len(candidates)))
    scores = goal.score(table.time_s, table.usd)
    asked = table.choice(min(there, key=lambda i: scores[i]), best)
    text = f"{asked.title}: {asked.reason}."
    if goal.limited(np.array([asked.time_s]), np.array([asked.usd]))[0] > goal.limit:
        text += f" It does not meet {goal}."
    if not table.target.known(asked.strategy.gradient_exchange.compression):
        text += " This is for equal samples. How many more samples the target takes with it is unknown."
    return text, asked


def _price_notes(listed: Mapping[str, Price | None]) -> tuple[str, ...]:
    """The price of each device, and the range of its listings."""
    notes = []
    for name, listing in listed.items():
        others = [x.usd_per_device_hour for x in listings(name)]
        apart = f" Listed from {money(min(others))} to {money(max(others))}." if len(others) > 1 else ""
        notes.append(f"{listing}.{apart}" if listing else f"{name}: no price is known; give one as {name}=DOLLARS.")
    return tuple(notes)
