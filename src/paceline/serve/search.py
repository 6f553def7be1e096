"""Slower answer of the page: advice, the best strategies to apply, and the Pareto front of time and cost."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Generic, TypeVar

from paceline.errors import UserError
from paceline.planning import Goal, Space, plan
from paceline.planning.ask.advice import in_words
from paceline.planning.ask.answer import Asked
from paceline.planning.ask.ask import ask
from paceline.planning.ask.training_question import OF_JOB, PLAIN
from paceline.planning.search.choice import Choice
from paceline.planning.search.goal import money
from paceline.planning.search.space import worlds
from paceline.reporting.pages.answer_page import Page, Section, front_sections
from paceline.reporting.values import seconds, time_range
from paceline.serve.answer import title
from paceline.serve.applied import address, applied
from paceline.serve.controls import by_option
from paceline.serve.question import Question
from paceline.serve.run_cost import whole_run
from paceline.serve.selection import Selection
from paceline.serve.tables import FigureTable, cost_table
from paceline.serve.verdict import Proposal

T = TypeVar("T")
FRONT, FILE = "Cost against time", "cost"
"""Title of the figure, and name of its CSV."""


@dataclass(frozen=True)
class SearchAnswer:
    """Answer of the search. ``proposals``: the chosen strategy, then what else to run. ``table``: numbers of the figure."""

    page: Page
    proposals: Sequence[Proposal]
    table: FigureTable


def searched(asked: Question) -> SearchAnswer:
    """Return the best plain strategy on the chosen cluster, what larger ones bring, and the Pareto front up to the chosen one.

    Raises:
        UserError: as ``ask``.
    """
    stated = {name: value for name, value in asked.strategy.to_json().items() if name in OF_JOB and name in _stated(asked)}
    answer = ask(
        asked.workload,
        asked.cluster,
        asked.target,
        by_s=asked.by_s,
        budget_usd=asked.budget_usd,
        prices=asked.prices,
        predictor=asked.predictor,
        choices=stated,
    )
    page = Page("advice", title(asked), "", [answer.advice])
    sections, points = _front(asked)
    page.sections = sections
    return SearchAnswer(page, [*_rows(asked, answer)], cost_table(points))


def _stated(asked: Question) -> set[str]:
    """Return the names of the choices that the visitor states."""
    return {by_option()[option].keyword for option in asked.chosen}


def _rows(asked: Question, answer: Asked) -> list[Proposal]:
    """Return the chosen strategy, the best one on its machines, and those on other machines."""
    step = asked.predictor.step(asked.workload, asked.cluster, asked.strategy)
    rows = []
    if step.fit != "does not fit":
        rows.append(Proposal("as chosen", _cells(whole_run(asked, step)), ""))
    best = answer.choice
    where = "best on these machines" if answer.fits else "the next that holds it"
    if not rows or best.strategy != asked.strategy.settled(asked.workload, asked.cluster):
        rows.append(_row(asked, where, best, best.usd))
    rows += [_row(asked, upgrade.title, upgrade.choice, upgrade.usd) for upgrade in answer.upgrades if upgrade.change]
    return rows


def _row(asked: Question, name: str, choice: Choice, usd: float) -> Proposal:
    how = in_words(choice.strategy, choice.strategy.parallelism.data)
    cells = (*_cells(choice)[:2], money(usd), how)
    return Proposal(name, cells, address(applied(asked, choice.cluster, choice.strategy)))


def _cells(choice: Choice) -> tuple[str, ...]:
    span = time_range(choice.time_low_s, choice.time_high_s, choice.time_s)
    how = in_words(choice.strategy, choice.strategy.parallelism.data)
    return seconds(choice.time_s), span, money(choice.usd), how


def _front(asked: Question) -> tuple[list[Section], Sequence[Choice]]:
    """Return cost against time for every number of devices up to the chosen one, and its points."""
    cluster = asked.cluster
    if not cluster.even:
        return [], ()
    sizes = [size for size in worlds(cluster.devices_per_node, cluster.num_nodes) if cluster.fills_leaves(size[1])]
    clusters = tuple(cluster.changed(devices_per_node=local, num_nodes=nodes) for local, nodes in sizes)
    space = Space(clusters=clusters, precisions=(asked.strategy.precision,), **PLAIN)
    try:
        planned = plan(asked.workload, space, Goal("fastest"), asked.target, prices=asked.prices, predictor=asked.predictor)
    except UserError:  # no cluster up to the chosen one fits: the advice names one that does
        return [], ()
    alone = f"{planned.best.title} is the fastest, and nothing smaller is cheaper."
    why = alone if planned.best.usd == planned.best.usd else "No price of this device is known."
    sections = front_sections(planned) or [Section("", why)]
    text = f"{sections[0].text} Up to the chosen number of devices, each with its best plain strategy."
    sections = [replace(each, title=FRONT, text=text if each.pictures else each.text) for each in sections]
    return sections, planned.front


class Superseded(Exception):
    """Error for a search that a newer question replaces."""


class Searches(Generic[T]):
    """Queue of searches: one runs at a time, the newest question first. The last answers are cached.

    Args:
        search: function that finds an answer.
        kept: most cached answers.
    """

    def __init__(self, search: Callable[[Question], T], kept: int = 64) -> None:
        self._search, self._most = search, kept
        self._kept: OrderedDict[tuple[tuple[str, str], ...], T] = OrderedDict()
        self._running = Lock()
        self._newest: tuple[tuple[str, str], ...] = ()

    def answer(self, chosen: Selection, asked: Callable[[], Question]) -> T:
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
