"""Settings of a Slurm cluster from the output of Slurm's tools.

``scontrol show config`` or ``slurm.conf``, ``scontrol show partition``, ``sacctmgr show assoc -P``, ``sacctmgr show qos -P``,
and ``sshare -alP`` for the past usage. Several may follow one another in one text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

from paceline.errors import UserError, known_name
from paceline.scheduling.queues.slurm_limits import Limits
from paceline.scheduling.queues.slurm_settings import PARTITION_STATES, Account, Qos, SlurmPartition, SlurmSettings
from paceline.scheduling.queues.slurm_tables import Ignored, associations, qualities, tables, usage
from paceline.scheduling.queues.slurm_values import exempt_seconds, grace_seconds, preempt_mode, preempts_within, slurm_seconds

__all__ = ["parse_slurm", "slurm_seconds"]


def _yes(text: str) -> bool:
    return text.strip().upper() in ("YES", "1", "TRUE")


def _cluster_mode(text: str) -> str:
    """Return ``PreemptMode`` of the cluster, whose default is OFF."""
    mode = preempt_mode(text)
    return "off" if mode == "cluster" else mode


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
    "preemptmode": ("preempt_mode", _cluster_mode),
    "preemptexempttime": ("exempt_s", exempt_seconds),
}
"""Field and parser of each parameter, by its name in lower case."""
_IGNORED = ("priorityweightassoc", "priorityweighttres", "priorityusageresetperiod", "prioritysitefactorplugin")
"""Parameters that decide on priorities and are not simulated, by their names in lower case."""
_CLOSED = ("AllowGroups", "MinNodes")
"""Words of a partition that keep jobs out and are not simulated. Slurm prints the reason with a job that waits for them."""
_ACCESS = {"allow_accounts": "allowaccounts", "deny_accounts": "denyaccounts", "allow_qos": "allowqos", "deny_qos": "denyqos"}
"""Fields of a partition on who may use it, with their words in lower case."""
_OPEN = ("", "ALL", "UP", "UNLIMITED", "NONE", "0", "1", "N/A", "(NULL)")


def parse_slurm(text: str) -> SlurmSettings:
    """Read the settings that the tools of Slurm printed. Missing settings have Slurm's defaults.

    Raises:
        UserError: text without any setting of Slurm, or a wrong value.
    """
    values: dict[str, Any] = {"multifactor": False}
    partitions: dict[str, SlurmPartition] = {}
    found, ignored, enforced, requeues = False, Ignored(), True, True
    for name, value in _parameters(text):
        key = name.casefold()
        found = found or key in _KEYS or key == "partitionname"
        if key in _KEYS:
            field, parse = _KEYS[key]
            try:
                values[field] = parse(value)
            except ValueError:
                raise UserError(f"{name} is {value!r}", "give the number that scontrol show config prints") from None
            if key == "preemptmode":
                values["preempts_within"] = preempts_within(value)
        elif key in ("schedulerparameters", "preemptparameters"):
            values |= _parameters_of(value, key)
        elif key == "jobrequeue":
            requeues = _yes(value)
        elif key == "accountingstorageenforce":
            words = {word.strip().casefold() for word in value.split(",")}
            enforced = bool(words & {"limits", "safe", "all"})
            values["enforces_qos"] = bool(words & {"qos", "all"})
            values["enforces_associations"] = enforced or bool(words & {"associations", "qos"})
        elif key in _IGNORED and value.strip(" 0").casefold() not in ("", "none", "no"):
            ignored.add(name, "")
    for stated in _partitions(text):
        partitions[stated["partitionname"]] = _partition(stated, ignored)
        if _yes(stated.get("default", "")):
            values["default_partition"] = stated["partitionname"]
    every = list(tables(text))
    if not found and not every:
        raise UserError("the text has no setting of Slurm", "give what `scontrol show config` prints")
    accounts, root, root_qos = associations(every, ignored)
    qos, used = qualities(every, ignored), usage(every)
    _check_partitions(partitions, qos, ignored)
    if not requeues and values.get("preempt_mode") == "requeue":
        values["preempt_mode"] = "cancel"  # slurm_job_preempt kills a job that cannot be requeued
    settings = SlurmSettings(
        **values, partitions=partitions, accounts=accounts, qos=qos, root=root, root_qos=root_qos, usage=used
    )
    settings = settings if enforced else _without_limits(settings, ignored)
    return replace(settings, ignored=ignored.texts())


def _without_limits(settings: SlurmSettings, ignored: Ignored) -> SlurmSettings:
    """Return the settings of a cluster that does not enforce the limits of its associations and qualities of service."""
    none: dict[str, Any] = {each.name: each.default for each in fields(Limits) if not each.name.startswith("of_")}
    none |= {"of_type": {}, "of_resource": {}}
    accounts: dict[str, Account] = {
        name: replace(account, user_limits={}, **none) for name, account in settings.accounts.items()
    }
    qos: dict[str, Qos] = {name: replace(each, **none) for name, each in settings.qos.items()}
    found = replace(settings, accounts=accounts, qos=qos, root=Limits())
    if settings.is_bounded and settings != found:
        ignored.add("limits of associations and QOS, which AccountingStorageEnforce does not enforce", "")
    return found


def _check_partitions(partitions: Mapping[str, SlurmPartition], qos: Mapping[str, Qos], ignored: Ignored) -> None:
    """Note the qualities of service of partitions that the text does not describe."""
    for name, stated in partitions.items():
        if stated.qos and stated.qos not in qos:
            ignored.add(f"QOS {stated.qos}, which the text does not describe (print sacctmgr show qos -P)", f"partition {name}")


def _parameters(text: str) -> Iterator[tuple[str, str]]:
    """Yield the parameters of a configuration: one a line."""
    for line in text.splitlines():
        name, equals, value = line.partition("#")[0].partition("=")
        if equals and re.fullmatch(r"\s*\w+\s*", name):
            yield name.strip(), value.strip().strip("()").replace("null", "")


_BACKFILL: Mapping[str, tuple[str, Callable[[int], float]]] = {
    "bf_window": ("window_s", lambda number: number * 60.0),
    "bf_max_job_test": ("max_tested", lambda number: max(number, 1)),
}
_PREEMPTION: Mapping[str, str] = {
    "reorder_count": "reorder_count",
    "youngest_first": "youngest_first",
    "strict_order": "strict_order",
    "min_exempt_priority": "exempt_priority",
}
"""Field of each part of ``PreemptParameters``. In ``SchedulerParameters`` their names begin with ``preempt_``."""


def _parameters_of(value: str, key: str) -> dict[str, Any]:
    """Return the fields that a list of parameters states."""
    values: dict[str, Any] = {}
    for part in value.split(","):
        name, equals, number = part.strip().partition("=")
        if key == "schedulerparameters" and name in _BACKFILL and number.isdecimal():
            field, parse = _BACKFILL[name]
            values[field] = parse(int(number))
        name = name.removeprefix("preempt_") if key == "schedulerparameters" and name.startswith("preempt_") else name
        stated = key == "preemptparameters" or part.strip().startswith("preempt_")
        if stated and name in _PREEMPTION and (number.isdecimal() or not equals):
            values[_PREEMPTION[name]] = int(number) if equals else True
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


def _partition(words: Mapping[str, str], ignored: Ignored) -> SlurmPartition:
    max_limit_s = slurm_seconds(words.get("maxtime", ""))
    for name in _CLOSED:
        if (value := words.get(name.casefold(), "")).upper() not in _OPEN:
            ignored.add(f"{name}={value}", f"partition {words['partitionname']}")
    qos = words.get("qos", "")
    stated = {field: words.get(name, "") for field, name in _ACCESS.items()}
    access: dict[str, Any] = {field: tuple(text.split(",")) for field, text in stated.items() if text.upper() not in _OPEN}
    return SlurmPartition(
        **access,
        priority=float(words.get("priorityjobfactor") or words.get("priority") or 1),
        tier=int(words.get("prioritytier") or words.get("priority") or 1),
        default_limit_s=slurm_seconds(words.get("defaulttime", "")) or max_limit_s,
        max_limit_s=max_limit_s,
        max_nodes=int(nodes) if (nodes := words.get("maxnodes", "")).isdecimal() else None,
        qos="" if qos.upper() in ("N/A", "(NULL)") else qos,
        grace_s=grace_seconds(words.get("gracetime", "")),
        preempt_mode=preempt_mode(words.get("preemptmode", "")),
        state=known_name("State of a partition", words.get("state") or "UP", PARTITION_STATES),  # type: ignore[arg-type]
    )
