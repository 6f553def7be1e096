"""Devices and models in groups, for lists that a user searches."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

from paceline import hardware
from paceline.hardware import Device
from paceline.units import format_memory
from paceline.workload import names
from paceline.workload.builders.shapes import SHAPES

FEW = 3
"""Least number of models of a family with its own group."""
_MAKERS: Mapping[str, str] = {"Gaudi": "Intel", "Ascend": "Huawei", "IPU": "Graphcore", "Trainium": "AWS"}
"""Makers of accelerators that are no GPUs, by the first word of the device's name."""
_AMD = ("CDNA", "RDNA")
_ORDER = ("NVIDIA", "AMD", "Google")
_KINDS = ("NVLink servers", "GPUs of servers", "cards of servers and workstations", "desktop cards", "single boards", "")


@dataclass(frozen=True, slots=True)
class ListEntry:
    """Name in a list, with a remark that a search also finds."""

    name: str
    remark: str = ""


@dataclass(frozen=True, slots=True)
class ListGroup:
    """Group of a list."""

    title: str
    entries: tuple[ListEntry, ...]


@cache
def device_groups() -> tuple[ListGroup, ...]:
    """Return the devices by maker and kind, the newest of a group first."""
    places: dict[tuple[str, str], list[ListEntry]] = {}
    for device in reversed(hardware.devices()):
        if device.kind != "cpu":
            remark = ", ".join(filter(None, (format_memory(device.memory.value), device.architecture)))
            places.setdefault((maker(device), _kind(device)), []).append(ListEntry(device.name, remark))
    order = sorted(places, key=lambda place: (_rank(place[0]), place[0], _KINDS.index(place[1])))
    return tuple(ListGroup(" ".join(filter(None, place)), tuple(places[place])) for place in order)


def maker(device: Device) -> str:
    """Return the company that makes a device."""
    if device.kind == "tpu":
        return "Google"
    if device.kind == "gpu":
        return "AMD" if device.architecture.startswith(_AMD) else "NVIDIA"
    word = device.name.split()[0]
    return _MAKERS.get(word, word)


def _rank(name: str) -> int:
    return _ORDER.index(name) if name in _ORDER else len(_ORDER)


def _kind(device: Device) -> str:
    if device.kind != "gpu":
        return ""
    if device.link.startswith("NVLink"):
        return _KINDS[0]
    if device.link.startswith("Infinity"):
        return _KINDS[1]
    if device.link.startswith("PCIe"):
        return _KINDS[3] if device.host.startswith("desktop") else _KINDS[2]
    return _KINDS[4]


@cache
def model_groups() -> tuple[ListGroup, ...]:
    """Return the models by family: language models first, then images, speech and recommendation."""
    language = [name for name in names() if name in SHAPES]
    counts = Counter(map(_family, language))
    families = _grouped((f"{_family(name)} models" if counts[_family(name)] >= FEW else "", name) for name in language)
    small = families.pop("", [])
    groups = [*families.items(), ("other language models", small)]
    groups.append(("images, speech, recommendation", [name for name in names() if name not in SHAPES]))
    return tuple(ListGroup(title, tuple(map(ListEntry, members))) for title, members in groups if members)


def _family(name: str) -> str:
    """Return the letters at the start of a model's name: ``llama`` of ``llama-3-8b``."""
    found = re.match("[a-z]+", name)
    return found[0] if found else name


def _grouped(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for title, name in pairs:
        groups.setdefault(title, []).append(name)
    return groups
