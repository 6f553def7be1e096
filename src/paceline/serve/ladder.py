"""Changes of the what-if ladder: one step up in each direction."""

from __future__ import annotations

from paceline import hardware
from paceline.hardware import PRECISIONS, Cluster, Device
from paceline.hardware.precision import WIDE
from paceline.hardware.prices import price
from paceline.planning import Change, parse_change
from paceline.strategy import Strategy

SPEEDS = (10, 25, 40, 50, 100, 200, 400, 800, 1600, 3200)
"""Network speeds on the market, in Gb/s per node and direction."""
NODE = 8
"""Most devices per node in a proposal."""
FASTER = 1.5
"""Least ratio of the proposed device's peak to the current one's."""


def rungs(cluster: Cluster, strategy: Strategy) -> dict[str, Change]:
    """Return the possible changes by title: more devices, faster network, faster device, larger batch, narrower precision."""
    several = cluster.num_nodes > 1
    texts: dict[str, str] = {}
    if several or cluster.network != cluster.intra_link:
        texts[f"{2 * cluster.num_nodes} nodes"] = "nodesx2"
    if not several and cluster.even and cluster.devices_per_node < NODE:
        texts[f"{2 * cluster.devices_per_node} devices a node"] = "devices-per-nodex2"
    now = cluster.network.bandwidth.value * 8e-9
    if several and (faster := next((speed for speed in SPEEDS if speed >= 1.99 * now), 0)):
        texts[f"network of {faster} Gb/s"] = f"network={faster}Gb/s"
    if better := next_device(cluster.device, strategy.precision):
        texts[better.name] = f"device={better.name}"
    texts["twice the batch"] = "global-batchx2"
    if PRECISIONS[strategy.precision].full and WIDE in cluster.device.precisions:
        texts[f"precision {WIDE}"] = f"precision={WIDE}"
    return {title: parse_change(text) for title, text in texts.items()}


def next_device(device: Device, precision: str) -> Device | None:
    """Return the device of the same maker with the next higher peak and a listed price; None without one."""
    if precision not in device.peak_flops:
        return None
    own = device.peak_flops[precision].value
    others = [
        other
        for other in hardware.devices()
        if other.link.partition(" ")[0] == device.link.partition(" ")[0]
        and precision in other.peak_flops
        and other.peak_flops[precision].value >= FASTER * own
        and price(other.name, None)
    ]
    return min(others, key=lambda other: (other.peak_flops[precision].value, other.name), default=None)
