"""Servers and cloud instances by name, with the devices of a node and the network between nodes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

from paceline.errors import UserError, unknown
from paceline.hardware.catalogue import device, device_names, is_device, is_own_device, known_link, load
from paceline.hardware.device import Device, Fact, Link
from paceline.hardware.device_rows import source_text
from paceline.hardware.networks import Transport, transport
from paceline.hardware.networks import network as network_named
from paceline.hardware.placement import NodeSizes, equal, sizes_text
from paceline.hardware.spelling import counted, fold_hardware, without_seller
from paceline.hardware.tpu_slices import DATE, SOURCE, tpu_slice
from paceline.names import near_names

_NVL = re.compile(r"(.*?[a-z0-9])[\s_-]*NVL\s?(\d{1,3})", re.IGNORECASE)
"""``GB200 NVL4``: so many devices that NVLink joins."""
_MAKERS = ("NVIDIA", "Intel")
"""Makers of servers that a cloud lets with its own network."""
_LAPTOP = re.compile(r"laptop|mobile|max-?q|notebook", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A node that can be rented or bought whole.

    Attributes:
        device: a name of the catalogue; ``devices`` of them are joined by the device's own link.
        network: between such nodes, per node in one direction, as ``networks.network`` takes it; empty where it is unknown or
            nodes are not rented together.
        domain: devices that one domain of NVLink switches joins where the instance is a part of it; 0: it is no such part.
        source: where the number of devices and the network are from; ``date``: when that was read. Unchecked facts are marked.
    """

    name: str
    provider: str
    device: str
    devices: int
    network: str
    source: str
    date: str
    domain: int = 0
    aliases: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class NamedHardware:
    """Meaning of a user's name of a device or an instance.

    ``devices``: one number, or one for each node. ``network``: as ``networks.network`` takes it; None if unknown. ``source``,
    ``date``: source and date of an instance's own. ``chosen``: what the user's words left open of the network.
    """

    device: str
    devices: NodeSizes
    network: str | None
    source: str = ""
    date: str = ""
    chosen: str = ""

    def between(self) -> Link | None:
        """Return the network as a link, with the source of its bandwidth. Raises UserError where there is no such network."""
        if self.network is None:
            return None
        link = network_named(self.network)
        if not self.source:
            return replace(link, chosen=self.chosen) if self.chosen else link
        sourced = Fact(link.bandwidth.value, self.source, self.date or link.bandwidth.date)
        # A provider names what is not TCP.
        return replace(link, bandwidth=sourced, transport=link.transport or ("TCP" if link.kind == "ethernet" else ""))


def instances() -> tuple[Instance, ...]:
    """Return all instances in the order of ``instances.toml``."""
    return tuple(dict.fromkeys(_index().values()))


def instance(name: str) -> Instance | None:
    """Return the instance of that name or alias, in any case and with any separators. A provider may precede the name:
    ``p5.48xlarge``, ``AWS p5.48xlarge``, ``ND H100 v5``, ``NVIDIA DGX H100``; or a slice of TPUs, ``v5e-8``, or a device with
    the number that NVLink joins, ``GB200 NVL4``. None for an unknown name, and for a device of the user's own file. Raises
    UserError for an impossible slice."""
    if is_own_device(name):
        return None
    index = _index()
    own = next((index[key] for key in map(fold_hardware, without_seller(name)) if key in index), None)
    slice_ = None if own else tpu_slice(name)
    if slice_ is None:
        return own or _joined(name)
    return Instance(
        name=slice_.name,
        provider="GCP",
        device=slice_.device,
        devices=slice_.chips,
        network="",
        source=SOURCE,
        date=DATE,
    )


