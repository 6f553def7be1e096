"""Settings of Slurm that decide when a job starts: priority, fair share, partitions, qualities of service, and backfill."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, get_args

from paceline.errors import UserError, known_name, shown
from paceline.scheduling.queues.slurm_limits import Bound, JobBounds, Level, Limits, is_bounded, job_bounds

Preempt = Literal["none", "partition_prio", "qos"]
PREEMPTS: tuple[Preempt, ...] = get_args(Preempt)
PreemptMode = Literal["requeue", "cancel", "suspend", "off"]
PREEMPT_MODES: tuple[PreemptMode, ...] = get_args(PreemptMode)
OwnPreemptMode = Literal["cluster", "requeue", "cancel", "suspend", "off"]
OWN_PREEMPT_MODES: tuple[OwnPreemptMode, ...] = get_args(OwnPreemptMode)
PartitionState = Literal["UP", "DOWN", "DRAIN", "INACTIVE"]
PARTITION_STATES: tuple[PartitionState, ...] = get_args(PartitionState)
DAY_S = 86_400.0


@dataclass(frozen=True, kw_only=True)
class Account(Limits):
    """Account, a node of the tree of fair shares. Its limits on groups bind the accounts below it too.

    Attributes:
        parent: account above it; empty: the root.
        shares: its shares among its siblings. ``users``: shares of its users; others have 1.
        user_limits: limits of its users' associations, by user, or by ``user/partition`` for those of one partition.
    """

    parent: str = ""
    shares: float = 1.0
    users: Mapping[str, float] = field(default_factory=dict)
    user_limits: Mapping[str, Limits] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _without_qos_limits("an account", self)
        for user, limits in self.user_limits.items():
            _without_qos_limits(f"user {user}", limits)


@dataclass(frozen=True, kw_only=True)
class SlurmPartition:
    """Partition of the nodes.

    Attributes:
        priority: priority of its jobs (``PriorityJobFactor``). ``tier``: jobs of a higher tier come first (``PriorityTier``).
        default_limit_s: time limit of jobs that state none (``DefaultTime``, else ``MaxTime``); 0: none.
        max_limit_s: longest time limit of a job (``MaxTime``); 0: no bound.
        types: device types of its nodes; empty: all types.
        max_devices: most devices of its running jobs, as the size of its nodes; None: no bound.
        qos: quality of service whose limits bind its jobs before those of their own (``QOS``).
        state: what it takes (``State``, scontrol(1)): DOWN starts no job, DRAIN takes no new one, INACTIVE does neither. It
            says when the jobs of a live queue start; a simulation of past jobs takes it as UP.
        grace_s, preempt_mode: ``GraceTime`` and ``PreemptMode`` of its jobs under preemption by partitions.
    """

    priority: float = 1.0
    tier: int = 1
    default_limit_s: float = 0.0
    max_limit_s: float = 0.0
    types: tuple[str, ...] = ()
    max_devices: int | None = None
    qos: str = ""
    state: PartitionState = "UP"
    grace_s: float = 0.0
    preempt_mode: OwnPreemptMode = "cluster"

    def __post_init__(self) -> None:
        known_name("state of a partition", self.state, PARTITION_STATES)
        known_name("preempt_mode of a partition", self.preempt_mode, OWN_PREEMPT_MODES)

    @property
    def starts(self) -> bool:
        """True if its waiting jobs may start."""
        return self.state in ("UP", "DRAIN")

    @property
    def takes(self) -> bool:
        """True if new jobs may be submitted."""
        return self.state in ("UP", "DOWN")


@dataclass(frozen=True, kw_only=True)
class Qos(Limits):
    """Quality of service.

    Attributes:
        priority: priority of its jobs.
        preempts: qualities of service whose jobs its jobs may preempt.
        preempts_within: they may preempt those of the same QOS with less priority (``PreemptMode=WITHIN``).
        grace_s, preempt_mode: ``GraceTime`` and ``PreemptMode`` of its jobs under preemption by QOS.
        exempt_s: ``PreemptExemptTime`` of its jobs under any preemption; None: that of the cluster.
        over_partition: its limits come before those of the partition's (flag ``OverPartQOS``).
        over_partition_time: its jobs may have longer time limits than the partition allows (flag ``PartitionTimeLimit``).
        reserves: the backfill keeps devices for its jobs; False: flag ``NoReserve``.
    """

    priority: float = 0.0
    preempts: tuple[str, ...] = ()
    preempts_within: bool = False
    grace_s: float = 0.0
    preempt_mode: OwnPreemptMode = "cluster"
    exempt_s: float | None = None
    over_partition: bool = False
    over_partition_time: bool = False
    reserves: bool = True

    def __post_init__(self) -> None:
        known_name("preempt_mode of a QOS", self.preempt_mode, OWN_PREEMPT_MODES)


def _without_qos_limits(holder: str, limits: Limits) -> None:
    """Raise UserError for limits that only a quality of service has."""
    every = (limits, *limits.of_type.values())
    names = ("max_devices_per_user", "max_devices_per_account", "max_jobs_per_account")
    wrong = [name for name in names for each in every if getattr(each, name, None) is not None]
    if wrong:
        raise UserError(f"{wrong[0]} of {holder}", "Slurm has it for a QOS alone: state max_devices or max_jobs_per_user")


@dataclass(frozen=True, eq=False, slots=True)
class JobKind:
    """Settings that apply to all jobs of one account, user, partition and quality of service.

    Attributes:
        user: account and user. ``qos``: name of the quality of service.
    """

    user: tuple[str, str]
    partition: SlurmPartition
    qos: str
    quality: Qos
    bounds: JobBounds


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
        root: limits of the whole cluster, above all accounts.
        ignored: limits that the text of Slurm's tools states and that are not simulated, in words.
        usage: past device-seconds by account and user when the simulation starts.
        preempt, preempt_mode: which jobs may be preempted, and what becomes of them. ``exempt_s``: not before this run time.
            Suspended jobs keep their devices, so that no job starts by it (``job_res_rm_job`` of select/cons_tres, action 2).
        preempts_within: jobs may preempt those of the same QOS with less priority (``PreemptMode=WITHIN``).
        youngest_first, reorder_count, strict_order: order of the jobs to preempt (``PreemptParameters``).
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
    root: Limits = field(default_factory=Limits)
    ignored: tuple[str, ...] = ()
    usage: Mapping[tuple[str, str], float] = field(default_factory=dict)
    preempt: Preempt = "none"
    preempt_mode: PreemptMode = "requeue"
    exempt_s: float = 0.0
    preempts_within: bool = False
    youngest_first: bool = False
    reorder_count: int = 1
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
        if (found := self.kinds.get(key)) is None:
            stated, account, user = self.partitions.get(partition) or _DEFAULT_PARTITION, account or _UNNAMED, user or _UNNAMED
            bounds = self._made_bounds(account, user, partition, qos)
            found = self.kinds[key] = JobKind((account, user), stated, self.quality_name(qos), self.quality(qos), bounds)
        return found

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
        if stated.max_limit_s and not own.over_partition_time:
            more.append(Bound(scope, "seconds", stated.max_limit_s))
        counted = found.scopes if stated.max_devices is None else (*found.scopes, scope)
        return JobBounds(counted, tuple(more))

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
    def has_grace(self) -> bool:
        """True if preempted jobs have a grace."""
        if self.preempt == "qos":
            return any(each.grace_s for each in self.qos.values())
        return self.preempt == "partition_prio" and any(each.grace_s for each in self.partitions.values())

    @cached_property
    def is_bounded(self) -> bool:
        """True if any limit is stated."""
        holders = [self.root, *self.accounts.values(), *self.qos.values()]
        holders += [limits for account in self.accounts.values() for limits in account.user_limits.values()]
        if any(map(is_bounded, holders)):
            return True
        return any(each.max_devices is not None or each.max_limit_s for each in self.partitions.values())


_UNNAMED = "default"
"""Name of the account or the user of a job that states none."""
_DEFAULT_PARTITION, _DEFAULT_QOS, _NO_LIMITS = SlurmPartition(), Qos(), Limits()
