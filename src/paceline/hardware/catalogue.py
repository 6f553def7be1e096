"""The catalogue: devices and links by name, read from ``devices.toml`` and ``links.toml`` when first asked for."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any, TypeVar

from paceline.errors import UserError, shown, unknown
from paceline.hardware.device import Device, Fact, Link
from paceline.hardware.device_rows import VARIABLE, device_of, fact, own_devices
from paceline.units import format_bandwidth, parse_bandwidth

_Named = TypeVar("_Named", bound=Device | Link)

_SEPARATORS = re.compile(r"[\s_-]+")
_VENDOR = re.compile(r"^(nvidia|tesla|geforce|amd|instinct|radeon|intel|habana|google|cloud|graphcore)+(?=.)")
_NOISE = re.compile(r"[\s_-]+(hbm[0-9][a-z]?|gen[0-9]|[0-9]+w)\b", re.IGNORECASE)
_FORM = re.compile(r"\b(sxm|pcie)[0-9]", re.IGNORECASE)
_MEMORY = re.compile(r"[\s_-]*\b([0-9]+)\s*gb\b", re.IGNORECASE)
_VARIANT = re.compile(r"[\s_-]*\b(sxm|pcie)[0-9]?\b", re.IGNORECASE)
_NEAR = 0.15  # of a memory's size: GB of 2^30 and of 10^9 bytes, and what a vendor keeps back
_SEVERAL = re.compile(r"^\s*([1-9][0-9]*)\s*[x×]\s+(\S.*)$", re.IGNORECASE)


def device(name: str) -> Device:
    """The device of that name or alias.

    Case, spaces, dashes, underscores and the vendor's name do not matter: ``a100``, ``A100-80``,
    ``NVIDIA A100-SXM4-80GB``. A short alias means the most common variant: ``A100`` is the A100 SXM 80GB, ``H100`` the
    H100 SXM, ``V100`` the V100 SXM2 16GB, ``P100`` the P100 PCIe 16GB, ``MI250X`` one of the card's two GPUs. A driver or a
    list of results may add the kind of memory, its size, or the form of the card. These words are ignored where no device has
    such a name, and where the size is that of the device (``AMD Instinct MI300X 192GB HBM3``, ``H200-SXM-141GB``).

    Raises:
        UserError: unknown name; the nearest names are given.
    """
    return _by_longer_name(name) or _find("device", name, _device_index(), "paceline hardware list shows all")


def link(name: str) -> Link:
    """The link of that name or alias: ``NVLink 3``, ``PCIe 4``, ``IB HDR``, ``10GbE``. Raises UserError otherwise."""
    return _find("link", name, _link_index(), "paceline hardware list shows all")


def find(name: str) -> Device | Link:
    """The device or the link of that name or alias. Raises UserError with the nearest names of both."""
    index: dict[str, Device | Link] = {**_device_index(), **_link_index()}
    entry = index.get(_fold(name)) or _by_longer_name(name)
    if entry is None:
        raise unknown("device or link", name, _all_names(index), "paceline hardware list shows all")
    return entry


def devices() -> tuple[Device, ...]:
    """Every device of the catalogue, in the order of the file; before them those of the file that ``PACELINE_DEVICES`` names.

    Raises:
        UserError: that file is not one of devices.
    """
    return _devices(os.environ.get(VARIABLE, ""))


def links() -> tuple[Link, ...]:
    """Every link of the catalogue, in the order of the file."""
    return _catalogue_links()


def network(text: str) -> Link:
    """The link between nodes that ``text`` names.

    Args:
        text: a link (``InfiniBand HDR``), several of them at each node (``8x InfiniBand HDR``), or a bandwidth per
            node in one direction (``10Gb/s``). A bandwidth means Ethernet: the link of the
            catalogue with that bandwidth, else a new link with the latency of the nearest one.

    Raises:
        UserError: neither a known link nor a bandwidth.
    """
    if not isinstance(text, str):
        raise UserError(f"network {shown(text)}", "give a text such as 100Gb/s or 'InfiniBand HDR'")
    if _fold(text) in _link_index():
        return link(text)
    if several := _SEVERAL.match(text):
        return _side_by_side(int(several[1]), network(several[2]))
    if re.match(r"\s*[0-9.]", text):
        return _ethernet(parse_bandwidth(text))
    raise unknown("network", text, _all_names(_link_index()), "or give a bandwidth per node such as 10Gb/s")


def _fold(name: str) -> str:
    """``name`` without case, separators and vendor, which do not matter in a look-up."""
    return _VENDOR.sub("", _SEPARATORS.sub("", name.casefold()))


def _by_longer_name(name: str) -> Device | None:
    return _named_longer(name, os.environ.get(VARIABLE, ""))


@cache
def _named_longer(name: str, own: str) -> Device | None:
    """The device that ``name`` means. Additions to the name are removed step by step. None where no device fits."""
    plain = _NOISE.sub("", name.replace("_", " "))
    general = _FORM.sub(r"\1", plain)
    short, shorter = _MEMORY.sub("", plain), _MEMORY.sub("", general)
    sizes = [float(size) * 2**30 for size in _MEMORY.findall(plain)]
    for text in (name, plain, general, short, shorter, _VARIANT.sub("", general), _VARIANT.sub("", shorter)):
        candidate = _indexed(own).get(_fold(text))
        if candidate and (
            _MEMORY.search(text) or all(math.isclose(size, candidate.memory.value, rel_tol=_NEAR) for size in sizes)
        ):
            return candidate
    return None


def _find(kind: str, name: str, index: Mapping[str, _Named], fix: str) -> _Named:
    entry = index.get(_fold(name))
    if entry is None:
        raise unknown(kind, name, _all_names(index), fix)
    return entry


def _all_names(index: Mapping[str, Device | Link] | Mapping[str, Device] | Mapping[str, Link]) -> list[str]:
    """Every name and alias as the catalogue writes it, names first."""
    entries = list(dict.fromkeys((entry.name, entry.aliases) for entry in index.values()))
    return [name for name, _ in entries] + [alias for _, aliases in entries for alias in aliases]


def _side_by_side(count: int, single: Link) -> Link:
    """``count`` equal links side by side: their bandwidths add, the latency is that of one."""
    if count == 1:
        return single
    total = replace(single.bandwidth, value=count * single.bandwidth.value, source=f"{count} x {single.bandwidth.source}")
    return replace(single, name=f"{count}x {single.name}", bandwidth=total, aliases=())


def _ethernet(bandwidth: float) -> Link:
    """Ethernet of ``bandwidth`` bytes/s: the catalogue's own within one part in a thousand, else one made for it."""
    ethernets = [ethernet for ethernet in links() if ethernet.kind == "ethernet"]
    nearest = min(ethernets, key=lambda ethernet: abs(math.log(ethernet.bandwidth.value / bandwidth)))
    if math.isclose(nearest.bandwidth.value, bandwidth, rel_tol=1e-3):
        return nearest
    return Link(
        name=f"Ethernet {format_bandwidth(bandwidth)}",
        kind="ethernet",
        bandwidth=Fact(bandwidth, "given by the user", nearest.bandwidth.date),
        latency=replace(nearest.latency, source=f"as {nearest.name}: {nearest.latency.source}"),
        carried=_carried(bandwidth),
    )