def _joined(name: str) -> Instance | None:
    """Return the node of ``GB200 NVL4``; None for another name, and where the devices of that name are joined otherwise."""
    said = _NVL.fullmatch(name.strip())
    if said is None or not int(said[2]) or not is_device(said[1]) or is_device(f"{said[1]} NVL"):
        return None
    kind = device(said[1])
    link = known_link(kind.link)
    if link is None or link.kind != "nvlink":
        return None
    named = f"{kind.name} NVL{int(said[2])}"
    return Instance(
        name=named, provider="NVIDIA", device=kind.name, devices=int(said[2]), network="", source="its name", date="2026-11-29"
    )


def device_in(text: str) -> Device | None:
    """Return the device that ``text`` names, or that the node it names has, whatever surrounds it: a count, a provider, remarks
    (``1CC 2x H100 80GB SXM5``, ``DGX-H100``). None if it names none, or several.
    """
    for name in dict.fromkeys((text, counted(text)[1])):
        found = {part: _device_of(part) for part in (name.split("/") if _device_of(name) is None else [name])}
        kinds = set(found.values())
        if len(kinds) == 1 and None not in kinds:
            return kinds.pop()
    return None


def _device_of(name: str) -> Device | None:
    if is_device(name):
        return device(name)
    try:
        entry = instance(name)
    except UserError:  # no such slice of TPUs
        return None
    return device(entry.device) if entry else None


def node(name: str, devices: NodeSizes | None = None, network: str | None = None) -> NamedHardware:
    """Return the node that the name of a device or an instance means.

    Args:
        devices: number per node, or one number for each node. None: that of the instance; 1 for the name of a device.
        network: network of the user; it replaces the instance's own. A transport without a speed, such as ``EFA``, is the
            instance's own if it has that transport, or that of the cloud's instance with such devices.

    Raises:
        UserError: neither a device nor an instance; another number of devices than the instance has.
    """
    entry, devices = instance(name), None if devices is None else equal(devices)
    if entry is None and not is_device(name):
        from paceline.hardware.phrases.unmodelled import check_modelled

        check_modelled(name)
        rented = [text for known in instances() for text in (known.name, *known.aliases)]
        laptop = "; a laptop's GPU is slower than the board of its name: measure it (paceline hardware probe)"
        hint = laptop if _LAPTOP.search(name) else ""
        if not hint and not near_names(name, [*device_names(), *rented]):
            hint = "; measure another with paceline hardware probe, or add it from its datasheet (docs/add-a-chip.md)"
        raise unknown("device", name, [*device_names(), *rented], f"paceline hardware list shows all{hint}")
    if entry is None or (devices not in (None, entry.devices) and is_device(name)):
        return _on_network(name, 1 if devices is None else devices, network)
    if devices not in (None, entry.devices):
        raise UserError(
            f"{sizes_text(devices)} devices in a node of {entry.name}, which has {entry.devices}",
            f"leave the number out, or name the device: {entry.device}",
        )
    if entry.provider in _MAKERS and network is not None:
        return _on_network(entry.device, entry.devices, _node_network(entry, network))
    between = _node_network(entry, network)
    if between and between == entry.network:
        return NamedHardware(entry.device, entry.devices, between, entry.source, entry.date)
    return _stated(entry.device, entry.devices, between, cloud=True)


