"""States of devices in the output of ``nvidia-smi``: the table, ``--query-gpu --format=csv``, ``dmon`` and ``-q``.

Forms of nvidia-smi 450 to 580 (NVIDIA, "nvidia-smi documentation"). They state no step times.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from statistics import median

from paceline.calibration.imports.quantities import parse_number
from paceline.units import format_memory

MARKS = ("NVIDIA-SMI", "utilization.gpu", "# gpu", "NVSMI LOG", "power.draw")
"""Texts of which one is in each form."""
_MIB = 2.0**20
_NAME = re.compile(r"^\|\s+(\d+)\s+(\S.*?)\s+(?:On|Off)\s*\|")
_USE = re.compile(
    r"(?P<temperature>\d+)C\s+(?P<state>P\d+)\s+(?P<power>\d+|N/A)W?\s*/\s*(?P<limit>\d+|N/A)W?\s*\|"
    r"\s*(?P<memory>\d+)MiB\s*/\s*(?P<total>\d+)MiB\s*\|\s*(?P<use>\d+|N/A)%?"
)
_QUERY: Mapping[str, tuple[str, float]] = {
    "utilization.gpu": ("utilization", 0.01),
    "power.draw": ("power_w", 1.0),
    "power.draw.instant": ("power_w", 1.0),
    "power.limit": ("power_limit_w", 1.0),
    "enforced.power.limit": ("power_limit_w", 1.0),
    "memory.used": ("memory_bytes", _MIB),
    "memory.total": ("memory_total_bytes", _MIB),
    "clocks.sm": ("clock_mhz", 1.0),
    "clocks.current.sm": ("clock_mhz", 1.0),
    "clocks.gr": ("clock_mhz", 1.0),
    "clocks.max.sm": ("max_clock_mhz", 1.0),
    "temperature.gpu": ("temperature_c", 1.0),
}
"""Columns of a query, without their units: the field and its factor."""
_MONITOR: Mapping[str, tuple[str, float]] = {
    "pwr": ("power_w", 1.0),
    "gtemp": ("temperature_c", 1.0),
    "sm": ("utilization", 0.01),
    "pclk": ("clock_mhz", 1.0),
    "fb": ("memory_bytes", _MIB),
}
"""Columns of ``dmon``."""
_LONG: Mapping[tuple[str, str], tuple[str, float]] = {
    ("Utilization", "Gpu"): ("utilization", 0.01),
    ("Utilization", "GPU"): ("utilization", 0.01),
    ("FB Memory Usage", "Used"): ("memory_bytes", _MIB),
    ("FB Memory Usage", "Total"): ("memory_total_bytes", _MIB),
    ("Power Readings", "Power Draw"): ("power_w", 1.0),
    ("Power Readings", "Power Limit"): ("power_limit_w", 1.0),
    ("GPU Power Readings", "Power Draw"): ("power_w", 1.0),
    ("GPU Power Readings", "Average Power Draw"): ("power_w", 1.0),
    ("GPU Power Readings", "Current Power Limit"): ("power_limit_w", 1.0),
    ("Clocks", "SM"): ("clock_mhz", 1.0),
    ("Max Clocks", "SM"): ("max_clock_mhz", 1.0),
    ("Temperature", "GPU Current Temp"): ("temperature_c", 1.0),
}
"""Entries of ``-q`` by section."""
_REASONS = ("Clocks Throttle Reasons", "Clocks Event Reasons")


@dataclass(frozen=True, kw_only=True)
class DeviceState:
    """State of one device: medians of its readings. None: not stated.

    Attributes:
        index: number of the device on its node.
        name: as the driver writes it; empty if not stated.
        utilization: share of the time in which a kernel ran, from 0 to 1.
        power_w: power draw.
        power_limit_w: limit of the power draw.
        memory_bytes: used memory.
        memory_total_bytes: memory of the device.
        clock_mhz: clock of the multiprocessors.
        max_clock_mhz: highest such clock.
        temperature_c: temperature.
        performance_state: from P0, the fastest; empty if not stated.
        slowed_by: active reasons for a lower clock, except idleness.
        readings: number of readings.
    """

    index: int
    name: str = ""
    utilization: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    memory_bytes: float | None = None
    memory_total_bytes: float | None = None
    clock_mhz: float | None = None
    max_clock_mhz: float | None = None
    temperature_c: float | None = None
    performance_state: str = ""
    slowed_by: tuple[str, ...] = ()
    readings: int = 1

    def describe(self) -> str:
        """Describe the state in a phrase."""
        parts = []
        if self.utilization is not None:
            parts.append(f"a kernel runs {self.utilization:.0%} of the time")
        if self.power_w is not None:
            limit = f" of {self.power_limit_w:.0f}" if self.power_limit_w else ""
            parts.append(f"{self.power_w:.0f}{limit} W")
        if self.memory_bytes is not None:
            total = f" of {format_memory(self.memory_total_bytes)}" if self.memory_total_bytes else ""
            parts.append(f"{format_memory(self.memory_bytes)}{total}")
        if self.clock_mhz is not None:
            highest = f" of {self.max_clock_mhz:.0f}" if self.max_clock_mhz else ""
            parts.append(f"{self.clock_mhz:.0f}{highest} MHz")
        parts += [f"slowed by {reason}" for reason in self.slowed_by]
        if self.temperature_c is not None:
            parts.append(f"{self.temperature_c:.0f} C")
        name = self.name or f"device {self.index}"
        return f"{name}: {', '.join(parts)}" + (f" (medians of {self.readings} readings)" if self.readings > 1 else "")


def device_states(lines: Iterable[str]) -> tuple[DeviceState, ...]:
    """Return the states of the devices in an output of nvidia-smi, in order; none for any other text."""
    readings: dict[int, list[dict[str, object]]] = {}
    for index, reading in _readings(lines):
        readings.setdefault(index, []).append(reading)
    return tuple(_median_state(index, readings[index]) for index in sorted(readings))


def _median_state(index: int, readings: list[dict[str, object]]) -> DeviceState:
    values: dict[str, object] = {}
    for name in (item.name for item in fields(DeviceState)):
        known = [reading[name] for reading in readings if reading.get(name) not in (None, "")]
        numbers = [value for value in known if isinstance(value, float) and value == value]
        if numbers:
            values[name] = round(median(numbers), 6)
        elif known and not isinstance(known[-1], float):
            values[name] = known[-1]
    return DeviceState(**{**values, "index": index, "readings": len(readings)})  # type: ignore[arg-type]


def _readings(lines: Iterable[str]) -> Iterator[tuple[int, dict[str, object]]]:
    """Yield the readings of each form, with the number of the device."""
    named: tuple[int, str] | None = None
    query: list[str] = []
    monitor: list[str] = []
    long: dict[str, object] = {}
    count, section = 0, ""
    for line in lines:
        if found := _NAME.match(line):
            named = int(found[1]), found[2]
        elif named and (use := _USE.search(line)):
            yield named[0], _table_reading(named[1], use)
            named = None
        elif "utilization.gpu" in line or "power.draw" in line:
            query = [re.sub(r"\s*\[.*\]", "", name).strip() for name in line.split(",")]
            count = 0
        elif query and line.count(",") == len(query) - 1:
            cells = dict(zip(query, map(str.strip, line.split(",")), strict=True))
            reading = _numbers(cells, _QUERY)
            index = cells.get("index", "")
            yield int(index) if index.isdigit() else 0, {**reading, "name": cells.get("name") or cells.get("gpu_name", "")}
        elif line.startswith("# gpu"):
            monitor = line[1:].split()
        elif monitor and len(cells_of := line.split()) == len(monitor) and cells_of[0].isdigit():
            yield int(cells_of[0]), _numbers(dict(zip(monitor, cells_of, strict=True)), _MONITOR)
        elif " : " in line:
            name, _, value = (part.strip() for part in line.partition(" : "))
            if name == "Product Name":
                if long:
                    yield count, long
                    count += 1
                long = {"name": value}
            elif long and name == "Performance State":
                long["performance_state"] = value
            elif long and section in _REASONS and value == "Active" and name != "Idle":
                long["slowed_by"] = (*long.get("slowed_by", ()), name)  # type: ignore[misc]
            elif long and (field := _LONG.get((section, name))) and field[0] not in long:
                long[field[0]] = parse_number(value.split()[0]) * field[1]
        elif long and line.strip():
            section = line.strip()
    if long:
        yield count, long


def _table_reading(name: str, use: re.Match[str]) -> dict[str, object]:
    numbers = {key: parse_number(use[key]) for key in ("temperature", "power", "limit", "memory", "total", "use")}
    return {
        "name": name,
        "utilization": numbers["use"] / 100,
        "power_w": numbers["power"],
        "power_limit_w": numbers["limit"],
        "memory_bytes": numbers["memory"] * _MIB,
        "memory_total_bytes": numbers["total"] * _MIB,
        "temperature_c": numbers["temperature"],
        "performance_state": use["state"],
    }


def _numbers(cells: Mapping[str, str], columns: Mapping[str, tuple[str, float]]) -> dict[str, object]:
    return {
        field: parse_number(cells[column].split()[0]) * scale
        for column, (field, scale) in columns.items()
        if cells.get(column, "").strip()
    }
