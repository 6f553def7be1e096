"""The 80 % interval of a predicted step, from held-out errors of the resources that the step waits for.

The model takes log(measured / predicted) as normal, and the errors of the device, the links and the codec as independent.
Device and codec count by their share of the step. Links count by their effect: the step is scheduled again with links at
either end of the links' 80 % interval, since it may then wait for an exchange that is hidden now. Squares add at each end. The
error of the device is larger for a device or a model outside the fit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Z80 = 1.2816
"""Standard deviations from the median to each end of an interval that holds 80 % of a normal distribution."""
WORK = frozenset({"compute", "memory bandwidth", "launch overhead"})
"""Resources of the device itself."""
LINKS = frozenset({"network", "intra-node link", "pipeline send"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Sigmas:
    """Standard deviations of log(measured / predicted).

    Attributes:
        base: the device's own work, if the device and the model are in the fit.
        device, model: added (in squares) for a device or a model outside the fit.
        kind: added for a device that is no GPU, since all constants are for GPUs.
        conv: added for time in convolutions on ordinary cores, whose algorithms differ by up to 2.25 times in their
            multiplications (Lavin and Gray 2016).
        network, intra: waits for the network and for the link inside a node.
        other: all other waits.
        doubling: added to the step for every doubling of the number of nodes; it covers effects that few nodes do not show.
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
        """Return the standard deviation of the device's own work. ``plain_conv``: share of convolutions on ordinary cores."""
        known = (device_seen, self.device), (model_seen, self.model), (gpu, self.kind)
        return math.hypot(self.base, plain_conv * self.conv, *(sigma for seen, sigma in known if not seen))


def spread(exposed: Mapping[Any, float], sigmas: Sigmas, work: float, nodes: int = 1) -> float:
    """Return the standard deviation of the logarithm of a step that waits ``exposed`` seconds for each resource, without
    links.

    Args:
        work: standard deviation for the device's own work (``Sigmas.work``).
    """
    step = sum(exposed.values())
    if step <= 0:
        return 0.0
    working = sum(seconds for name, seconds in exposed.items() if name in WORK)  # one error affects all of it
    others = (seconds / step * sigmas.other for name, seconds in exposed.items() if name not in WORK | LINKS)
    return math.hypot(working / step * work, *others, sigmas.doubling * math.log2(nodes))


def interval(step_s: float, ends: tuple[float, float], own: float) -> tuple[float, float]:
    """Return two factors on the predicted step, one at most 1 and one at least 1, that should enclose 80 % of measured steps.

    Args:
        step_s: the predicted step, the median.
        ends: the step with links at the fast and at the slow end of their interval.
        own: ``spread`` of all other errors.
    """
    if step_s <= 0:
        return 1.0, 1.0
    fast, slow = (math.hypot(Z80 * own, math.log(end / step_s)) for end in ends)
    return math.exp(-fast), math.exp(slow)


LEAST_WIDTH = 0.1
"""Least share of a half-width after a shift. It keeps the predicted step inside."""


def shifted(step_s: float, ends: tuple[float, float], shifts: tuple[float, float]) -> tuple[float, float]:
    """Extend both ends of an interval around a step by ``shifts`` on a logarithmic scale; negative shifts narrow it."""
    if step_s <= 0:
        return ends
    half_widths = math.log(step_s / max(ends[0], 1e-30)), math.log(max(ends[1], 1e-30) / step_s)
    low, high = (max(LEAST_WIDTH * half, half + shift) for half, shift in zip(half_widths, shifts, strict=True))
    return step_s * math.exp(-low), step_s * math.exp(high)


def log_spread(low: float, high: float) -> float:
    """Return the standard deviation of the logarithm of a quantity whose 80 % interval is ``low`` to ``high``."""
    return math.log(high / low) / (2 * Z80) if 0 < low < high else 0.0
