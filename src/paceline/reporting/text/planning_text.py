"""Screens of plans, upgrades and explanations, each with one table to copy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from paceline.planning.ask.advice import in_words
from paceline.planning.compare.explain import Explained
from paceline.planning.compare.whatif import Outcome, WhatIf
from paceline.planning.search.choice import Choice, Plan
from paceline.planning.search.goal import money
from paceline.record import Metrics
from paceline.reporting.text.screen import GAP, Block, Pair, Paragraph, Screen, Table, Verbatim, heading, item
from paceline.reporting.text.table import run_title
from paceline.reporting.text.transport_text import brief_steps, gains_text, transport_line, with_steps
from paceline.reporting.values import clean, count, number, parts_text, range_beside, rate, seconds, step_range, time_range
from paceline.units import format_gib, format_memory

SENTENCES = 300
SHOWN = 3
"""Rows of the ranking in the answer; all of them are behind ``--why``."""
SIZES = 8
"""Numbers of devices in the answer; all of them are behind ``--why``."""
BEYOND = " (beyond: samples that a small batch saves; *: past critical)"
SAME_STRATEGY = "Each change keeps the rest of the strategy; ask and plan choose it again for each machine, and may gain more."
"""Meaning of a gain of ``whatif``."""


def plan_screen(plan: Plan, steps: Mapping[str, Metrics] | None = None, commands: Sequence[str] = ()) -> Screen:
    """Return the screen: the best, the ranking and the best of each number of devices, with all assumptions behind ``--why``.

    Args:
        steps: steps of the best over each transport, if the network does not name its own.
        commands: commands that write each run of ``Plan.deciding``.
    """
    best = plan.best
    step = seconds(best.prediction.step_time_s)
    behind = [count(len(plan.ranking) - SHOWN, "more strategy", "more strategies")] if _is_partial(plan) else []
    left = len(plan.by_devices) - len(_sizes(plan))
    behind += [count(left, "more number of devices", "more numbers of devices")] if left else []
    behind += [count(len(plan.excluded), "exclusion")] if plan.excluded else []
    brief = f"{plan.workload}: {best.title}: {seconds(best.time_s)} ({_time_range(best)}), {cost(best)}, {step} a step"
    return Screen(
        title=f"{plan.workload}, {plan.target}; goal {plan.goal}",
        answer=tuple(_plan(plan, steps or {}, commands)),
        brief="; ".join(filter(None, (f"{brief}, waits for {best.prediction.bottleneck}", brief_steps(steps or {})))),
        why=tuple(_plan_why(plan)),
        why_holds=", ".join([*behind, "prices", count(len(plan.assumptions), "assumption")]),
    )


def _plan(plan: Plan, steps: Mapping[str, Metrics], commands: Sequence[str]) -> Iterator[Block]:
    best, p = plan.best, plan.best.prediction
    if plan.notice:
        chosen = plan.notice.partition(". ")[0].rstrip(".")
        yield Paragraph(f"{chosen}: the samples that a larger batch needs are not counted.", "warning")
        yield GAP
    yield Pair("best", best.title)
    yield Pair("time", f"{seconds(best.time_s)} ({_time_range(best)})")
    yield Pair("failures", best.failures.sentence(best.time_s) if best.failures else "")
    yield Pair("cost", cost(best))
    if best.meets is not None:
        yield Pair("goal", f"within {plan.goal.amount(plan.goal.limit)}: {likely(best.meets)} likely")
    yield Pair("step", f"{seconds(p.step_time_s)} ({step_range(p)}), {rate(p.samples_per_s)} samples/s")
    if p.useful_tokens_per_s:
        yield Pair("tokens", f"{rate(p.useful_tokens_per_s)} tokens/s that count, without padding")
    yield Pair("parts", parts_text(p))
    yield Pair("network", transport_line(steps))
    if plan.critical_batch:
        yield Pair("batch", batch_text(plan))
    if plan.learning_rates:
        yield Pair("recipe", rates(best) if best.recipe else "".join(plan.learning_rates.partition("(--records)")[:2]))
    yield Pair("memory", f"{format_memory(p.memory_bytes)} of {format_memory(best.cluster.device.memory.value)} a device")
    yield Pair("because", best.reason)
    yield GAP
    yield heading(f"Ranking, of {plan.considered:,} strategies that were weighed:")
    yield ranking_table(plan.ranking[:SHOWN])
    if any(choice.tied for choice in plan.ranking[:SHOWN]):
        yield Paragraph("= is a tie: --why says of what.", "faint")
    yield GAP
    yield from _deciding(plan, commands)
    if plan.may_not_fit:
        yield Paragraph(plan.may_not_fit)
        yield GAP
    sizes = _sizes(plan)
    which = "each number" if len(sizes) == len(plan.by_devices) else f"{len(sizes)} of {len(plan.by_devices)} numbers"
    yield heading(f"The best of {which} of devices{BEYOND if plan.critical_batch else ''}:")
    yield devices_table(plan, sizes)
    yield GAP
    yield Paragraph(plan.compression)
    yield Paragraph(f"Also try {plan.memory_format}." if plan.memory_format else "")
    yield Paragraph(f"Not ranked: {plan.local_steps}." if plan.local_steps else "")
    if plan.why_not:
        yield Paragraph(f"Why not: {plan.why_not}")


def _deciding(plan: Plan, commands: Sequence[str]) -> Iterator[Block]:
    """Yield the runs that would decide between layouts that the model does not tell apart."""
    if not plan.deciding:
        return
    yield heading("The model does not tell these layouts apart; the simplest is first. Runs that would decide:")
    for place, run in enumerate(plan.deciding, start=1):
        yield Paragraph(f"{place}. {run.choice.title}: {run.steps} steps, about {seconds(run.run_s)}: {run.tells}.")
        if place <= len(commands):
            yield Verbatim(commands[place - 1])
    yield GAP


def _plan_why(plan: Plan) -> Iterator[Block]:
    yield Pair("run it as", in_words(plan.best.strategy, plan.best.strategy.parallelism.data))
    yield Pair("recipe", plan.learning_rates)
    yield Pair("memory", plan.headroom)
    yield Pair("ties", plan.ties)
    yield GAP
    yield Paragraph(plan.layouts)
    if _is_partial(plan):
        yield heading("The whole ranking:")
        yield ranking_table(plan.ranking)
        yield GAP
    yield heading("Pareto front of time and cost:")
    yield ranking_table(plan.front, reasons=False)
    yield GAP
    if len(_sizes(plan)) < len(plan.by_devices):
        yield heading("The best of each number of devices:")
        yield devices_table(plan, range(len(plan.by_devices)))
        yield GAP
    if any(choice.recipe for choice in plan.by_devices):
        yield heading("Learning rates of the best of each number of devices:")
        yield from (item(f"{row[0]} devices: {row[-1]}") for row in devices_rows(plan))
        yield GAP
    if plan.excluded:
        yield heading("Left out:")
        yield Table(
            ("", ""),
            [(f"{x.count:,}", f"{x.reason}{f' ({x.example})' if x.example else ''}") for x in plan.excluded],
            frozenset({1}),
        )
        yield GAP
    yield heading("Prices:")
    yield from map(item, plan.prices)
    yield heading("It rests on:")
    yield from map(item, plan.assumptions)


def _is_partial(plan: Plan) -> bool:
    """Return whether the answer shows only a part of the ranking."""
    return len(plan.ranking) > SHOWN


def _sizes(plan: Plan) -> Sequence[int]:
    """Return which numbers of devices the answer shows: all, or the ends, the cheapest, those of the shown ranking, and some of
    the Pareto front, evenly spaced.
    """
    every = range(len(plan.by_devices))
    if len(every) <= SIZES:
        return every
    clusters = [choice.cluster for choice in plan.by_devices]
    ranked = [clusters.index(choice.cluster) for choice in plan.ranking[:SHOWN] if choice.cluster in clusters]
    unbeaten = {choice.cluster for choice in plan.front}
    front = [place for place in every if clusters[place] in unbeaten] or list(every)
    cheapest = min(every, key=lambda place: plan.by_devices[place].usd)
    spread = [of[round(n * (len(of) - 1) / (SIZES - 1))] for of in (front, every) for n in range(SIZES)]
    kept = list(dict.fromkeys([0, every[-1], cheapest, *ranked, *spread, *every]))
    return sorted(kept[:SIZES])


def ranking_table(choices: Sequence[Choice], reasons: bool = True) -> Table:
    """Return a table with a row for each strategy and, below it, its loss against the best one."""
    return Table(
        ("", "time", "cost", "strategy and what it loses" if reasons else "strategy"),
        [
            (
                f"{place}{'=' if choice.tied else '.'}",
                seconds(choice.time_s),
                money(choice.usd) if choice.usd == choice.usd else "-",
                choice.title,
            )
            for place, choice in enumerate(choices, start=1)
        ],
        frozenset({3}),
        [choice.reason if reasons and choice.difference else "" for choice in choices],
    )


def _time_range(choice: Choice) -> str:
    return time_range(choice.time_low_s, choice.time_high_s, choice.time_s)


def batch_text(plan: Plan) -> str:
    """Describe the critical batch, and the cost of the best strategy's batch."""
    best, critical = plan.best, plan.critical_batch
    if critical is None or best.beyond_least is None:
        return ""
    return (
        f"{best.strategy.global_batch_size:,}; a small batch needs {best.beyond_least:.0%} fewer samples. Beyond the critical "
        f"batch of {critical:,.0f} it needs less than half of them, so more devices waste work."
    )


