"""Price and power of the devices of a shared cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from paceline.errors import UserError, shorten
from paceline.hardware.catalogue import device as device_named
from paceline.hardware.instances import instance
from paceline.hardware.prices import of_devices, price
from paceline.scheduling.fleet import Fleet, NodeGroup


def with_costs(fleet: Fleet, prices: Mapping[str, float] | None = None) -> tuple[Fleet, tuple[str, ...]]:
    """Return the fleet with its known prices and power, and a sentence with the source of each device type.

    Args:
        prices: dollars a device and hour by device, used before the listed prices; ``""``: of the only type.

    Raises:
        UserError: a price without a device where there are several types, or of a device that no node has.
    """
    own = of_devices(prices or {}, fleet.types)
    for name in own or ():
        rented = instance(name)
        if (rented.device if rented else name) not in fleet.types:
            raise UserError(f"a price of {shorten(name, 40)}", f"price what the cluster has: {', '.join(fleet.types)}")
    groups = [_with_costs(group, own) for group in fleet.groups]
    return replace(fleet, groups=tuple(group for group, _ in groups)), tuple(sentence for _, sentence in groups)


def _with_costs(group: NodeGroup, own: Mapping[str, float] | None) -> tuple[NodeGroup, str]:
    power, listing = device_named(group.device).power, price(group.device, own)
    usd, watts = group.price, group.watts
    words = [f"${usd:g} an hour" if usd else "", f"{watts:g} W" if watts else ""]
    if not usd and listing:
        usd, words[0] = listing.usd_per_device_hour, f"${listing.usd_per_device_hour:g} an hour ({listing.listed})"
    if not watts and power:
        watts, words[1] = power.value, f"{power.value:g} W, its board's limit"
    known = [words[0] or "price unknown", words[1] or "power unknown"]
    return replace(group, price=usd, watts=watts), f"{group.device}: {'; '.join(known)}."


__all__ = ["with_costs"]
