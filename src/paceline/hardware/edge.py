"""Edge processors by name, from ``edge.toml``: published figures with their sources."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from paceline.errors import MOST_LISTED, unknown
from paceline.hardware.catalogue import load
from paceline.hardware.device import Fact
from paceline.hardware.device_rows import fact
from paceline.hardware.spelling import fold_hardware


@dataclass(frozen=True, kw_only=True)
class EdgeDevice:
    """Processor that runs networks on its cores in fp32.

    Attributes:
        cores: number of large cores. ``one_core``, ``all_cores``: peak in FLOP/s, a multiply-add is two.
        bandwidth: memory bandwidth in bytes/s. ``vector``: bits of a vector register.
    """

    name: str
    cores: int
    one_core: Fact
    all_cores: Fact
    bandwidth: Fact
    vector: Fact
    aliases: tuple[str, ...] = ()

    def peak(self, threads: int) -> float:
        """Return the peak FLOP/s of a number of cores."""
        return min(threads * self.one_core.value, self.all_cores.value)


@cache
def edge_devices() -> tuple[EdgeDevice, ...]:
    """Return all edge processors in the order of the file."""
    data = load("edge.toml")
    return tuple(_device(row, data["sources"]) for row in data["device"])


def edge_device(name: str) -> EdgeDevice:
    """Return a processor by its name or alias, in any spelling. Raises UserError with the nearest names."""
    by_name = {fold_hardware(each): device for device in edge_devices() for each in (device.name, *device.aliases)}
    if fold_hardware(name) not in by_name:
        raise unknown("edge device", name, [device.name for device in edge_devices()], few=MOST_LISTED)
    return by_name[fold_hardware(name)]


def _device(row: dict[str, Any], sources: dict[str, Any]) -> EdgeDevice:
    facts = {key: fact(row[key], sources) for key in ("one_core", "all_cores", "bandwidth", "vector")}
    return EdgeDevice(name=row["name"], cores=row["cores"], aliases=tuple(row["aliases"]), **facts)