def likely(chance: float) -> str:
    """Format a probability, never 0 or 1, because no model of a training run is certain."""
    return "over 99%" if chance > 0.995 else "under 1%" if chance < 0.005 else f"{chance:.0%}"


def devices_rows(plan: Plan) -> list[tuple[str, ...]]:
    """Return a row for the best strategy of each cluster: devices, batch, time, range, cost, extra samples, rates."""
    several = len({choice.cluster.device.name for choice in plan.by_devices}) > 1
    rows: list[tuple[str, ...]] = []
    for choice in plan.by_devices:
        past = plan.critical_batch is not None and choice.strategy.global_batch_size > plan.critical_batch
        rows.append(
            (
                f"{choice.cluster.world_size:,}" + (f" {choice.cluster.device.name}" if several else ""),
                f"{choice.strategy.global_batch_size:,}" + ("*" if past else ""),
                seconds(choice.time_s),
                time_range(choice.time_low_s, choice.time_high_s, choice.time_s),
                money(choice.usd) if choice.usd == choice.usd else "-",
                "-" if choice.beyond_least is None else f"{choice.beyond_least:.0%}",
                rates(choice),
            )
        )
    return rows


def rates(choice: Choice) -> str:
    """Describe optimizer, peak rate, warm-up and decay in a few words."""
    recipe = choice.recipe
    if recipe is None:
        return f"{choice.strategy.optimizer}, rate unknown"
    warm = f"warm-up {recipe.warmup_steps:,} of {recipe.total_steps:,} steps" if recipe.warmup_steps else "no warm-up"
    decay = f"decay of power {recipe.power:g}" if recipe.power else "no decay"
    return f"{recipe.optimizer}, peak {recipe.lr:.3g}, {warm}, {decay}"


