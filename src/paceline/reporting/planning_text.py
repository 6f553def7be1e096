"""Plans and upgrades as text of at most 80 columns, each with one table to paste."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from textwrap import wrap

from paceline.planning.choice import Choice, Plan
from paceline.planning.explain import Explained
from paceline.planning.goal import money
from paceline.planning.whatif import Outcome, WhatIf
from paceline.reporting.table import WIDTH
from paceline.reporting.values import clean, number, rate, seconds, time_range
from paceline.units import format_gib, format_memory

SENTENCES = 300
BEYOND = ' ("beyond": share of the samples that a small batch would not need; *: past the critical batch)'
TITLE = 20
"""Characters of a change's title in the table."""


def plan_text(plan: Plan) -> str:
    """The best, the ranking as a table, the front, what was left out, and what it rests on."""
    return "\n".join(_plan(plan)) + "\n"


def _plan(plan: Plan) -> Iterator[str]:
    best = plan.best
    yield from wrap(f"{clean(plan.workload)}, {plan.target}; goal {plan.goal}", WIDTH)
    if plan.notice:
        yield from wrap(clean(plan.notice, SENTENCES), WIDTH)
    yield ""
    yield from _labelled("best", best.title)
    yield from _labelled("time", f"{seconds(best.time_s)} ({time_range(best.time_low_s, best.time_high_s, best.time_s)})")
    yield from _labelled("cost", cost(best))
    if best.meets is not None:
        yield from _labelled("goal", f"meets {plan.goal} with {best.meets:.0%}")
    p = best.prediction
    yield from _labelled(
        "step", f"{seconds(p.step_time_s)} ({time_range(p.low_s, p.high_s, p.step_time_s)}), {rate(p.samples_per_s)} samples/s"
    )
    yield from _labelled("batch", batch_text(plan)) if plan.critical_batch else ()
    yield from _labelled("recipe", clean(plan.learning_rates, SENTENCES)) if plan.learning_rates else ()
    yield from _labelled(
        "memory",
        f"{format_memory(p.memory_bytes)} of {format_memory(best.cluster.device.memory.value)} a device; {plan.headroom}",
    )
    yield from _labelled("", f"{best.reason}")
    yield ""
    yield from wrap(plan.layouts, WIDTH)
    yield f"Ranking, of {plan.considered:,} strategies that were weighed (80 % ranges are in --json):"
    yield plan_table(plan)
    yield from wrap(plan.ties, WIDTH)
    yield ""
    yield from wrap(f"The best of each number of devices{BEYOND if plan.critical_batch else ''}:", WIDTH)
    yield devices_table(plan)
    yield ""
    yield "Of these, no other is both faster and cheaper:"
    yield from (line for choice in plan.front for line in _row("", choice, reason=False))
    yield ""
    yield from wrap(plan.compression, WIDTH)
    if plan.why_not:
        yield from wrap(f"Why not: {plan.why_not}", WIDTH)
    if plan.excluded:
        yield ""
        yield "Left out:"
        for group in plan.excluded:
            example = f" ({clean(group.example, 120)})" if group.example else ""
            yield from wrap(f"{group.count:>9,}  {group.reason}{example}", WIDTH, subsequent_indent=" " * 11)
    yield ""
    yield "Prices:"
    yield from _list(plan.prices)
    yield "It rests on:"
    yield from _list(plan.assumptions)


def plan_table(plan: Plan) -> str:
    """The ranking."""
    lines = [f"{'':>3}{'time':>14}{'cost':>10}  strategy and what it loses"]
    for place, choice in enumerate(plan.ranking, start=1):
        lines += _row(f"{place:>2}{'=' if choice.tied else '.'}", choice)
    return "\n".join(lines)


def batch_text(plan: Plan) -> str:
    """The critical batch, and what the best's own costs."""
    best, critical = plan.best, plan.critical_batch
    if critical is None or best.beyond_least is None:
        return ""
    return (
        f"{best.strategy.global_batch_size:,}; {best.beyond_least:.0%} of its samples are beyond the least. Past the critical "
        f"batch, {critical:,.0f}, that is more than half, and more devices waste work."
    )


def devices_rows(plan: Plan) -> list[tuple[str, ...]]:
    """A row for the best strategy of each cluster: devices, batch, time, range, cost, samples beyond the least, rates."""
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
    """Optimizer, peak rate, warm-up and decay in a few words."""
    recipe = choice.recipe
    if recipe is None:
        return f"{choice.strategy.optimizer}, rate unknown"
    warm = f"warm-up {recipe.warmup_steps:,} of {recipe.total_steps:,} steps" if recipe.warmup_steps else "no warm-up"
    decay = f"decay of power {recipe.power:g}" if recipe.power else "no decay"
    return f"{recipe.optimizer}, peak {recipe.lr:.3g}, {warm}, {decay}"


