"""Answer of the page after each move of a slider: the step time, and the effect of changes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from paceline import planning
from paceline.errors import UserError
from paceline.hardware.placement import nodes_text
from paceline.hardware.prices import price
from paceline.planning import Change, WhatIf
from paceline.planning.emit.job import EmittedJob
from paceline.planning.emit.targets import TARGETS, emitted
from paceline.planning.search.goal import money
from paceline.planning.search.training_target import MILLION
from paceline.prediction.learning.convergence import epoch_samples
from paceline.reporting.figures.answer_figures import gains
from paceline.reporting.pages.answer_page import (
    Page,
    Section,
    memory_section,
    scaling_sections,
    timeline_section,
)
from paceline.reporting.text.planning_text import verdict
from paceline.reporting.text.transport_text import steps_text
from paceline.reporting.values import clean, memory, number, rate_bounds, seconds, time_range
from paceline.serve.controls import command, python
from paceline.serve.ladder import rungs
from paceline.serve.question import Question


@dataclass(frozen=True, slots=True)
class Copy:
    """Text to copy, with its title."""

    title: str
    text: str
    missing: str = ""


def answer_page(asked: Question) -> tuple[Page, list[str]]:
    """Return the page's answer: the step time, the effect of changes, and the sources. Raises UserError as ``predict``."""
    explained = planning.explain(asked.workload, asked.cluster, asked.strategy, predictor=asked.predictor)
    changes = rungs(asked.cluster, asked.strategy)
    gained = _ladder(asked, changes)
    p = explained.prediction
    findings = [p.headline, _capital(explained.sentence), steps_text(explained.by_transport), *asked.cluster.notes]
    page = Page("what if", title(asked), _choices(asked), [*filter(None, findings)])
    page.card("one step", seconds(p.step_time_s), time_range(p.low_s, p.high_s, p.step_time_s))
    slow, fast = rate_bounds(p)
    page.card("throughput", f"{number(p.samples_per_s)} samples/s", f"{number(slow)} to {number(fast)}")
    page.card("memory of a device", memory(p.memory_bytes), f"of {memory(explained.available)}; it {p.fit}")
    page.card(*_cost(gained))
    page.sections = [
        timeline_section({"predicted": p}, ()),
        memory_section(explained),
        *([_gains(gained, changes)] if gained else []),
        *scaling_sections(explained.scaling, asked.cluster.world_size),
    ]
    prices = [outcome.price for outcome in gained.outcomes] if gained else []
    return page, [*dict.fromkeys(prices), *(clean(a, 1000) for a in p.assumptions)]


def status(page: Page) -> str:
    """Return the answer in one line, for screen readers and for small screens."""
    step, rate, memory_used, cost = (card["value"] for card in page.cards)
    return f"{step} a step, {rate}, {memory_used} a device, {cost} for {page.cards[3]['name'].removeprefix('cost of ')}"


def copies(asked: Question) -> list[Copy]:
    """Return the question as a command and in Python, and the strategy as options of other software."""
    texts = [Copy("Command", command(asked.chosen)), Copy("Python", python(asked.chosen))]
    samples, listing = epoch_samples(asked.workload.name) or MILLION, price(asked.cluster.device.name)
    for target in TARGETS:
        try:
            job = EmittedJob(target, asked.strategy, asked.workload, asked.cluster, samples=samples, price=listing)
            texts.append(Copy(target, emitted(job).text))
        except UserError as error:
            texts.append(Copy(target, "", str(error)))
    return texts


def title(asked: Question) -> str:
    """Return a title with the model and its cluster."""
    size = asked.cluster
    network = f", {size.network.name}" if size.num_nodes > 1 else ""
    return f"{clean(asked.workload.name, 60)} on {nodes_text(size.node_text, size.num_nodes)} {size.device.name}{network}"


def _choices(asked: Question) -> str:
    """Return the choices behind the answer, including defaults."""
    s, mesh = asked.strategy, asked.strategy.parallelism
    compression = s.gradient_exchange.compression
    lossy = [compression.name] if compression.compresses else []
    of = f" ({asked.workload.sample})" if asked.workload.sample else ""
    batch = f"global batch of {s.global_batch_size:,} samples{of}"
    return ", ".join(filter(None, [batch, s.precision, mesh.sharding.name, s.optimizer, *lossy]))


def _ladder(asked: Question, changes: Mapping[str, Change]) -> WhatIf | None:
    """Return the effect of one step up in each direction; None if no step up exists."""
    try:
        inputs = asked.workload, asked.cluster, asked.strategy
        return planning.whatif(*inputs, list(changes.values()), scale=False, predictor=asked.predictor)
    except UserError:
        return None


def _cost(gained: WhatIf | None) -> tuple[str, str, str]:
    if gained is None or math.isnan(gained.base.usd):
        return "cost of 1M samples", "unknown", "no price of this device is known"
    base = gained.base
    each = base.usd_per_hour / base.cluster.world_size
    return (
        f"cost of {gained.unit}",
        money(base.usd),
        f"{money(base.usd_low)} to {money(base.usd_high)}; ${each:.2f} a device and hour",
    )


def _gains(gained: WhatIf, changes: Mapping[str, Change]) -> Section:
    """Return a section with each change alone, as a bar and in words."""
    titles = {str(change): title for title, change in changes.items()}
    own = [(titles[outcome.title], outcome) for outcome in gained.changes]
    return Section(
        "What if?",
        "Each change alone, its speed over today's with the same strategy; the advice chooses it again on each machine. "
        "Another batch may need another number of epochs.",
        [gains([(title, x.speedup, x.speedup_low, x.speedup_high) for title, x in own])],
        wide=True,
        heads=["change", "as an option", "what it brings"],
        rows=[[title, f"--change {x.title}", verdict(x, gained.base)] for title, x in own],
    )


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
