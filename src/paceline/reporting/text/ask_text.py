"""Screen of ``paceline ask``."""

from __future__ import annotations

import math
from collections.abc import Iterator

from paceline.hardware.prices import GIVEN
from paceline.planning.ask.advice import holding, in_words, lighter_words
from paceline.planning.ask.answer import Asked, cluster_text
from paceline.planning.search.goal import money
from paceline.reporting.text.screen import GAP, Block, Pair, Paragraph, Screen, Table, heading, item
from paceline.reporting.text.transport_text import transport_line
from paceline.reporting.values import clean, memory, parts_text, percent, rate, seconds, step_range, time_range

_RENTED = "No cluster was named: this is the best of what is listed for rent; without a listed network, one node."
PLANNED_ANEW = 'Under "is more worth it?" each row has the best strategy of its machine; whatif keeps one strategy for all.'
"""Meaning of a relative speed in the answer."""
SMALL = 0.05
"""Share of the step from which on a wait is named."""


def asked_screen(asked: Asked, deeper: str = "") -> Screen:
    """Return the screen: fit, speed, limit, time, cost, worthwhile changes, advice; ``deeper``: command for details."""
    choice = asked.choice
    where = cluster_text(choice.cluster)
    if choice.cluster.num_nodes > 1:
        where += f", {choice.cluster.network.name} between nodes"
    unfit = asked.named if not asked.fits else None
    same = unfit is not None and (unfit.device == choice.cluster.device or asked.divided)
    next_best = "This is the next that holds it." if same else "This is the cheapest listed of what holds it."
    kept = _chance(asked.by_s, asked.in_time, seconds), _chance(asked.budget_usd, asked.in_budget, money)
    usd = "costs unknown" if math.isnan(choice.usd) else money(choice.usd)
    figures = f"{clean(asked.workload)} on {where}: {seconds(choice.time_s)}{kept[0]}, {usd}{kept[1]}"
    compared = (PLANNED_ANEW,) if asked.upgrades else ()
    return Screen(
        title=f"{clean(asked.workload)} on {where}: {asked.amount}",
        answer=tuple(_answer(asked, deeper)),
        brief=f"{figures}; {holding(asked, unfit) if unfit else asked.advice.rstrip('.')}",
        why=(heading("It rests on:"), *map(item, (*compared, *asked.assumptions, *filter(None, (asked.price,))))),
        why_holds="assumptions with sources",
        alarm=f"DOES NOT FIT on {cluster_text(unfit)}. {next_best}" if unfit else "",
        notes=() if asked.named else (_RENTED,),
    )


