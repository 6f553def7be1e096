"""Accounts, qualities of service and past usage from the tables that ``sacctmgr -P`` and ``sshare -P`` print.

Slurm 25.05, sacctmgr(1) and sshare(1), names of the columns. Limits on devices, jobs and time limits are read. Others, such as
those on processors, are returned as ignored: the simulation counts devices.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from paceline.errors import UserError
from paceline.scheduling.queues.slurm_limits import MINUTES, RESOURCES, DeviceLimits, Limits
from paceline.scheduling.queues.slurm_settings import Account, Qos
from paceline.scheduling.queues.slurm_values import (
    exempt_seconds,
    grace_seconds,
    preempt_mode,
    preempts_within,
    slurm_bytes,
    slurm_seconds,
)

Row = dict[str, str]
_ROOT = "root"
_DEVICES = re.compile(r"gres/gpu(?::([^=,]+))?")
_HEADERS = ("Cluster", "Account", "Name", "User")
_DEVICE_LIMITS: Mapping[str, str] = {
    "grptres": "max_devices",
    "maxtres": "max_devices_per_job",
    "maxtresperjob": "max_devices_per_job",
    "maxtrespj": "max_devices_per_job",
    "maxtrespu": "max_devices_per_user",
    "maxtresperuser": "max_devices_per_user",
    "maxtrespa": "max_devices_per_account",
    "maxtresperaccount": "max_devices_per_account",
}
_MINUTE_LIMITS: Mapping[str, str] = {
    "grptresrunmins": "max_devices",
    "maxtresmins": "max_devices_per_job",
    "maxtresminsperjob": "max_devices_per_job",
    "maxtresminspj": "max_devices_per_job",
    "maxtresrunminspu": "max_devices_per_user",
    "maxtresrunminsperuser": "max_devices_per_user",
    "maxtresrunminspa": "max_devices_per_account",
    "maxtresrunminsperaccount": "max_devices_per_account",
}
_JOB_LIMITS: Mapping[str, str] = {
    "grpsubmit": "max_submitted",
    "grpsubmitjobs": "max_submitted",
    "maxsubmit": "max_submitted_per_user",
    "maxsubmitjobs": "max_submitted_per_user",
    "maxsubmitpu": "max_submitted_per_user",
    "maxsubmitjobsperuser": "max_submitted_per_user",
    "maxsubmitpa": "max_submitted_per_account",
    "maxsubmitjobsperaccount": "max_submitted_per_account",
    "grpjobs": "max_jobs",
    "maxjobs": "max_jobs_per_user",
    "maxjobspu": "max_jobs_per_user",
    "maxjobsperuser": "max_jobs_per_user",
    "maxjobspa": "max_jobs_per_account",
    "maxjobsperaccount": "max_jobs_per_account",
}
_TIME_LIMITS = ("maxwall", "maxwalldurationperjob", "maxwallpj")
"""Fields by the column's name in lower case."""
_NEUTRAL = ("", "-1", "0", "00:00:00", "NONE", "1", "1.000000", "0.000000", "cluster", "normal")
"""Values that change nothing in a column that is not a limit."""
_OTHER = re.compile(r"(?:grp|max|min)\w+|usagefactor|usagethres|limitfactor")
"""Columns of limits and rules that are not simulated."""
_FLAGS: Mapping[str, tuple[str, bool]] = {
    "overpartqos": ("over_partition", True),
    "partitiontimelimit": ("over_partition_time", True),
    "noreserve": ("reserves", False),
    "partitionmaxnodes": ("over_partition_nodes", True),
}
_HARMLESS_FLAGS = ("", "denyonlimit", "partitionminnodes", "usagefactorsafe")
"""Flags that say what happens at submission, or concern limits that are ignored anyway."""


@dataclass
class Ignored:
    """Limits that are not simulated, with their holders."""

    holders: dict[str, list[str]] = field(default_factory=dict)

    def add(self, what: str, holder: str) -> None:
        """Note a limit of a holder."""
        names = self.holders.setdefault(what, [])
        if holder not in names:
            names.append(holder)

    def texts(self) -> tuple[str, ...]:
        """Return each limit with the first of its holders, in words."""
        return tuple(f"{what} of {_some(names)}" if names[0] else what for what, names in self.holders.items())


FEW = 3
"""Most holders in a remark."""


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - FEW:,} more" if len(names) > FEW else ""
    return ", ".join(names[:FEW]) + more


