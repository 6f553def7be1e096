"""Settings of Slurm that decide when a job starts: priority, fair share, partitions, qualities of service, and backfill."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from paceline.errors import UserError, known_name, shown

Preempt = Literal["none", "partition_prio", "qos"]
PREEMPTS: tuple[Preempt, ...] = get_args(Preempt)
PreemptMode = Literal["requeue", "cancel"]
PREEMPT_MODES: tuple[PreemptMode, ...] = get_args(PreemptMode)
DAY_S = 86_400.0


@dataclass(frozen=True, kw_only=True)
class Account:
    """Account, a node of the tree of fair shares.

    Attributes:
        parent: account above it; empty: the root.
        shares: its shares among its siblings. ``users``: shares of its users; others have 1.
        max_devices: most devices of its running jobs and those of the accounts below it (``GrpTRES``); 0: no bound.
    """

    parent: str = ""
    shares: float = 1.0
    users: Mapping[str, float] = field(default_factory=dict)
    max_devices: int = 0


@dataclass(frozen=True, kw_only=True)
class SlurmPartition:
    """Partition of the nodes.

    Attributes:
        priority: priority of its jobs (``PriorityJobFactor``). ``tier``: jobs of a higher tier come first (``PriorityTier``).
        default_limit_s: time limit of jobs that state none (``DefaultTime``, else ``MaxTime``); 0: none.
        types: device types of its nodes; empty: all types.
        max_devices: most devices of its running jobs (``GrpTRES`` of the partition's QOS); 0: no bound.
    """

    priority: float = 1.0
    tier: int = 1
    default_limit_s: float = 0.0
    types: tuple[str, ...] = ()
    max_devices: int = 0


@dataclass(frozen=True, kw_only=True)
class Qos:
    """Quality of service.

    Attributes:
        priority: priority of its jobs.
        max_devices: most devices of its running jobs (``GrpTRES``). ``max_devices_per_user``: ``MaxTRESPU``. 0: no bound.
        preempts: qualities of service whose jobs its jobs may preempt.
    """

    priority: float = 0.0
    max_devices: int = 0
    max_devices_per_user: int = 0
    preempts: tuple[str, ...] = ()


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
        usage: past device-seconds by account and user when the simulation starts.
        preempt, preempt_mode: which jobs may be preempted, and what becomes of them. ``exempt_s``: not before this run time.
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
    usage: Mapping[tuple[str, str], float] = field(default_factory=dict)
    preempt: Preempt = "none"
    preempt_mode: PreemptMode = "requeue"
    exempt_s: float = 0.0
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