def _answer(asked: Asked, deeper: str) -> Iterator[Block]:
    choice = asked.choice
    p = choice.prediction
    if asked.otherwise is not None:
        other = asked.otherwise
        how = in_words(other.strategy, other.strategy.parallelism.data, asked.tool)
        each = f"{memory(other.prediction.memory_bytes)} a device, {seconds(other.prediction.step_time_s)} a step"
        yield Pair("else", f"without {' and '.join(asked.dropped)}, {cluster_text(other.cluster)} hold it: {how}, {each}")
        yield GAP
    if asked.named is not None and asked.lighter:
        steps = [(lighter_words(fit), fit.prediction) for fit in asked.lighter]
        lighter = [(words, memory(step.memory_bytes), seconds(step.step_time_s)) for words, step in steps]
        holds = "undivided, it fits with" if asked.fits else f"fits {cluster_text(asked.named)}"
        yield Table((holds, "memory", "step"), lighter)
        yield GAP
    available = choice.cluster.device.memory.value
    batch = f" at a global batch of {choice.strategy.global_batch_size:,}"
    yield Pair("fits", f"{memory(p.memory_bytes)} of {memory(available)} a device{batch}")
    words = in_words(choice.strategy, choice.strategy.parallelism.data, asked.tool)
    yield Pair("run it as", f"{words}, {choice.strategy.precision}")
    yield Pair("settings", ", ".join(f"{name} {text}" for name, text in asked.settings))
    yield Pair("you said", f"{', '.join(asked.said)}; the rest is chosen here" if asked.said else "")
    useful = p.useful_tokens_per_s
    tokens = f", {rate(useful or asked.tokens * p.samples_per_s)} tokens/s" if asked.tokens else ""
    tokens += " that count" if useful else ""
    yield Pair("speed", f"{seconds(p.step_time_s)} a step ({step_range(p)}), {rate(p.samples_per_s)} samples/s{tokens}")
    yield Pair("parts", parts_text(p))
    waits = sorted(((share, name) for name, s in p.exposed.items() if (share := s / p.step_time_s) >= SMALL), reverse=True)
    yield Pair("waits for", ", ".join(f"{name} {percent(share)}" for share, name in waits) or p.bottleneck)
    yield Pair("network", transport_line(asked.by_transport))
    span = time_range(choice.time_low_s, choice.time_high_s, choice.time_s)
    yield Pair("takes", f"{seconds(choice.time_s)} ({span}){_chance(asked.by_s, asked.in_time, seconds)}")
    yield Pair("failures", choice.failures.sentence(choice.time_s) if choice.failures else "")
    if math.isnan(choice.usd):
        budget = "" if asked.budget_usd is None else ", so the budget is not checked"
        yield Pair("costs", f"unknown: no price of {choice.cluster.device.name} is listed{budget}; --price 2.50 names yours")
    else:
        ends = f"{money(choice.usd_low)} to {money(choice.usd_high)}"
        yield Pair("costs", f"{money(choice.usd)} ({ends}){_sold(asked)}{_chance(asked.budget_usd, asked.in_budget, money)}")
    yield Pair("also try", "; ".join(filter(None, (_divided(asked), asked.memory_format, asked.local_steps))))
    if asked.upgrades:
        yield GAP
        rows = [
            (
                upgrade.title,
                f"{upgrade.speedup:.2f}x",
                f"{upgrade.speedup_low:.2f}-{upgrade.speedup_high:.2f}",
                seconds(upgrade.choice.time_s),
                money(upgrade.usd),
            )
            for upgrade in asked.upgrades
        ]
        yield Table(("is more worth it?", "speed", "80 % range", "takes", "costs"), rows)
    yield GAP
    yield Paragraph(asked.advice, "heading")
    yield Pair("deeper", deeper)


def _divided(asked: Asked) -> str:
    """Describe the alternative: layouts that divide the network, or the plain strategy if the answer divides it."""
    if asked.plain is not None:
        whole = asked.plain.choice
        how, waits = in_words(whole.strategy, whole.strategy.parallelism.data, asked.tool), whole.prediction.bottleneck
        return f"in plain PyTorch {how}: {asked.plain.speedup:.2f}x, {seconds(whole.time_s)}; waits for {waits}"
    if not asked.may_divide:
        return ""
    layout = asked.divided_layout
    if layout is None:
        return "layouts that divide the network (tensor, pipeline, expert): plan weighs them"
    p = layout.choice.prediction
    words = in_words(layout.choice.strategy, layout.choice.strategy.parallelism.data, asked.tool)
    times = f"{layout.speedup:.2f}x ({layout.speedup_low:.2f}-{layout.speedup_high:.2f})"
    return f"{words}: {times}, {seconds(layout.choice.time_s)}; waits for {p.bottleneck}; plan weighs more layouts"


def _sold(asked: Asked) -> str:
    """Describe the source of the price, and the devices billed and used."""
    if asked.listing is None:
        return ""
    whose = ", your price" if asked.provider == GIVEN else f", {asked.listing.listed}"
    used = asked.choice.cluster.world_size
    whole = f"; {asked.billed} devices are billed, {used} used: only whole machines are let"
    return whose + (whole if asked.billed > used else "")


def _chance(limit: float | None, chance: float | None, show: object) -> str:
    """Format a limit with its probability: ``; within 3 d: 94 % likely``."""
    if limit is None or not callable(show):
        return ""
    return f"; within {show(limit)}: " + ("unknown" if chance is None else f"{chance:.0%} likely")
