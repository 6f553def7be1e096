"""``predict(workload, cluster, strategy)``: one training step before the hardware is there."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from paceline.calibration import constants as levels
from paceline.calibration.calibration import Calibration
from paceline.calibration.constants import TYPICAL, Efficiency
from paceline.calibration.held_out_error import held_out
from paceline.calibration.uncertainty import Z80, interval
from paceline.calibration.uncertainty import spread as spread_of
from paceline.errors import UserError
from paceline.hardware.cluster import Cluster
from paceline.prediction.assumptions import assumptions
from paceline.prediction.compute import layer_seconds
from paceline.prediction.correction import Correction
from paceline.prediction.costs import StepCosts, calibrated_costs, catalogue_costs
from paceline.prediction.exchange_plan import ExchangePlan, blocks, exchange_plan
from paceline.prediction.explanation import explanation
from paceline.prediction.lazy_tuple import lazy
from paceline.prediction.memory import memory_breakdown
from paceline.prediction.timeline import Pieces, Schedule, events, exposed_seconds, input_event, pieces, place, with_exchange
from paceline.record import Metrics
from paceline.strategy.formats import Level
from paceline.strategy.strategy import Strategy
from paceline.workload.table import Workload

CATALOGUE = (levels.LOW, levels.TYPICAL, levels.HIGH)
LENGTHS: tuple[Level, Level, Level] = ("high", "expected", "low")


@dataclass(frozen=True, kw_only=True)
class Prediction(Metrics):
    """A predicted step. The metrics are those of ``RunRecord``, so a measurement can be subtracted.

    Attributes:
        cluster: what it was predicted for, by name.
        memory: bytes on one device by purpose; they sum to ``memory_bytes``.
        fits: whether they fit the device's memory; ``missing_bytes``: how many of them do not.
        software: ``ordinary`` or ``tuned``, see ``Efficiency``.
        held_out_error: of such predictions on published runs, mean of |predicted - measured| / measured; None where none is
            of this kind.
        exposed: seconds of the step by the resource it waits for; they sum to ``step_time_s``, the largest is the
            ``bottleneck``.
        assumptions, timeline: worked out when they are read.
    """

    cluster: Mapping[str, Any] = field(default_factory=dict)
    memory: Mapping[str, float] = field(default_factory=dict)
    fits: bool = True
    missing_bytes: float = 0.0
    software: str = "ordinary"
    held_out_error: float | None = None
    exposed: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """A plain dict with ``schema`` and without the timeline (that goes to a trace file)."""
        return super(Prediction, replace(self, assumptions=tuple(self.assumptions), timeline=())).to_json()

    @property
    def headline(self) -> str:
        """That it does not fit, and by how much; empty where it fits."""
        return "" if self.fits else f"DOES NOT FIT: {self.missing_bytes / 2**30:,.4g} GiB are missing on each device."

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
    loader_samples_per_s: float = 0.0,
    efficiency: Efficiency = TYPICAL,
    efficiencies: tuple[Efficiency, Efficiency, Efficiency] | None = None,
) -> Prediction:
    """Predict one training step of ``workload`` on every device of ``cluster`` under ``strategy``.

    Args:
        calibration: measurements of this machine; they replace the catalogue where they speak.
        correction: what observed steps taught (``fit``); it is applied to the prediction without it.
        overlap: whether the exchange runs beside the backward pass; by default as calibrated, else yes, as in DDP.
        loader_samples_per_s: what the input pipeline delivers to all workers together; 0: it is not known and never waited for.
        efficiency: what the device and the links get of their best; ordinary software by default.
        efficiencies: low, typical, high in place of it; then ``low_s`` (everything high) and ``high_s`` are theirs, and no
            80 % interval.

    Raises:
        UserError: the strategy has another number of workers than the cluster has devices; the device lacks the
            precision; the calibration is of another workload or compression; a loader slower than nothing.
    """
    check_fits_together(cluster, strategy, loader_samples_per_s)
    given, cluster = cluster, cluster if correction is None else correction.cluster(cluster)
    strategy = strategy.settled(workload, cluster)
    planned = _measured_ratio(strategy, calibration)
    feed = strategy.global_batch_size / loader_samples_per_s if loader_samples_per_s else 0.0
    if overlap is None:
        overlap = calibration is None or calibration.overlap

    shared = strategy.parallelism.shares.weights

    def step(efficiency: Efficiency, level: Level) -> _Step:
        plan = exchange_plan(workload, planned, cluster.devices_per_node, level)
        factor = efficiency.seconds_of(middle)
        known = (passes[0].scaled(factor), passes[1].scaled(factor)) if factor else None
        costs = catalogue_costs(workload, cluster, strategy, plan, efficiency, known)
        if calibration is not None:
            plan = exchange_plan(workload, planned, cluster.devices_per_node, level, measured=True)
            costs = calibrated_costs(costs, workload, strategy, plan, calibration)
        parts = pieces(costs, strategy.parallelism.micro_batches, shared, feed if correction is None else 0.0)
        return _Step(plan, costs, parts, place(parts, overlap, shared))

    levels_of = efficiencies or (efficiency,) * 3
    middle = levels_of[1]
    passes = layer_seconds(workload, strategy.micro_batch_size, strategy.precision, cluster.device, middle)
    bounded = efficiencies is not None or calibration is not None or strategy.description.format.spread is not None
    low, typical, high = _levels(step, levels_of, bounded)
    plan, costs, parts, placed = typical.plan, typical.costs, typical.parts, typical.placed
    exposed = exposed_seconds(costs, parts, placed)
    memory = memory_breakdown(workload, strategy, plan, cluster.device)
    needed, available = sum(memory.values()), cluster.device.memory.value
    spread = 1.0 if calibration is None else 1 + calibration.spread
    wire = plan.wire_bytes
    plain = strategy.uncompressed()
    dense = wire if plain == strategy else exchange_plan(workload, plain, cluster.devices_per_node).wire_bytes
    low_s, high_s = high.placed.step / spread, low.placed.step * spread
    if efficiencies is None and calibration is None:
        named, sigmas = efficiency.seen, efficiency.sigmas
        conv = sum(one.plain_conv for one in passes) / (float(passes[0].total.sum()) + float(passes[1].total.sum()))
        work = sigmas.work(cluster.device.chip in named, efficiency.knows(workload.name), cluster.device.kind == "gpu", conv)
        ends = [placed.step, placed.step]
        if strategy.world_size > 1:
            links = (cluster.network, sigmas.network), (cluster.intra_link, sigmas.intra)
            off = [efficiency.link_sigma(link, sigma) for link, sigma in links]
            for end, sign in enumerate((-Z80, Z80)):
                exchange = costs.exchange.slower(*(math.exp(sign * one) for one in off))
                ends[end] = place(with_exchange(parts, exchange), overlap, shared).step
        own = spread_of(exposed, sigmas, work, cluster.num_nodes)
        least, most = interval(placed.step, (ends[0], ends[1]), own)
        low_s, high_s = low_s * least, high_s * most
    low_s = max(low_s, feed)
    waited = placed.update_start - parts.micro_steps * (parts.forward + parts.backward) + parts.after
    known = correction is not None and correction.knows(workload, cluster)
    missed = held_out(middle.level, cluster.num_nodes, known) if calibration is None else None
    made = Prediction(
        workload=workload.name,
        strategy=strategy.to_json(),
        step_time_s=placed.step,
        low_s=low_s,
        high_s=high_s,
        samples_per_s=strategy.global_batch_size / placed.step,
        compute_s=placed.step - waited,
        comm_s=costs.exchange.busy("network"),
        codec_s=costs.exchange.busy("codec"),
        exposed_comm_s=waited,
        wire_bytes_per_device=wire,
        compression_ratio=max(1.0, dense / wire) if wire else 1.0,
        memory_bytes=needed,
        bottleneck=max(exposed, key=lambda name: exposed[name]),
        assumptions=lazy(
            lambda: assumptions(workload, cluster, planned, calibration, needed, overlap, loader_samples_per_s, middle, missed)
        ),
        timeline=lazy(
            lambda: tuple(events(costs, parts, placed, [layer.name for layer in workload.layers], blocks(workload).names))
        ),
        cluster=_describe(cluster),
        memory=memory,
        fits=needed <= available,
        software=middle.level,
        held_out_error=None if missed is None else missed.mape,
        missing_bytes=max(0.0, needed - available),
        exposed={str(name): seconds for name, seconds in exposed.items()},
    )
    return made if correction is None else _fed(correction.applied(made, workload, given, strategy), feed)


def _fed(made: Prediction, feed: float) -> Prediction:
    """A corrected step that also waits for its samples, ``feed`` seconds a step: observed steps say nothing of that loader."""
    if not feed:
        return made
    wait = max(0.0, feed - made.step_time_s)
    step = made.step_time_s + wait
    return replace(
        made,
        step_time_s=step,
        low_s=max(made.low_s, feed),
        high_s=max(made.high_s, feed),
        samples_per_s=made.samples_per_s * made.step_time_s / step,
        compute_s=made.compute_s + wait,
        exposed={**made.exposed, "input pipeline": wait},
        bottleneck="input pipeline" if wait > max(made.exposed.values()) else made.bottleneck,
        timeline=lazy(lambda: (*made.timeline, input_event(feed))),
    )


def _levels(
    step: Callable[[Efficiency, Level], _Step], efficiencies: tuple[Efficiency, Efficiency, Efficiency], bounded: bool
) -> tuple[_Step, _Step, _Step]:
    """The step at its slowest, as expected and at its fastest; the same thrice where nothing bounds it."""
    low, typical, high = zip(efficiencies, LENGTHS, strict=True)
    middle = step(*typical)
    return (step(*low), middle, step(*high)) if bounded else (middle, middle, middle)


@dataclass(frozen=True, slots=True)
class _Step:
    plan: ExchangePlan
    costs: StepCosts
    parts: Pieces
    placed: Schedule


def check_fits_together(cluster: Cluster, strategy: Strategy, loader_samples_per_s: float = 0.0) -> None:
    """Refuse a strategy with another number of workers than the cluster has devices, and an impossible loader."""
    if strategy.world_size != cluster.world_size:
        raise UserError(
            f"the strategy has {strategy.world_size} workers and the cluster {cluster.world_size} devices",
            "give both the same number",
        )
    if not 0 <= loader_samples_per_s < float("inf"):
        raise UserError(f"a loader of {loader_samples_per_s:g} samples/s", "give a positive number, or 0 where it is not known")


def _measured_ratio(strategy: Strategy, calibration: Calibration | None) -> Strategy:
    """The strategy with the calibration's compression ratio, where there is one and the strategy gives none."""
    takes = "ratio" in strategy.description.option_values
    if calibration is None or not calibration.ratio or not takes or strategy.description.option("ratio"):
        return strategy
    return strategy.changed(options={**dict(strategy.gradient_exchange.options), "ratio": calibration.ratio})


def _describe(cluster: Cluster) -> dict[str, Any]:
    return {
        "device": cluster.device.name,
        "devices_per_node": cluster.devices_per_node,
        "num_nodes": cluster.num_nodes,
        "intra_link": cluster.intra_link.name,
        "network": cluster.network.name if cluster.num_nodes > 1 else "none",
    }
