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
    yield from wrap(f"{clean(plan.workload)}, {plan.work}; goal {plan.goal}", WIDTH)
    if plan.notice:
        yield from wrap(clean(plan.notice, SENTENCES), WIDTH)
    yield ""
    yield from _said("best", best.title)
    yield from _said("time", f"{seconds(best.time_s)} ({time_range(best.time_low_s, best.time_high_s, best.time_s)})")
    yield from _said("cost", cost(best))
    if best.meets is not None:
        yield from _said("goal", f"meets {plan.goal} with {best.meets:.0%}")
    p = best.prediction
    yield from _said(
        "step", f"{seconds(p.step_time_s)} ({time_range(p.low_s, p.high_s, p.step_time_s)}), {rate(p.samples_per_s)} samples/s"
    )
    yield from _said("batch", batch_text(plan)) if plan.critical_batch else ()
    yield from _said("recipe", clean(plan.learning_rates, SENTENCES)) if plan.learning_rates else ()
    yield from _said("memory", f"{format_memory(p.memory_bytes)} of {format_memory(best.cluster.device.memory.value)} a device")
    yield from _said("", f"{best.reason}")
    yield ""
    yield f"Ranking, of {plan.considered:,} strategies that were predicted (80 % ranges are in --json):"
    yield plan_table(plan)
    yield ""
    yield from wrap(f"The best of each number of devices{BEYOND if plan.critical_batch else ''}:", WIDTH)
    yield devices_table(plan)
    yield ""
    yield "No other is both faster and cheaper than these:"
    yield from (line for one in plan.front for line in _row("", one, reason=False))
    yield ""
    yield from wrap(plan.compression, WIDTH)
    if plan.why_not:
        yield from wrap(f"Why not: {plan.why_not}", WIDTH)
    if plan.excluded:
        yield ""
        yield "Left out:"
        for some in plan.excluded:
            example = f" ({clean(some.example, 120)})" if some.example else ""
            yield from wrap(f"{some.count:>9,}  {some.reason}{example}", WIDTH, subsequent_indent=" " * 11)
    yield ""
    yield "Prices:"
    yield from _list(plan.prices)
    yield "It rests on:"
    yield from _list(plan.assumptions)


def plan_table(plan: Plan) -> str:
    """The ranking."""
    lines = [f"{'':>3}{'time':>14}{'cost':>10}  strategy and what it loses"]
    for place, one in enumerate(plan.ranking, start=1):
        lines += _row(f"{place:>2}.", one)
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
    """Of the best of each device and number of them: devices, batch, time, its range, cost, samples beyond the least, rates."""
    several = len({one.cluster.device.name for one in plan.by_devices}) > 1
    rows: list[tuple[str, ...]] = []
    for one in plan.by_devices:
        past = plan.critical_batch is not None and one.strategy.global_batch_size > plan.critical_batch
        rows.append(
            (
                f"{one.cluster.world_size:,}" + (f" {one.cluster.device.name}" if several else ""),
                f"{one.strategy.global_batch_size:,}" + ("*" if past else ""),
                seconds(one.time_s),
                time_range(one.time_low_s, one.time_high_s, one.time_s),
                money(one.usd) if one.usd == one.usd else "-",
                "-" if one.beyond_least is None else f"{one.beyond_least:.0%}",
                rates(one),
            )
        )
    return rows


def rates(one: Choice) -> str:
    """Optimizer, peak rate, warm-up and decay in a few words."""
    found = one.recipe
    if found is None:
        return f"{one.strategy.optimizer}, rate unknown"
    warm = f"warm-up {found.warmup_steps:,} of {found.total_steps:,} steps" if found.warmup_steps else "no warm-up"
    decay = f"decay of power {found.power:g}" if found.power else "no decay"
    return f"{found.optimizer}, peak {found.lr:.3g}, {warm}, {decay}"


