"""Answer of the page after each change: verdict, step, time and cost, and the effect of further changes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline import planning
from paceline.errors import UserError
from paceline.hardware.placement import nodes_text
from paceline.planning import Change, WhatIf
from paceline.planning.search.choice import Choice
from paceline.planning.search.goal import money
from paceline.prediction import Prediction
from paceline.reporting.figures.answer_figures import gains
from paceline.reporting.pages.answer_page import (
    Page,
    Section,
    memory_section,
    scaling_sections,
    timeline_section,
)
from paceline.reporting.text.transport_text import steps_text
from paceline.reporting.values import clean, number, rate_bounds, seconds, time_range
from paceline.serve.ladder import rungs
from paceline.serve.question import Question
from paceline.serve.run_cost import usd_per_hour, whole_run
from paceline.serve.tables import FigureTable, answer_tables
from paceline.serve.verdict import Proposal, VerdictLine, proposals, verdicts

FILES = {"One step, bar by bar": "step", "Memory of a device": "memory", "What if?": "what-if", "How it scales": "scaling"}
"""Name of the CSV of each section."""


@dataclass(frozen=True)
class PageAnswer:
    """Answer to a question.

    Attributes:
        verdicts: the first lines. ``proposals``: what would fit.
        run: time and cost of the whole run; only as if it fitted, if it does not.
        tables: numbers of the figures, by file name.
        assumptions: sources and assumptions.
    """

    page: Page
    verdicts: Sequence[VerdictLine]
    proposals: Sequence[Proposal]
    run: Choice
    tables: Mapping[str, FigureTable]
    assumptions: Sequence[str]

    @property
    def runs(self) -> bool:
        """True if the job fits, or may."""
        return self.run.prediction.fit != "does not fit"

    @property
    def status(self) -> str:
        """Answer in one line, for screen readers and for small screens."""
        if not self.runs:
            return self.verdicts[0].text
        cards = {card["name"]: card["value"] for card in self.page.cards}
        unkept = " ".join(verdict.text for verdict in self.verdicts if verdict.mark == "off")
        figures = f"{cards['one step']} a step, {cards['throughput']}, {cards['time']}, {cards['cost']}"
        return f"{unkept} {figures}".strip()


def answered(asked: Question) -> PageAnswer:
    """Return the page's answer. Raises UserError as ``predict``."""
    explained = planning.explain(asked.workload, asked.cluster, asked.strategy, predictor=asked.predictor)
    changes = rungs(asked.cluster, asked.strategy)
    gained = _ladder(asked, changes)
    p = explained.prediction
    run, offers = whole_run(asked, p), proposals(asked, p)
    findings = [_capital(explained.sentence), steps_text(explained.by_transport), *_notes(asked)]
    page = Page("what if", title(asked), _choices(asked), [*filter(None, findings)])
    _cards(page, asked, p, run)
    page.sections = [
        timeline_section({"predicted": p}, ()),
        memory_section(explained),
        *([_gains(gained, changes, run)] if gained else []),
        *scaling_sections(explained.scaling, asked.cluster.world_size),
    ]
    price = [str(asked.price)] if asked.price else [f"No price of {asked.cluster.device.name} is known."]
    return PageAnswer(
        page=page,
        verdicts=verdicts(asked, p, run, explained.available),
        proposals=offers,
        run=run,
        tables=answer_tables(explained, gained),
        assumptions=[*price, *(clean(a, 1000) for a in p.assumptions)],
    )


def _cards(page: Page, asked: Question, p: Prediction, run: Choice) -> None:
    """Add the figures at the top. A job that does not fit has no time and no cost."""
    runs = p.fit != "does not fit"
    as_if = "" if runs else "as if it fitted; "
    page.card("one step", seconds(p.step_time_s), f"{as_if}{time_range(p.low_s, p.high_s, p.step_time_s)}")
    slow, fast = rate_bounds(p)
    tokens = f"; {number(asked.workload.tokens * p.samples_per_s)} tokens/s" if asked.workload.tokens else ""
    page.card("throughput", f"{number(p.samples_per_s)} samples/s", f"{as_if}{number(slow)} to {number(fast)}{tokens}")
    if not runs:
        page.card("time", "none", "it cannot run as chosen")
        page.card("cost", "none", "it cannot run as chosen")
        return
    span = time_range(run.time_low_s, run.time_high_s, run.time_s)
    page.card("time", seconds(run.time_s), f"{span}; for {asked.target.title}")
    hourly = usd_per_hour(asked)
    if math.isnan(hourly):
        page.card("cost", "unknown", "no price of this device is known: give one")
        return
    each = hourly / asked.cluster.world_size
    seller = f", {asked.price.seller}" if asked.price and asked.price.seller else ""
    page.card("cost", money(run.usd), f"{money(run.usd_low)} to {money(run.usd_high)}; ${each:.2f} a device and hour{seller}")


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
    sizes = [("tensor", mesh.tensor), ("pipeline", mesh.pipeline), ("context", mesh.context), ("expert", mesh.expert)]
    divided = [f"{name} {size}" for name, size in sizes if size > 1]
    steps = f"{mesh.micro_batches} micro steps" if mesh.micro_batches > 1 else ""
    again = f"recomputation {mesh.recompute.name}" if mesh.recompute else ""
    of = f" ({asked.workload.sample})" if asked.workload.sample else ""
    batch = f"global batch of {s.global_batch_size:,} samples{of}"
    adapters = f"adapters {asked.chosen['lora']}" if "lora" in asked.chosen else ""
    each = (batch, steps, s.precision, mesh.sharding.name, *divided, again, s.optimizer, adapters, *lossy)
    return ", ".join(filter(None, each))


def _ladder(asked: Question, changes: Mapping[str, Change]) -> WhatIf | None:
    """Return the effect of one step up in each direction; None if no step up exists."""
    try:
        inputs = asked.workload, asked.cluster, asked.strategy
        return planning.whatif(*inputs, list(changes.values()), scale=False, predictor=asked.predictor)
    except UserError:
        return None


def _gains(gained: WhatIf, changes: Mapping[str, Change], run: Choice) -> Section:
    """Return a section with each change alone, as a bar and in words."""
    titles = {str(change): title for title, change in changes.items()}
    own = [(titles[outcome.title], outcome) for outcome in gained.changes]
    base = gained.base.usd_per_hour
    rows = []
    for name, x in own:
        usd = run.usd * x.usd_per_hour / base / x.speedup
        span = f"{number(x.speedup_low)}x to {number(x.speedup_high)}x"
        fit = "" if x.prediction.fit == "fits" else x.prediction.fit
        figures = [f"{number(x.speedup)}x", span, seconds(run.time_s / x.speedup), money(usd), fit]
        rows.append([name, *figures, f"--change {x.title}"])
    return Section(
        "What if?",
        "Each change alone, its speed over the chosen one with the same strategy. "
        "Another batch may need another number of epochs.",
        [gains([(name, x.speedup, x.speedup_low, x.speedup_high) for name, x in own])],
        wide=True,
        heads=["change", "speed", "80 % range", "time", "cost", "memory", "as an option of whatif"],
        rows=rows,
    )


def _notes(asked: Question) -> list[str]:
    """Return what the words for the machines left open, in the page's words."""
    return [note.replace("--network", "the network") for note in asked.cluster.notes]


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
