"""Prices of a device-hour, from the listings of ``prices.toml``, a user's own file, or ``--price``."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from paceline.errors import UserError, shown
from paceline.hardware.catalogue import device, is_device, known_device
from paceline.hardware.instances import Instance, instance
from paceline.hardware.saved_clusters import saved_cluster
from paceline.toml_file import read_toml

_Price = TypeVar("_Price", bound="float | Price")
GIVEN = "given by the user"
"""The provider of a price of the user's own."""
UNDATED = "undated"
"""The date of a listing whose source has none."""
MOST_DEVICES = 8
"""Most devices of a machine whose sizes no source states."""
_SELLERS = {
    "amazon": "aws",
    "gce": "gcp",
    "microsoft": "azure",
    "oracle": "oci",
    "lambdalabs": "lambda",
    "lambdacloud": "lambda",
}
"""Further names of providers."""
VARIABLE = "PACELINE_PRICES"
"""Environment variable with the path of a price file. Its prices come before those of the package."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Dollars for one device and hour, with its share of node and network. ``date``: when the provider listed it.

    Attributes:
        machines: devices of each rentable machine, ascending, and its dollars an hour: p4de is rented only as eight. Empty:
            any number of devices can be rented.
        spot_usd_per_device_hour: price of a device that the provider may reclaim at any time; None if no source states it.
        region: region of the listing, by the provider's name; empty if the source states none.
        alone: whether no network joins the machines.
        market: whether it is an offer of a marketplace, taken only where no data centre lists the device.
    """

    device: str
    usd_per_device_hour: float
    provider: str
    date: str
    source: str
    machines: tuple[tuple[int, float], ...] = ()
    spot_usd_per_device_hour: float | None = None
    region: str = ""
    alone: bool = False
    market: bool = False

    def usd_per_hour(self, node_sizes: Iterable[int]) -> float:
        """Return dollars per hour of the machines to rent for nodes of these sizes: for each the cheapest sufficient machine,
        or several of the largest."""
        return sum(self._node(size) for size in node_sizes)

    def billed(self, node_sizes: Iterable[int]) -> int:
        """Return the devices that are paid for: more than are used if only whole machines can be rented."""
        return sum(self._machine(size)[0] for size in node_sizes)

    def _node(self, devices: int) -> float:
        return self._machine(devices)[1]

    def machine(self, devices: int) -> int:
        """Return the devices of the machine to rent for a node; ``devices`` if any number can be rented."""
        return self._machine(devices)[0] if self.machines else devices

    def _machine(self, devices: int) -> tuple[int, float]:
        """Return devices and dollars per hour of the machines to rent for a node."""
        machines = self.machines or ((1, self.usd_per_device_hour),)
        largest, usd = machines[-1]
        several = math.ceil(devices / largest)
        enough = [machine for machine in machines if machine[0] >= devices]
        return min(enough, key=lambda machine: machine[1], default=(several * largest, several * usd))

    @property
    def terms(self) -> str:
        """Describe the smallest rentable unit; empty if any number of devices can be rented."""
        sizes = [size for size, _ in self.machines]
        if not sizes:
            return ""
        if sizes == [1]:
            return "let one by one"
        return f"let as machines of {', '.join(map(str, sizes))}: a node of fewer devices costs a whole one"

    def holds(self, devices: int) -> bool:
        """Return whether a machine has that many devices. Without a list of machines, one has up to eight, TPUs any number."""
        if self.machines:
            return self.machines[-1][0] >= devices
        return devices <= MOST_DEVICES or self.provider == GIVEN or device(self.device).kind == "tpu"

    @property
    def joins(self) -> bool:
        """True if several of its machines are let with a network between them, or the price is the user's own."""
        return (bool(self.machines) and not self.alone) or self.provider == GIVEN

    @property
    def packaged(self) -> bool:
        """True if the listing is of the package, not of the user's own file."""
        return self in _read("")

    @property
    def seller(self) -> str:
        """Name of the provider, without the instance; empty for a user's own price."""
        return "" if self.provider == GIVEN else self.provider.partition(" ")[0].rstrip(",")

    @property
    def listed(self) -> str:
        """Provider and age of the listing: ``AWS p3.16xlarge, listed 2026-03``; ``OCI BM.GPU4.8, undated``."""
        return f"{self.provider}, {self.age}" if self.date else self.provider

    @property
    def age(self) -> str:
        """Date of the listing in words; empty for a user's own price."""
        return self.date if self.date in ("", UNDATED) else f"listed {self.date}"

    def __str__(self) -> str:
        dated = f"{self.listed}; {self.source}" if self.date else self.provider
        terms = f", {self.terms}" if self.terms else ""
        return f"{dollars_text(self.usd_per_device_hour)} for one {self.device} and hour ({dated}){terms}"