def devices_table(plan: Plan) -> str:
    """One line for each device and number of them, and one for its rates where any are known."""
    rows = devices_rows(plan)
    head, *plain = _columns(("devices", "batch", "time", "80 %", "cost", "beyond"), [row[:-1] for row in rows])
    known = any(one.recipe for one in plan.by_devices)
    below = [f"    {clean(row[-1], WIDTH - 4)}" if known else "" for row in rows]
    return "\n".join((head, *(line for pair in zip(plain, below, strict=True) for line in pair if line)))


def _row(head: str, one: Choice, reason: bool = True) -> Iterator[str]:
    start = f"{head:<3}{seconds(one.time_s):>14}{money(one.usd) if one.usd == one.usd else '-':>10}  "
    yield from wrap(one.title, WIDTH, initial_indent=start, subsequent_indent=" " * 29)
    if reason and one.difference:
        yield from wrap(one.reason, WIDTH, initial_indent=" " * 29, subsequent_indent=" " * 29)


def cost(one: Choice) -> str:
    """Dollars with their range; in words where there is no price."""
    if one.usd != one.usd:
        return f"unknown: no price of {one.cluster.device.name}"
    return f"{money(one.usd)} ({money(one.usd_low)} to {money(one.usd_high)})"


def whatif_text(found: WhatIf) -> str:
    """Before and after, one line a change, and what each rests on."""
    return "\n".join(_whatif(found)) + "\n"


def _whatif(found: WhatIf) -> Iterator[str]:
    base = found.base
    yield from wrap(f"{clean(base.prediction.workload)}: what each change gains", WIDTH)
    yield ""
    yield whatif_table(found)
    yield ""
    if lacking := _lacking(base):
        yield from wrap(f"{base.title}: {lacking}.", WIDTH, subsequent_indent="  ")
    for one in found.outcomes[1:]:
        yield from wrap(f"{one.title}: {verdict(one, base)}", WIDTH, subsequent_indent="  ")
    yield ""
    yield "Prices:"
    yield from _list(dict.fromkeys(one.price for one in found.outcomes))
    yield "It rests on:"
    yield from _list(found.assumptions)


def whatif_table(found: WhatIf) -> str:
    """Before and after, at most 80 columns: ranges beside the numbers where there is room, else below them."""
    rows = [_cells(one, found.base) for one in found.outcomes]
    lines = _columns(("", "step", "range", "speed-up", "range", "$/h", "$", "range"), rows)
    if max(map(len, lines)) > WIDTH:
        narrow = [(a, b, d, f, g) for a, b, _, d, _, f, g, _ in rows]
        below = [("", c, e, "", h) for _, _, c, _, e, _, _, h in rows]
        lines = _columns(("", "step", "speed-up", "$/h", "$"), narrow, below)
    out, each = [lines[0]], (len(lines) - 1) // len(rows)
    for place, one in enumerate(found.outcomes):
        out += lines[1 + each * place : 1 + each * (place + 1)]
        out += wrap(one.batch_note, WIDTH, initial_indent="  ", subsequent_indent="  ") if one.batch_note else []
    if not all(one.prediction.fits for one in found.outcomes):
        out.append("* does not fit the device's memory; the time is what it would take if it did.")
    said = f"$ is the price of {found.unit} ({found.amount:,} samples); ranges hold 80 %."
    return "\n".join([*out, *wrap(said, WIDTH)])


def _cells(one: Outcome, base: Outcome) -> tuple[str, ...]:
    """Title, step, its range, speed-up, its range, dollars an hour, dollars, their range."""
    p = one.prediction
    span = time_range(p.low_s, p.high_s, p.step_time_s)
    if " - " not in span:
        span = span.rpartition(" ")[0]  # the step beside it has the unit
    gained = f"{number(one.speedup)}x" if one is not base else ""
    between = f"{number(one.speedup_low)}-{number(one.speedup_high)}" if gained else ""
    hourly, usd = (money(x)[1:] if x == x else "-" for x in (one.usd_per_hour, one.usd))
    title = clean(one.title if p.fits else f"* {one.title}", TITLE)
    paid = f"{money(one.usd_low)[1:]}-{money(one.usd_high)[1:]}" if one.usd == one.usd else ""
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
    return ["  ".join(one).rstrip() for one in cells]