def _carried(bandwidth: float) -> Fact | None:
    """Share of an Ethernet link that TCP carries, interpolated between the links of the catalogue.

    A faster link never carries fewer bytes. Below the slowest link with a known share, TCP fills the line. Above the fastest
    one, the carried rate grows up to that of the next link, which carries RDMA.
    """
    rates = sorted(
        ((ethernet.bandwidth.value, ethernet.carried) for ethernet in links() if ethernet.kind == "ethernet"),
        key=lambda ethernet: ethernet[0],
    )
    for (low, below), (high, above) in pairwise(rates):
        known = below or above
        if known is not None and low < bandwidth < high:
            ends = (carried.value if carried else 1.0 for carried in (below, above))
            small, large = (math.log(rate * share) for rate, share in zip((low, high), ends, strict=True))
            weight = math.log(bandwidth / low) / math.log(high / low)
            return replace(known, value=math.exp(small + weight * (large - small)) / bandwidth)
    return None


def _load(file_name: str) -> dict[str, Any]:
    """The file's tables. Imports what reads it only here: most commands name no hardware."""
    import tomllib
    from importlib.resources import files

    return tomllib.loads(files("paceline.hardware").joinpath(file_name).read_text(encoding="utf-8"))


@cache
def _devices(own: str) -> tuple[Device, ...]:
    """Those of the user's file ``own``, then those of the package that have other names."""
    data = _load("devices.toml")
    architectures = data["architectures"]
    known = tuple(dict.fromkeys(entry.get("architecture", "") for entry in data["device"]))
    rows, sources = own_devices(own, tuple(name for name in known if name))
    added = [device_of(row, {**data["sources"], **sources}, architectures) for row in rows]
    for entry in added:
        if _fold(entry.link) not in _link_index():
            raise unknown(f"link of {entry.name} in {own}", entry.link, [x.name for x in links()], "paceline hardware list")
    names = {_fold(entry.name) for entry in added}
    package = (device_of(entry, data["sources"], architectures) for entry in data["device"])
    return (*added, *(entry for entry in package if _fold(entry.name) not in names))


@cache
def _catalogue_links() -> tuple[Link, ...]:
    data = _load("links.toml")
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
            carried=fact(entry["carried"], sources) if "carried" in entry else None,
        )
        for entry in data["link"]
    )


def _index(entries: Iterable[_Named]) -> dict[str, _Named]:
    index: dict[str, _Named] = {}
    for entry in entries:
        index.update(dict.fromkeys([_fold(name) for name in (entry.name, *entry.aliases)], entry))
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
