"""The prediction that is validated: ``predict`` with what the visible rows teach, as from a user's own records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from paceline.prediction import Correction, Observation, fit, predict
from paceline.validation.case import Case, HoldOut
from paceline.validation.score import Estimate


class Predictor(Protocol):
    """Says how long a row's step takes, from the rows that it was made with."""

    def __call__(self, case: Case) -> Estimate:
        """Seconds of the row's step, with an interval."""


class Model:
    """``predict`` corrected by visible rows.

    Args:
        visible: the rows that may be seen for a case; the same object for cases that see the same.
        hold_out: what the fitted constants must not have seen of a case.
    """

    def __init__(self, visible: Callable[[Case], Sequence[Case]], hold_out: HoldOut) -> None:
        self._visible, self._hold_out = visible, hold_out
        self._corrections: dict[int, tuple[Sequence[Case], Correction | None]] = {}

    def __call__(self, case: Case) -> Estimate:
        """The estimate of each setting, averaged by weight."""
        correction = self._correction(case)
        found = [
            (s.weight, predict(case.workload, s.cluster, s.strategy, correction=correction)) for s in case.settings
        ]
        return Estimate(
            step_s=sum(w * p.step_time_s for w, p in found),
            low_s=sum(w * p.low_s for w, p in found),
            high_s=sum(w * p.high_s for w, p in found),
            sync_s=sum(w * p.exposed_comm_s for w, p in found),
        )

    def _correction(self, case: Case) -> Correction | None:
        rows = self._visible(case)
        if id(rows) not in self._corrections:
            seen = [_observation(row) for row in rows if len(row.settings) == 1]
            self._corrections[id(rows)] = (rows, fit(seen) if seen else None)  # rows stay alive, so that no id is used twice
        return self._corrections[id(rows)][1]


def _observation(row: Case) -> Observation:
    """An even row as the step that it measured."""
    (one,) = row.settings
    return Observation(
        workload=row.workload, cluster=one.cluster, strategy=one.strategy, step_s=row.step_s, sync_s=row.sync_s
    )
