"""Fit of link speeds to the measured waits of steps for their exchange.

Two factors apply to the catalogue: one on a link's seconds per byte, one on its latency. The fit finds the pair that explains
the measured waits best. A wait is the part of an exchange that the backward pass does not hide. The fit therefore predicts the
whole step with slower and slower links until its wait equals the measured one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import Protocol

import numpy as np

from paceline.calibration.constants import assumed
from paceline.calibration.observation import Observation
from paceline.hardware.cluster import Cluster
from paceline.hardware.device import Link
from paceline.strategy.strategy import Strategy
from paceline.workload.table import Workload

STEPS = 24
"""Most observed waits in a fit. From more, an evenly spaced subset is taken."""
WIDTHS = (2.0, 1.0, 0.5, 0.25)
"""Step sizes of the search, in the logarithm of a factor."""
NOISE: float = assumed("link_noise")
"""Least scale of the errors of a measured wait's logarithm. The prior standard deviation of a factor is 1."""
MOST_OFF = 1.5
"""Largest error of a logarithm that counts: more is an outlier's."""
HIDDEN: float = assumed("hidden_wait")
"""Share of the step below which a wait cannot be distinguished from no wait."""


class Waits(Protocol):
    """Quantities of a prediction that the fit needs."""

    @property
    def exposed_comm_s(self) -> float:
        """Seconds of the step spent waiting for the exchange."""


Predict = Callable[[Workload, Cluster, Strategy], Waits]
Factors = tuple[float, float]


class ObservedLinks:
    """Links of the steps ``seen``. The speed of each link follows from the steps that waited only for it."""

    def __init__(self, seen: Sequence[Observation], predict: Predict) -> None:
        self._seen, self._predict = seen, predict
        self._factors: dict[tuple[str, ...], Factors] = {}

    def of(self, given: Cluster) -> Cluster:
        """Return the cluster with links at their observed speed. Links without observations are unchanged."""
        intra = slower(given.intra_link, self._inside(given))
        network = intra if given.num_nodes == 1 else slower(given.network, self._node_factors(given))
        return given.changed(intra_link=intra, network=network)

    def _inside(self, given: Cluster) -> Factors:
        """Return factors of the link inside a node, from steps on one node of the same device."""
        key = (given.intra_link.name, given.device.name)

        def alike(cluster: Cluster) -> bool:
            return (
                cluster.num_nodes == 1
                and cluster.devices_per_node > 1
                and (cluster.intra_link.name, cluster.device.name) == key
            )

        def changed(cluster: Cluster, factors: Factors) -> Cluster:
            link = slower(cluster.intra_link, factors)
            return cluster.changed(intra_link=link, network=link)

        return self._factors_of(key, alike, changed)

    def _node_factors(self, given: Cluster) -> Factors:
        """Return factors of the network between nodes. Links inside the nodes have their observed speed too."""
        key = (given.network.name,)

        def alike(cluster: Cluster) -> bool:
            return cluster.num_nodes > 1 and cluster.network.name == given.network.name

        def changed(cluster: Cluster, factors: Factors) -> Cluster:
            inside = slower(cluster.intra_link, self._inside(cluster))
            return cluster.changed(intra_link=inside, network=slower(cluster.network, factors))

        return self._factors_of(key, alike, changed)

    def _factors_of(
        self, key: tuple[str, ...], alike: Callable[[Cluster], bool], changed: Callable[[Cluster, Factors], Cluster]
    ) -> Factors:
        if key not in self._factors:
            seen = [step for step in self._seen if step.sync_s is not None and alike(step.cluster)]
            self._factors[key] = self._search(_thinned(seen), changed) if seen else (0.0, 0.0)
        return self._factors[key]

    def _search(self, seen: Sequence[Observation], changed: Callable[[Cluster, Factors], Cluster]) -> Factors:
        """Return the factors that best explain the waits, by a search coarse to fine.

        The waits say themselves how noisy they are: errors are taken as Laplacian of unknown scale.
        """

        def misfit(factors: Factors) -> float:
            off = [min(abs(self._log_ratio(step, changed(step.cluster, factors))), MOST_OFF) for step in seen]
            scale = NOISE + sum(off) / len(off)
            return 2 * len(off) * math.log(scale) + factors[0] ** 2 + factors[1] ** 2

        best = (0.0, 0.0)
        for width in WIDTHS:
            near = [(best[0] + i * width, best[1] + j * width) for i, j in product((-1, 0, 1), repeat=2)]
            best = min(near, key=misfit)
        return best

    def _log_ratio(self, step: Observation, cluster: Cluster) -> float:
        """Return the logarithm of the ratio of predicted to measured wait."""
        floor = HIDDEN * step.step_s
        waited = self._predict(step.workload, cluster, step.strategy).exposed_comm_s
        return math.log((waited + floor) / ((step.sync_s or 0.0) + floor))


def slower(link: Link, factors: Factors) -> Link:
    """Return the link with its seconds per byte and its latency multiplied by the exponentials of the factors."""
    if factors == (0.0, 0.0):
        return link
    bandwidth = replace(link.bandwidth, value=link.bandwidth.value * math.exp(-factors[0]), source="observed waits")
    latency = replace(link.latency, value=link.latency.value * math.exp(factors[1]), source="observed waits")
    slowed = replace(link, bandwidth=bandwidth, latency=latency)
    if link.shared is None:
        return slowed
    return replace(slowed, shared=replace(link.shared, value=link.shared.value * math.exp(-factors[0])))


def _thinned(seen: Sequence[Observation]) -> list[Observation]:
    ordered = sorted(seen, key=lambda step: (step.workload.name, step.cluster.num_nodes, step.cluster.world_size))
    return [ordered[i] for i in np.unique(np.linspace(0, len(ordered) - 1, STEPS).astype(int))]
