"""``plan(workload, space, goal)``: the best strategy, the next ones, the excluded ones, and the gain of compression."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from paceline.array_types import Array
from paceline.errors import NotMet, UserError
from paceline.hardware import Cluster
from paceline.hardware.prices import Price, listings, of_devices, price
from paceline.planning.compare.comparison import illegal, lacking
from paceline.planning.compare.compression_worth import competing, compression_worth, meets_unranked
from paceline.planning.compare.image_order import faster_format
from paceline.planning.compare.layout_view import layout_view
from paceline.planning.compare.local_gain import local_gain
from paceline.planning.compare.scaling import scaling
from paceline.planning.compare.strategy_text import POINTLESS, Wanted, describe, matches, saves_memory
from paceline.planning.search.candidates import candidates, in_more_micro_steps
from paceline.planning.search.choice import Choice, Plan
from paceline.planning.search.deciding_runs import Targets, deciding_runs
from paceline.planning.search.divided_layouts import LayoutSearches, divides, narrowed, search_divided
from paceline.planning.search.goal import Goal, money
from paceline.planning.search.layouts import Progress, silent
from paceline.planning.search.nearest_fit import nearest_fit
from paceline.planning.search.ranking import (
    RankedTable,
    best_of,
    by_devices,
    distinct,
    front,
    preferred,
    ranked,
    shown_choice,
    table_of,
    tie_text,
)
from paceline.planning.search.slow_hosts import SlowHosts
from paceline.planning.search.space import Space
from paceline.planning.search.tally import Exclusions
from paceline.planning.search.tight_layouts import simpler_if_it_fits
from paceline.planning.search.training_target import TrainingTarget
from paceline.prediction import ORDINARY, StepPredictor
from paceline.prediction.layouts.batch import Candidate, Steps, merged_steps
from paceline.prediction.learning.convergence import accuracy_notes, networks
from paceline.prediction.learning.published_batches import published_batch
from paceline.prediction.mesh.expert_parallel import has_experts
from paceline.prediction.step.memory import FRAGMENTED, usable_bytes
from paceline.strategy.offload import OFFLOAD_OPTIMIZER
from paceline.strategy.optimizer import usual_optimizer
from paceline.strategy.usual_precision import usual_choices, usual_precision
from paceline.units import format_gib
from paceline.workload.table import Workload

_TOO_LARGE = f"does not fit the device's memory with a headroom of {FRAGMENTED:.0%} for fragments"
SHOWN = 8
"""Number of strategies in the ranking."""
TRIED = (
    "Batches tried: those given, else powers of two for each worker, up to 1024, up to the largest published batch and as "
    "large as one micro step holds. The smaller batch wins a tie."
)


def plan(
    workload: Workload,
    space: Space,
    goal: Goal,
    target: TrainingTarget | None = None,
    *,
    prices: Mapping[str, float | Price] | None = None,
    why_not: Wanted | None = None,
    predictor: StepPredictor = ORDINARY,
    progress: Progress = silent,
    offers: bool = True,
    targets: Targets | None = None,
) -> Plan:
    """Find the best strategy and cluster within ``space`` to train ``workload`` to ``target``.

    Divided layouts are searched on every cluster (``layouts``) if the space names sizes of a division, or if no device holds
    the whole training state.

    Args:
        prices: dollars a device and hour, or a listing, by device; the empty name means the only device. Default: listings.
        why_not: choices of a strategy to compare with the best.
        progress: called with a line at intervals during a search of layouts.
        offers: whether the error about memory names changes that fit (``nearest_fit``), which takes up to seconds.
        targets: names the frameworks that run a choice, of which one runs all of ``Plan.deciding``.

    Raises:
        UserError: nothing is legal; no price if the goal needs one.
        NotMet: nothing fits, with the least missing GiB; a deadline or budget that nothing meets, with the nearest that does.
    """
    target, space = target or TrainingTarget(), space.on(predictor.uncorrected.typical.framework)
    if not space.batches and target.curve is None:
        target = replace(target, published=published_batch(workload))
    if not space.optimizer:
        examples = usual_choices(workload, (), predictor.uncorrected.typical.framework)
        usual = examples.get("optimizer") or usual_optimizer(workload)
        space = replace(space, optimizer=target.optimizer(space.batches) or usual)
    prices = of_devices(prices, {c.device.name for c in space.clusters})
    largest = {c.device.name: c for c in sorted(space.clusters, key=lambda c: c.world_size)}
    listed = {name: price(name, prices, largest[name].node_sizes) for name in {c.device.name: c for c in space.clusters}}
    if goal.needs_price and (unknown := [name for name, listing in listed.items() if listing is None]):
        raise UserError(
            f"goal {goal} needs prices, and no price of {unknown[0]} is known",
            f"give its price in dollars for a device and hour: {unknown[0]}=DOLLARS",
        )
    left_out = Exclusions()
    pointless = len(space.recomputes) > 1 and not saves_memory(workload)
    if pointless:
        space = replace(space, recomputes=(False,))
    legal = candidates(space, target, left_out, workload)
    if pointless:
        left_out.add(POINTLESS, len(legal))
    steps = predictor.many(workload, legal, fitting=True)
    more = space.accumulations == Space.accumulations and not space.micro_batch_sizes
    if more and (space.batches or target.curve):
        finer, of_finer = in_more_micro_steps(space, legal, steps, lambda tried: predictor.many(workload, tried, fitting=True))
        steps = merged_steps((range(len(legal)), steps), (range(len(legal), len(legal) + len(finer)), of_finer))
        legal = [*legal, *finer]
    for why in steps.refused.values():
        left_out.add(why)
    whole, searches = len(legal), LayoutSearches(())

    def prefer(tried: Sequence[Candidate], step_s: Array) -> int:
        return best_of(table_of(workload, target, goal, listed, tried, step_s, predictor), np.arange(len(tried)))

    if divides(space, legal, steps):
        searches = search_divided(workload, space, target, left_out, predictor, progress, prefer=prefer)
        if space.offloads and not searches.fitting and not steps.fits.any():
            offloaded = search_divided(workload, space, target, left_out, predictor, progress, OFFLOAD_OPTIMIZER, prefer)
            searches = offloaded if offloaded.fitting else searches
        legal, steps = searches.added(legal, steps)
    if not whole and not searches.legal:
        raise UserError("no strategy is legal here", "; ".join(map(str, left_out.decisive()[:2])))
    grouped = max(space.experts) > 1 if space.experts else bool(searches.searches)
    fitting = _fitting(workload, legal, steps, left_out, searches, grouped, predictor if offers else None)
    if not space.batches and target.curve is None:
        fitting = _at_once(legal, fitting, left_out)
    notice = _notice(workload, space, target)
    hosts = SlowHosts.of(workload, predictor) if searches.searches else None
    kept, step_s = [legal[i] for i in fitting], steps.step_s[fitting]
    whole_table = table_of(workload, target, goal, listed, kept, step_s, predictor, hosts)
    competes, unranked = competing(whole_table, [*space.compressions, *target.penalties], left_out)
    table = whole_table.only(competes)
    order = ranked(goal, table, left_out, SHOWN, meets_unranked(whole_table, competes))
    best = replace(table.choice(order.best), preference=preferred(table, order), tied=len(order.ties) > 1)
    why, asked = _why_not(why_not, whole_table, best, goal, space, target)
    ranking = (best, *(shown_choice(table, i, best, order) for i in distinct(order.order, table.candidates)[1:SHOWN]))
    rows = by_devices(table, order.best)
    counts = tuple(table.choice(i) for i in rows)
    pareto = tuple(counts[rows.index(i)] for i in front(table, rows))
    shown = dict.fromkeys(
        choice.strategy.gradient_exchange.compression.name for choice in (*ranking, *pareto, *counts, *filter(None, [asked]))
    )
    others = [
        note for name in shown if name != best.strategy.gradient_exchange.compression.name for note in accuracy_notes(name)
    ]
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
        compression=compression_worth(table if unranked else whole_table, unranked),
        memory_format=faster_format(workload, best.cluster, best.strategy, predictor, best.prediction),
        local_steps=local_gain(workload, best.cluster, best.strategy, predictor, best.prediction),
        ties=tie_text(table, order),
        prices=_price_notes(listed),
        listed=listed,
        notice=notice,
        assumptions=(
            *((notice, TRIED) if notice else ()),
            *target.notes(best.strategy),
            *_precision(workload, space, best),
            *best.prediction.assumptions,
            *others,
        ),
        why_not=why,
        asked=asked,
        scaling=scaling(workload, best.cluster, best.strategy, predictor, _same_devices(space, best)),
        by_devices=counts,
        critical_batch=target.curve.critical_batch if target.curve and math.isfinite(target.curve.critical_batch) else None,
        learning_rates=_learning_rates(target, best),
        deciding=deciding_runs(best, [choice for choice in ranking if choice.tied], targets),
        may_not_fit=simpler_if_it_fits(workload, best, legal, steps, predictor),
    )


def _fitting(
    workload: Workload,
    legal: Sequence[Candidate],
    steps: Steps,
    left_out: Exclusions,
    searches: LayoutSearches,
    experts: bool,
    asked: StepPredictor | None,
) -> NDArray[np.intp]:
    """Return indices of the candidates that fit their device.

    Args:
        experts: whether groups of experts were tried.
        asked: predictor that finds changes that fit, for the error; None for an error without them.
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
            raise NotMet(
                f"{workload.name} fits on no device here: at least {short}, with {describe(*candidate)}",
                "; ".join([larger, *(f"this fits: {offer}" for offer in offers)]),
            )
        example = f"least missing {format_gib(missing)}, with {describe(*candidate)}"
        left_out.add(_TOO_LARGE, len(where) + searches.too_large, example)
    return np.flatnonzero(~too_large & np.isfinite(steps.step_s))


