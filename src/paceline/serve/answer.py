"""The answer of the page at every move of a slider: what a step takes, and what would change it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from paceline import planning
from paceline.errors import UserError
from paceline.planning import WhatIf
from paceline.planning.framework_options import FRAMEWORKS, emit
from paceline.planning.goal import money
from paceline.reporting.answer_page import (
    Page,
    Section,
    gains_section,
    memory_section,
    scaling_sections,
    timeline_section,
)
from paceline.reporting.planning_text import verdict
from paceline.reporting.values import clean, memory, number, rate_bounds, seconds, time_range
from paceline.serve.controls import command, python
from paceline.serve.ladder import rungs
from paceline.serve.question import Question


@dataclass(frozen=True, slots=True)
class Copy:
    """A text to copy, and how it is called."""

    title: str
    text: str
    missing: str = ""


def answer_page(asked: Question) -> Page:
    """What a step takes and what would change it, as sections. Raises UserError as ``predict``."""
    explained = planning.explain(asked.workload, asked.cluster, asked.strategy)
    gained = _ladder(asked)
    p = explained.prediction
    page = Page("what if", title(asked), "", [*filter(None, [p.headline]), explained.sentence])
    page.card("one step", seconds(p.step_time_s), time_range(p.low_s, p.high_s, p.step_time_s))
    slow, fast = rate_bounds(p)
    page.card("throughput", f"{number(p.samples_per_s)} samples/s", f"{number(slow)} to {number(fast)}")
    page.card("memory of a device", memory(p.memory_bytes), f"of {memory(explained.available)}; it {p.fit}")
    page.card(*_cost(gained))
    page.sections = [
        timeline_section({"predicted": p}, ()),
        memory_section(explained),
        *([_gains(gained)] if gained else []),
        *scaling_sections(explained.scaling, asked.cluster.world_size),
    ]
    return page


def status(page: Page) -> str:
    """The answer in one line, for those who hear the page."""
    return "; ".join(f"{card['name']} {card['value']}" for card in page.cards)


def copies(asked: Question) -> list[Copy]:
    """The question as a command, in Python, and the strategy as options of other software."""
    texts = [Copy("Command", command(asked.chosen)), Copy("Python", python(asked.chosen))]
    for framework in FRAMEWORKS:
        try:
            texts.append(Copy(framework, emit(framework, asked.strategy, asked.workload)))
        except UserError as error:
            texts.append(Copy(framework, "", str(error)))
    return texts


def title(asked: Question) -> str:
    """The model and what it runs on."""
    size = asked.cluster
    network = f", {size.network.name}" if size.num_nodes > 1 else ""
    return f"{clean(asked.workload.name, 60)} on {size.num_nodes} x {size.node_text} {size.device.name}{network}"


def _ladder(asked: Question) -> WhatIf | None:
    """What one step up brings in each direction; None where nothing can be stepped up."""
    try:
        return planning.whatif(asked.workload, asked.cluster, asked.strategy, rungs(asked.cluster, asked.strategy))
    except UserError:
        return None


def _cost(gained: WhatIf | None) -> tuple[str, str, str]:
    if gained is None or math.isnan(gained.base.usd):
        return "cost", "unknown", "no price of this device is known"
    base = gained.base
    return f"cost of {gained.unit}", money(base.usd), f"{money(base.usd_low)} to {money(base.usd_high)}; {base.price}"


def _gains(gained: WhatIf) -> Section:
    section = gains_section(gained)
    section.text = "One step up in each direction, each alone. Batches of other sizes may need other numbers of epochs."
    section.heads = ["change", "what it brings"]
    section.rows = [[outcome.title, verdict(outcome, gained.base)] for outcome in gained.changes]
    return section
