"""Diagnosis of a run: what was found, and the causes that would explain it in order."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from paceline.prediction import Prediction
from paceline.tabular import Row, Tabular
from paceline.units import format_seconds, format_seconds_range

Finding = Literal["slower", "as predicted", "faster"]
SAME = 1.1
"""A step within this factor of the predicted one is as long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """One cause, or two together, with the step that it would give.

    Attributes:
        name: of the cause in ``causes.toml``; two are joined by ``+``.
        score: its share of the probability, of all causes that were weighed.
        step_time_s: the predicted step with it. ``explained``: its share of the gap, from 0 to 1; of the step if it is
            inside.
        free: True if its size is unknown. It then takes the size that explains most.
        inside: True if the predicted step has it already.
        options: changes of the question that predict it, as ``whatif --change`` takes them.
    """

    name: str
    title: str
    score: float
    step_time_s: float
    explained: float
    free: bool
    inside: bool
    options: tuple[str, ...]
    sign: str
    proof: str
    fix: str

    def to_json(self) -> dict[str, Any]:
        """Convert to a plain dict."""
        return {**asdict(self), "options": list(self.options)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One measured speed next to the prediction. ``question``: its changes, empty for the main one; ``text``: its words."""

    question: str
    text: str
    measured_s: float
    prediction: Prediction

    @property
    def ratio(self) -> float:
        """Measured over predicted seconds."""
        return self.measured_s / self.prediction.step_time_s

    @property
    def finding(self) -> Finding:
        """Place of the measured step: beyond the range, in it, or below it."""
        p = self.prediction
        if self.measured_s > max(p.high_s, SAME * p.step_time_s):
            return "slower"
        return "faster" if self.measured_s < min(p.low_s, p.step_time_s / SAME) else "as predicted"

    @property
    def figures(self) -> str:
        """Predicted step with its range, and measured step."""
        p = self.prediction
        span = format_seconds_range(p.low_s, p.high_s, p.step_time_s)
        said = f" ({self.text})" if self.text else ""
        return f"predicted {format_seconds(p.step_time_s)} a step ({span}), measured {format_seconds(self.measured_s)}{said}"

    def to_json(self) -> dict[str, Any]:
        """Convert to a plain dict."""
        p = self.prediction
        return {
            "question": self.question,
            "text": self.text,
            "measured_s": self.measured_s,
            "predicted_s": p.step_time_s,
            "low_s": p.low_s,
            "high_s": p.high_s,
            "ratio": self.ratio,
            "finding": self.finding,
        }


@dataclass(frozen=True, kw_only=True)
class Diagnosis(Tabular):
    """Comparison of a run with its prediction, and what may explain it.

    Attributes:
        compared: the run, then further measurements of changed questions.
        causes: all causes that apply, the most probable first.
        waits: share of the predicted step for each resource, the largest first.
        evidence: facts from logs and monitors, in words.
    """

    compared: tuple[Compared, ...]
    causes: tuple[Explanation, ...]
    waits: Mapping[str, float]
    evidence: tuple[str, ...] = ()

    @property
    def finding(self) -> Finding:
        """Finding of the run itself."""
        return self.compared[0].finding

    @property
    def headline(self) -> str:
        """The finding in one sentence."""
        run = self.compared[0]
        if run.finding == "slower":
            return f"{times(run.ratio)} slower than it should be: {run.figures}."
        if run.finding == "faster":
            return f"{times(1 / run.ratio)} faster than predicted: {run.figures}. The question is probably misstated."
        return f"As fast as predicted: {run.figures}."

    def rows(self) -> tuple[Row, ...]:
        """Return one row for each cause, the most probable first."""
        names = ("name", "score", "step_time_s", "explained")
        return tuple({name: getattr(cause, name) for name in names} for cause in self.causes)

    def to_json(self) -> dict[str, Any]:
        """Convert to a plain dict."""
        return {
            "finding": self.finding,
            "headline": self.headline,
            "compared": [one.to_json() for one in self.compared],
            "causes": [cause.to_json() for cause in self.causes],
            "waits": dict(self.waits),
            "evidence": list(self.evidence),
        }


def times(factor: float) -> str:
    """Format a factor: ``3.4 times``, ``12 times``."""
    return f"{factor:.2g} times" if factor < 9.95 or not math.isfinite(factor) else f"{factor:,.0f} times"
