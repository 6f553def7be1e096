"""A measured step, the input of every correction."""

from __future__ import annotations

import math
from dataclasses import dataclass

from paceline.errors import UserError
from paceline.hardware.cluster import Cluster
from paceline.record import RunRecord
from paceline.strategy.strategy import Strategy
from paceline.workload.table import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Measured step, with its seconds and, if measured, the seconds of its wait for the exchange."""

    workload: Workload
    cluster: Cluster
    strategy: Strategy
    step_s: float
    sync_s: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.step_s < math.inf:
            raise UserError(f"an observed step of {self.step_s} s", "give seconds above 0")
        if self.sync_s is not None and not 0 <= self.sync_s <= self.step_s:
            raise UserError(f"{self.sync_s} s of waiting in a step of {self.step_s} s", "give at most the step")

    @classmethod
    def of_record(cls, record: RunRecord, workload: Workload, cluster: Cluster) -> Observation:
        """Return the observation of a recorded run of ``workload`` on ``cluster``."""
        return cls(
            workload=workload,
            cluster=cluster,
            strategy=Strategy.of(**record.strategy),
            step_s=record.step_time_s,
            sync_s=record.exposed_comm_s,
        )
