"""The 80 % interval of a predicted step: what the constants missed on held-out measurements, by what the step waits for.

The logarithm of measured to predicted seconds is taken for normal; what a device's work, the links and the codec miss is
independent of each other. Then that of the step has, to first order, the variance ``sum((share x sigma)^2)`` over the shares of
the step that each has. Work misses more on a device and for a model that no constant was fitted on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Z80 = 1.2816
"""Standard deviations on either side of the median that hold 80 % of a normal distribution."""
WORK = frozenset({"compute", "memory bandwidth", "launch overhead"})
"""Resources of a step that the device itself works with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sigmas:
    """Standard deviations of log(measured / predicted).

    Attributes:
        base: of work on a device and for a model that were fitted on.
        device, model: added (in squares) for one that was not.
        network, intra: of waiting for the network and for the link inside a node. ``other``: of anything else.
        doubling: of a step, for every doubling of the number of nodes: what few nodes do not show adds up with them.
    """

    base: float = 0.0
    device: float = 0.0
    model: float = 0.0
    network: float = 0.0
    intra: float = 0.0
    other: float = 0.0
    doubling: float = 0.0

    def work(self, device_seen: bool, model_seen: bool) -> float:
        """Of the device's own work."""
        return math.hypot(self.base, 0.0 if device_seen else self.device, 0.0 if model_seen else self.model)

    def of(self, resource: str, work: float) -> float:
        """Of waiting for ``resource``, where ``work`` is that of the device's own."""
        if resource in WORK:
            return work
        return {"network": self.network, "intra-node link": self.intra}.get(resource, self.other)


def spread(exposed: Mapping[Any, float], sigmas: Sigmas, *, device_seen: bool, model_seen: bool, nodes: int = 1) -> float:
    """Standard deviation of the logarithm of a step that waits ``exposed`` seconds for each resource."""
    step = sum(exposed.values())
    if step <= 0:
        return 0.0
    work = sigmas.work(device_seen, model_seen)
    together = sum(seconds for name, seconds in exposed.items() if name in WORK) / step * work  # one error moves all of it
    apart = (seconds / step * sigmas.of(name, work) for name, seconds in exposed.items() if name not in WORK)
    return math.hypot(together, *apart, sigmas.doubling * math.log2(nodes))


def interval(
    step_s: float, exposed: Mapping[Any, float], sigmas: Sigmas, *, device_seen: bool, model_seen: bool, nodes: int = 1
) -> tuple[float, float]:
    """Seconds between which 80 % of measured steps should lie.

    Args:
        step_s: the predicted step, the median.
        exposed: seconds of it by the resource it waits for.
        device_seen, model_seen: whether the constants were fitted on measurements of it.
    """
    factor = math.exp(Z80 * spread(exposed, sigmas, device_seen=device_seen, model_seen=model_seen, nodes=nodes))
    return step_s / factor, step_s * factor
