"""Result of a plan: choices, each with its prediction, time and cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.hardware import Cluster
from paceline.hardware.prices import Price
from paceline.planning.compare.layout_view import LayoutView
from paceline.planning.compare.scaling import curves
from paceline.planning.compare.strategy_text import describe
from paceline.planning.failures.failures import FailureCost
from paceline.planning.search.goal import Goal
from paceline.planning.search.tally import Excluded
from paceline.prediction import Prediction
from paceline.prediction.step.memory import FRAGMENTED
from paceline.strategy import Strategy
from paceline.strategy.recipe import Recipe
from paceline.tabular import Row, Tabular


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One strategy with its prediction and the time and cost of the whole run.

    Attributes:
        time_s, usd: totals of the run, with the ends of their 80 % interval; dollars are NaN without a price.
        meets: probability of meeting the goal's limit; None without one.
        beyond_least: share of the samples that a small batch would not need; None without a convergence curve.
        recipe: learning rates with their source; None without a source.
        failures: what failures and checkpoints add to the time; None if none count.
        difference: how it differs from the best choice; empty if they were not compared.
        tied: True if it ties with the best by the definition in ``Plan.ties``.
        preference: why it is the best although another is faster or cheaper; else empty.
    """

    cluster: Cluster
    strategy: Strategy
    prediction: Prediction
    samples: float
    time_s: float
    time_low_s: float
    time_high_s: float
    usd: float
    usd_low: float
    usd_high: float
    meets: float | None = None
    beyond_least: float | None = None
    recipe: Recipe | None = None
    failures: FailureCost | None = None
    difference: str = ""
    tied: bool = False
    preference: str = ""

    @property
    def reason(self) -> str:
        """Reason for the choice's position in the ranking."""
        against = self.difference or f"waits for {self.prediction.bottleneck} most"
        return f"{against}; {self.preference}" if self.preference else against

    @property
    def title(self) -> str:
        """Strategy in words."""
        return describe(self.cluster, self.strategy)

    @property
    def exposed(self) -> dict[str, float]:
        """Seconds of the whole run by the resource that the step waits for."""
        steps = self.samples / self.strategy.global_batch_size
        return {name: seconds * steps for name, seconds in self.prediction.exposed.items()}

    def row(self) -> Row:
        """Return the row of a table: cluster, strategy, time and cost of the run, and its step."""
        names = ("time_s", "time_low_s", "time_high_s", "usd", "usd_low", "usd_high")
        p = self.prediction
        step = {name: getattr(p, name) for name in ("step_time_s", "samples_per_s", "memory_bytes", "bottleneck")}
        return {"strategy": self.title, **{name: getattr(self, name) for name in names}, **step}

    def to_json(self) -> dict[str, Any]:
        """Convert to a plain dict."""
        numbers = (
            "samples",
            "time_s",
            "time_low_s",
            "time_high_s",
            "usd",
            "usd_low",
            "usd_high",
            "meets",
            "beyond_least",
            "title",
            "reason",
        )
        p = self.prediction
        step = [
            "step_time_s",
            "low_s",
            "high_s",
            "samples_per_s",
            "memory_bytes",
            "bottleneck",
            "exposed",
            "cluster",
            "strategy",
        ]
        recipe = self.recipe.to_json() if self.recipe else None
        failures = {"failures": self.failures.to_json()} if self.failures else {}
        return {**{k: getattr(self, k) for k in numbers}, "recipe": recipe, **failures, **{k: getattr(p, k) for k in step}}


@dataclass(frozen=True, slots=True)
class DecidingRun:
    """A run of a few steps that would tell whether a choice is faster than the best.

    Attributes:
        choice: what to run. ``steps``: their number. The first of them warm the machines up, the median of the others counts.
        tells: what the result would tell.
        target: name of the framework that runs it (``plan --emit``); empty if none was asked for.
    """

    choice: Choice
    steps: int
    tells: str
    target: str = ""

    @property
    def run_s(self) -> float:
        """Predicted seconds of the steps."""
        return self.steps * self.choice.prediction.step_time_s

    def to_json(self) -> dict[str, Any]:
        """Convert to a plain dict."""
        p = self.choice.prediction
        return {
            "title": self.choice.title,
            "steps": self.steps,
            "run_s": self.run_s,
            "tells": self.tells,
            "strategy": p.strategy,
        }


