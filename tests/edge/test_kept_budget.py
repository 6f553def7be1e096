"""Removal until the measured share of the whole network's latency is within the budget."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from paceline.edge import kept_budget
from paceline.edge.kept_budget import shrunk
from paceline.errors import UserError
from paceline.slimming.latency.latency import Latency
from paceline.slimming.methods.budget import Budget
from paceline.slimming.methods.weight_forms import INT4


class Told:
    """``Slim`` of a network whose tables say less than it takes, on a machine whose speed changes."""

    def __init__(self, budget: Budget, error: float, least_s: float = 0.0, made: list[float] | None = None) -> None:
        self.budget, self.error, self.least_s, self.model = budget, error, least_s, nn.Identity()
        self.whole = Latency(240e-6, 0, 0, 1)
        self.made = [] if made is None else made

    @property
    def goal(self) -> float:
        return self.budget.of(self.whole.median_s)

    def to(self, budget: Budget) -> Told:
        return Told(budget, self.error, self.least_s, self.made)

    def shrink(self) -> Any:
        if self.goal < self.least_s:
            raise UserError("cannot be met")
        self.made.append(self.goal)
        return SimpleNamespace(eval=lambda: self.goal)

    def latency(self, models: dict[str, Any]) -> dict[str, Latency]:
        clock = 0.55 + 0.1 * len(self.made)
        small = self.error * models["small"]
        return {name: Latency(clock * each, 0, 0, 1) for name, each in (("whole", 240e-6), ("small", small))}


@pytest.mark.parametrize("budget", [Budget("speedup", 3.0), Budget("latency", 80e-6)])
@pytest.mark.parametrize(("error", "removals"), [(0.9, 1), (1.0, 1), (1.47, 2), (1.01, 2)])
def test_the_budget_is_kept_whatever_the_clock(budget: Budget, error: float, removals: int) -> None:
    slim = Told(budget, error)
    kept, small, notes = shrunk(slim)  # type: ignore[arg-type]
    assert len(slim.made) == removals and error * small <= 80e-6 * (1 + 1e-9)  # type: ignore[operator]
    assert kept.goal == small and bool(notes) == (removals > 1)
    if notes:
        assert error * small > 0.97 * 80e-6 and notes == (  # type: ignore[operator]
            f"After the removal the network measured {error:.2f} times the budget, so more was removed.",
        )


def test_what_cannot_be_removed_stays() -> None:
    slim = Told(Budget("speedup", 3.0), 1.3, least_s=70e-6)
    assert shrunk(slim)[1:] == (80e-6, ()) and len(slim.made) == 1  # type: ignore[arg-type]


@pytest.mark.parametrize(("error", "removals"), [(0.9, 1), (1.2, 2)])
def test_a_file_above_the_size_loses_more(error: float, removals: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file has the graph besides the weights, and no clock is read."""
    monkeypatch.setattr(kept_budget, "_file_bytes", lambda slim, small, form: error * small)
    slim = Told(Budget("size", 100e-6), 9.0)
    _, small, notes = shrunk(slim)  # type: ignore[arg-type]
    assert len(slim.made) == removals and error * small <= 100e-6 and bool(notes) == (removals > 1)  # type: ignore[operator]


def test_fewer_bits_meet_the_budget_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wider network that takes half the time in int4 is measured in int4."""
    forms: list[object] = []
    monkeypatch.setattr(kept_budget, "_share", lambda slim, small, form: forms.append(form) or 0.6 * small / 240e-6)
    slim = Told(Budget("speedup", 1.5), 1.0)
    _, small, notes = shrunk(slim, INT4, goal=1 / 3)  # type: ignore[arg-type]
    assert forms == [INT4] * 2 and notes and 0.97 * 80e-6 < 0.6 * small <= 80e-6  # type: ignore[operator]
