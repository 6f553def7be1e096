"""Fit of the time that the host needs to launch a kernel, from measured steps of different micro batches.

The host runs ahead of the device. A pass takes as long as its kernels, but at least as long as the host launches them. Steps
with a small micro batch that take as long as those with a larger one reveal that time. The fit takes the time that best
explains how the measured steps of each network differ. A factor that all of them share is left to the ratios
(``prediction/correction/correction.py``).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np

from paceline.calibration.constants import assumed
from paceline.calibration.observation import Observation

STEPS = 32
"""Most observed steps in a fit. From more, an evenly spaced subset is taken."""
TRIED = tuple(np.geomspace(2e-6, 2e-4, 25).tolist())
"""Candidate seconds a kernel."""
NOISE: float = assumed("host_noise")
"""Standard deviation of the logarithm of a measured step, in addition to its network's own error."""
LEAST = 4
"""Least number of steps for a fit."""

Predict = Callable[[Observation, float], float]
"""Seconds of an observed step for given seconds a kernel of the host."""


class ObservedHost:
    """Launch times of the hosts of the steps ``seen``, by device.

    Args:
        usual_s: seconds a kernel without measurements; the standard deviation of the logarithm is 1.
    """

    def __init__(self, seen: Sequence[Observation], predict: Predict, usual_s: float) -> None:
        self._seen, self._predict, self._usual_s = seen, predict, usual_s
        self._seconds: dict[str, float] = {}

    def of(self, device: str) -> float:
        """Return the seconds per kernel of hosts with that device; 0 if the measured steps do not determine it."""
        if device not in self._seconds:
            seen = [step for step in self._seen if step.cluster.device.name == device]
            self._seconds[device] = self._search(_thinned(seen))
        return self._seconds[device]

    def _search(self, seen: Sequence[Observation]) -> float:
        micro = defaultdict(set)
        for step in seen:
            micro[step.workload.name].add(step.strategy.micro_batch_size)
        telling = [step for step in seen if len(micro[step.workload.name]) > 1]
        if len(telling) < LEAST:
            return 0.0

        def misfit(host_s: float) -> float:
            off: dict[str, list[float]] = defaultdict(list)
            for step in telling:
                off[step.workload.name].append(math.log(step.step_s / self._predict(step, host_s)))
            spread = np.concatenate([np.array(own) - np.median(own) for own in off.values()])
            fit = float(np.minimum(np.square(spread / NOISE), 9.0).sum())  # an outlier counts as three sigma
            return fit + math.log(host_s / self._usual_s) ** 2

        best: float = min(TRIED, key=misfit)
        return best


def _thinned(seen: Sequence[Observation]) -> list[Observation]:
    ordered = sorted(seen, key=lambda step: (step.workload.name, step.cluster.world_size, step.strategy.micro_batch_size))
    return [ordered[i] for i in np.unique(np.linspace(0, len(ordered) - 1, STEPS).astype(int))] if ordered else []
