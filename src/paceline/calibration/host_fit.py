"""How long the host takes to launch a kernel, from measured steps of different micro batches.

The host runs ahead of the device. A pass takes as long as its kernels, but never less than the host needs to launch them. Steps
with a small micro batch that take as long as those with a larger one show that time. The fit takes the time that explains best
how the measured steps of each network differ. A factor that all of them share is left to the ratios
(``prediction/correction.py``).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np

from paceline.calibration.constants import assumed
from paceline.calibration.observation import Observation

STEPS = 32
"""Most observed steps in a fit; of more, an evenly spaced subset counts."""
TRIED = tuple(np.geomspace(2e-6, 2e-4, 25).tolist())
"""Seconds a kernel that are tried."""
NOISE: float = assumed("host_noise")
"""Standard deviation of the logarithm of a measured step, beside what its network is off by."""
LEAST = 4
"""Steps that a fit needs."""

Predict = Callable[[Observation, float], float]
"""Seconds of an observed step where the host takes so many seconds a kernel."""


class ObservedHost:
    """The hosts of the steps ``seen``, by device.

    Args:
        usual_s: seconds a kernel before anything was measured; the standard deviation of the logarithm is 1.
    """

    def __init__(self, seen: Sequence[Observation], predict: Predict, usual_s: float) -> None:
        self._seen, self._predict, self._usual_s = seen, predict, usual_s
        self._seconds: dict[str, float] = {}

    def of(self, device: str) -> float:
        """Seconds a kernel of the hosts with that device; 0 where the measured steps do not tell."""
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
