"""The slower answer of the page: what to do, and which configurations nothing beats in time and money."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from threading import Lock

from paceline.errors import UserError
from paceline.planning import Goal, Space, plan
from paceline.planning.ask.ask import ask
from paceline.planning.ask.question import PLAIN
from paceline.planning.search.goal import money
from paceline.planning.search.space import worlds
from paceline.reporting.pages.answer_page import Page, Section, front_sections
from paceline.reporting.values import number, seconds
from paceline.serve.answer import title
from paceline.serve.controls import Selection
from paceline.serve.question import Question


def search_page(asked: Question) -> Page:
    """The best plain strategy on the chosen cluster in one sentence, and the front up to it. Raises UserError."""
    answer = ask(asked.workload, asked.cluster)
    page = Page("advice", title(asked), "", [answer.advice])
    rows = [
        [u.title, f"{number(u.speedup)}x", f"{number(u.speedup_low)}x to {number(u.speedup_high)}x", money(u.usd)]
        for u in answer.upgrades
    ]
    if rows:
        today = f"{seconds(answer.choice.time_s)} and {money(answer.choice.usd)} for {answer.amount}"
        text = f"Each with its best strategy, where the what-if ladder keeps the chosen one. The chosen cluster takes {today}."
        page.sections.append(Section("Is more worth it?", text, heads=["instead", "speed", "80 % range", "cost"], rows=rows))
    page.sections += _front(asked)
    return page


def _front(asked: Question) -> list[Section]:
    """Time against money on every number of devices up to the chosen ones."""
    cluster = asked.cluster
    if not cluster.even:
        return []
    sizes = [size for size in worlds(cluster.devices_per_node, cluster.num_nodes) if cluster.fills_leaves(size[1])]
    clusters = tuple(cluster.changed(devices_per_node=local, num_nodes=nodes) for local, nodes in sizes)
    space = Space(clusters=clusters, precisions=(asked.strategy.precision,), **PLAIN)
    try:
        planned = plan(asked.workload, space, Goal("fastest"))
    except UserError:  # nothing up to the chosen cluster fits: the advice says what does
        return []
    alone = f"{planned.best.title} is the fastest, and nothing smaller is cheaper."
    why = alone if planned.best.usd == planned.best.usd else "No price of this device is known."
    sections = front_sections(planned) or [Section("", why)]
    return [replace(section, title="Cost against time") for section in sections]


class Superseded(Exception):
    """A newer question has been asked."""


class Searches:
    """Answers of ``search``, one at a time and the newest question first; the last of them are kept.

    Args:
        search: what finds an answer.
        kept: answers at most.
    """

    def __init__(self, search: Callable[[Question], str], kept: int = 64) -> None:
        self._search, self._most = search, kept
        self._kept: OrderedDict[tuple[tuple[str, str], ...], str] = OrderedDict()
        self._running = Lock()
        self._newest: tuple[tuple[str, str], ...] = ()

    def answer(self, chosen: Selection, asked: Callable[[], Question]) -> str:
        """The answer to a selection. Raises Superseded where a newer question came before its turn; UserError."""
        key = tuple(chosen.items())
        self._newest = key
        if key not in self._kept:
            with self._running:
                if self._newest != key:
                    raise Superseded
                if key not in self._kept:
                    self._kept[key] = self._search(asked())
                    while len(self._kept) > self._most:
                        self._kept.popitem(last=False)
        return self._kept[key]