def tables(text: str) -> Iterator[list[Row]]:
    """Yield the tables that ``-P`` printed, as rows by column."""
    header: list[str] = []
    rows: list[Row] = []
    for line in [*text.splitlines(), ""]:
        cells = line.split("|")
        if len(cells) < 3:
            if rows:
                yield rows
            header, rows = [], []
        elif not header or cells[0].strip() in _HEADERS:
            if rows:
                yield rows
            header, rows = [cell.strip() for cell in cells], []
        else:
            rows.append(dict(zip(header, cells, strict=False)))


def associations(every: Sequence[list[Row]], ignored: Ignored) -> tuple[dict[str, Account], Limits, str]:
    """Return the accounts with the limits of their users, and the limits and the default quality of service of the root."""
    accounts: dict[str, Account] = {}
    root, root_qos, no_parents, indented = Limits(), "", False, False
    shared = [rows for rows in every if rows and "Account" in rows[0] and not {"RawUsage", "RawShares"} & set(rows[0])]
    for rows in shared or [rows for rows in every if rows and "RawShares" in rows[0]]:
        parents = _parents(rows)
        stated = {"ParentName", "Par Name"} & set(rows[0])
        indented = indented or any(parents)
        no_parents = no_parents or not stated
        for row, above in zip(rows, parents, strict=True):
            name, user = row["Account"].strip(), row.get("User", "").strip()
            holder = f"user {user} of account {name}" if user else f"account {name}"
            limits = _limits(row, holder, ignored)
            default, allowed = _qualities_of(row)
            if name == _ROOT:
                root = Limits(**limits) if limits and not user else root
                root_qos = root_qos if user else default
                continue
            known, shares = accounts.get(name, Account()), _shares(row, holder, ignored)
            if user:
                partition = row.get("Partition", "").strip()
                key = f"{user}/{partition}" if partition else user
                people = known.users if shares is None else {**known.users, user: shares}
                each = {**known.user_limits, key: Limits(**limits)} if limits or partition else known.user_limits
                defaults = {**known.user_default_qos, key: default} if default else known.user_default_qos
                may = {**known.user_allowed_qos, key: allowed} if allowed else known.user_allowed_qos
                known = replace(known, users=people, user_limits=each, members=(*known.members, key))
                known = replace(known, user_default_qos=defaults, user_allowed_qos=may)
            else:
                parent = row.get("ParentName", row.get("Par Name", "")).strip() or above
                known = replace(known, shares=known.shares if shares is None else shares, **limits)
                known = replace(known, default_qos=default, allowed_qos=allowed)
                known = replace(known, parent="" if parent == _ROOT else parent)
            accounts[name] = known
    if no_parents and not indented:
        above_of = {
            row["Account"].strip(): above
            for rows in every
            if rows and "RawShares" in rows[0]
            for row, above in zip(rows, _parents(rows), strict=True)
            if above
        }
        indented = bool(above_of)
        accounts |= {
            name: replace(accounts[name], parent="" if above == _ROOT else above)
            for name, above in above_of.items()
            if name in accounts
        }
    if no_parents and not indented and len(accounts) > 1:
        ignored.add("parents of accounts, which the text does not state (print sacctmgr show assoc tree -P)", "")
    return accounts, root, root_qos


def _qualities_of(row: Row) -> tuple[str, tuple[str, ...]]:
    """Return the default quality of service of an association, and those that it allows; relative ones are unknown."""
    names = tuple(name for name in row.get("QOS", "").strip().split(",") if name)
    default = row.get("Def QOS", row.get("DefaultQOS", row.get("DefQOS", ""))).strip()
    return default, () if any(name[0] in "+-" for name in names) else names


def _parents(rows: Sequence[Row]) -> list[str]:
    """Return the account above each row by the blanks before its name, with which ``tree`` and ``sshare`` show the level."""
    above: list[tuple[int, str]] = []
    found = []
    for row in rows:
        name = row["Account"]
        depth = len(name) - len(name.lstrip())
        if not row.get("User", "").strip():
            above = [each for each in above if each[0] < depth]
            found.append(above[-1][1] if above else "")
            above.append((depth, name.strip()))
        else:
            found.append("")
    return found


