"""Settings of a Slurm cluster from the output of Slurm's tools.

``scontrol show config`` or ``slurm.conf``, ``scontrol show partition``, ``sacctmgr show assoc -P``, ``sacctmgr show qos -P``,
and ``sshare -alP`` for the past usage. Several may follow one another in one text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from paceline.errors import UserError
from paceline.scheduling.queues.slurm_settings import Account, Qos, SlurmPartition, SlurmSettings

_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")
_NEVER = ("UNLIMITED", "INFINITE", "NONE", "")
_GPUS = re.compile(r"(?:^|,)gres/gpu(?::[^=,]+)?=(\d+)")
_ROOT = "root"


def slurm_seconds(text: str) -> float:
    """Parse a time of Slurm to seconds: ``minutes``, ``hours:minutes:seconds``, ``days-hours`` or longer. No bound: 0.

    Raises:
        UserError: another text.
    """
    if text.strip().upper() in _NEVER:
        return 0.0
    match = _TIME.fullmatch(text.strip())
    if match is None:
        raise UserError(f"{text!r} is no time of Slurm", "write it as 7-00:00:00 or 90")
    days, *rest = match.groups()
    first, second, third = (int(part or 0) for part in rest)
    if days is not None:
        return int(days) * 86400.0 + first * 3600.0 + second * 60.0 + third
    if rest[2] is not None:
        return first * 3600.0 + second * 60.0 + third
    return first * 60.0 + second


def _yes(text: str) -> bool:
    return text.strip().upper() in ("YES", "1", "TRUE")


_KEYS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "prioritytype": ("multifactor", lambda text: "multifactor" in text),
    "priorityweightage": ("weight_age", float),
    "priorityweightfairshare": ("weight_fairshare", float),
    "priorityweightjobsize": ("weight_job_size", float),
    "priorityweightpartition": ("weight_partition", float),
    "priorityweightqos": ("weight_qos", float),
    "prioritymaxage": ("max_age_s", slurm_seconds),
    "prioritydecayhalflife": ("half_life_s", slurm_seconds),
    "priorityfavorsmall": ("favor_small", _yes),
    "priorityflags": ("fair_tree", lambda text: "NO_FAIR_TREE" not in text.upper()),
    "fairsharedampeningfactor": ("dampening", float),
    "schedulertype": ("backfill", lambda text: "builtin" not in text),
    "preempttype": ("preempt", lambda text: text.rpartition("/")[2] or "none"),
    "preemptmode": ("preempt_mode", lambda text: "cancel" if "CANCEL" in text.upper() else "requeue"),
    "preemptexempttime": ("exempt_s", slurm_seconds),
}
"""Field and parser of each parameter, by its name in lower case."""


def parse_slurm(text: str) -> SlurmSettings:
    """Read the settings that the tools of Slurm printed. Missing settings have Slurm's defaults.

    Raises:
        UserError: text without any setting of Slurm, or a wrong value.
    """
    values: dict[str, Any] = {"multifactor": False}
    partitions: dict[str, SlurmPartition] = {}
    found = False
    for name, value in _parameters(text):
        key = name.casefold()
        found = found or key in _KEYS or key == "partitionname"
        if key in _KEYS:
            field, parse = _KEYS[key]
            try:
                values[field] = parse(value)
            except ValueError:
                raise UserError(f"{name} is {value!r}", "give the number that scontrol show config prints") from None
        elif key == "schedulerparameters":
            values |= _backfill(value)
    for stated in _partitions(text):
        partitions[stated["partitionname"]] = _partition(stated)
    tables = list(_tables(text))
    if not found and not tables:
        raise UserError("the text has no setting of Slurm", "give what `scontrol show config` prints")
    accounts, qos, usage = _associations(tables), _qualities(tables), _usage(tables)
    return SlurmSettings(**values, partitions=partitions, accounts=accounts, qos=qos, usage=usage)


def _parameters(text: str) -> Iterator[tuple[str, str]]:
    """Yield the parameters of a configuration: one a line."""
    for line in text.splitlines():
        name, equals, value = line.partition("#")[0].partition("=")
        if equals and re.fullmatch(r"\s*\w+\s*", name):
            yield name.strip(), value.strip().strip("()").replace("null", "")


def _backfill(value: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for part in value.split(","):
        name, _, number = part.partition("=")
        if number.isdecimal() and name.strip() == "bf_window":
            values["window_s"] = int(number) * 60.0
        elif number.isdecimal() and name.strip() == "bf_max_job_test":
            values["max_tested"] = max(int(number), 1)
    return values


def _partitions(text: str) -> Iterator[dict[str, str]]:
    """Yield the words of each partition, from a line of ``slurm.conf`` or the lines of ``scontrol show partition``."""
    current: dict[str, str] = {}
    for line in text.splitlines():
        words = dict(re.findall(r"(\w+)=(\S*)", line.partition("#")[0]))
        if "PartitionName" in words:
            if current:
                yield current
            current = {}
        elif not (current and line[:1].isspace()):
            continue
        current |= {name.casefold(): value for name, value in words.items()}
    if current:
        yield current


def _partition(words: Mapping[str, str]) -> SlurmPartition:
    default_s = slurm_seconds(words.get("defaulttime", "")) or slurm_seconds(words.get("maxtime", ""))
    return SlurmPartition(
        priority=float(words.get("priorityjobfactor") or words.get("priority") or 1),
        tier=int(words.get("prioritytier") or words.get("priority") or 1),
        default_limit_s=default_s,
    )


def _tables(text: str) -> Iterator[list[dict[str, str]]]:
    """Yield the tables that ``-P`` printed, as rows by column."""
    header: list[str] = []
    rows: list[dict[str, str]] = []
    for line in [*text.splitlines(), ""]:
        cells = line.split("|")
        if len(cells) < 3:
            if rows:
                yield rows
            header, rows = [], []
        elif not header or cells[0].strip() in ("Cluster", "Account", "Name"):
            if rows:
                yield rows
            header, rows = [cell.strip() for cell in cells], []
        else:
            rows.append(dict(zip(header, cells, strict=False)))


def _gpus(text: str | None) -> int:
    match = _GPUS.search(text or "")
    return int(match[1]) if match else 0


def _associations(tables: list[list[dict[str, str]]]) -> dict[str, Account]:
    accounts: dict[str, Account] = {}
    for row in (row for rows in tables for row in rows if "Account" in row and "Share" in row):
        name, user, share = row["Account"].strip(), row.get("User", "").strip(), row["Share"].strip()
        if name == _ROOT:
            continue
        known = accounts.get(name, Account())
        shares = float(share) if share.isdecimal() else 1.0
        if user:
            known = replace(known, users={**known.users, user: shares})
        else:
            parent = row.get("ParentName", row.get("Par Name", "")).strip()
            bound = _gpus(row.get("GrpTRES"))
            known = replace(known, shares=shares, parent="" if parent == _ROOT else parent, max_devices=bound)
        accounts[name] = known
    return accounts


def _qualities(tables: list[list[dict[str, str]]]) -> dict[str, Qos]:
    return {
        row["Name"].strip(): Qos(
            priority=float(row.get("Priority") or 0),
            max_devices=_gpus(row.get("GrpTRES")),
            max_devices_per_user=_gpus(row.get("MaxTRESPU") or row.get("MaxTRESPerUser")),
            preempts=tuple(name for name in row.get("Preempt", "").strip().split(",") if name),
        )
        for rows in tables
        for row in rows
        if "Name" in row and "Priority" in row
    }


def _usage(tables: list[list[dict[str, str]]]) -> dict[tuple[str, str], float]:
    """Return the raw usage of users that ``sshare`` printed."""
    return {
        (row["Account"].strip(), row["User"].strip()): float(row["RawUsage"])
        for rows in tables
        for row in rows
        if row.get("RawUsage", "").strip().isdecimal() and row.get("User", "").strip()
    }
