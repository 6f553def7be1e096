"""Measured steps of one run, and the steps that count after the warm-up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from paceline.errors import UserError

LONG = 1.2
"""Factor on the median from which early steps count as warm-up."""
LEAST = 2
"""Least number of steps for a median."""
PAUSE = 2.0
"""Factor on the median from which a later step counts as a pause: an evaluation or a checkpoint."""
FEW = 0.25
"""Largest share of such steps. With more of them, the steps differ by themselves."""


@dataclass(frozen=True, kw_only=True)
class SteadySteps:
    """Steps that count.

    Attributes:
        step_s: seconds of each.
        warmup: number of steps left out at the start.
        pauses: number of later steps left out as pauses.
        mean_of: as of ``MeasuredSteps``.
    """

    step_s: Sequence[float]
    warmup: int = 0
    pauses: int = 0
    mean_of: int = 0


@dataclass(frozen=True, kw_only=True)
class MeasuredSteps:
    """Steps of one run, in order.

    Attributes:
        source: description of the measurement.
        step_s: seconds of each step, or of a mean step of each logged interval.
        sync_s: mean seconds that a step waited for the exchange; None if unknown.
        job: job settings in the file: columns of a table of jobs (``records.COLUMNS``) with their values.
        processes: devices of the job; 0 if unknown.
        mean_of: number of steps in the mean if ``step_s`` is one mean of a whole run; 0 otherwise.
        places: where the file states each setting of ``job``.
    """

    source: str
    step_s: Sequence[float]
    sync_s: float | None = None
    job: Mapping[str, str] = field(default_factory=dict)
    processes: int = 0
    mean_of: int = 0
    places: Mapping[str, str] = field(default_factory=dict)

    def steady(self, warmup: int | None = None) -> SteadySteps:
        """Return the steps after the warm-up and without pauses.

        Args:
            warmup: as for ``kept``. With a stated number, pauses count as steps.

        Raises:
            UserError: as ``kept``.
        """
        if self.mean_of:
            return SteadySteps(step_s=self.step_s, mean_of=self.mean_of)
        kept = self.kept(warmup)
        most = PAUSE * float(np.median(kept))
        brief = [step for step in kept if step <= most]
        if warmup is not None or len(brief) < max(LEAST, (1 - FEW) * len(kept)):
            brief = list(kept)
        return SteadySteps(step_s=brief, warmup=len(self.step_s) - len(kept), pauses=len(kept) - len(brief))

    def kept(self, warmup: int | None = None) -> Sequence[float]:
        """Return the steps after the warm-up.

        Args:
            warmup: steps to leave out. None: the first of at least three, and later ones that take ``LONG`` medians.

        Raises:
            UserError: fewer than ``LEAST`` remain, or one is not above 0.
        """
        if warmup is None:
            long = LONG * float(np.median(self.step_s)) if self.step_s else 0.0
            warmup = min(len(self.step_s), 1) if len(self.step_s) > LEAST else 0
            while warmup < len(self.step_s) - LEAST and self.step_s[warmup] > long:
                warmup += 1
        left = self.step_s[warmup:]
        if len(left) < LEAST:
            count = f"{len(self.step_s)} step{'s' * (len(self.step_s) != 1)}, {len(left)} after the warm-up"
            raise UserError(f"{self.source}: {count}", f"give a run of at least {LEAST + 1} steps, or --warmup 0")
        if min(left) <= 0:
            raise UserError(f"{self.source}: a step of {min(left):g} s", "give a run whose steps take time")
        return left


def summary(steps: Sequence[float]) -> tuple[float, float, float]:
    """Return median, lower and upper quartile of steps, in seconds."""
    low, median, high = np.quantile(steps, (0.25, 0.5, 0.75))
    return float(median), float(low), float(high)
