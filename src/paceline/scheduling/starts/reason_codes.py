"""Reasons of Slurm and Kueue for which a job waits, and whether their schedulers may start it.

Sources: squeue(1), "JOB REASON CODES"; Slurm, src/common/job_state_reason.c; Kueue, pkg/cache/queue/manager.go.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from paceline.scheduling.traces.record import LoggedJob

Kind = Literal["waits", "later", "apart"]
"""What a reason means: the job waits for devices, may start from a later time, or needs something else to happen first."""


@dataclass(frozen=True, slots=True)
class WaitReason:
    """Meaning of a reason. ``text``: what it says, and what must happen."""

    text: str
    kind: Kind = "apart"


_LIMIT = "it starts when jobs that count to it end, or the limit is raised"
_REFUSED = "it never starts as it is"
_DEVICES: Kind = "waits"
SLURM_REASONS = {
    "Resources": WaitReason("it is the next one, and waits for devices", _DEVICES),
    "Priority": WaitReason("jobs of higher priority are before it", _DEVICES),
    "Cleaning": WaitReason("its earlier run is being cleaned up", _DEVICES),
    "Prolog": WaitReason("its nodes are being prepared", _DEVICES),
    "BeginTime": WaitReason("its begin time is later", "later"),
    "Dependency": WaitReason("it waits for another job"),
    "DependencyNeverSatisfied": WaitReason("the job that it depends on failed: it never starts"),
    "JobHeldUser": WaitReason("its owner holds it: scontrol release"),
    "JobHeldAdmin": WaitReason("an administrator holds it, who must release it"),
    "JobHoldMaxRequeue": WaitReason("it was requeued too often, and is held: scontrol release"),
    "launch_failed_requeued_held": WaitReason("its start failed, and it is held: scontrol release"),
    "job_requeued_in_held_state": WaitReason("it was requeued, and is held: scontrol release"),
    "Deactivated": WaitReason("it is deactivated: its owner must set it active"),
    "DeadLine": WaitReason(f"it cannot end by its deadline: {_REFUSED}"),
    "JobArrayTaskLimit": WaitReason("its array runs as many tasks at once as it may: it starts when one of them ends"),
    "ReqNodeNotAvail": WaitReason("a node that it needs is down, drained or reserved: it starts when the node is back"),
    "Nodes_required_for_job_are": WaitReason("nodes that it needs are down, drained or reserved: it starts when they are back"),
    "NodeDown": WaitReason("a node that it needs is down: it starts when the node is back"),
    "PartitionDown": WaitReason("its partition is down: an administrator must open it"),
    "PartitionInactive": WaitReason("its partition is inactive: an administrator must open it"),
    "PartitionTimeLimit": WaitReason("its limit is longer than the partition allows: it never starts unless one is changed"),
    "PartitionNodeLimit": WaitReason("it asks for more or fewer nodes than the partition allows: it never starts as it is"),
    "PartitionConfig": WaitReason(f"its partition does not allow what it asks for: {_REFUSED}"),
    "BadConstraints": WaitReason(f"no node meets its constraints: {_REFUSED}"),
    "AccountNotAllowed": WaitReason(f"its account may not use the partition: {_REFUSED}"),
    "QOSNotAllowed": WaitReason(f"its quality of service may not use the partition: {_REFUSED}"),
    "InvalidAccount": WaitReason(f"its account is not valid: {_REFUSED}"),
    "InvalidQOS": WaitReason(f"its quality of service is not valid: {_REFUSED}"),
    "Licenses": WaitReason("it waits for a licence: it starts when one is returned"),
    "ReservationDeleted": WaitReason("its reservation was deleted: it never starts as it is"),
    "Reservation": WaitReason("it waits for its reservation", "later"),
    "AssocGrp": WaitReason(f"its account is at its limit: {_LIMIT}"),
    "AssocMax": WaitReason(f"its owner is at a limit of the account: {_LIMIT}"),
    "Association": WaitReason(f"its account is at its limit: {_LIMIT}"),
    "QOSGrp": WaitReason(f"its quality of service is at its limit: {_LIMIT}"),
    "QOSMax": WaitReason(f"its owner is at a limit of the quality of service: {_LIMIT}"),
    "QOSMin": WaitReason(f"it asks for less than its quality of service wants: {_REFUSED}"),
    "QOS": WaitReason(f"a limit of its quality of service stops it: {_LIMIT}"),
    "MaxMemPerLimit": WaitReason(f"it asks for more memory than it may: {_REFUSED}"),
    "MaxCpuPerAccount": WaitReason(f"its account is at its limit of processors: {_LIMIT}"),
    "MaxGRESPerAccount": WaitReason(f"its account is at its limit of devices: {_LIMIT}"),
    "BurstBuffer": WaitReason("it waits for its burst buffer"),
    "FedJobLock": WaitReason("it waits for the other clusters of its federation"),
    "SchedDefer": WaitReason("it asked for an immediate start, which the cluster puts off", _DEVICES),
}
"""Reasons by the beginning of the word, blanks as underscores. The longest that fits counts."""
_PER_JOB = re.compile(r"(?:Assoc|QOS)Max\w+Per(?:Job|Node)")
"""Words of Slurm for a limit that the job exceeds by itself."""
_ITSELF = "it asks for more than {} allows one job: it never starts unless one is changed"
_HELD_BY_PRIORITY = WaitReason("its priority is 0, so it is held: scontrol release")
_KUEUE = (
    (r"is stopped", "its stopPolicy holds it: it never starts until that is lifted"),
    (r"doesn't exist|does not exist", "inadmissible: it never starts until the queue is created"),
    (r"is closed", "it never starts until the queue is opened"),
    (r"is not in the file", "print the LocalQueues too"),
    (r"is blocked by", "under StrictFIFO it never starts before that job is changed or deleted"),
    (r"is inactive|is terminating", "its queue admits nothing: an administrator must create or open it"),
)
"""States of a queue that admits nothing, with what must happen."""
_QUEUE = r"\b(?:Local|Cluster|)Queue \S+ (?:{})"


def reason_of(job: LoggedJob, scheduler: str = "slurm") -> WaitReason:
    """Return the meaning of a job's reason. An unknown word of Slurm sets a job apart."""
    word = _word(job)
    if word.casefold() in ("", "none", "null"):
        return WaitReason("", "waits")
    plain = word.replace(" ", "_")
    if _PER_JOB.match(plain):
        return WaitReason(_ITSELF.format("its quality of service" if plain.startswith("QOS") else "its account"))
    found = [key for key in SLURM_REASONS if plain.startswith(key)]
    if found:
        return SLURM_REASONS[max(found, key=len)]
    for state, text in _KUEUE:
        if re.search(_QUEUE.format(state), word):
            return WaitReason(text)
    return WaitReason("", "apart" if scheduler == "slurm" else "waits")


def _word(job: LoggedJob) -> str:
    """Return a job's reason without the brackets that squeue prints around it."""
    word = job.reason.strip()
    return word[1:].removesuffix(")").strip() if word.startswith("(") else word


def reason_text(job: LoggedJob) -> str:
    """Return the scheduler's reason in words; empty if it gives none."""
    word = _word(job)
    if word.casefold() in ("", "none", "null"):
        return ""
    text = reason_of(job).text
    return f"{word}: {text}" if text else word


def held_text(job: LoggedJob) -> str:
    """Return why a job that was set apart waits, in words."""
    reason = reason_of(job)
    if reason.kind == "waits":
        return _HELD_BY_PRIORITY.text
    return reason_text(job) + (", and the file does not say until when" if reason.kind == "later" else "")
