"""Catalogue of devices and links by name, read from ``devices.toml`` and ``links.toml`` at the first use."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, TypeVar

from paceline.errors import unknown
from paceline.hardware.device import BRIDGED, Device, Link
from paceline.hardware.device_rows import VARIABLE, device_of, fact, own_devices
from paceline.hardware.spelling import counted, fold_hardware, halves, memory_sizes, shorter, without_seller, words

_Named = TypeVar("_Named", bound=Device | Link)

_BRIDGED = re.compile(r"[\s_-]+(?:with[\s_-]+)?nv-?link(?:[\s_-]+bridge)?$", re.IGNORECASE)
_NEAR = 0.15  # of a memory's size: GB of 2^30 and of 10^9 bytes, and what a vendor keeps back


def device(name: str) -> Device:
    """Return the device of that name or alias. Case, spaces, dashes, underscores and the vendor's name do not matter: ``a100``,
    ``A100-80``, ``NVIDIA A100-SXM4-80GB``. A short alias means the most common variant: ``A100`` is the A100 SXM 80GB, ``H100``
    the H100 SXM, ``V100`` the V100 SXM2 16GB, ``P100`` the P100 PCIe 16GB, ``MI250X`` one of the card's two GPUs. A driver or a
    list of results may add the kind of memory, its size, or the form of the card. These words are ignored if no device has such
    a name and the size is that of the device (``AMD Instinct MI300X 192GB HBM3``, ``H200-SXM-141GB``). The vendor of the server
    may precede it (``Dell XE9680 H100 SXM5``), a remark in brackets may follow. ``RTX A6000 NVLink`` is one of a pair that an
    NVLink bridge joins.

    Raises:
        UserError: unknown name; the nearest names are given.
    """
    return _by_longer_name(name) or _find("device", name, _device_index(), "paceline hardware list shows all")


def known_device(name: str) -> Device | None:
    """Return the device that ``device`` finds, or None."""
    return _by_longer_name(name) or _device_index().get(fold_hardware(name))


def is_device(name: str) -> bool:
    """Return whether ``device`` finds a device of that name."""
    return _by_longer_name(name) is not None


def is_own_device(name: str) -> bool:
    """Return whether the file named by ``PACELINE_DEVICES`` has a device of that name."""
    own = os.environ.get(VARIABLE, "")
    return bool(own) and fold_hardware(name) in _index(_user_devices(own))


def device_names() -> list[str]:
    """Return all names and aliases of devices, names first."""
    return _all_names(_device_index())


def link(name: str) -> Link:
    """Return the link of that name or alias: ``NVLink 3``, ``PCIe 4``, ``IB HDR``, ``10GbE``. Raises UserError otherwise."""
    return _find("link", name, _link_index(), "paceline hardware list shows all")


def find(name: str) -> Device | Link:
    """Return the device or the link of that name or alias. Raises UserError with the nearest names of both."""
    index: dict[str, Device | Link] = {**_device_index(), **_link_index()}
    entry = index.get(fold_hardware(name)) or _by_longer_name(name)
    if entry is None:
        raise unknown("device or link", name, _all_names(index), "paceline hardware list shows all")
    return entry


def devices() -> tuple[Device, ...]:
    """Return all devices: those of the file named by ``PACELINE_DEVICES``, then the catalogue's in the order of its file.

    Raises:
        UserError: that file is no list of devices.
    """
    return _devices(os.environ.get(VARIABLE, ""))


def links() -> tuple[Link, ...]:
    """Return all links of the catalogue in the order of its file."""
    return _catalogue_links()


def known_link(text: str) -> Link | None:
    """Return the link of that name or alias, whose words may stand in any order (``NDR InfiniBand``), or of two names side by
    side (``Quantum-2 NDR``); None if unknown."""
    return _link_of(text) or next(
        (one for first, rest in halves(text) if (one := _link_of(first)) and one == _link_of(rest)), None
    )


def _link_of(text: str) -> Link | None:
    return _link_index().get(fold_hardware(text)) or _link_words().get(words(text))


def link_names() -> list[str]:
    """Return all names and aliases of links, names first."""
    return _all_names(_link_index())


def _by_longer_name(name: str) -> Device | None:
    return _named_longer(name, os.environ.get(VARIABLE, ""))


@cache
def _named_longer(name: str, own: str) -> Device | None:
    """Return the device whose name is ``name`` without some of its last words, or None. Additions to the name are removed step
    by step; two names side by side are those of one device."""
    if found := _named_once(name, own):
        return found
    twice = ((_named_once(first, own), _named_once(rest, own)) for first, rest in halves(name))
    if found := next((one for one, other in twice if one and one == other), None):
        return found
    bare = _BRIDGED.sub("", name)
    pair = _named_longer(bare, own) if bare != name else None
    return replace(pair, name=f"{pair.name}{BRIDGED}", link=pair.bridge, bridge="") if pair and pair.bridge else None


def _named_once(name: str, own: str) -> Device | None:
    sizes, (count, plain) = memory_sizes(name), counted(name)
    names = [name] if count else dict.fromkeys(rest for said in (name, plain) for rest in without_seller(said))
    for text in (text for said in names for text in shorter(said)):  # a count of devices is never dropped
        candidate = _indexed(own).get(fold_hardware(text))
        if candidate and (
            memory_sizes(text) or all(math.isclose(size, candidate.memory.value, rel_tol=_NEAR) for size in sizes)
        ):
            return candidate
    return None


def _find(kind: str, name: str, index: Mapping[str, _Named], fix: str) -> _Named:
    entry = index.get(fold_hardware(name))
    if entry is None:
        raise unknown(kind, name, _all_names(index), fix)
    return entry


def _all_names(index: Mapping[str, Device | Link] | Mapping[str, Device] | Mapping[str, Link]) -> list[str]:
    """Return all names and aliases as the catalogue writes them, names first."""
    entries = list(dict.fromkeys((entry.name, entry.aliases) for entry in index.values()))
    return [name for name, _ in entries] + [alias for _, aliases in entries for alias in aliases]


@cache
def load(file_name: str) -> dict[str, Any]:
    """Read the tables of a file of the package. The reader is imported only here: most commands name no hardware."""
    import tomllib
    from importlib.resources import files

    return tomllib.loads(files("paceline.hardware").joinpath(file_name).read_text(encoding="utf-8"))


@cache
def _user_devices(own: str) -> tuple[Device, ...]:
    """Return the devices of the user's file ``own``; empty without a file."""
    if not own:
        return ()
    data = load("devices.toml")
    architectures = data["architectures"]
    known = tuple(dict.fromkeys(entry.get("architecture", "") for entry in data["device"]))
    rows, sources = own_devices(own, tuple(name for name in known if name))
    added = tuple(device_of(row, {**data["sources"], **sources}, architectures) for row in rows)
    for entry in added:
        if fold_hardware(entry.link) not in _link_index():
            raise unknown(f"link of {entry.name} in {own}", entry.link, [x.name for x in links()], "paceline hardware list")
    return added


