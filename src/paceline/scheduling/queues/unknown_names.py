"""Remarks on settings of a scheduler: names of jobs that they lack, and limits that are not simulated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from paceline.errors import shorten
from paceline.scheduling.job import Job
from paceline.scheduling.queues.kueue_settings import KueueSettings
from paceline.scheduling.queues.slurm_limits import DEVICES, RESOURCES
from paceline.scheduling.queues.slurm_settings import SlurmSettings

LACKING = "that the settings lack"
"""Words of every such remark, by which an answer finds it."""
IGNORED = "ignored: "
"""Beginning of a remark on limits that are not simulated."""
FEW = 3
"""Most names in a remark."""


def unknown_names(jobs: Sequence[Job], settings: SlurmSettings | KueueSettings | None) -> list[str]:
    """Return a remark on each kind of name that jobs state and the settings lack. Jobs that state none are not counted."""
    if isinstance(settings, SlurmSettings):
        kinds: list[tuple[str, Collection[str], list[str]]] = [("partition", settings.partitions, [job.queue for job in jobs])]
        if not settings.enforces_associations:  # else they are refused
            kinds.insert(0, ("account", settings.accounts, [job.virtual_cluster for job in jobs]))
        if not settings.enforces_qos:
            kinds.append(("QOS", settings.qos, [job.qos for job in jobs]))
        refused = "Slurm refuses such jobs; here they have the defaults"
    elif settings is not None:
        named = [job.queue or job.virtual_cluster for job in jobs]
        kinds = [("queue", {*settings.queues, *settings.local_queues}, named)]
        refused = "Kueue admits no such job; here they are in the only cluster queue"
    else:
        return []
    remarks = []
    for kind, known, names in kinds:
        missing = Counter(name for name in names if name and name not in known)
        if known and missing:
            shown = ", ".join(repr(shorten(name, 40)) for name, _ in missing.most_common(FEW))
            more = f" and {len(missing) - FEW:,} more" if len(missing) > FEW else ""
            count = missing.total()
            jobs_text = "1 job names" if count == 1 else f"{count:,} jobs name"
            remarks.append(f"{jobs_text} a {kind} {LACKING} ({shown}{more}): {refused}.".replace("a account", "an account"))
    return [*remarks, *unstated_resources([job.resources for job in jobs], settings)]


def unstated_resources(
    stated: Sequence[Sequence[tuple[str, float]]], settings: SlurmSettings | KueueSettings | None
) -> list[str]:
    """Return a remark on each resource that has limits and that jobs do not state: their amounts count as none.

    Args:
        stated: resources of each job.
    """
    if not isinstance(settings, SlurmSettings):
        return []
    remarks = []
    for resource in dict.fromkeys(RESOURCES[name][2] for name in settings.limited_resources):
        missing = sum(resource not in dict(each) for each in stated)
        if missing and resource != DEVICES:
            count = f"{missing:,} job{'s' * (missing != 1)} state{'s' * (missing == 1)}"
            remarks.append(f"{IGNORED}limits on {resource} where {count} none (print squeue --json, or sacct's ReqTRES).")
    return remarks


def ignored_limits(settings: SlurmSettings | KueueSettings | None, live: bool = False) -> list[str]:
    """Return a remark on the limits that the text of the settings states and that are not simulated; none without one.

    Args:
        live: the states of partitions count, because the queue is of the moment at which they were printed.
    """
    if not isinstance(settings, SlurmSettings):
        return []
    closed = {name: each.state for name, each in settings.partitions.items() if each.state != "UP" and not live}
    ignored = [*settings.ignored, *(f"State={state} of partition {name}" for name, state in closed.items())]
    return [f"{IGNORED}{'; '.join(ignored)}."] if ignored else []
