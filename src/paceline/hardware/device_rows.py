"""Devices from rows of a file, in the catalogue or a user's own file.

A user's row may give plain numbers: their source is the file. A row of the catalogue names the source of each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import Any

from paceline.errors import UserError, shown, unknown
from paceline.hardware.device import Device, Fact
from paceline.hardware.precision import PRECISIONS
from paceline.toml_file import read_toml

VARIABLE = "PACELINE_DEVICES"
"""Environment variable with the path of a file of devices. They come before those of the package."""
RECALLED = "recalled, not checked"
"""Prefix of the source of a number that was not read on the named page."""
KINDS = ("gpu", "tpu", "accelerator", "cpu")
_NUMBERS = ("memory", "memory_bandwidth", "units", "power", "lanes", "issued", "array", "vector_rate", "host_bandwidth")
_RATES = ("peak_flops", "matmul_flops")
_NEEDED = ("name", "kind", "link", "peak_flops", "memory", "memory_bandwidth")
_ALLOWED = (*_NEEDED, *_NUMBERS, *_RATES, "architecture", "aliases", "note", "host_link", "host", "bridge")
_SHARED = " via host"
"""End of the names of links between boards without peer-to-peer, whose own link to the host is the whole one."""
Table = Mapping[str, Any]


def source_text(source: Table) -> str:
    """Return a source as text: title, and address or derivation. ``RECALLED`` precedes a source whose page was not read."""
    text = f"{source['title']} <{source['url']}>" if "url" in source else f"{source['title']}: {source['derivation']}"
    return f"{RECALLED}: {text}" if source.get("recalled") else text


def fact(entry: Table, sources: Table) -> Fact:
    """Return a number of a file with its full source: title, address or derivation."""
    source = sources[entry["source"]]
    text = source_text(source)
    if "how" in entry:
        text += f" ({entry['how']})"
    return Fact(value=float(entry["value"]), source=text, date=source["date"])


def device_of(entry: Table, sources: Table, architectures: Table) -> Device:
    """Return the device of one row. ``architectures`` has the fields that all devices of an architecture share."""

    def number(key: str) -> Fact | None:
        given = entry.get(key) or architectures.get(entry.get("architecture", ""), {}).get(key)
        return fact(given, sources) if given else None

    rates = {key: {precision: fact(rate, sources) for precision, rate in entry.get(key, {}).items()} for key in _RATES}
    return Device(
        name=entry["name"],
        kind=entry["kind"],
        **rates,
        memory=fact(entry["memory"], sources),
        memory_bandwidth=fact(entry["memory_bandwidth"], sources),
        link=entry["link"],
        units=number("units"),
        lanes=number("lanes"),
        issued=number("issued"),
        array=number("array"),
        vector_rate=number("vector_rate"),
        power=number("power"),
        host_link=entry.get("host_link", entry["link"].removesuffix(_SHARED) if entry["link"].startswith("PCIe") else ""),
        host=entry.get("host", ""),
        host_bandwidth=number("host_bandwidth"),
        architecture=entry.get("architecture", ""),
        bridge=entry.get("bridge", ""),
        aliases=tuple(entry.get("aliases", ())),
        note=entry.get("note", ""),
    )


@cache
def own_devices(path: str, architectures: tuple[str, ...]) -> tuple[tuple[dict[str, Any], ...], dict[str, Any]]:
    """Return the rows of a user's file in the catalogue's form, and their sources; empty for an empty path.

    Args:
        architectures: names that the catalogue knows, for the nearest one of a name that it does not.

    Raises:
        UserError: no such file, no TOML, a key that does not exist or that is missing, a number that is none.
    """
    if not path:
        return (), {}
    data = read_toml(path, "docs/add-a-chip.md has one to copy")
    rows = data.get("device")
    if not isinstance(rows, list) or not rows:
        raise UserError(f"{path} has no [[device]]", "docs/add-a-chip.md has one to copy")
    sources = {**data.get("sources", {}), "own": {"title": path, "derivation": "given by the user", "date": ""}}
    return tuple(_checked(row, path, architectures) for row in rows), sources


def _checked(row: Any, path: str, architectures: tuple[str, ...]) -> dict[str, Any]:
    """Return one row in the catalogue's form."""
    where = f"a device of {path}"
    if not isinstance(row, Mapping):
        raise UserError(f"{where} is {shown(row)}", "write [[device]] and its keys below")
    where = f"{shown(row.get('name', ''))} of {path}"
    for key in row:
        if key not in _ALLOWED:
            raise unknown(f"key of {where}", key, _ALLOWED)
    if missing := [key for key in _NEEDED if key not in row]:
        raise UserError(f"{where} has no {', '.join(missing)}", "take them from the datasheet: docs/add-a-chip.md")
    if row["kind"] not in KINDS:
        raise unknown(f"kind of {where}", row["kind"], KINDS)
    if row.get("architecture", "") not in ("", *architectures):
        raise unknown(
            f"architecture of {where}", row["architecture"], architectures, "leave it out if no architecture is similar"
        )
    own: dict[str, Any] = dict(row)
    for key in _NUMBERS:
        if key in row:
            own[key] = _number(row[key], f"{key} of {where}")
    for key in _RATES:
        rates = row.get(key, {})
        if not isinstance(rates, Mapping):
            raise UserError(f"{key} of {where} is {shown(rates)}", "write {bf16 = 989e12}")
        for precision in rates:
            if precision not in PRECISIONS:
                raise unknown(f"precision of {where}", precision, PRECISIONS)
        own[key] = {precision: _number(rate, f"{key}.{precision} of {where}") for precision, rate in rates.items()}
    return own


def _number(given: Any, what: str) -> dict[str, Any]:
    """Return a plain number, or a table with a ``value`` and a ``source``, in the catalogue's form."""
    own = dict(given) if isinstance(given, Mapping) else {"value": given}
    value = own.get("value")
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise UserError(f"{what} is {shown(value)}", "give a positive number in FLOP/s, bytes, bytes/s or watts")
    return {"source": "own", **own, "value": float(value)}
