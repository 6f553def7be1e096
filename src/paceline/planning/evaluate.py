"""Seconds and bytes of many candidates at once, and the whole prediction of the few that are shown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline.planning.space import Candidate, Tally
from paceline.prediction.batch import step_seconds
from paceline.workload.layers import Workload

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Evaluated:
    """One number a candidate: seconds of a step, bytes on one device, bytes that its device has."""

    step_s: Array
    memory: Array
    available: Array

    @property
    def missing(self) -> Array:
        """Bytes that are missing; 0 or less where it fits."""
        return self.memory - self.available


def evaluate(workload: Workload, candidates: Sequence[Candidate], left_out: Tally) -> Evaluated:
    """Predict every candidate; one that cannot be predicted has no seconds (NaN) and is counted in ``left_out``."""
    found = step_seconds(workload, candidates)
    for reason in found.refused.values():
        left_out.add(reason)
    return Evaluated(found.step_s, found.memory_bytes, found.available_bytes)


def log_spread(low: float, high: float) -> float:
    """Standard deviation of the logarithm of what lies between ``low`` and ``high`` with 80 %."""
    from paceline.prediction.convergence import Z80

    return math.log(high / low) / (2 * Z80) if 0 < low < high else 0.0