def _at_once(legal: Sequence[Candidate], fitting: NDArray[np.intp], left_out: Exclusions) -> NDArray[np.intp]:
    """Return the candidates whose batch fits in one micro step under some strategy on the same cluster.

    If the cost of a larger batch is unknown, micro steps must not make it larger.
    """
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


def _precision(workload: Workload, space: Space, best: Choice) -> tuple[str, ...]:
    """Note that the precision was chosen automatically, if another command would choose differently."""
    usual = usual_precision(workload, best.cluster.device).name
    if space.precisions or usual == best.strategy.precision:
        return ()
    chosen = f"{best.strategy.precision} is chosen here, with the strategy, since no precision is named"
    return (f"Precision: {chosen}; predict and whatif then take PyTorch's default, {usual}.",)


def _notice(workload: Workload, space: Space, target: TrainingTarget) -> str:
    """Note that the batch was chosen by speed alone; empty if it was not."""
    if target.curve or len(space.batches) == 1:
        return ""
    unknown = f"unknown for {workload.name} and not counted; a target RUNS.csv counts it from runs of your own"
    within = f" Batches stay within {target.published.samples:,} samples unless one is named." if target.published else ""
    return (
        "The batch is chosen by speed alone. The extra samples that a larger batch needs to the same accuracy are "
        f"{'not counted; the target mlperf counts it' if workload.name in networks() else unknown}.{within}"
    )