@dataclass(frozen=True, kw_only=True)
class Plan(Tabular):
    """The best strategies of a space for one goal.

    Attributes:
        ranking: the best first. Strategies that differ only in exchange, bucket or micro steps are one entry.
        by_devices: the best by the goal's quantity for each device and device count, even if it misses the limit.
        critical_batch: batch in samples beyond which the batch causes more than half of the samples; None if unknown.
        front: Pareto front of time and cost, or the fastest without prices; the fastest first.
        excluded: illegal or unfit strategies by reason. ``considered``: number of legal strategies.
        layouts: description of the search of divided layouts; empty without a search.
        layout: data for pictures of the best, if it divides the network.
        compression: description of the gain of compression.
        memory_format: gain of another order of images, in words; empty without one. ``local_steps``: of local steps.
        ties: definition and order of ties, in words; empty if the best has none.
        notice: a warning about the answer; empty without one.
        why_not: answer about the strategy that the user named, in words. ``asked``: that strategy, if it exists.
        scaling: the best strategy on other numbers of its devices, by kind of scaling.
        learning_rates: learning rates of the best in words, or why they are unknown; empty if not requested.
        deciding: runs that would decide between layouts that the model does not tell apart, the best first; empty if it does.
        listed: price of each device, None without one.
        may_not_fit: a simpler strategy as fast as the best that fragments of memory may exclude, in words; empty without one.
    """

    workload: str
    target: str
    goal: Goal
    ranking: tuple[Choice, ...]
    front: tuple[Choice, ...]
    excluded: tuple[Excluded, ...]
    considered: int
    compression: str
    prices: tuple[str, ...]
    assumptions: tuple[str, ...]
    notice: str = ""
    ties: str = ""
    why_not: str = ""
    asked: Choice | None = None
    scaling: Mapping[str, Sequence[Prediction]] = field(default_factory=dict)
    by_devices: tuple[Choice, ...] = ()
    critical_batch: float | None = None
    learning_rates: str = ""
    deciding: tuple[DecidingRun, ...] = ()
    may_not_fit: str = ""
    layouts: str = ""
    memory_format: str = ""
    local_steps: str = ""
    layout: LayoutView | None = field(default=None, repr=False)
    listed: Mapping[str, Price | None] = field(default_factory=dict, repr=False)

    def rows(self) -> tuple[Row, ...]:
        """Return one row for each strategy of the ranking."""
        return tuple({"rank": place, **choice.row()} for place, choice in enumerate(self.ranking, start=1))

    @property
    def best(self) -> Choice:
        """The best choice."""
        return self.ranking[0]

    @property
    def headroom(self) -> str:
        """Share of device memory that every choice leaves free, in words."""
        return f"{FRAGMENTED:.0%} beyond what a step allocates stay free for fragments"

    def to_json(self) -> dict[str, Any]:
        """Convert to a plain dict."""
        return {
            "workload": self.workload,
            "work": self.target,
            "goal": str(self.goal),
            "notice": self.notice,
            "best": self.best.to_json(),
            "ranking": [choice.to_json() for choice in self.ranking],
            "by_devices": [choice.to_json() for choice in self.by_devices],
            "critical_batch": self.critical_batch,
            "learning_rates": self.learning_rates,
            "front": [choice.to_json() for choice in self.front],
            "excluded": [{"count": x.count, "reason": x.reason, "example": x.example} for x in self.excluded],
            "considered": self.considered,
            "headroom": FRAGMENTED,
            "layouts": self.layouts,
            "compression": self.compression,
            "memory_format": self.memory_format,
            "local_steps": self.local_steps,
            "ties": self.ties,
            "deciding": [run.to_json() for run in self.deciding],
            "may_not_fit": self.may_not_fit,
            "prices": list(self.prices),
            "why_not": self.why_not,
            "asked": self.asked.to_json() if self.asked else None,
            "scaling": curves(self.scaling),
            "assumptions": list(self.assumptions),
        }
