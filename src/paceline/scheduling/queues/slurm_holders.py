"""Holders of Slurm's settings: accounts, partitions and qualities of service."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from paceline.errors import UserError, known_name
from paceline.scheduling.queues.slurm_limits import Limits

Preempt = Literal["none", "partition_prio", "qos"]
PREEMPTS: tuple[Preempt, ...] = get_args(Preempt)
PreemptMode = Literal["requeue", "cancel", "suspend", "off"]
PREEMPT_MODES: tuple[PreemptMode, ...] = get_args(PreemptMode)
OwnPreemptMode = Literal["cluster", "requeue", "cancel", "suspend", "off"]
OWN_PREEMPT_MODES: tuple[OwnPreemptMode, ...] = get_args(OwnPreemptMode)
PartitionState = Literal["UP", "DOWN", "DRAIN", "INACTIVE"]
PARTITION_STATES: tuple[PartitionState, ...] = get_args(PartitionState)


@dataclass(frozen=True, kw_only=True)
class Account(Limits):
    """Account, a node of the tree of fair shares. Its limits on groups bind the accounts below it too.

    Attributes:
        parent: account above it; empty: the root.
        shares: its shares among its siblings. ``users``: shares of its users; others have 1.
        user_limits: limits of its users' associations, by user, or by ``user/partition`` for those of one partition.
        members: users with an association in it, or ``user/partition``; empty: unknown.
        default_qos: quality of service of jobs that name none (``DefaultQOS``), of an account and of its users alone.
        allowed_qos: qualities of service that its jobs may have (``QosLevel``), of an account and of its users alone.
    """

    parent: str = ""
    shares: float = 1.0
    users: Mapping[str, float] = field(default_factory=dict)
    user_limits: Mapping[str, Limits] = field(default_factory=dict)
    members: tuple[str, ...] = ()
    default_qos: str = ""
    user_default_qos: Mapping[str, str] = field(default_factory=dict)
    allowed_qos: tuple[str, ...] = ()
    user_allowed_qos: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

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
        max_nodes: most nodes of a job (``MaxNodes``); None: no bound.
        qos: its quality of service, whose limits bind its jobs first (``QOS``).
        state: what it takes (``State``, scontrol(1)): DOWN starts no job, DRAIN takes no new one, INACTIVE does neither. It
            says when the jobs of a live queue start; a simulation of past jobs takes it as UP.
        grace_s, preempt_mode: ``GraceTime`` and ``PreemptMode`` of its jobs under preemption by partitions.
        allow_accounts, deny_accounts, allow_qos, deny_qos: accounts and qualities of service that may use it, or may not
            (``AllowAccounts`` and others); empty: all may. A list of those that may comes before the other.
    """

    priority: float = 1.0
    tier: int = 1
    default_limit_s: float = 0.0
    max_limit_s: float = 0.0
    types: tuple[str, ...] = ()
    max_devices: int | None = None
    max_nodes: int | None = None
    qos: str = ""
    state: PartitionState = "UP"
    grace_s: float = 0.0
    preempt_mode: OwnPreemptMode = "cluster"
    allow_accounts: tuple[str, ...] = ()
    deny_accounts: tuple[str, ...] = ()
    allow_qos: tuple[str, ...] = ()
    deny_qos: tuple[str, ...] = ()

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
        over_partition_nodes: its jobs may have more nodes than the partition allows (flag ``PartitionMaxNodes``).
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
    over_partition_nodes: bool = False
    reserves: bool = True

    def __post_init__(self) -> None:
        known_name("preempt_mode of a QOS", self.preempt_mode, OWN_PREEMPT_MODES)


def _without_qos_limits(holder: str, limits: Limits) -> None:
    """Raise UserError for limits that only a quality of service has."""
    every = (limits, *limits.of_type.values(), *limits.of_resource.values())
    names = ("max_devices_per_user", "max_devices_per_account", "max_jobs_per_account", "max_submitted_per_account")
    wrong = [name for name in names for each in every if getattr(each, name, None) is not None]
    if wrong:
        raise UserError(f"{wrong[0]} of {holder}", "Slurm has it for a QOS alone: state max_devices or max_jobs_per_user")