def devices_table(plan: Plan, places: Sequence[int]) -> Table:
    """Return a table with a row for each device and number of devices at the indices ``places``."""
    rows, known = devices_rows(plan), 6 if plan.critical_batch else 5
    head = ("devices", "batch", "time", "80 % range", "cost", "beyond")
    return Table(head[:known], [rows[place][:known] for place in places], frozenset({0}))


def cost(choice: Choice) -> str:
    """Format dollars with their range, or say that there is no price."""
    if choice.usd != choice.usd:
        return f"unknown: no price of {choice.cluster.device.name}"
    return f"{money(choice.usd)} ({money(choice.usd_low)} to {money(choice.usd_high)})"


def whatif_screen(whatif: WhatIf) -> Screen:
    """Return the screen: before and after, a sentence for each change, and the assumptions behind ``--why``."""
    last = whatif.outcomes[-1]
    prices = tuple(dict.fromkeys(outcome.price for outcome in whatif.outcomes))
    assumptions = whatif.assumptions
    return Screen(
        title=f"{run_title(whatif.base.prediction)}: what each change gains",
        answer=tuple(_whatif(whatif)),
        brief=f"{run_title(whatif.base.prediction)}: {last.title}: {verdict(last, whatif.base)}",
        why=(
            heading("Prices:"),
            *map(item, prices),
            heading("It rests on:"),
            *map(item, assumptions),
        ),
        why_holds=f"prices, {count(len(assumptions), 'assumption')}",
    ).led_by(gains_text(whatif))


