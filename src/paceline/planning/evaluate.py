"""Seconds and bytes of many candidates at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from paceline.calibration.constants import TYPICAL, Efficiency
from paceline.calibration.uncertainty import Z80
from paceline.planning.goal import Array
from paceline.planning.space import Candidate, Tally
from paceline.prediction import Prediction, predict
from paceline.prediction.batch import Steps, step_seconds
from paceline.prediction.correction import Correction
from paceline.workload.table import Workload


def evaluate(
    workload: Workload,
    candidates: Sequence[Candidate],
    left_out: Tally,
    correction: Correction | None = None,
    software: Efficiency = TYPICAL,
) -> Steps:
    """Predict every candidate; one that cannot be predicted has no seconds (NaN) and is counted in ``left_out``."""
    found = step_seconds(workload, candidates, efficiency=software)
    for why in found.refused.values():
        left_out.add(why)
    if correction is None:
        return found
    one = partial(predict, correction=correction, efficiency=software)
    return replace(found, step_s=_corrected(workload, candidates, found, one))


def _corrected(workload: Workload, candidates: Sequence[Candidate], found: Steps, one: Callable[..., Prediction]) -> Array:
    """Seconds by what observed steps teach. Candidates that a correction cannot tell apart share the factor of the fastest."""
    alike: dict[tuple[object, ...], list[int]] = {}
    for index in np.flatnonzero(found.fits & np.isfinite(found.step_s)).tolist():
        cluster, s = candidates[index]
        x, mesh = s.gradient_exchange, s.parallelism
        division = (s.precision, x.compression, x.exchange, x.servers, mesh.sharding, mesh.recompute)
        place = (cluster.device.name, cluster.devices_per_node, cluster.num_nodes, s.micro_batch_size, *division)
        alike.setdefault(place, []).append(index)
    step_s = found.step_s.copy()
    for group in alike.values():
        fastest = min(group, key=lambda i: float(found.step_s[i]))
        learnt = one(workload, *candidates[fastest]).step_time_s
        step_s[group] *= learnt / found.step_s[fastest]
    return step_s


def log_spread(low: float, high: float) -> float:
    """Standard deviation of the logarithm of what lies between ``low`` and ``high`` with 80 %."""
    return math.log(high / low) / (2 * Z80) if 0 < low < high else 0.0
