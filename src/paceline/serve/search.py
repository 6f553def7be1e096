"""Slower answer of the page: advice, and the Pareto front of time and cost."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from threading import Lock

from paceline.errors import UserError
from paceline.planning import Goal, Space, plan
from paceline.planning.ask.ask import ask
from paceline.planning.ask.training_question import PLAIN
from paceline.planning.search.goal import money
from paceline.planning.search.space import worlds
from paceline.reporting.pages.answer_page import Page, Section, front_sections
from paceline.reporting.values import number, seconds
from paceline.serve.answer import title
from paceline.serve.controls import Selection
from paceline.serve.question import Question


def search_page(asked: Question) -> Page:
    """Return the best plain strategy on the chosen cluster in one sentence, and the Pareto front up to it. Raises UserError."""
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
    """Return cost against time for every number of devices up to the chosen one."""
    cluster = asked.cluster
    if not cluster.even:
        return []
    sizes = [size for size in worlds(cluster.devices_per_node, cluster.num_nodes) if cluster.fills_leaves(size[1])]
    clusters = tuple(cluster.changed(devices_per_node=local, num_nodes=nodes) for local, nodes in sizes)
    space = Space(clusters=clusters, precisions=(asked.strategy.precision,), **PLAIN)
    try:
        planned = plan(asked.workload, space, Goal("fastest"))
    except UserError:  # no cluster up to the chosen one fits: the advice names one that does
        return []
    alone = f"{planned.best.title} is the fastest, and nothing smaller is cheaper."
    why = alone if planned.best.usd == planned.best.usd else "No price of this device is known."
    sections = front_sections(planned) or [Section("", why)]
    return [replace(section, title="Cost against time") for section in sections]


class Superseded(Exception):
    """Error for a search that a newer question replaces."""


class Searches:
    """Queue of searches: one runs at a time, the newest question first. The last answers are cached.

    Args:
        search: function that finds an answer.
        kept: most cached answers.
    """

    def __init__(self, search: Callable[[Question], str], kept: int = 64) -> None:
        self._search, self._most = search, kept
        self._kept: OrderedDict[tuple[tuple[str, str], ...], str] = OrderedDict()
        self._running = Lock()
        self._newest: tuple[tuple[str, str], ...] = ()

    def answer(self, chosen: Selection, asked: Callable[[], Question]) -> str:
        """Return the answer to a selection. Raises Superseded if a newer question came first, and UserError."""
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
