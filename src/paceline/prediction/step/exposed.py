"""The seconds of a step by the resource that it waits for."""

from __future__ import annotations

import numpy as np

from paceline.array_types import Array
from paceline.prediction.passes.compute import RESOURCES, Resource
from paceline.prediction.step.costs import StepCosts
from paceline.prediction.step.timeline import Schedule, StepDurations

ROUNDING = 1e-9
"""Share of a step below which a wait is only a rounding error."""


def exposed_seconds(costs: StepCosts, parts: StepDurations, placed: Schedule) -> dict[Resource, float]:
    """Return the seconds of the step by the resource that it waits for; they sum to the step.

    Compute counts in full. An exchange counts from the end of the backward pass to the optimizer. In that time every bucket
    is ready, so one stage always runs. If codec and network work at the same time, the step waits for the slower one. With
    sharded weights the device also waits for all-gathers. Each level of the network then gets the share of the wait that it has
    of the network's busy time. The same rule divides the time that is lost because exchange and compute share the device.
    """
    spent = exposed_without_exchange(costs, parts)
    x, plan = costs.exchange, costs.exchange.plan
    compute = parts.micro_steps * (parts.forward + parts.backward)
    spent["input pipeline"] = placed.step - placed.gather_start - parts.after
    stages = x.waited
    if placed.forward_starts:
        share_wait(spent, costs, placed.update_start - compute)
    elif len(stages) and parts.beside:
        hidden = parts.beside * (compute + parts.update)
        waits = stages * (np.maximum(0.0, x.buckets - hidden) / np.maximum(x.buckets, 1e-300))[plan.bucket]
        _add_waits(spent, costs, waits)
        share_wait(spent, costs, placed.penalty)
    elif len(stages):
        ends = np.cumsum(stages)
        begins = ends - stages - (ends - stages)[plan.begin][plan.bucket] + np.array(placed.exchange_starts)[plan.bucket]
        waits = np.maximum(0.0, begins + stages - np.maximum(begins, placed.backward_end))
        _add_waits(spent, costs, waits)
        share_wait(spent, costs, placed.penalty)
    if parts.after:
        share = parts.after / float(x.gathers.sum())
        spent["network"] += share * float(x.gathers[x.gathers_network].sum())
        spent["intra-node link"] += share * float(x.gathers[~x.gathers_network].sum())
    return spent


def _add_waits(spent: dict[Resource, float], costs: StepCosts, waits: Array) -> None:
    """Add the waits of a step for each piece of its exchange, (pieces,)."""
    x, codec = costs.exchange, costs.exchange.plan.codec
    spent["codec"] += float(waits[codec].sum())
    spent["network"] += float(waits[~codec & x.network].sum())
    spent["intra-node link"] += float(waits[~codec & ~x.network].sum())


def waits_within(costs: StepCosts, parts: StepDurations) -> tuple[float, float]:
    """Return the seconds that a step's passes wait for collectives: by the link inside a node, and by the network."""
    times, again = parts.micro_steps, 1 + costs.again_share
    near = float(np.sum(costs.forward.near * again)) + float(np.sum(costs.backward.near))
    far = float(np.sum(costs.forward.far * again)) + float(np.sum(costs.backward.far))
    return times * near, times * far


def without_rounding(seconds: float, step_s: float) -> float:
    """Return ``seconds`` of a step of ``step_s``; 0 if they are within the rounding error."""
    return seconds if abs(seconds) > ROUNDING * step_s else 0.0


def share_wait(spent: dict[Resource, float], costs: StepCosts, seconds: float) -> None:
    """Divide a wait among the levels of the network, and the host's link, in proportion to their busy time."""
    x, wire = costs.exchange, ~costs.exchange.plan.codec
    sent = x.gathers - x.copies
    host = float(np.broadcast_to(x.copies, x.gathers.shape).sum())
    far = float(x.pieces[wire & x.network].sum() + sent[x.gathers_network].sum())
    whole = float(x.pieces[wire].sum() + x.gathers.sum())
    spent["network"] += seconds * (far / whole if whole else 0.0)
    spent["host"] += seconds * (host / whole if whole else 0.0)
    spent["intra-node link"] += seconds * (1 - (far + host) / whole if whole else 1.0)


def exposed_without_exchange(costs: StepCosts, parts: StepDurations) -> dict[Resource, float]:
    """Return the seconds of the passes and of the update by resource; 0 for gradients, weights and samples on a link."""
    spent = dict.fromkeys(RESOURCES, 0.0)
    times = parts.micro_steps
    for part, share in ((costs.forward, 1 + costs.again_share), (costs.backward, 1.0)):
        spent["compute"] += times * float((part.flops * share).sum())
        spent["memory bandwidth"] += times * float((part.bytes * share).sum())
        spent["launch overhead"] += times * float((part.launch * share).sum())
        spent["host"] += times * float(np.sum(part.host))
    within = waits_within(costs, parts)
    spent["intra-node link"], spent["network"] = (a + b for a, b in zip(within, costs.matrices, strict=True))
    spent["host"] += costs.host
    spent["stragglers"] = times * (parts.forward + parts.backward) * (1 - 1 / costs.slowest)
    spent["memory bandwidth"] += costs.optimizer[0]
    spent["launch overhead"] += costs.optimizer[1]
    spent["compute"] += costs.optimizer[2]
    return spent