def listings(name: str) -> tuple[Price, ...]:
    """Return all listings of a device, the user's own first; empty if it is not listed. ``name``: as in the catalogue. A
    pair that a bridge joins has the listings of its board unless it has its own.

    Raises:
        UserError: the file that ``PACELINE_PRICES`` names is not one of prices.
    """
    own, board = (tuple(x for x in every_listing() if x.device == wanted) for wanted in _catalogue_names(name))
    return own or board


def every_listing() -> tuple[Price, ...]:
    """Return the listings of all devices, those of the user's own file first. Raises UserError as ``listings``."""
    file = os.environ.get(VARIABLE, "")
    return (*(_read(file) if file else ()), *_read(""))


def dollars_text(usd: float) -> str:
    """Format a price per hour, with more than two decimals only if needed: ``$2.10``, ``$3.431``."""
    return f"${usd:.2f}" if math.isclose(usd, round(usd, 2)) else f"${usd:.4g}"


def listing_of(rented: Instance) -> Price | None:
    """Return the listing of an instance: its own, else its provider's listing of the device, else None."""
    own = [x for x in listings(rented.device) if x.seller.casefold() == rented.provider.casefold()]
    return next((x for x in own if instance(x.provider) == rented), next(iter(own), None))


def listing_of_cluster(text: str) -> Price | None:
    """Return the listing of the instance in a cluster's text or a saved cluster, ``2x p5.48xlarge``, or of the device at the
    provider that the text names, ``8 H100 on Nebius``; None for another device or an unlisted instance."""
    own = saved_cluster(text)
    from paceline.hardware.phrases.machine_phrase import machine_phrase  # with its vocabulary

    said = machine_phrase(own.text if own else text) if text.strip() else None
    rented = instance(said.name) if said and said.rented else None
    if said is None or rented:
        return listing_of(rented) if rented else None
    words = set(re.findall(r"[a-z]+", (own.text if own else text).casefold()))
    sellers = {_SELLERS.get(word, word) for word in words}
    sold = [x for x in listings(device(said.name).name) if x.seller.casefold() in sellers] if is_device(said.name) else []
    return min(sold, key=lambda listing: listing.usd_per_device_hour, default=None)


def listings_of_clusters(texts: Iterable[str]) -> dict[str, float | Price]:
    """Return the listings of the instances named in cluster texts, by device, without devices of two instances."""
    listed = [listing for text in texts if (listing := listing_of_cluster(text))]
    devices = [listing.device for listing in listed]
    return {listing.device: listing for listing in listed if devices.count(listing.device) == 1}


def cheapest(name: str, node_sizes: Sequence[int] = (1,)) -> Price | None:
    """Return the cheapest listing that lets nodes of these sizes; None without one. The user's own file comes first, then
    data centres, then marketplaces.

    Several nodes need a network between them, so they are let by those who let whole machines with one, else by any.
    """
    every = listings(name)
    own = every[: _own_listings(every)] or [x for x in every if not x.market] or every
    joined = [x for x in own if x.machines and x.joins and x.machines[-1][0] >= max(node_sizes)]
    able = joined or list(own) if len(node_sizes) > 1 else own
    return min(able, key=lambda listing: listing.usd_per_hour(node_sizes), default=None)


def _own_listings(every: Sequence[Price]) -> int:
    """Return how many of the listings are of the user's own file, which come first."""
    file = os.environ.get(VARIABLE, "")
    mine = _read(file) if file else ()
    return sum(listing in mine for listing in every)