def nodes(name: str, devices: NodeSizes | None, count: int, network: str | None) -> tuple[NamedHardware, int]:
    """Return ``count`` nodes of ``node``. Instances in one NVLink switch domain become one node: as many as the domain holds
    and as divide ``count``. Their networks add up."""
    single, entry = node(name, devices, network), instance(name)
    if entry is None or not entry.domain or single.devices != entry.devices or type(count) is not int or count < 1:
        return single, count
    joined = max(size for size in range(1, entry.domain // entry.devices + 1) if count % size == 0)
    if joined == 1:
        return single, count
    between = None if single.network is None else f"{joined}x {network_named(single.network).name}"
    return replace(single, devices=joined * single.devices, network=between), count // joined


def _node_network(entry: Instance, given: str | None) -> str | None:
    """Return the network between nodes of ``entry``; the user's replaces it."""
    if given is None:
        return entry.network or None
    carrier = transport(given)
    return entry.network if carrier is not None and _carries(entry, carrier) else given


def _carries(entry: Instance, carrier: Transport) -> bool:
    """Return whether the instance's own network has that transport."""
    return any(entry.network.startswith(name) for name in (carrier.name, *carrier.aliases))


def _on_network(name: str, devices: NodeSizes, given: str | None) -> NamedHardware:
    """Return nodes of a device by name, on the user's network."""
    found = _let_with(given, name, devices)
    if found is None:
        return _stated(name, devices, given, cloud=False)
    entry, between = found
    return NamedHardware(name, devices, between, entry.source, entry.date)


def _stated(name: str, devices: NodeSizes, given: str | None, *, cloud: bool) -> NamedHardware:
    """Return nodes of a device on the user's network, with what such nodes have where the text leaves it open."""
    if not isinstance(given, str) or not is_device(name):
        return NamedHardware(name, devices, given)
    from paceline.hardware.phrases.node_links import stated_link  # with its vocabulary, which most commands do not need

    said = stated_link(given, device(name), devices if isinstance(devices, int) else max(devices), cloud=cloud)
    return NamedHardware(name, devices, said.text, chosen=said.chosen)


def network_of(text: str, name: str, devices: NodeSizes) -> str:
    """Return a network's text with what such nodes have: ``EFA`` of 8 H100 is that of ``p5.48xlarge``, 3,200 Gb/s, and
    ``InfiniBand NDR`` eight ports (``node_links.stated_link``). Any other text stays as it is.

    Raises:
        UserError: instances with such devices differ in their speed.
    """
    found = _let_with(text, name, devices)
    return found[1] if found else _stated(name, devices, text, cloud=False).network or text


def _let_with(text: str | None, name: str, devices: NodeSizes) -> tuple[Instance, str] | None:
    """Return the smallest instance that holds a node of such devices, and its network, if ``text`` is a transport without a
    speed that one provider has. None for any other text, or without such an instance.

    Raises:
        UserError: several instances, which differ in their speed.
    """
    carrier = transport(text) if isinstance(text, str) and known_link(text) is None else None
    having = [entry for entry in instances() if carrier is not None and _carries(entry, carrier)]
    if carrier is None or len({entry.provider for entry in having}) != 1 or not is_device(name):
        return None
    kind, most = device(name).name, devices if isinstance(devices, int) else max(devices)
    fitting = [entry for entry in having if entry.device == kind]
    enough = [entry for entry in fitting if entry.devices >= most]
    joined = [entry for entry in fitting if most <= entry.domain and most % entry.devices == 0]
    found = [entry for entry in enough if entry.devices == min(x.devices for x in enough)] or joined
    if len({entry.network for entry in found}) > 1:
        several = ", ".join(f"{entry.name} {entry.network}" for entry in found)
        raise UserError(f"network {text!r} has no speed, and instances with {kind} differ: {several}", "name one of these")
    if not found:
        return None
    times = most // found[0].devices if most > found[0].devices else 1
    return found[0], found[0].network if times == 1 else f"{times}x {found[0].network}"


@cache
def _index() -> Mapping[str, Instance]:
    """Return a mapping from folded names to instances."""
    data = load("instances.toml")
    index: dict[str, Instance] = {}
    for row in data["instance"]:
        names = [row["source"]] if isinstance(row["source"], str) else row["source"]
        sources = [data["sources"][name] for name in names]
        text = "; ".join(map(source_text, sources))
        entry = Instance(
            name=row["name"],
            provider=row["provider"],
            device=row["device"],
            devices=row["devices"],
            domain=row.get("domain", 0),
            network=row.get("network", ""),
            source=f"{text} ({row['how']})" if "how" in row else text,
            date=max(source["date"] for source in sources),
            aliases=tuple(row.get("aliases", ())),
            note=row.get("note", ""),
        )
        index |= dict.fromkeys([fold_hardware(name) for name in (entry.name, *entry.aliases)], entry)
    return index
