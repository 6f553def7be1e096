"""What a plan holds: choices, each with its prediction, its time and its money."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.hardware import Cluster
from paceline.planning.compare.layout_view import LayoutView
from paceline.planning.compare.scaling import curves
from paceline.planning.compare.strategy_text import describe
from paceline.planning.search.goal import Goal
from paceline.planning.search.tally import Excluded
from paceline.prediction import Prediction
from paceline.prediction.passes.memory import FRAGMENTED
from paceline.strategy import Strategy
from paceline.strategy.recipe import Recipe
from paceline.tabular import Row, Tabular


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One strategy with its prediction and what the whole training takes with it.

    Attributes:
        time_s, usd: of the whole training, with the ends of their 80 % interval; dollars are NaN without a price.
        meets: probability that it meets the goal's limit; None without one.
        beyond_least: share of the samples that a small batch would not have needed; None where no curve says it.
        recipe: learning rates, by a source that it names; None where there is none.
        difference: how it differs from the best, which it was compared with; empty where it was not.
        tied: whether it is as good as the best and others are too, as ``Plan.ties`` says.
        preference: why it is the best though another is faster or cheaper; empty where none is.
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
    difference: str = ""
    tied: bool = False
    preference: str = ""

    @property
    def reason(self) -> str:
        """Why it stands where it stands."""
        against = self.difference or f"waits for {self.prediction.bottleneck} most"
        return f"{against}; {self.preference}" if self.preference else against

    @property
    def title(self) -> str:
        """The strategy in words."""
        return describe(self.cluster, self.strategy)

    @property
    def exposed(self) -> dict[str, float]:
        """Seconds of the whole training by the resource that they wait for."""
        steps = self.samples / self.strategy.global_batch_size
        return {name: seconds * steps for name, seconds in self.prediction.exposed.items()}

    def row(self) -> Row:
        """Where, how, the time and the money of the training, and its step."""
        names = ("time_s", "time_low_s", "time_high_s", "usd", "usd_low", "usd_high")
        p = self.prediction
        step = {name: getattr(p, name) for name in ("step_time_s", "samples_per_s", "memory_bytes", "bottleneck")}
        return {"strategy": self.title, **{name: getattr(self, name) for name in names}, **step}

    def to_json(self) -> dict[str, Any]:
        """A plain dict."""
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
        return {**{k: getattr(self, k) for k in numbers}, "recipe": recipe, **{k: getattr(p, k) for k in step}}


@dataclass(frozen=True, kw_only=True)
class Plan(Tabular):
    """What ``plan`` found.

    Attributes:
        ranking: the best first; of strategies that differ only in exchange, bucket or micro steps the best one.
        by_devices: the best by the goal's quantity for each device and number of them, whether or not it meets the limit.
        critical_batch: in samples; beyond it more than half of the samples are due to the batch. None where it is unknown.
        front: no other strategy is both faster and cheaper, or faster where there are no prices; fastest first.
        excluded: by reason. ``considered``: legal strategies that were weighed.
        layouts: how layouts that divide the network were weighed, in words; empty where none were.
        layout: what pictures of the best show, where it divides the network.
        compression: what compression is worth here, in words.
        ties: what a tie is and how ties are ordered, in words; empty where the best has none.
        notice: what must be known before the answer is used; empty where nothing.
        why_not: of the strategy that was asked for, in words; ``asked`` is it, where it exists.
        scaling: the best strategy on other numbers of its devices, by kind of scaling.
        learning_rates: those of the best in words, or why they are unknown; empty where nobody asked for any.
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
    layouts: str = ""
    layout: LayoutView | None = field(default=None, repr=False)

    def rows(self) -> tuple[Row, ...]:
        """A row for each strategy of the ranking."""
        return tuple({"rank": place, **choice.row()} for place, choice in enumerate(self.ranking, start=1))

    @property
    def best(self) -> Choice:
        """What to do."""
        return self.ranking[0]

    @property
    def headroom(self) -> str:
        """What every choice leaves of a device's memory, in words."""
        return f"{FRAGMENTED:.0%} beyond what a step allocates stay free for fragments"

    def to_json(self) -> dict[str, Any]:
        """A plain dict."""
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
            "ties": self.ties,
            "prices": list(self.prices),
            "why_not": self.why_not,
            "asked": self.asked.to_json() if self.asked else None,
            "scaling": curves(self.scaling),
            "assumptions": list(self.assumptions),
        }
