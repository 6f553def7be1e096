"""Settings of Slurm that decide when a job starts: priority, fair share, partitions, qualities of service, and backfill."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from paceline.errors import UserError, known_name, shown
from paceline.scheduling.queues.slurm_access import access_refusal, association_refusal, default_qos, qos_refusal
from paceline.scheduling.queues.slurm_holders import (
    OWN_PREEMPT_MODES,
    PARTITION_STATES,
    PREEMPT_MODES,
    PREEMPTS,
    Account,
    OwnPreemptMode,
    PartitionState,
    Preempt,
    PreemptMode,
    Qos,
    SlurmPartition,
)
from paceline.scheduling.queues.slurm_limits import Bound, JobBounds, Level, Limits, bounds_submits, is_bounded, job_bounds

__all__ = [
    "OWN_PREEMPT_MODES",
    "PARTITION_STATES",
    "PREEMPTS",
    "PREEMPT_MODES",
    "Account",
    "JobKind",
    "OwnPreemptMode",
    "PartitionState",
    "Preempt",
    "PreemptMode",
    "Qos",
    "SlurmPartition",
    "SlurmSettings",
]

DAY_S = 86_400.0


@dataclass(frozen=True, eq=False, slots=True)
class JobKind:
    """Settings that apply to all jobs of one account, user, partition and quality of service.

    Attributes:
        user: account and user. ``qos``: name of the quality of service.
        refused: why Slurm runs no such job; empty: it does.
    """

    user: tuple[str, str]
    partition: SlurmPartition
    qos: str
    quality: Qos
    bounds: JobBounds
    refused: str = ""


@dataclass(frozen=True, kw_only=True)
class SlurmSettings:
    """Settings of a Slurm cluster, with Slurm's defaults.

    Attributes:
        multifactor: order jobs by weighted factors (``priority/multifactor``); False: by ``Job.priority`` and arrival.
        weight_age ... weight_qos: weights of the factors (``PriorityWeight*``).
        max_age_s: wait at which the age factor is 1 (``PriorityMaxAge``).
        half_life_s: time after which past usage counts half (``PriorityDecayHalfLife``); 0: it counts for good.
        favor_small: smaller jobs have the larger factor.
        fair_tree: rank users by the Fair Tree; False: the classic factor, divided by ``dampening``.
        accounts, partitions, qos: by name. A job's account is its ``virtual_cluster``, its user its ``owner``.
        default_partition: partition of jobs that name none (``Default=YES``).
        root: limits of the whole cluster, above all accounts. ``root_qos``: its default quality of service.
        enforces_associations, enforces_qos: jobs of users without an association in their account do not run, or those with a
            quality of service that their association does not allow (``AccountingStorageEnforce``).
        ignored: limits that the text of Slurm's tools states and that are not simulated, in words.
        usage: past device-seconds by account and user when the simulation starts.
        preempt, preempt_mode: which jobs may be preempted, and what becomes of them. ``exempt_s``: not before this run time.
            Suspended jobs keep their devices, so that no job starts by it (``job_res_rm_job`` of select/cons_tres, action 2).
        preempts_within: jobs may preempt those of the same QOS with less priority (``PreemptMode=WITHIN``).
        youngest_first, reorder_count, strict_order: order of the jobs to preempt (``PreemptParameters``).
        exempt_priority: priority from which on a job is not preempted (``min_exempt_priority``).
        backfill: plan reservations; False: the first job that waits blocks its partition.
        window_s: reservations begin within this time (``bf_window``).
        max_tested: jobs for which the backfill looks (``bf_max_job_test``).
    """

    multifactor: bool = True
    weight_age: float = 0.0
    weight_fairshare: float = 0.0
    weight_job_size: float = 0.0
    weight_partition: float = 0.0
    weight_qos: float = 0.0
    max_age_s: float = 7 * DAY_S
    half_life_s: float = 7 * DAY_S
    favor_small: bool = False
    fair_tree: bool = True
    dampening: float = 1.0
    accounts: Mapping[str, Account] = field(default_factory=dict)
    partitions: Mapping[str, SlurmPartition] = field(default_factory=dict)
    qos: Mapping[str, Qos] = field(default_factory=dict)
    default_partition: str = ""
    root: Limits = field(default_factory=Limits)
    root_qos: str = ""
    enforces_associations: bool = False
    enforces_qos: bool = False
    ignored: tuple[str, ...] = ()
    usage: Mapping[tuple[str, str], float] = field(default_factory=dict)
    preempt: Preempt = "none"
    preempt_mode: PreemptMode = "requeue"
    exempt_s: float = 0.0
    preempts_within: bool = False
    youngest_first: bool = False
    reorder_count: int = 1
    exempt_priority: float = math.inf
    strict_order: bool = False
    backfill: bool = True
    window_s: float = DAY_S
    max_tested: int = 500

    def __post_init__(self) -> None:
        known_name("preemption", self.preempt, PREEMPTS)
        known_name("preempt_mode", self.preempt_mode, PREEMPT_MODES)
        weights = ("weight_age", "weight_fairshare", "weight_job_size", "weight_partition", "weight_qos")
        for name in (*weights, "max_age_s", "half_life_s", "exempt_s", "window_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise UserError(f"{name} = {shown(getattr(self, name))} of Slurm's settings", "give a number from 0 up")
        if not self.dampening > 0 or self.max_tested < 1:
            raise UserError("a dampening or a number of tested jobs of 0", "give numbers from 1 up")
        for name in self.accounts:
            self.ancestors(name)

    def ancestors(self, account: str) -> tuple[str, ...]:
        """Return an account and those above it. Raises UserError if they form a circle."""
        path: list[str] = []
        while account and account not in path:
            path.append(account)
            account = self.accounts[account].parent if account in self.accounts else ""
        if account:
            raise UserError(f"account {account!r} is above itself", "correct its parent")
        return tuple(path)

    def quality(self, qos: str) -> Qos:
        """Return the quality of service of a job that names this one: ``normal`` if it names none."""
        return self.qos.get(qos) or self.qos.get("normal") or _DEFAULT_QOS

    def quality_name(self, qos: str) -> str:
        """Return the name of ``quality``."""
        return qos if qos in self.qos else "normal"

    def bounds(self, account: str, user: str, partition: str, qos: str) -> JobBounds:
        """Return the limits that bind the jobs of a user, by the names that a job states."""
        return self.kind(account, user, partition, qos).bounds

    def kind(self, account: str, user: str, partition: str, qos: str) -> JobKind:
        """Return the settings that apply to a job, by the names that it states."""
        key = account, user, partition, qos
        partition = partition or self.default_partition
        if (found := self.kinds.get(key)) is None:
            refused = self.refusal(account, user, partition, qos)
            qos = qos or default_qos(self.accounts, self.root_qos, self.ancestors(account), user, partition)
            stated, account, user = self.partitions.get(partition) or _DEFAULT_PARTITION, account or _UNNAMED, user or _UNNAMED
            bounds = self._made_bounds(account, user, partition, qos)
            found = self.kinds[key] = JobKind(
                (account, user), stated, self.quality_name(qos), self.quality(qos), bounds, refused
            )
        return found

    def refusal(self, account: str, user: str, partition: str, qos: str) -> str:
        """Return why Slurm runs no job with these names, in words; empty if it does."""
        stated = self.partitions.get(partition)
        name = qos or default_qos(self.accounts, self.root_qos, self.ancestors(account), user, partition)
        if stated is not None and (why := access_refusal(stated, partition, account, name)):
            return why
        if self.enforces_associations and (why := association_refusal(self.accounts, account, user, partition)):
            return why
        return qos_refusal(self.accounts, self.qos, account, user, partition, qos) if self.enforces_qos else ""

    def _made_bounds(self, account: str, user: str, partition: str, qos: str) -> JobBounds:
        stated, own = self.partitions.get(partition, _DEFAULT_PARTITION), self.quality(qos)
        qualities: list[Level] = [(("qos", self.quality_name(qos)), own)]
        if stated.qos in self.qos:
            qualities.insert(1 if own.over_partition else 0, (("qos", stated.qos), self.qos[stated.qos]))
        path = [(name, self.accounts[name]) for name in self.ancestors(account) if name in self.accounts]
        associations: list[Level] = [self._association(account, user, partition)]
        associations += [(("account", name), limits) for name, limits in path]
        found = job_bounds(list(dict(qualities).items()), [*associations, (("cluster", ""), self.root)], user, account)
        scope, more = ("partition", partition), list(found.bounds)
        if stated.max_devices is not None:
            more.append(Bound(scope, "devices", stated.max_devices))
        if stated.max_nodes is not None and not own.over_partition_nodes:
            more.append(Bound(scope, "job", stated.max_nodes, resource="node"))
        if stated.max_limit_s and not own.over_partition_time:
            more.append(Bound(scope, "seconds", stated.max_limit_s))
        counted = found.scopes if stated.max_devices is None else (*found.scopes, scope)
        return JobBounds(counted, tuple(more), found.submits)

    def _association(self, account: str, user: str, partition: str) -> Level:
        """Return the association of a user: that of the partition if there is one."""
        scope = ("account", account, "user", user)
        limits = self.accounts[account].user_limits if account in self.accounts else {}
        if (key := f"{user}/{partition}") in limits:
            return (*scope, "partition", partition), limits[key]
        return scope, limits.get(user, _NO_LIMITS)

    @cached_property
    def kinds(self) -> dict[tuple[str, str, str, str], JobKind]:
        """Settings of kinds of jobs that were looked up before, by account, user, partition and quality of service."""
        return {}

    @cached_property
    def share_trees(self) -> dict[tuple[tuple[str, str], ...], Any]:
        """Trees of fair shares that were built before, by their users."""
        return {}

    @cached_property
    def refuses(self) -> bool:
        """True if some job may be refused for its account, user, partition or quality of service."""
        closed = ("allow_accounts", "deny_accounts", "allow_qos", "deny_qos")
        any_closed = any(getattr(each, name) for each in self.partitions.values() for name in closed)
        return any_closed or self.enforces_associations or self.enforces_qos

    @cached_property
    def has_grace(self) -> bool:
        """True if preempted jobs have a grace."""
        if self.preempt == "qos":
            return any(each.grace_s for each in self.qos.values())
        return self.preempt == "partition_prio" and any(each.grace_s for each in self.partitions.values())

    @cached_property
    def is_bounded(self) -> bool:
        """True if any limit is stated."""
        if any(map(is_bounded, self._holders)):
            return True
        partitions = self.partitions.values()
        return any(each.max_devices is not None or each.max_nodes is not None or each.max_limit_s for each in partitions)

    @cached_property
    def bounds_submits(self) -> bool:
        """True if any limit on jobs that wait or run is stated."""
        return any(map(bounds_submits, self._holders))

    @cached_property
    def limited_resources(self) -> tuple[str, ...]:
        """Resources besides devices that have limits."""
        found = dict.fromkeys(name for limits in self._holders for name in limits.of_resource)
        nodes = any(each.max_nodes is not None for each in self.partitions.values())
        return tuple(found | dict.fromkeys(["node"] * nodes))

    @property
    def _holders(self) -> list[Limits]:
        """Holders of limits except partitions."""
        users = [limits for account in self.accounts.values() for limits in account.user_limits.values()]
        return [self.root, *self.accounts.values(), *self.qos.values(), *users]


_UNNAMED = "default"
"""Name of the account or the user of a job that states none."""
_DEFAULT_PARTITION, _DEFAULT_QOS, _NO_LIMITS = SlurmPartition(), Qos(), Limits()
