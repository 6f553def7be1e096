"""Figures of the answer as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline.planning import WhatIf
from paceline.planning.compare.explain import Explained
from paceline.planning.search.choice import Choice
from paceline.reporting.figures.layout_figures import grouped
from paceline.reporting.figures.timeline import one_rank
from paceline.reporting.values import rate_bounds


@dataclass(frozen=True, slots=True)
class FigureTable:
    """Numbers of a figure in SI units."""

    heads: tuple[str, ...]
    rows: Sequence[Sequence[object]]

    def csv(self) -> str:
        """Return the table as CSV."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.heads)
        writer.writerows(self.rows)
        return text.getvalue()


def answer_tables(explained: Explained, gained: WhatIf | None) -> Mapping[str, FigureTable]:
    """Return the tables of the answer's figures, by the name of the file."""
    p = explained.prediction
    events = [(e.lane, e.name, e.start_s, e.end_s) for e in one_rank(p.timeline)]
    scaling = [
        (kind, s.strategy["world_size"], s.samples_per_s, *rate_bounds(s), s.fit)
        for kind, line in explained.scaling.items()
        for s in line
    ]
    changes = [(x.title, x.speedup, x.speedup_low, x.speedup_high, x.usd_per_hour) for x in gained.changes] if gained else []
    return {
        "step": FigureTable(("lane", "name", "start_s", "end_s"), events),
        "memory": FigureTable(("part", "bytes"), [*grouped(p.memory).items(), ("available", explained.available)]),
        "what-if": FigureTable(("change", "speedup", "speedup_low", "speedup_high", "usd_per_hour"), changes),
        "scaling": FigureTable(("line", "devices", "samples_per_s", "low", "high", "fit"), scaling),
    }


def cost_table(points: Sequence[Choice]) -> FigureTable:
    """Return the table of cost against time."""
    heads = ("strategy", "time_s", "time_low_s", "time_high_s", "usd", "usd_low", "usd_high")
    names = heads[1:]
    return FigureTable(heads, [(x.title, *(getattr(x, name) for name in names)) for x in points])
