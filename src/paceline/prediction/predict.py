"""``predict(workload, cluster, strategy)``: one training step before the hardware is there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from paceline.errors import UserError
from paceline.hardware.cluster import Cluster
from paceline.prediction import efficiency as levels
from paceline.prediction.assumptions import assumptions
from paceline.prediction.calibration import Calibration
from paceline.prediction.correction import Correction
from paceline.prediction.costs import StepCosts, calibrated_costs, catalogue_costs, plan_buckets
from paceline.prediction.efficiency import Efficiency
from paceline.prediction.explain import explanation
from paceline.prediction.memory import memory_breakdown
from paceline.prediction.timeline import events, exposed_seconds, schedule
from paceline.record import Metrics
from paceline.strategy.formats import Level
from paceline.strategy.phase import busiest_sent
from paceline.strategy.strategy import Strategy
from paceline.workload.layers import Workload

CATALOGUE = (levels.LOW, levels.TYPICAL, levels.HIGH)
LEVELS: tuple[Level, Level] = ("low", "high")


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
    correction: Correction | None = None,
    overlap: bool | None = None,
    efficiencies: tuple[Efficiency, Efficiency, Efficiency] = CATALOGUE,
) -> Prediction:
    """Predict one training step of ``workload`` on every device of ``cluster`` under ``strategy``.

    Args:
        calibration: measurements of this machine; they replace the catalogue where they speak.
        correction: what observed steps taught (``fit``); it is applied to the prediction without it.
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
    if strategy.sharding != "ddp" or strategy.recompute or strategy.grad_accum_steps > 1:
        raise UserError("sharding, recomputation and micro steps are not predicted yet", "leave them out")
    strategy = _on(cluster, strategy)
    planned = _measured_ratio(strategy, calibration)
    varies = strategy.description.format.spread is not None
    buckets = plan_buckets(workload, planned)
    few, many = (plan_buckets(workload, planned, level) for level in LEVELS) if varies else (buckets, buckets)
    low, typical, high = (
        catalogue_costs(workload, cluster, strategy, some, e)
        for some, e in zip((many, buckets, few), efficiencies, strict=True)
    )
    if overlap is None:
        overlap = calibration is None or calibration.overlap
    if calibration is not None:
        low, typical, high = (
            calibrated_costs(costs, workload, strategy, some, calibration)
            for costs, some in ((low, many), (typical, buckets), (high, few))
        )
    placed = schedule(typical, buckets, overlap)
    exposed = exposed_seconds(typical, placed)
    memory = memory_breakdown(workload, strategy, buckets)
    needed, available = sum(memory.values()), cluster.device.memory.value
    spread = 1.0 if calibration is None else 1 + calibration.spread
    low_s, high_s = schedule(high, few, overlap).step / spread, schedule(low, many, overlap).step * spread
    wire = busiest_sent([phase for bucket in buckets for phase in bucket.phases])
    dense = strategy.uncompressed().wire_bytes_per_device(workload.parameters, workload.ready_order)
    made = Prediction(
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
        compression_ratio=max(1.0, dense / wire) if wire else 1.0,
        memory_bytes=needed,
        bottleneck=max(exposed, key=lambda name: exposed[name]),
        assumptions=assumptions(workload, cluster, planned, calibration, needed, overlap),
        timeline=events(typical, placed, tuple(layer.name for layer in workload.layers)),
        cluster=_describe(cluster),
        memory=memory,
        fits=needed <= available,
        exposed={str(name): seconds for name, seconds in exposed.items()},
    )
    return made if correction is None else correction.applied(made, workload, cluster, strategy)


def _lane_seconds(costs: StepCosts, lane: str) -> float:
    return sum(exchange.busy(lane) for exchange in costs.exchanges)


def _on(cluster: Cluster, strategy: Strategy) -> Strategy:
    """The strategy with the ranks of a node, which the cluster knows where it does not say them."""
    if strategy.exchange == "hierarchical" and strategy.ranks_per_node == 1:
        return replace(strategy, ranks_per_node=cluster.devices_per_node)
    return strategy


def _measured_ratio(strategy: Strategy, calibration: Calibration | None) -> Strategy:
    """The strategy with the calibration's compression ratio, where there is one and the strategy gives none."""
    takes = "ratio" in strategy.description.option_values
    if calibration is None or not calibration.ratio or not takes or strategy.description.option("ratio"):
        return strategy
    return replace(strategy, options=(*strategy.options, ("ratio", calibration.ratio)))


def _describe(cluster: Cluster) -> dict[str, Any]:
    return {
        "device": cluster.device.name,
        "devices_per_node": cluster.devices_per_node,
        "num_nodes": cluster.num_nodes,
        "intra_link": cluster.intra_link.name,
        "network": cluster.network.name if cluster.num_nodes > 1 else "none",
    }
