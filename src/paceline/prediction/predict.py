"""``predict(workload, cluster, strategy)``: one training step before the hardware is there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline.errors import UserError
from paceline.hardware.cluster import Cluster
from paceline.prediction import efficiency as levels
from paceline.prediction.assumptions import assumptions
from paceline.prediction.calibration import Calibration
from paceline.prediction.costs import Bucket, StepCosts, calibrated_costs, catalogue_costs, plan_buckets
from paceline.prediction.efficiency import Efficiency
from paceline.prediction.explain import explanation
from paceline.prediction.memory import memory_breakdown
from paceline.prediction.timeline import events, exposed_seconds, schedule
from paceline.record import Metrics
from paceline.strategy.compression import COMPRESSIONS
from paceline.strategy.exchange import BucketPlan, busiest_sent, phases
from paceline.strategy.strategy import Strategy
from paceline.workload.layers import Workload

CATALOGUE = (levels.LOW, levels.TYPICAL, levels.HIGH)


@dataclass(frozen=True, kw_only=True)
class Prediction(Metrics):
    """A predicted step. The metrics are those of ``RunRecord``, so a measurement can be subtracted.

    Attributes:
        cluster: what it was predicted for, by name.
        memory: bytes on one device by purpose; they sum to ``memory_bytes``.
        fits: whether they fit the device's memory.
        exposed: seconds of the step by the resource it waits for; they sum to ``step_time_s``, the largest is the
            ``bottleneck``.
    """

    cluster: Mapping[str, Any] = field(default_factory=dict)
    memory: Mapping[str, float] = field(default_factory=dict)
    fits: bool = True
    exposed: Mapping[str, float] = field(default_factory=dict)

    def explain(self) -> str:
        """Where the time goes, the critical path, the reasons of the range and the assumptions; 80 columns."""
        return explanation(self)


def predict(
    workload: Workload,
    cluster: Cluster,
    strategy: Strategy,
    calibration: Calibration | None = None,
    *,
    overlap: bool | None = None,
    efficiencies: tuple[Efficiency, Efficiency, Efficiency] = CATALOGUE,
) -> Prediction:
    """Predict one training step of ``workload`` on every device of ``cluster`` under ``strategy``.

    Args:
        calibration: measurements of this machine; they replace the catalogue where they speak.
        overlap: whether the exchange runs beside the backward pass; by default as calibrated, else yes, as in DDP.
        efficiencies: low, typical, high; they make ``low_s`` (everything high), ``step_time_s`` and ``high_s``.

    Raises:
        UserError: the strategy has another number of workers than the cluster has devices; the device lacks the
            precision; the calibration is of another workload or compression.
    """
    if strategy.world_size != cluster.world_size:
        raise UserError(
            f"the strategy has {strategy.world_size} workers and the cluster {cluster.world_size} devices",
            "give both the same number",
        )
    buckets = plan_buckets(workload, strategy)
    low, typical, high = (catalogue_costs(workload, cluster, strategy, buckets, e) for e in efficiencies)
    if overlap is None:
        overlap = calibration is None or calibration.overlap
    if calibration is not None:
        typical = calibrated_costs(typical, workload, strategy, buckets, calibration)
    placed = schedule(typical, buckets, overlap)
    exposed = exposed_seconds(typical, placed)
    memory = memory_breakdown(workload, strategy, buckets)
    needed, available = sum(memory.values()), cluster.device.memory.value
    low_s, high_s = (
        (schedule(high, buckets, overlap).step, schedule(low, buckets, overlap).step)
        if calibration is None
        else (placed.step / (1 + calibration.spread), placed.step * (1 + calibration.spread))
    )
    wire = busiest_sent([phase for bucket in buckets for phase in bucket.phases])
    return Prediction(
        workload=workload.name,
        strategy=strategy.to_json(),
        step_time_s=placed.step,
        low_s=low_s,
        high_s=high_s,
        samples_per_s=strategy.global_batch_size / placed.step,
        compute_s=placed.backward_end + sum(typical.optimizer),
        comm_s=_lane_seconds(typical, "network"),
        codec_s=_lane_seconds(typical, "codec"),
        exposed_comm_s=placed.exposed,
        wire_bytes_per_device=wire,
        compression_ratio=max(1.0, _dense_bytes(strategy, buckets) / wire) if wire else 1.0,
        memory_bytes=needed,
        bottleneck=max(exposed, key=lambda name: exposed[name]),
        assumptions=assumptions(workload, cluster, strategy, calibration, needed, overlap),
        timeline=events(typical, placed, tuple(layer.name for layer in workload.layers)),
        cluster=_describe(cluster),
        memory=memory,
        fits=needed <= available,
        exposed={str(name): seconds for name, seconds in exposed.items()},
    )


def _lane_seconds(costs: StepCosts, lane: str) -> float:
    return sum(stage.seconds for stages in costs.exchanges for stage in stages if stage.lane == lane)


def _dense_bytes(strategy: Strategy, buckets: tuple[Bucket, ...]) -> int:
    """Wire bytes of the busiest rank when the same exchange carries the same buckets as fp32."""
    dense = COMPRESSIONS["dense"]
    plans = (BucketPlan(bucket.elements, bucket.plan.tensors, 0) for bucket in buckets)
    return busiest_sent([p for plan in plans for p in phases(plan, dense, strategy.exchange, strategy.world_size)])


def _describe(cluster: Cluster) -> dict[str, Any]:
    return {
        "device": cluster.device.name,
        "devices_per_node": cluster.devices_per_node,
        "num_nodes": cluster.num_nodes,
        "intra_link": cluster.intra_link.name,
        "network": cluster.network.name if cluster.num_nodes > 1 else "none",
    }