def devices_table(plan: Plan) -> str:
    """One line for each device and number of them, and one for its rates where any are known."""
    rows = devices_rows(plan)
    head, *plain = _columns(("devices", "batch", "time", "80 %", "cost", "beyond"), [row[:-1] for row in rows])
    known = any(choice.recipe for choice in plan.by_devices)
    below = [f"    {clean(row[-1], WIDTH - 4)}" if known else "" for row in rows]
    return "\n".join((head, *(line for pair in zip(plain, below, strict=True) for line in pair if line)))


def _row(head: str, choice: Choice, reason: bool = True) -> Iterator[str]:
    start = f"{head:<3}{seconds(choice.time_s):>14}{money(choice.usd) if choice.usd == choice.usd else '-':>10}  "
    yield from wrap(choice.title, WIDTH, initial_indent=start, subsequent_indent=" " * 29)
    if reason and choice.difference:
        yield from wrap(choice.reason, WIDTH, initial_indent=" " * 29, subsequent_indent=" " * 29)


def cost(choice: Choice) -> str:
    """Dollars with their range; in words where there is no price."""
    if choice.usd != choice.usd:
        return f"unknown: no price of {choice.cluster.device.name}"
    return f"{money(choice.usd)} ({money(choice.usd_low)} to {money(choice.usd_high)})"


def whatif_text(whatif: WhatIf) -> str:
    """Before and after, one line a change, and what each rests on."""
    return "\n".join(_whatif(whatif)) + "\n"


def _whatif(whatif: WhatIf) -> Iterator[str]:
    base = whatif.base
    yield from wrap(f"{clean(base.prediction.workload)}: what each change gains", WIDTH)
    yield ""
    yield whatif_table(whatif)
    yield ""
    if lacking := _lacking(base):
        yield from wrap(f"{base.title}: {lacking}.", WIDTH, subsequent_indent="  ")
    for outcome in whatif.outcomes[1:]:
        yield from wrap(f"{outcome.title}: {verdict(outcome, base)}", WIDTH, subsequent_indent="  ")
    for line in impossible_lines(whatif):
        yield from wrap(line, WIDTH, subsequent_indent="  ")
    yield ""
    yield "Prices:"
    yield from _list(dict.fromkeys(outcome.price for outcome in whatif.outcomes))
    yield "It rests on:"
    yield from _list(whatif.assumptions)


def impossible_lines(whatif: WhatIf) -> list[str]:
    """A sentence for each change that cannot be."""
    return [f"{clean(title, SENTENCES)}: impossible: {clean(why, SENTENCES)}." for title, why in whatif.impossible.items()]


def whatif_table(whatif: WhatIf) -> str:
    """Before and after, at most 80 columns: ranges beside the numbers where there is room, else below them."""
    rows = [_cells(outcome, whatif.base) for outcome in whatif.outcomes]
    lines = _columns(("", "step", "range", "speed-up", "range", "$/h", "$", "range"), rows)
    if max(map(len, lines)) > WIDTH:
        narrow = [(a, b, d, f, g) for a, b, _, d, _, f, g, _ in rows]
        below = [("", c, e, "", h) for _, _, c, _, e, _, _, h in rows]
        lines = _columns(("", "step", "speed-up", "$/h", "$"), narrow, below)
    out, each = [lines[0]], (len(lines) - 1) // len(rows)
    for place, outcome in enumerate(whatif.outcomes):
        out += lines[1 + each * place : 1 + each * (place + 1)]
        out += wrap(outcome.batch_note, WIDTH, initial_indent="  ", subsequent_indent="  ") if outcome.batch_note else []
    if any(outcome.prediction.fit != "fits" for outcome in whatif.outcomes):
        out.append("* does not fit the device's memory, or may not; the time is as if it did.")
    legend = f"$ is the price of {whatif.unit} ({whatif.priced_samples:,} samples); ranges hold 80 %."
    return "\n".join([*out, *wrap(legend, WIDTH)])


def _cells(outcome: Outcome, base: Outcome) -> tuple[str, ...]:
    """Title, step, its range, speed-up, its range, dollars an hour, dollars, their range."""
    p = outcome.prediction
    span = time_range(p.low_s, p.high_s, p.step_time_s)
    if " - " not in span:
        span = span.rpartition(" ")[0]  # the step beside it has the unit
    gained = f"{number(outcome.speedup)}x" if outcome is not base else ""
    between = f"{number(outcome.speedup_low)}-{number(outcome.speedup_high)}" if gained else ""
    hourly, usd = (money(x)[1:] if x == x else "-" for x in (outcome.usd_per_hour, outcome.usd))
    title = clean(outcome.title if p.fit == "fits" else f"* {outcome.title}", TITLE)
    paid = f"{money(outcome.usd_low)[1:]}-{money(outcome.usd_high)[1:]}" if outcome.usd == outcome.usd else ""
    return title, seconds(p.step_time_s), span, gained, between, hourly, usd, paid