def _whatif(whatif: WhatIf) -> Iterator[Block]:
    base = whatif.base
    yield whatif_table(whatif)
    if any(outcome.prediction.fit != "fits" for outcome in whatif.outcomes):
        yield Paragraph("* does not fit the device's memory, or may not; the time is as if it did.", "bad")
    yield Paragraph(f"$ is the price of {whatif.unit} ({whatif.priced_samples:,} samples); ranges hold 80 %.", "faint")
    yield Paragraph(SAME_STRATEGY, "faint")
    yield GAP
    if lacking := _lacking(base):
        yield Paragraph(f"{base.title}: {lacking}.", "bad", hang=2)
    for outcome in whatif.outcomes[1:]:
        yield Paragraph(f"{outcome.title}: {verdict(outcome, base)}", hang=2)
    for line in impossible_lines(whatif):
        yield Paragraph(line, "warning", hang=2)


def impossible_lines(whatif: WhatIf) -> list[str]:
    """Return a sentence for each impossible change."""
    return [f"{clean(title, SENTENCES)}: impossible: {clean(why, SENTENCES)}." for title, why in whatif.impossible.items()]


def whatif_table(whatif: WhatIf) -> Table:
    """Return a table of before and after, with ranges."""
    return Table(
        ("", "step", "range", "speed-up", "range", "$/h", "$", "range"),
        [_cells(outcome, whatif.base) for outcome in whatif.outcomes],
        notes=[outcome.batch_note for outcome in whatif.outcomes],
    )


def _cells(outcome: Outcome, base: Outcome) -> tuple[str, ...]:
    """Return the cells: title, step, its range, speedup, its range, dollars an hour, dollars, their range."""
    p = outcome.prediction
    gained = f"{number(outcome.speedup)}x" if outcome is not base else ""
    between = f"{number(outcome.speedup_low)}-{number(outcome.speedup_high)}" if gained else ""
    hourly, usd = (money(x)[1:] if x == x else "-" for x in (outcome.usd_per_hour, outcome.usd))
    title = outcome.title if p.fit == "fits" else f"* {outcome.title}"
    paid = f"{money(outcome.usd_low)[1:]}-{money(outcome.usd_high)[1:]}" if outcome.usd == outcome.usd else ""
    return title, seconds(p.step_time_s), range_beside(p), gained, between, hourly, usd, paid


