"""The first lines of the answer: whether the job fits, in time and in the budget, and what would fit if it does not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from paceline.errors import UserError
from paceline.hardware import network
from paceline.planning.ask.advice import LIKELY
from paceline.planning.search.choice import Choice
from paceline.planning.search.goal import money
from paceline.planning.search.lighter_jobs import with_lighter
from paceline.planning.search.nearest_fit import nearest_fit
from paceline.prediction import Prediction
from paceline.reporting.values import memory, seconds
from paceline.serve.applied import address, applied_fit
from paceline.serve.controls import by_option
from paceline.serve.network_text import network_text
from paceline.serve.question import Question
from paceline.serve.run_cost import chances
from paceline.serve.selection import Selection
from paceline.verbs import LARGEST_BATCH

SHOWN = 4
"""Most proposals."""
Mark = Literal["ok", "near", "off"]
_MARKS: dict[str, Mark] = {"fits": "ok", "may not fit": "near", "does not fit": "off"}


@dataclass(frozen=True, slots=True)
class VerdictLine:
    """One line with its mark."""

    mark: Mark
    text: str


@dataclass(frozen=True, slots=True)
class Proposal:
    """Change that the visitor can apply. ``title``: the change in words. ``cells``: figures. ``address``: the changed page;
    empty for the chosen one."""

    title: str
    cells: tuple[str, ...]
    address: str


def verdicts(asked: Question, step: Prediction, run: Choice, available: float) -> list[VerdictLine]:
    """Return the lines on memory, and on each limit that is stated."""
    mark = _MARKS[step.fit]
    size = f"{memory(step.memory_bytes)} of {memory(available)} a device"
    if mark == "off":
        return [VerdictLine(mark, f"{step.headline} As chosen it needs {size}, and cannot run.")]
    lines = [VerdictLine(mark, f"{step.headline} {size}." if step.headline else f"Fits: {size}.")]
    in_time, in_budget = chances(asked, run)
    if asked.by_s is not None and in_time is not None:
        took = f"{seconds(run.time_s)}, and {seconds(asked.by_s)} are left"
        lines.append(_limit(in_time, "In time", "TOO LATE", took))
    if asked.budget_usd is not None:
        if in_budget is None:
            lines.append(VerdictLine("near", "The budget is not checked: no price of this device is known."))
        else:
            cost = f"{money(run.usd)} of {money(asked.budget_usd)}"
            lines.append(_limit(in_budget, "In the budget", "OVER BUDGET", cost))
    return lines


def _limit(chance: float, kept: str, missed: str, figures: str) -> VerdictLine:
    likely = f"{chance:.0%} likely to keep it"
    return VerdictLine("ok" if chance >= LIKELY else "off", f"{kept if chance >= LIKELY else missed}: {figures}; {likely}.")


def proposals(asked: Question, step: Prediction) -> list[Proposal]:
    """Return the nearest changes with which the job fits; none if it does."""
    if step.fit == "fits":
        return []
    most = 1 if asked.batch_given else LARGEST_BATCH
    between = network_text(asked.chosen)
    try:
        inputs = asked.workload, asked.cluster, asked.strategy
        found = nearest_fit(
            *inputs, predictor=asked.predictor, network=network(between) if between else None, most_batches=most
        )
        if asked.job is not None:
            found = with_lighter(found, asked.job, *inputs[1:], asked.predictor)
    except UserError:
        return []
    offers = []
    for fit in found[:SHOWN]:
        chosen, p = applied_fit(asked, fit), fit.prediction
        cells = memory(p.memory_bytes), seconds(p.step_time_s)
        offers.append(Proposal(words(asked, chosen), cells, address(chosen)))
    return offers


def words(asked: Question, after: Selection) -> str:
    """Return the difference of a selection in words: ``sharding zero3, recomputation full``. A new batch comes last."""
    now = {"global-batch": str(asked.strategy.global_batch_size), "precision": asked.strategy.precision}
    options = sorted(after, key=lambda option: option == "global-batch")
    return ", ".join(_changed({**asked.chosen, **now}, {option: after[option] for option in options})) or "as chosen"


def _changed(before: Selection, after: Selection) -> Iterator[str]:
    for option, text in after.items():
        if before.get(option) != text:
            label = by_option()[option].label.partition(",")[0]
            yield f"{label[:1].lower()}{label[1:]} {text}"
    for option in before:
        if option not in after and option not in (
            "micro-batch-size",
            "transport",
            "network",
            "price",
            "global-batch",
            "precision",
        ):
            yield f"no {by_option()[option].label.partition(',')[0].lower()}"
