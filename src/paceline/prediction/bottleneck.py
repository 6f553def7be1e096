"""What a step would be if one of its resources cost no time: the next bottleneck behind the present one.

The schedule is made anew, so what was hidden behind the resource comes to light; an upgrade of it can gain no more than this.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from paceline.calibration.constants import TYPICAL, Efficiency
from paceline.hardware.cluster import Cluster
from paceline.prediction.compute import Seconds
from paceline.prediction.costs import Resource, StepCosts, catalogue_costs, priced, run_again
from paceline.prediction.exchange_plan import exchange_plan
from paceline.prediction.predict import check_fits_together
from paceline.prediction.timeline import exposed_seconds, pieces, place
from paceline.strategy.strategy import Strategy
from paceline.workload.table import Workload

LEVELS = {"network": True, "intra-node link": False}


@dataclass(frozen=True, slots=True)
class Relief:
    """A step in which ``resource`` takes no time: its seconds, the step's with it, and what most of it then waits for."""

    resource: str
    step_time_s: float
    before_s: float
    bottleneck: str

    @property
    def speedup(self) -> float:
        """How many times faster at most."""
        return self.before_s / self.step_time_s if self.step_time_s else float("inf")


def reliefs(
    workload: Workload,
    cluster: Cluster,
    strategy: Strategy,
    *,
    loader_samples_per_s: float = 0.0,
    efficiency: Efficiency = TYPICAL,
) -> tuple[Relief, ...]:
    """One for each resource that the step waits for, the one that it waits for most first. Raises UserError as ``predict``."""
    check_fits_together(cluster, strategy, loader_samples_per_s)
    strategy = strategy.settled(workload, cluster)
    plan = exchange_plan(workload, strategy, cluster.devices_per_node)
    costs = catalogue_costs(workload, cluster, strategy, plan, efficiency)
    shared = strategy.parallelism.shares.weights
    feed = strategy.global_batch_size / loader_samples_per_s if loader_samples_per_s else 0.0

    def step(some: StepCosts, wait: float) -> tuple[float, dict[Resource, float]]:
        parts = pieces(some, strategy.parallelism.micro_batches, shared, wait)
        placed = place(parts, True, shared)
        return float(placed.step), exposed_seconds(some, parts, placed)

    before, waits = step(costs, feed)
    found = []
    for resource in sorted(waits, key=lambda name: -waits[name]):
        if waits[resource] > 0:
            gone = _without(costs, resource, workload, strategy)
            after, left = step(gone, 0.0 if resource == "input pipeline" else feed)
            found.append(Relief(resource, after, before, max(left, key=lambda name: left[name])))
    return tuple(found)


def _without(costs: StepCosts, resource: Resource, workload: Workload, strategy: Strategy) -> StepCosts:
    """The costs with one resource at no time."""
    x = costs.exchange
    memory, launches = costs.optimizer
    if resource == "stragglers":
        return replace(costs, slowest=1.0)
    if resource in LEVELS:
        here = x.network == LEVELS[resource]
        pieces = np.where(~x.plan.codec & here, 0.0, x.pieces)
        gathers = np.where(x.gathers_network == LEVELS[resource], 0.0, x.gathers)
        return replace(costs, exchange=priced(x.plan, pieces, x.network, gathers, x.gathers_network))
    if resource == "codec":
        pieces = np.where(x.plan.codec, 0.0, x.pieces)
        return replace(costs, exchange=priced(x.plan, pieces, x.network, x.gathers, x.gathers_network))
    forward, backward = (_less(part, resource) for part in (costs.forward, costs.backward))
    again, _ = run_again(workload, strategy.parallelism.recompute, forward.total)
    optimizer = (0.0 if resource == "memory bandwidth" else memory, 0.0 if resource == "launch overhead" else launches)
    return replace(costs, forward=forward, backward=backward, again=again, optimizer=optimizer)


def _less(part: Seconds, resource: Resource) -> Seconds:
    """A pass without one of the three that its kernels wait for."""
    names = {"compute": "flops", "memory bandwidth": "bytes", "launch overhead": "launch"}
    nothing: dict[str, Any] = {name: np.zeros_like(part.flops) for key, name in names.items() if key == resource}
    return replace(part, **nothing)
