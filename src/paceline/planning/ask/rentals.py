"""Rentals: all price listings of data centres as clusters, with their cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from paceline import hardware
from paceline.errors import UserError
from paceline.hardware import Cluster
from paceline.hardware.prices import GIVEN, Price, every_listing, price

NODES = (1, 2, 4, 8)
"""Numbers of nodes to try for an instance."""
SIZES = (1, 2, 4, 8)
"""Numbers of devices to try if any number can be rented."""


@dataclass(frozen=True)
class Rental:
    """A cluster and its listing. A listing without an instance has one node, since its network is unknown."""

    cluster: Cluster
    listing: Price

    @property
    def usd_per_device_hour(self) -> float:
        """Dollars for a device and hour, if machines are rented whole."""
        return self.listing.usd_per_hour(self.cluster.node_sizes) / self.cluster.world_size


def rentals(prices: Mapping[str, float | Price] | None = None, nodes: Sequence[int] = NODES) -> tuple[Rental, ...]:
    """Return each rentable cluster once, with its cheapest listing. Packaged listings count if they are of a data centre and of
    GPUs, where any script of PyTorch runs.

    Args:
        prices: the user's own prices, which take precedence over listings of the same devices.
        nodes: numbers of nodes of an instance.

    Raises:
        UserError: as ``prices.every_listing``.
    """
    cheapest: dict[tuple[str, int, int, str], Rental] = {}
    for listing in every_listing():
        if listing.market or (listing.packaged and hardware.device(listing.device).kind != "gpu"):
            continue
        own = price(listing.device, prices)
        for cluster in _clusters(listing, nodes):
            rental = Rental(cluster, own if own and own.provider == GIVEN else listing)
            between = cluster.network.name if cluster.num_nodes > 1 else ""
            key = cluster.device.name, cluster.devices_per_node, cluster.num_nodes, between
            # At equal prices the instance wins, because its network is known.
            if key not in cheapest or rental.usd_per_device_hour <= cheapest[key].usd_per_device_hour:
                cheapest[key] = rental
    return tuple(cheapest.values())


def _clusters(listing: Price, nodes: Sequence[int]) -> Iterator[Cluster]:
    """Yield the clusters of one listing: single machines, and several nodes of an instance with its network."""
    entry = hardware.instance(listing.provider)
    most = entry.devices if entry else SIZES[-1]
    for size in [size for size, _ in listing.machines] or [size for size in SIZES if size <= most]:
        yield hardware.cluster(listing.device, size)
    if entry is None or entry.device != listing.device:
        return
    for many in nodes:
        try:
            yield hardware.cluster(entry.name, None, many)
        except UserError:  # an instance without a network is rented one by one
            return
