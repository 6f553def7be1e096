"""Reader of the settings of Slurm or Kueue from a file: their own text or objects, or a TOML file."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from paceline.errors import UserError, known_name, shorten, shown
from paceline.hardware.catalogue import device, is_device
from paceline.scheduling.queues.kueue_objects import parse_kueue
from paceline.scheduling.queues.kueue_settings import RECLAIM, STRATEGIES, WITHIN, ClusterQueue, Cohort, KueueSettings, Quota
from paceline.scheduling.queues.slurm_config import parse_slurm
from paceline.scheduling.queues.slurm_limits import RESOURCES, DeviceLimits, Limits
from paceline.scheduling.queues.slurm_settings import (
    OWN_PREEMPT_MODES,
    PARTITION_STATES,
    PREEMPT_MODES,
    PREEMPTS,
    Account,
    Qos,
    SlurmPartition,
    SlurmSettings,
)
from paceline.units import parse_seconds

Settings = SlurmSettings | KueueSettings
EXAMPLE = "give what `scontrol show config` or `kubectl get clusterqueues -o yaml` prints, or TOML with scheduler = 'slurm'"


def read_queues(path: str | Path) -> Settings:
    """Read settings. The form follows from the content.

    A TOML file states ``scheduler = "slurm"`` or ``"kueue"`` and fields of the settings. Times are texts such as
    ``half_life = "7d"``. Tables ``[accounts.NAME]``, ``[partitions.NAME]``, ``[qos.NAME]``, ``[queues.NAME]`` and
    ``[cohorts.NAME]`` hold their fields, and quotas are ``quotas.A100 = {nominal = 8}``.

    Raises:
        UserError: a file that cannot be read, is in no form, or has an unknown or wrong value.
    """
    file = Path(path)
    try:
        text = file.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {file}: {shorten(str(error))}", EXAMPLE) from None
    try:
        return parse_queues(text, file.suffix)
    except UserError as error:
        raise UserError(f"{file.name}: {error.message}", error.fix) from None


def parse_queues(text: str, suffix: str = "") -> Settings:
    """Read settings from text; see ``read_queues``. ``suffix``: ``.toml`` if the text is TOML."""
    if suffix == ".toml":
        return _of_toml(text)
    if text.lstrip().startswith("{") or "apiVersion:" in text or "kind:" in text:
        return parse_kueue(_objects(text), lambda name: device(name).name if is_device(name) else name)
    return parse_slurm(text)


def _objects(text: str) -> list[Mapping[str, Any]]:
    """Return the objects of JSON or YAML."""
    try:
        if text.lstrip().startswith("{"):
            found = [json.loads(text)]
        else:
            import yaml  # type: ignore[import-untyped]  # only where a file is read

            found = list(yaml.safe_load_all(text))
    except ValueError as error:
        raise UserError(f"neither JSON nor YAML: {shorten(str(error))}", EXAMPLE) from None
    except Exception as error:  # errors of yaml
        raise UserError(f"not YAML: {shorten(str(error))}", EXAMPLE) from None
    if not all(isinstance(item, Mapping) for item in found if item is not None):
        raise UserError("no objects of Kubernetes", EXAMPLE)
    return [item for item in found if item is not None]


def _of_toml(text: str) -> Settings:
    import tomllib  # not with the package, whose import is light

    try:
        data = tomllib.loads(text)
    except ValueError as error:
        raise UserError(f"not TOML: {shorten(str(error))}", EXAMPLE) from None
    scheduler = known_name("scheduler", data.pop("scheduler", "slurm"), ("slurm", "kueue"))
    if scheduler == "slurm":
        tables: dict[str, Callable[[Any, str], Any]] = {
            "accounts": lambda table, where: _with_limits(Account, table, where),
            "partitions": lambda table, where: _built(SlurmPartition, table, where),
            "qos": lambda table, where: _with_limits(Qos, table, where),
        }
        values = {name: _each(data.pop(name), name, make) for name, make in tables.items() if name in data}
        if "root" in data:
            values["root"] = _with_limits(Limits, data.pop("root"), "root")
        usage = _table(data.pop("usage", {}), "usage")
        used = {account: _checked("Mapping[str, float]", users, f"usage.{account}", False) for account, users in usage.items()}
        rows = {(account, user): float(seconds) for account, users in used.items() for user, seconds in users.items()}
        slurm: SlurmSettings = _built(SlurmSettings, {**data, **values, "usage": rows}, "the settings")
        return slurm
    values = {
        name: _each(data.pop(name), name, lambda table, where, kind=kind: _with_quotas(kind, table, where))  # type: ignore[misc]
        for name, kind in (("queues", ClusterQueue), ("cohorts", Cohort))
        if name in data
    }
    kueue: KueueSettings = _built(KueueSettings, {**data, **values}, "the settings")
    return kueue


def _table(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise UserError(f"{where} is {shorten(repr(value), 40)}", "give a table")
    return value


def _each(tables: Any, where: str, make: Callable[[Any, str], Any]) -> dict[str, Any]:
    return {name: make(table, f"{where}.{name}") for name, table in _table(tables, where).items()}


def _with_quotas(kind: type, table: Any, where: str) -> Any:
    given = dict(_table(table, where))
    if "quotas" in given:
        given["quotas"] = _each(given["quotas"], f"{where}.quotas", lambda quota, there: _built(Quota, quota, there))
    return _built(kind, given, where)


def _with_limits(kind: type, table: Any, where: str) -> Any:
    """Build a holder of limits of Slurm, with those on a device type and those of users."""
    given = dict(_table(table, where))
    if "of_type" in given:
        given["of_type"] = _each(given["of_type"], f"{where}.of_type", lambda each, there: _built(DeviceLimits, each, there))
    if "of_resource" in given:
        resources = _table(given["of_resource"], f"{where}.of_resource")
        for name in resources:
            known_name(f"resource of {where}", name, RESOURCES)
        given["of_resource"] = _each(resources, f"{where}.of_resource", lambda each, there: _built(DeviceLimits, each, there))
    if "user_limits" in given and kind is Account:
        limits = _table(given["user_limits"], f"{where}.user_limits")
        given["user_limits"] = _each(limits, f"{where}.user_limits", lambda each, there: _with_limits(Limits, each, there))
    return _built(kind, given, where)


def _built(kind: type, table: Any, where: str) -> Any:
    """Build a dataclass from a table. A field in seconds is given without ``_s``, as a time or a number of seconds."""
    types = {field.name: str(field.type) for field in fields(kind)}
    values = {}
    for key, value in _table(table, where).items():
        name = f"{key}_s" if f"{key}_s" in types else key
        known_name(f"key of {where}", name, types)
        values[name] = _checked(types[name], value, f"{where}: {key}", name != key)
    return kind(**values)


def _checked(kind: str, value: Any, where: str, is_time: bool) -> Any:
    """Return a value of a field, by the type that the field is annotated with. Raise UserError for another."""
    if is_time and isinstance(value, str):
        try:
            return parse_seconds(value, zero=True)
        except UserError as error:
            raise UserError(f"{where}: {error.message}", error.fix) from None
    if kind in _NAMES:
        return known_name(where, value, _NAMES[kind])
    if kind in ("Mapping[str, float]", "Mapping[str, str]", "Mapping[str, tuple[str, ...]]"):
        inner = kind.removesuffix("]").partition(", ")[2]
        return {name: _checked(inner, each, f"{where}.{name}", False) for name, each in _table(value, where).items()}
    if kind not in _LEGAL:  # it was built before
        return value
    types, what = _LEGAL[kind]
    wrong = not isinstance(value, types) or (isinstance(value, bool) and bool not in types)
    if list in types:
        wrong = wrong or not all(isinstance(each, str) for each in value)
    elif not (wrong or isinstance(value, str) or where.endswith(_SIGNED)):
        wrong = not 0 <= value < math.inf
    if wrong:
        raise UserError(f"{where} is {shorten(shown(value), 40)}", f"give {what}")
    return tuple(value) if isinstance(value, list) else value


_NAMES = {
    "Preempt": PREEMPTS,
    "PreemptMode": PREEMPT_MODES,
    "OwnPreemptMode": OWN_PREEMPT_MODES,
    "PartitionState": PARTITION_STATES,
    "Strategy": STRATEGIES,
    "Within": WITHIN,
    "Reclaim": RECLAIM,
}
_WHOLE = (int,), "a whole number from 0 up"
_LEGAL: Mapping[str, tuple[tuple[type, ...], str]] = {
    "bool": ((bool,), "true or false"),
    "int": _WHOLE,
    "int | None": _WHOLE,
    "float": ((int, float), "a number from 0 up"),
    "float | None": ((int, float), "a number from 0 up"),
    "str": ((str,), "a text"),
    "tuple[str, ...]": ((list,), 'a list of texts such as ["normal"]'),
}
"""Types of a field and their description, by its annotation."""
_SIGNED = "borrow_threshold"
"""Field whose numbers may be below 0."""