def verdict(outcome: Outcome, base: Outcome) -> str:
    """Summarize time, money, fit and scaling in one sentence."""
    clauses = [f"{number(outcome.speedup)}x the samples/s ({number(outcome.speedup_low)} to {number(outcome.speedup_high)})"]
    if outcome.speedup_low == outcome.speedup_high == 1:
        clauses = ["1x the samples/s: the step stays the same"]
    if outcome.usd == outcome.usd and base.usd == base.usd:
        change = outcome.usd / base.usd - 1 if base.usd else 0.0
        paid = "the same money" if abs(change) < 0.0005 else f"{abs(change):.1%} {'more' if change > 0 else 'less'} money"
        span = f"range {money(outcome.usd_low)} to {money(outcome.usd_high)}"
        clauses.append(f"{paid} for the same samples ({money(base.usd)} to {money(outcome.usd)}, {span})")
    if outcome.pays_below == outcome.pays_below:
        least = f"it saves money if it adds less than {money(outcome.pays_below)} an hour"
        clauses.append(f"its price is unknown (--upgrade-price): {least if outcome.pays_below > 0 else 'it saves no money'}")
    if outcome.scaling == "strong":
        clauses.append(
            f"strong scaling: {outcome.batch_note or f'the global batch stays {outcome.strategy.global_batch_size}'}"
        )
    elif outcome.scaling == "weak":
        clauses.append(
            f"weak scaling: the global batch grows to {outcome.strategy.global_batch_size}, which may need more epochs"
        )
    elif outcome.scaling:
        clauses.append(f"the global batch is {outcome.strategy.global_batch_size}, as given")
    elif outcome.batch_note:
        clauses.append(outcome.batch_note)
    now, before = outcome.strategy, base.strategy
    if now.gradient_exchange.compression != before.gradient_exchange.compression or now.local != before.local:
        clauses.append("for equal samples; accuracy may differ, and the notes below say what is known")
    if lacking := _lacking(outcome):
        clauses.append(lacking)
    if outcome.prediction.bottleneck != base.prediction.bottleneck:
        clauses.append(f"then {outcome.prediction.bottleneck} is the bottleneck")
    return "; ".join(clauses) + "."


def _lacking(outcome: Outcome) -> str:
    """Describe how much memory is missing, or may be; empty if the model fits."""
    if outcome.prediction.fits:
        return "" if outcome.prediction.fit == "fits" else "it may not fit the device's memory: fragments may take the rest"
    return f"it does not fit the device's memory: {format_gib(outcome.prediction.missing_bytes)} are missing"


def explain_screen(explained: Explained) -> Screen:
    """Return the screen of a step's limits: waits, critical path, next limit, scaling; assumptions behind ``--why``."""
    p = explained.prediction
    screen = Screen(
        title=run_title(p),
        answer=tuple(_explain(explained)),
        brief=f"{run_title(p)}: {seconds(p.step_time_s)} a step ({step_range(p)}); {explained.sentence}",
        why=(heading("It rests on:"), *map(item, p.assumptions)),
        why_holds=count(len(p.assumptions), "assumption"),
        alarm=p.headline,
    )
    return with_steps(screen, explained.by_transport)


def _explain(explained: Explained) -> Iterator[Block]:
    p = explained.prediction
    yield Paragraph(explained.sentence)
    yield GAP
    yield Pair("one step", f"{seconds(p.step_time_s)} ({step_range(p)})")
    yield GAP
    yield explain_table(explained)
    yield GAP
    yield Paragraph(f"Critical path: {explained.path}")
    if explained.measured:
        m = explained.measured
        off = m.step_time_s and p.step_time_s / m.step_time_s - 1
        yield Paragraph(
            f"Measured: {seconds(m.step_time_s)} ({step_range(m)}), the prediction is off by "
            f"{off:+.1%}; {seconds(m.exposed_comm_s)} of it exchange, {seconds(p.exposed_comm_s)} predicted."
        )
    for title, line in explained.scaling.items():
        base = line[0]
        gains = (
            f"{q.strategy['world_size']} {q.samples_per_s / base.samples_per_s * base.strategy['world_size']:.3g}x"
            for q in line
        )
        yield Paragraph(f"Scaling, {title}: {', '.join(gains)}", hang=2)


def explain_table(explained: Explained) -> Table:
    """Return a table with a row for each resource."""
    p = explained.prediction
    return Table(
        ("resource", "the step waits", "share", "if it took no time"),
        [
            (name, seconds(waited), f"{waited / p.step_time_s:.1%}", explained.speedup_text(name))
            for name, waited in explained.waits
        ],
        frozenset({0, 3}),
    )