def _same_devices(space: Space, best: Choice) -> list[Cluster]:
    """Return the clusters of the plan with the devices and links of the best, the smallest first."""
    own = best.cluster
    alike = [c for c in space.clusters if (c.device, c.network, c.intra_link) == (own.device, own.network, own.intra_link)]
    return sorted(alike, key=lambda c: c.world_size)


def _learning_rates(target: TrainingTarget, best: Choice) -> str:
    """Return learning rates of the best in words, or why they are unknown; empty if not requested."""
    if target.recipes is None:
        return ""
    return str(best.recipe) if best.recipe else f"unknown: {target.recipes.why_not(best.strategy.optimizer)}"


def _why_not(
    wanted: Wanted | None, table: RankedTable, best: Choice, goal: Goal, space: Space, target: TrainingTarget
) -> tuple[str, Choice | None]:
    """Return why the strategy that the user named is not the best, and its choice if it was tried."""
    if not wanted:
        return "", None
    there = [i for i, candidate in enumerate(table.candidates) if matches(candidate, wanted)]
    if not there:
        if (layouts := narrowed(wanted, best, table.workload, space)) is None:
            return illegal(wanted, best, table.workload, space, space.barred(target), table.predictor), None
        search = search_divided(table.workload, layouts, target, Exclusions(), table.predictor)
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
    """Return the price of each device, and the range of its listings."""
    notes = []
    for name, listing in listed.items():
        others = [x.usd_per_device_hour for x in listings(name)]
        apart = f" Listed from {money(min(others))} to {money(max(others))}." if len(others) > 1 else ""
        spot = listing and listing.spot_usd_per_device_hour
        if listing and listing.date:  # a user's own price has no range
            apart += f" Spot: {money(spot)} a device and hour, and may be taken away." if spot else " Spot: unknown."
        notes.append(f"{listing}.{apart}" if listing else f"{name}: no price is known; give one as {name}=DOLLARS.")
    return tuple(notes)