def _columns(head: Sequence[str], rows: Sequence[Sequence[str]], below: Sequence[Sequence[str]] = ()) -> list[str]:
    """Lines of columns as wide as they must be, two blanks apart; the first one is to the left, and cut where there is no room.
    ``below``: under each row.
    """
    every = [head, *(line for place, row in enumerate(rows) for line in (row, *below[place : place + 1]))]
    widths = [max(map(len, column)) for column in zip(*every, strict=True)]
    if below:
        widths[0] = min(widths[0], WIDTH - sum(widths[1:]) - 2 * len(widths[1:]))
    cells = ([f"{clean(line[0], widths[0]):<{widths[0]}}", *map(str.rjust, line[1:], widths[1:])] for line in every)
    return ["  ".join(line_cells).rstrip() for line_cells in cells]


def verdict(outcome: Outcome, base: Outcome) -> str:
    """Time, money, fit and scaling in one sentence."""
    clauses = [f"{number(outcome.speedup)}x the samples/s ({number(outcome.speedup_low)} to {number(outcome.speedup_high)})"]
    if outcome.speedup_low == outcome.speedup_high == 1:
        clauses = ["1x the samples/s: the step stays the same"]
    if outcome.usd == outcome.usd and base.usd == base.usd:
        change = outcome.usd / base.usd - 1 if base.usd else 0.0
        paid = "the same money" if abs(change) < 0.0005 else f"{abs(change):.1%} {'more' if change > 0 else 'less'} money"
        span = f"range {money(outcome.usd_low)} to {money(outcome.usd_high)}"
        clauses.append(f"{paid} for the same samples ({money(base.usd)} to {money(outcome.usd)}, {span})")
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
    if outcome.strategy.gradient_exchange.compression != base.strategy.gradient_exchange.compression:
        clauses.append("for equal samples; accuracy may differ, and the notes below say what is known")
    if lacking := _lacking(outcome):
        clauses.append(lacking)
    if outcome.prediction.bottleneck != base.prediction.bottleneck:
        clauses.append(f"then {outcome.prediction.bottleneck} is the bottleneck")
    return "; ".join(clauses) + "."


def _lacking(outcome: Outcome) -> str:
    """How much memory is missing, or may be, in words; empty where the model fits."""
    if outcome.prediction.fits:
        return "" if outcome.prediction.fit == "fits" else "it may not fit the device's memory: fragments may take the rest"
    return f"it does not fit the device's memory: {format_gib(outcome.prediction.missing_bytes)} are missing"


def explain_text(explained: Explained) -> str:
    """What the step waits for, the critical path, what would be next, how it scales, and what it rests on."""
    return "\n".join(_explain(explained)) + "\n"


def _explain(explained: Explained) -> Iterator[str]:
    p = explained.prediction
    if p.headline:
        yield from (p.headline, "")
    yield from wrap(f"{clean(p.workload)}: {explained.sentence}", WIDTH)
    yield ""
    yield explain_table(explained)
    yield ""
    yield from wrap(f"Critical path: {explained.path}", WIDTH)
    if explained.measured:
        m = explained.measured
        off = m.step_time_s and p.step_time_s / m.step_time_s - 1
        yield from wrap(
            f"Measured: {seconds(m.step_time_s)} ({time_range(m.low_s, m.high_s, m.step_time_s)}), the prediction is off by "
            f"{off:+.1%}; {seconds(m.exposed_comm_s)} of it exchange, {seconds(p.exposed_comm_s)} predicted.",
            WIDTH,
        )
    for title, line in explained.scaling.items():
        base = line[0]
        yield from wrap(
            f"Scaling, {title}: "
            + ", ".join(
                f"{q.strategy['world_size']} {q.samples_per_s / base.samples_per_s * base.strategy['world_size']:.3g}x"
                for q in line
            ),
            WIDTH,
            subsequent_indent="  ",
        )
    yield ""
    yield "It rests on:"
    yield from _list(p.assumptions)


def explain_table(explained: Explained) -> str:
    """One line a resource."""
    p = explained.prediction
    step = f"{seconds(p.step_time_s)} ({time_range(p.low_s, p.high_s, p.step_time_s)})"
    lines = [f"{'resource':<18}{'the step waits':>15}{'share':>8}  if it took no time", f"{'all: one step':<18}{step:>23}"]
    lines += [
        f"{name:<18}{seconds(waited):>15}{waited / p.step_time_s:>8.1%}  {explained.speedup_text(name)}"
        for name, waited in explained.waits
    ]
    return "\n".join(lines)


def _labelled(head: str, text: str) -> list[str]:
    return wrap(text, WIDTH, initial_indent=f"{head:<10}", subsequent_indent=" " * 10)


def _list(items: Iterable[str] | Sequence[str]) -> Iterator[str]:
    for item in items:
        yield from wrap(clean(item, 1000), WIDTH, initial_indent="  - ", subsequent_indent="    ")