def price(name: str, own_prices: Mapping[str, float | Price] | None = None, node_sizes: Sequence[int] = (1,)) -> Price | None:
    """Return the price of a device: the user's own, else the cheapest listing that lets such nodes, else None.

    Args:
        own_prices: dollars by device, or by instance for all of it (``of_devices`` resolves the empty name); or the listing
            that is taken of a device.
        node_sizes: devices of each node.
    """
    chosen, board = _catalogue_names(name)
    if own_prices is not None and not isinstance(own_prices, Mapping):
        raise UserError(f"prices {shown(own_prices)}", "give a mapping of devices to dollars an hour")
    taken = {owner: dollars for owner, dollars in (own_prices or {}).items() if isinstance(dollars, Price)}
    given_prices = {owner: dollars for owner, dollars in (own_prices or {}).items() if not isinstance(dollars, Price)}
    for owner, dollars in given_prices.items():
        if isinstance(dollars, bool) or not isinstance(dollars, int | float) or not 0 <= dollars < math.inf:
            raise UserError(f"a price of {shown(dollars)} for {owner or 'the device'}", "give dollars an hour from 0 up")
    given: dict[str, Any] = {"device": chosen, "provider": GIVEN, "date": "", "source": ""}
    for key, dollars in given_prices.items():
        if (rented := instance(key)) is not None and rented.device in (chosen, board):
            each = dollars / rented.devices
            return Price(usd_per_device_hour=each, machines=((rented.devices, dollars),), **given)
    for owner in (chosen, board):
        if owner in given_prices:
            return Price(usd_per_device_hour=given_prices[owner], **given)
    return next((taken[owner] for owner in (chosen, board) if owner in taken), None) or cheapest(chosen, node_sizes)


def of_devices(own_prices: Mapping[str, _Price] | None, devices: Iterable[str]) -> Mapping[str, _Price] | None:
    """Return ``own_prices`` with a price without a device name assigned to the only device of the question.

    Raises:
        UserError: such a price if several devices, or none, are named.
    """
    if not isinstance(own_prices, Mapping) or "" not in own_prices:
        return own_prices
    named = sorted(set(devices))
    if len(named) != 1:
        several = f"one of {', '.join(named)}" if named else "a device"
        example = f"{(named or ['H100'])[0]}={own_prices['']:g}"
        instead = "" if named else ", or name the cluster that it is the price of"
        raise UserError(f"a price of {own_prices['']:g} without a device", f"write it for {several}: {example}{instead}")
    return {named[0]: own_prices[""], **{name: dollars for name, dollars in own_prices.items() if name}}


def parse_prices(texts: Iterable[str]) -> dict[str, float]:
    """Parse prices in dollars an hour: ``["2.50"]`` for the device of the question, ``["H100=2.50"]`` by its catalogue name.

    ``["p5.48xlarge=55.04"]`` is the price of an instance, which is rented whole.

    Raises:
        UserError: not a number of dollars, or an unknown device.
    """
    prices: dict[str, float] = {}
    for text in texts:
        name, equals, number = text.rpartition("=")
        try:
            value = float(number.strip().removeprefix("$"))
        except ValueError:
            value = math.nan
        if not 0 <= value < math.inf or (equals and not name.strip()):
            raise UserError(f"{text!r} is not a price", "write dollars for a device and hour: 2.50 or H100=2.50")
        rented = instance(name) if equals else None
        if rented is not None:
            prices[rented.name] = value
        else:
            prices[device(name).name if equals else ""] = value
    return prices


def _catalogue_names(name: str) -> tuple[str, str]:
    """Return the catalogue's names of a device and of its board; devices outside the catalogue, such as probed ones, keep
    theirs."""
    known = known_device(name)
    return (known.name, known.board) if known else (name, name)


@cache
def _read(path: str) -> tuple[Price, ...]:
    """Return the listings of a file, or of the package for an empty path."""
    import tomllib
    from importlib.resources import files

    form = "its form is that of hardware/prices.toml"
    if path:
        data = read_toml(path, form)
    else:
        data = tomllib.loads(files("paceline.hardware").joinpath("prices.toml").read_text(encoding="utf-8"))
    try:
        sources = data.get("sources", {})
        return tuple(_listing(entry, sources) for entry in data["price"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is not a file of prices: {error}", form) from error


def _listing(entry: Mapping[str, Any], sources: Mapping[str, str]) -> Price:
    dollars = float(entry["usd_per_device_hour"])
    if not 0 <= dollars < math.inf:
        raise ValueError(f"{dollars} dollars for {entry['device']}")
    source = str(entry.get("source", "given by the user"))
    machines = tuple(sorted((int(size), float(usd)) for size, usd in entry.get("machines", {}).items()))
    if any(size < 1 or not 0 <= usd < math.inf for size, usd in machines):
        raise ValueError(f"machines {dict(machines)} of {entry['device']}")
    return Price(
        device=device(entry["device"]).name,
        usd_per_device_hour=dollars,
        provider=str(entry["provider"]),
        date=str(entry["date"]),
        source=sources.get(source, source),
        machines=machines,
        spot_usd_per_device_hour=float(entry["spot"]) if "spot" in entry else None,
        region=str(entry.get("region", "")),
        alone=bool(entry.get("alone", False)),
        market=bool(entry.get("market", False)),
    )
