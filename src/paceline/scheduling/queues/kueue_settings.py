"""Settings of Kueue that decide when a job starts: queues with quotas, cohorts, borrowing, lending and preemption.

Kueue 0.14, concepts/cluster_queue, concepts/cohort and concepts/preemption of its documentation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from paceline.errors import UserError, known_name, unknown

Strategy = Literal["BestEffortFIFO", "StrictFIFO"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
Within = Literal["Never", "LowerPriority", "LowerOrNewerEqualPriority"]
WITHIN: tuple[Within, ...] = get_args(Within)
Reclaim = Literal["Never", "LowerPriority", "Any"]
RECLAIM: tuple[Reclaim, ...] = get_args(Reclaim)


@dataclass(frozen=True, kw_only=True)
class Quota:
    """Devices of one flavor.

    Attributes:
        nominal: devices that the queue owns.
        borrowing_limit: most further devices from the cohort; None: all that are free.
        lending_limit: most of its devices that others may borrow; None: all.
    """

    nominal: int = 0
    borrowing_limit: int | None = None
    lending_limit: int | None = None

    def __post_init__(self) -> None:
        if min(self.nominal, self.borrowing_limit or 0, self.lending_limit or 0) < 0:
            raise UserError("a quota below 0", "give whole numbers from 0 up")


@dataclass(frozen=True, kw_only=True)
class Cohort:
    """Group of queues and cohorts that lend one another devices. ``quotas``: devices of the cohort itself."""

    parent: str = ""
    quotas: Mapping[str, Quota] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ClusterQueue:
    """Queue with quotas.

    Attributes:
        quotas: quota by flavor, in the order in which flavors are tried.
        cohort: cohort it belongs to; empty: none, so it neither borrows nor lends.
        strategy: ``StrictFIFO``: a job that does not fit blocks later ones of the queue.
        within: running jobs of this queue that a waiting one may preempt.
        reclaim: jobs of borrowing queues that a job within the nominal quota may preempt.
        borrow_within: lower-priority jobs of borrowing queues may be preempted for a job that borrows too.
        borrow_threshold: most priority of those; None: below the waiting one's.
        weight: weight of its fair share.
        stopped: admit no further jobs (``stopPolicy``). ``drains``: running jobs leave too (``HoldAndDrain``).
    """

    quotas: Mapping[str, Quota] = field(default_factory=dict)
    cohort: str = ""
    strategy: Strategy = "BestEffortFIFO"
    within: Within = "Never"
    reclaim: Reclaim = "Never"
    borrow_within: bool = False
    borrow_threshold: int | None = None
    weight: float = 1.0
    stopped: bool = False
    drains: bool = False

    def __post_init__(self) -> None:
        known_name("queueing strategy", self.strategy, STRATEGIES)
        known_name("preemption within a queue", self.within, WITHIN)
        known_name("reclaim within a cohort", self.reclaim, RECLAIM)
        if not self.weight >= 0:
            raise UserError("a weight below 0", "give a number from 0 up")


@dataclass(frozen=True, kw_only=True)
class KueueSettings:
    """Settings of Kueue on a cluster.

    Attributes:
        queues: cluster queues by name; empty: one queue of all devices.
        cohorts: cohorts that state a parent or quotas. Others exist because queues name them.
        local_queues: cluster queue by local queue.
        flavors: device type by flavor; a flavor that is missing is itself the name of a type.
        fair_sharing: queues with the least share of borrowed devices come first, and preempt to share equally.
        stopped: local queues that admit nothing (``stopPolicy``). ``drained``: those whose running jobs leave too.
    """

    queues: Mapping[str, ClusterQueue] = field(default_factory=dict)
    cohorts: Mapping[str, Cohort] = field(default_factory=dict)
    local_queues: Mapping[str, str] = field(default_factory=dict)
    flavors: Mapping[str, str] = field(default_factory=dict)
    fair_sharing: bool = False
    stopped: tuple[str, ...] = ()
    drained: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, queue in self.local_queues.items():
            if queue not in self.queues:
                raise unknown(f"cluster queue of local queue {name}", queue, self.queues)
        for name in self.cohorts:
            path = {name}
            parent = self.cohorts[name].parent
            while parent:
                if parent in path:
                    raise UserError(f"cohort {name!r} is above itself", "correct its parent")
                path.add(parent)
                parent = self.cohorts[parent].parent if parent in self.cohorts else ""
