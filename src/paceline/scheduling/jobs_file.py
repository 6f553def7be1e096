"""Jobs to run for real, from a TOML file with a table ``[[job]]`` for each."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.errors import UserError, known_name, shorten
from paceline.hardware.catalogue import device, is_device
from paceline.scheduling.launch import Launch
from paceline.toml_file import read_toml
from paceline.units import parse_count, parse_seconds

KEYS = (
    "name",
    "command",
    "arrival",
    "checkpoint",
    "directory",
    "environment",
    "devices",
    "min_devices",
    "max_devices",
    "grace",
    "signal",
    "model",
    "batch",
    "samples",
    "duration",
    "weight",
    "deadline",
    "owner",
    "virtual_cluster",
    "device_types",
    "limit",
    "priority",
    "preemptible",
    "min_run",
    "topology",
    "share",
    "queue",
    "qos",
)
EXAMPLE = '[[job]] with name = "a" and command = "paceline train --model lenet5 --data digits"'


def read_jobs(path: str | Path) -> list[tuple[Launch, float]]:
    """Read the jobs of a file, each with its arrival in seconds after the start.

    ``command`` is a line or a list of words. ``arrival``, ``grace``, ``limit`` and ``min_run`` are times such as ``"90s"``.
    ``devices`` is for a rigid job, ``min_devices`` and ``max_devices`` for an elastic one. Paths are relative to the file.
    ``checkpoint`` defaults to a folder of the job's name. ``deadline`` is a time after the arrival, ``samples`` a count such
    as ``"1.2M"``, ``device_types`` a list. The other keys are fields of ``Launch`` and ``Job``.

    Raises:
        UserError: a file that cannot be read, an unknown key or value (the job is named), two jobs of one name.
    """
    file = Path(path)
    data = read_toml(file, EXAMPLE)
    tables = data.pop("job", [])
    if data or not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        others = f": it also has {', '.join(data)}" if data else ""
        raise UserError(f"{file} is not a list of jobs{others}", EXAMPLE)
    jobs = [_job(table, f"{file}, job {number}", file.parent.absolute()) for number, table in enumerate(tables, start=1)]
    names = [job.name for job, _ in jobs]
    if doubled := {name for name in names if names.count(name) > 1}:
        raise UserError(f"{file}: two jobs are named {min(doubled)}", "give each a unique name")
    return jobs


def _job(table: Mapping[str, Any], where: str, base: Path) -> tuple[Launch, float]:
    for key in table:
        known_name(f"key of {where}", key, KEYS)
    name, command = table.get("name", ""), table.get("command", "")
    try:
        words = shlex.split(command) if isinstance(command, str) else command
    except ValueError as error:
        raise UserError(
            f"{where} ({shorten(str(name), 40)}): command {shorten(command)!r}: {error}",
            "close its quotation, or give a list of words",
        ) from None
    if not isinstance(name, str) or not isinstance(words, list):
        raise UserError(f"{where}: its name and command are not text", EXAMPLE)
    where = f"{where} ({shorten(name, 40)})"
    if "devices" in table and ("min_devices" in table or "max_devices" in table):
        raise UserError(f"{where} states devices and also min_devices or max_devices", "give devices alone, or the two bounds")
    counts = {key: table.get(key, table.get("devices", 1)) for key in ("min_devices", "max_devices")}
    counts["max_devices"] = table.get("max_devices", counts["min_devices"])
    counts["batch"] = table.get("batch", 0)
    for key, value in counts.items():
        if not isinstance(value, int) or isinstance(value, bool):
            raise UserError(f"{where}: {key} is {shorten(repr(value), 40)}", "give a whole number from 1 up")
    environment = table.get("environment", {})
    if not isinstance(environment, dict) or not all(isinstance(value, str) for value in environment.values()):
        raise UserError(f"{where}: its environment is not a table of text", 'environment = { NAME = "value" }')
    launch = Launch.of(
        name=name,
        command=tuple(words),
        checkpoint=str(base / _text(table, "checkpoint", name, where)),
        directory=str(base / _text(table, "directory", ".", where)),
        environment=environment,
        min_devices=counts["min_devices"],
        max_devices=counts["max_devices"],
        grace_s=_time(table, "grace", "30s", where),
        signal=_text(table, "signal", "TERM", where).removeprefix("SIG"),
        batch=counts["batch"],
        samples=_count(table, "samples", where),
        duration_s=_time(table, "duration", "0s", where),
        weight=_number(table, "weight", 1.0, where),
        deadline_s=_time(table, "deadline", "0s", where) if "deadline" in table else math.inf,
        device_types=_devices(table, where),
        limit_s=_time(table, "limit", "0s", where),
        min_run_s=_time(table, "min_run", "0s", where),
        priority=_whole(table, "priority", 0, where),
        preemptible=_yes(table, "preemptible", True, where),
        topology=_text(table, "topology", "", where),
        share=_number(table, "share", 1.0, where),
        **{name: _text(table, name, "", where) for name in ("model", "owner", "virtual_cluster", "queue", "qos")},
    )
    return launch, _time(table, "arrival", "0s", where)


def _text(table: Mapping[str, Any], key: str, default: str, where: str) -> str:
    value = table.get(key, default)
    if not isinstance(value, str):
        raise UserError(f"{where}: {key} is {shorten(repr(value), 40)}", "give text")
    return value


def _whole(table: Mapping[str, Any], key: str, default: int, where: str) -> int:
    value = table.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int):
        raise UserError(f"{where}: {key} is {shorten(repr(value), 40)}", "give a whole number")
    return value


def _yes(table: Mapping[str, Any], key: str, default: bool, where: str) -> bool:
    value = table.get(key, default)
    if not isinstance(value, bool):
        raise UserError(f"{where}: {key} is {shorten(repr(value), 40)}", "give true or false")
    return value


def _number(table: Mapping[str, Any], key: str, default: float, where: str) -> float:
    value = table.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(f"{where}: {key} is {shorten(repr(value), 40)}", "give a number")
    return float(value)


def _count(table: Mapping[str, Any], key: str, where: str) -> float:
    """Parse a number, or a text such as ``1.2M``."""
    if not isinstance(table.get(key), str):
        return _number(table, key, 0.0, where)
    try:
        return parse_count(table[key])
    except UserError as error:
        raise UserError(f"{where}: {key}: {error.message}", error.fix) from error


def _devices(table: Mapping[str, Any], where: str) -> tuple[str, ...]:
    """Return device types by their names in the catalogue. Other names are unchanged."""
    names = table.get("device_types", [])
    if not isinstance(names, list) or not all(isinstance(name, str) and name.strip() for name in names):
        raise UserError(f"{where}: device_types is {shorten(repr(names), 40)}", 'give a list such as ["A100", "H100"]')
    return tuple(device(name).name if is_device(name) else name for name in names)


def _time(table: Mapping[str, Any], key: str, default: str, where: str) -> float:
    text = _text(table, key, default, where)
    try:
        return 0.0 if text.strip() == "0" else parse_seconds(text, zero=True)
    except UserError as error:
        raise UserError(f"{where}: {key}: {error.message}", error.fix) from error