@cache
def _devices(own: str) -> tuple[Device, ...]:
    """Return the devices of the user's file ``own``, then those of the package that have other names."""
    data = load("devices.toml")
    names = {fold_hardware(entry.name) for entry in _user_devices(own)}
    package = (device_of(entry, data["sources"], data["architectures"]) for entry in data["device"])
    return (*_user_devices(own), *(entry for entry in package if fold_hardware(entry.name) not in names))


@cache
def _catalogue_links() -> tuple[Link, ...]:
    data = load("links.toml")
    sources = data["sources"]
    return tuple(
        Link(
            name=entry["name"],
            kind=entry["kind"],
            bandwidth=fact(entry["bandwidth"], sources),
            latency=fact(entry["latency"], sources),
            aliases=tuple(entry.get("aliases", ())),
            note=entry.get("note", ""),
            reduces=entry.get("reduces", False),
            joins=entry.get("joins", 0),
            **_link_facts(entry, sources),
            transport=entry.get("transport", "InfiniBand" if entry["kind"] == "infiniband" else ""),
        )
        for entry in data["link"]
    )


def _link_facts(entry: Mapping[str, Any], sources: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers of a link that few links have."""
    return {key: fact(entry[key], sources) for key in ("carried", "start", "reached", "shared") if key in entry}


def _index(entries: Iterable[_Named]) -> dict[str, _Named]:
    index: dict[str, _Named] = {}
    for entry in entries:
        index.update(dict.fromkeys([fold_hardware(name) for name in (entry.name, *entry.aliases)], entry))
    return index


@cache
def _indexed(own: str) -> dict[str, Device]:
    # The first of a name counts: the user's own.
    return _index(reversed(_devices(own)))


def _device_index() -> dict[str, Device]:
    return _indexed(os.environ.get(VARIABLE, ""))


@cache
def _link_index() -> dict[str, Link]:
    return _index(links())


@cache
def _link_words() -> dict[tuple[str, ...], Link]:
    """Return the links by the words of their names, in alphabetical order."""
    named = [(words(name), entry) for entry in links() for name in (entry.name, *entry.aliases)]
    return {said: entry for said, entry in named if said and all(other == entry for key, other in named if key == said)}
