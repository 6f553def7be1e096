"""The 80 % interval of a predicted step: what the constants missed on held-out measurements, by what the step waits for.

The logarithm of measured to predicted seconds is taken for normal; what a device's work, the links and the codec miss is
independent of each other. Work and codec count by their share of the step. Slow links count by what they do to it: the step is
placed again with links as slow, and as fast, as 80 % are, so an exchange that is hidden now may be waited for then. Squares add
up, at either end. Work misses more on a device and for a model that no constant was fitted on.
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
LINKS = frozenset({"network", "intra-node link"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Sigmas:
    """Standard deviations of log(measured / predicted).

    Attributes:
        base: of work on a device and for a model that were fitted on.
        device, model: added (in squares) for one that was not. ``kind``: for one that is no GPU, whatever was fitted on it,
            since no constant is its own. ``conv``: for time in convolutions on ordinary cores, whose algorithms differ by up
            to 2.25 times in their multiplications (Lavin and Gray 2016).
        network, intra: of waiting for the network and for the link inside a node. ``other``: of anything else.
        doubling: of a step, for every doubling of the number of nodes: what few nodes do not show adds up with them.
    """

    base: float = 0.0
    device: float = 0.0
    model: float = 0.0
    kind: float = 0.0
    conv: float = 0.0
    network: float = 0.0
    intra: float = 0.0
    other: float = 0.0
    doubling: float = 0.0

    def work(self, device_seen: bool, model_seen: bool, gpu: bool = True, plain_conv: float = 0.0) -> float:
        """Of the device's own work, of which ``plain_conv`` is the share in convolutions on ordinary cores."""
        known = (device_seen, self.device), (model_seen, self.model), (gpu, self.kind)
        return math.hypot(self.base, plain_conv * self.conv, *(sigma for seen, sigma in known if not seen))


def spread(exposed: Mapping[Any, float], sigmas: Sigmas, work: float, nodes: int = 1) -> float:
    """Standard deviation of the logarithm of a step that waits ``exposed`` seconds for each resource, links apart.

    Args:
        work: that of the device's own work (``Sigmas.work``).
    """
    step = sum(exposed.values())
    if step <= 0:
        return 0.0
    working = sum(seconds for name, seconds in exposed.items() if name in WORK)  # one error moves all of it
    others = (seconds / step * sigmas.other for name, seconds in exposed.items() if name not in WORK | LINKS)
    return math.hypot(working / step * work, *others, sigmas.doubling * math.log2(nodes))


def interval(step_s: float, ends: tuple[float, float], own: float) -> tuple[float, float]:
    """Factors on the step between which 80 % of measured ones should lie: at most 1, at least 1.

    Args:
        step_s: the predicted step, the median.
        ends: the same with links at the fast and at the slow end of their own interval.
        own: ``spread`` of all else.
    """
    if step_s <= 0:
        return 1.0, 1.0
    fast, slow = (math.hypot(Z80 * own, math.log(end / step_s)) for end in ends)
    return math.exp(-fast), math.exp(slow)


def log_spread(low: float, high: float) -> float:
    """Standard deviation of the logarithm of what lies between ``low`` and ``high`` with 80 %."""
    return math.log(high / low) / (2 * Z80) if 0 < low < high else 0.0