def verdict(one: Outcome, base: Outcome) -> str:
    """Time, money, fit and scaling in one sentence."""
    said = [f"{number(one.speedup)}x the samples/s ({number(one.speedup_low)} to {number(one.speedup_high)})"]
    if one.speedup_low == one.speedup_high == 1:
        said = ["1x the samples/s: the step stays the same"]
    if one.usd == one.usd and base.usd == base.usd:
        change = one.usd / base.usd - 1 if base.usd else 0.0
        paid = "the same money" if abs(change) < 0.0005 else f"{abs(change):.1%} {'more' if change > 0 else 'less'} money"
        span = f"range {money(one.usd_low)} to {money(one.usd_high)}"
        said.append(f"{paid} for the same samples ({money(base.usd)} to {money(one.usd)}, {span})")
    if one.scaling == "strong":
        said.append(f"strong scaling: {one.batch_note or f'the global batch stays {one.strategy.global_batch_size}'}")
    elif one.scaling == "weak":
        said.append(f"weak scaling: the global batch grows to {one.strategy.global_batch_size}, which may need more epochs")
    elif one.scaling:
        said.append(f"the global batch is {one.strategy.global_batch_size}, as given")
    if one.strategy.gradient_exchange.compression != base.strategy.gradient_exchange.compression:
        said.append("for equal samples, not equal accuracy, of which is said below what is known")
    if lacking := _lacking(one):
        said.append(lacking)
    if one.prediction.bottleneck != base.prediction.bottleneck:
        said.append(f"then {one.prediction.bottleneck} is the bottleneck")
    return "; ".join(said) + "."


def _lacking(one: Outcome) -> str:
    """That it does not fit, and by how much; empty where it does."""
    if one.prediction.fits:
        return ""
    return f"it does not fit the device's memory: {format_gib(one.prediction.missing_bytes)} are missing"


def explain_text(found: Explained) -> str:
    """What the step waits for, the critical path, what would be next, how it scales, and what it rests on."""
    return "\n".join(_explain(found)) + "\n"


def _explain(found: Explained) -> Iterator[str]:
    p = found.prediction
    if p.headline:
        yield from (p.headline, "")
    yield from wrap(f"{clean(p.workload)}: {found.sentence}", WIDTH)
    yield ""
    yield explain_table(found)
    yield ""
    yield from wrap(f"Critical path: {found.path}", WIDTH)
    if found.measured:
        m = found.measured
        off = m.step_time_s and p.step_time_s / m.step_time_s - 1
        yield from wrap(
            f"Measured: {seconds(m.step_time_s)} ({time_range(m.low_s, m.high_s, m.step_time_s)}), the prediction is off by "
            f"{off:+.1%}; {seconds(m.exposed_comm_s)} of it exchange, {seconds(p.exposed_comm_s)} predicted.",
            WIDTH,
        )
    for title, line in found.scaling.items():
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


def explain_table(found: Explained) -> str:
    """One line a resource."""
    p = found.prediction
    step = f"{seconds(p.step_time_s)} ({time_range(p.low_s, p.high_s, p.step_time_s)})"
    lines = [f"{'resource':<18}{'the step waits':>15}{'share':>8}  if it took no time", f"{'all: one step':<18}{step:>23}"]
    lines += [
        f"{name:<18}{seconds(waited):>15}{waited / p.step_time_s:>8.1%}  {found.relief_text(name)}"
        for name, waited in found.waits
    ]
    return "\n".join(lines)


def _said(head: str, text: str) -> list[str]:
    return wrap(text, WIDTH, initial_indent=f"{head:<10}", subsequent_indent=" " * 10)


def _list(items: Iterable[str] | Sequence[str]) -> Iterator[str]:
    for item in items:
        yield from wrap(clean(item, 1000), WIDTH, initial_indent="  - ", subsequent_indent="    ")