def _shares(row: Row, holder: str, ignored: Ignored) -> float | None:
    """Return the shares of a row; None if it states none."""
    share = row.get("Share", row.get("Fairshare", row.get("RawShares", ""))).strip()
    if share.casefold() == "parent":
        ignored.add("Fairshare=parent", holder)
    return float(share) if share.isdecimal() else None if "Share" not in row else 1.0


def qualities(every: Sequence[list[Row]], ignored: Ignored) -> dict[str, Qos]:
    """Return the qualities of service."""
    found = {}
    for row in (row for rows in every for row in rows if "Name" in row and "Priority" in row):
        name = row["Name"].strip()
        values = _limits(row, f"QOS {name}", ignored)
        for flag in row.get("Flags", "").split(","):
            if known := _FLAGS.get(flag.strip().casefold()):
                values[known[0]] = known[1]
            elif flag.strip().casefold() not in _HARMLESS_FLAGS:
                ignored.add(f"Flags={flag.strip()}", f"QOS {name}")
        mode, exempt = row.get("PreemptMode", "").strip(), row.get("PreemptExemptTime", "").strip()
        found[name] = Qos(
            priority=float(row.get("Priority") or 0),
            preempts=tuple(name for name in row.get("Preempt", "").strip().split(",") if name),
            preempts_within=preempts_within(mode),
            grace_s=grace_seconds(row.get("GraceTime", "")),
            preempt_mode=preempt_mode(mode),
            exempt_s=exempt_seconds(exempt) if exempt else None,
            **values,
        )
    return found


def _limits(row: Row, holder: str, ignored: Ignored) -> dict[str, Any]:
    """Return the fields of limits that a row states, and note those that are not simulated."""
    values: dict[str, Any] = {}
    amounts: dict[tuple[str, str], dict[str, int]] = {}
    for column, cell in row.items():
        key, text = column.replace(" ", "").casefold(), cell.strip()
        if key in _DEVICE_LIMITS or key in _MINUTE_LIMITS:
            for name, most in _amounts(text):
                if kind := _bounded(name, key in _MINUTE_LIMITS):
                    field = _MINUTE_LIMITS.get(key) or _DEVICE_LIMITS[key]
                    amounts.setdefault(kind, {})[field] = _amount(kind[1], most, column, holder)
                else:
                    ignored.add(f"{column} {name}", holder)
        elif key in _JOB_LIMITS:
            if text and text != "-1":
                values[_JOB_LIMITS[key]] = _count(text, column, holder)
        elif key in _TIME_LIMITS:
            values |= {"max_limit_s": seconds} if (seconds := slurm_seconds(text)) else {}
        elif _OTHER.fullmatch(key) and text not in (("", "-1") if key.startswith(("grp", "max", "min")) else _NEUTRAL):
            ignored.add(column, holder)
    values |= amounts.pop(("", ""), {})
    for what in {what for what, _ in amounts}:
        values[what] = {name: DeviceLimits(**most) for (of, name), most in amounts.items() if of == what}
    return values


def _bounded(name: str, minutes: bool) -> tuple[str, str] | None:
    """Return the field and the key of the limits on a resource; None if they are not simulated."""
    match = _DEVICES.fullmatch(name)
    if minutes:
        name = f"{'gpu' if name == 'gres/gpu' else name}{MINUTES}"
    elif match:
        return ("of_type", match[1]) if match[1] else ("", "")
    return ("of_resource", name) if name in RESOURCES else None


def _amount(resource: str, text: str, column: str, holder: str) -> int:
    """Parse an amount: memory is in MiB, or in the unit that it names."""
    return round(slurm_bytes(text)) if resource == "mem" else _count(text, column, holder)


def _amounts(text: str) -> Iterator[tuple[str, str]]:
    """Yield the resources of a list such as ``cpu=8,gres/gpu=2``, without those that are cleared."""
    for part in filter(None, text.split(",")):
        name, _, most = part.partition("=")
        if most.strip() != "-1":
            yield name.strip(), most.strip()


def _count(text: str, column: str, holder: str) -> int:
    if not text.isdecimal():
        raise UserError(f"{column} of {holder} is {text!r}", "give the whole number that sacctmgr prints")
    return int(text)


def usage(every: Sequence[list[Row]]) -> dict[tuple[str, str], float]:
    """Return the raw usage of users that ``sshare`` printed."""
    return {
        (row["Account"].strip(), row["User"].strip()): float(row["RawUsage"])
        for rows in every
        for row in rows
        if row.get("RawUsage", "").strip().isdecimal() and row.get("User", "").strip()
    }
