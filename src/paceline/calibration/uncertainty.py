"""Held-out errors of predictions, by the resource that a step waits for: log(measured / predicted) is taken as normal."""

from __future__ import annotations

import math
from dataclasses import dataclass

Z80 = 1.2816
"""Standard deviations from the median to each end of an interval that holds 80 % of a normal distribution."""
WORK = frozenset({"compute", "memory bandwidth", "launch overhead"})
"""Resources of the device itself."""
LINKS = frozenset({"network", "intra-node link", "pipeline send"})
HOST = frozenset({"host"})
HOST_WAIT = 0.7
"""Standard deviation of log(measured / predicted) of waits for updates and copies of a host: the root mean square of -0.02,
0.13, 0.21, -0.15 and -1.5 of the published ones (``benchmarks/offload_published.py``), three of which gave the rate."""


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


def log_spread(low: float, high: float) -> float:
    """Return the standard deviation of the logarithm of a quantity whose 80 % interval is ``low`` to ``high``."""
    return math.log(high / low) / (2 * Z80) if 0 < low < high else 0.0
