"""Seconds and bytes of many candidates at once."""

from __future__ import annotations

import math
from collections.abc import Sequence

from paceline.planning.space import Candidate, Tally
from paceline.prediction.batch import Steps, step_seconds
from paceline.prediction.convergence import Z80
from paceline.workload.layers import Workload


def evaluate(workload: Workload, candidates: Sequence[Candidate], left_out: Tally) -> Steps:
    """Predict every candidate; one that cannot be predicted has no seconds (NaN) and is counted in ``left_out``."""
    found = step_seconds(workload, candidates)
    for why in found.refused.values():
        left_out.add(why)
    return found


def log_spread(low: float, high: float) -> float:
    """Standard deviation of the logarithm of what lies between ``low`` and ``high`` with 80 %."""
    return math.log(high / low) / (2 * Z80) if 0 < low < high else 0.0
