"""What can be rented: every listing of a price, as clusters with what they cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from paceline import hardware
from paceline.errors import UserError
from paceline.hardware import Cluster
from paceline.hardware.prices import GIVEN, Price, every_listing, price

NODES = (1, 2, 4, 8)
"""Nodes that are tried of an instance."""
SIZES = (1, 2, 4, 8)
"""Devices that are tried where any number can be rented."""


@dataclass(frozen=True)
class Rental:
    """A cluster and its listing. A listing that names no instance has one node: what joins several is unknown."""

    cluster: Cluster
    listing: Price

    @property
    def usd_per_device_hour(self) -> float:
        """Dollars for one device and hour of machines that are rented whole."""
        return self.listing.usd_per_hour(self.cluster.node_sizes) / self.cluster.world_size


def rentals(prices: Mapping[str, float | Price] | None = None, nodes: Sequence[int] = NODES) -> tuple[Rental, ...]:
    """Every cluster that can be rented, once, by its cheapest listing.

    Args:
        prices: the user's own, which stand before the listings of their devices.
        nodes: how many of an instance.

    Raises:
        UserError: as ``prices.every_listing``.
    """
    cheapest: dict[tuple[str, int, int, str], Rental] = {}
    for listing in every_listing():
        own = price(listing.device, prices)
        for cluster in _clusters(listing, nodes):
            rental = Rental(cluster, own if own and own.provider == GIVEN else listing)
            between = cluster.network.name if cluster.num_nodes > 1 else ""
            key = cluster.device.name, cluster.devices_per_node, cluster.num_nodes, between
            # Of equal prices the instance stays, which has a network.
            if key not in cheapest or rental.usd_per_device_hour <= cheapest[key].usd_per_device_hour:
                cheapest[key] = rental
    return tuple(cheapest.values())


def _clusters(listing: Price, nodes: Sequence[int]) -> Iterator[Cluster]:
    """Those of one listing: machines of its sizes, and several of an instance with its own network."""
    entry = hardware.instance(listing.provider)
    most = entry.devices if entry else SIZES[-1]
    for size in [size for size, _ in listing.machines] or [size for size in SIZES if size <= most]:
        yield hardware.cluster(listing.device, size)
    if entry is None or entry.device != listing.device:
        return
    for many in nodes:
        try:
            yield hardware.cluster(entry.name, None, many)
        except UserError:  # an instance without a network is let one by one
            return
