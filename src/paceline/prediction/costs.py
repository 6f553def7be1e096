"""What each piece of a step costs in seconds; who waits for whom is ``timeline``'s business.

Costs come from the catalogue by roofline and alpha-beta, or from a calibration where one is given.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from paceline.errors import UserError
from paceline.hardware.cluster import Cluster
from paceline.prediction.calibration import Calibration
from paceline.prediction.compute import Seconds, layer_seconds, memory_rate, optimizer_seconds, work
from paceline.prediction.efficiency import Efficiency
from paceline.prediction.network import phase_cost
from paceline.strategy.compression import FP32
from paceline.strategy.exchange import BucketPlan, Phase, busiest_sent, plan_bucket, shard_bounds
from paceline.strategy.optimizer import OPTIMIZERS
from paceline.strategy.strategy import Strategy
from paceline.workload.layers import Parameter, Workload

Resource = Literal["compute", "memory bandwidth", "launch overhead", "network", "intra-node link", "codec"]
RESOURCES: tuple[Resource, ...] = ("compute", "memory bandwidth", "launch overhead", "network", "intra-node link", "codec")


@dataclass(frozen=True, slots=True)
class Bucket:
    """One of DDP's buckets: ``layers`` are those whose backward passes make its gradients."""

    layers: tuple[int, ...]
    plan: BucketPlan
    phases: tuple[Phase, ...]

    @property
    def elements(self) -> int:
        """Elements of all its gradients."""
        return self.plan.elements


@dataclass(frozen=True, slots=True)
class Stage:
    """One piece of a bucket's exchange. ``lane`` is ``network`` or ``codec``."""

    name: str
    lane: Literal["network", "codec"]
    seconds: float
    resource: Resource


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Seconds of a step: per layer forward and backward (forward order), optimizer (memory, launches), buckets."""

    forward: Seconds
    backward: Seconds
    optimizer: tuple[float, float]
    exchanges: tuple[tuple[Stage, ...], ...]


def plan_buckets(workload: Workload, strategy: Strategy) -> tuple[Bucket, ...]:
    """The buckets of one step; none for one worker, where nothing is exchanged."""
    if strategy.world_size == 1:
        return ()
    dense = set(strategy.description.dense(workload.parameters))

    def bucket(members: list[Parameter], phases: list[Phase]) -> Bucket:
        plan = plan_bucket(members, strategy.description, dense)
        return Bucket(tuple({p.layer for p in members}), plan, tuple(phases))

    return tuple(bucket(*x) for x in strategy.exchange_phases(workload.parameters, workload.ready_order))


def catalogue_costs(
    workload: Workload, cluster: Cluster, strategy: Strategy, buckets: tuple[Bucket, ...], efficiency: Efficiency
) -> StepCosts:
    """Costs from datasheet numbers. Raises UserError for a precision that the device does not have."""
    forward, backward = (
        layer_seconds(todo, cluster.device, strategy.precision, efficiency)
        for todo in work(workload, strategy.micro_batch_size, strategy.precision)
    )
    optimizer = optimizer_seconds(
        OPTIMIZERS[strategy.optimizer], workload.num_parameters, len(workload.parameters), cluster.device, efficiency
    )
    exchanges = tuple(tuple(_catalogue_stages(bucket, cluster, strategy, efficiency)) for bucket in buckets)
    return StepCosts(forward, backward, optimizer, exchanges)


def _catalogue_stages(bucket: Bucket, cluster: Cluster, strategy: Strategy, efficiency: Efficiency) -> Iterator[Stage]:
    """Encode, collectives, decode; between push and pull the owner adds what it received. Codecs run at memory bandwidth."""
    rate, compression = memory_rate(cluster.device, efficiency), strategy.description
    launch = efficiency.launch_s[cluster.device.kind]

    def codec(name: str, moved: float) -> Stage:
        return Stage(name, "codec", launch + moved / rate, "codec")

    if compression.encode_bytes:
        yield codec("encode", compression.encode_bytes * bucket.plan.compressed)
    for phase in bucket.phases:
        cost = phase_cost(phase, cluster, efficiency)
        yield Stage(phase.name, "network", cost.seconds, cost.level)
        if phase.name == "push":  # reads a message from every rank and writes fp32 sums, for the biggest shard
            owned = _owned(bucket, strategy)
            yield codec("reduce", max(phase.shards) * strategy.world_size + FP32.push_bytes(owned))
    if compression.decode_bytes:
        yield codec("decode", compression.decode_bytes * bucket.plan.compressed)


def _owned(bucket: Bucket, strategy: Strategy) -> int:
    """Elements of the bucket that the rank with the biggest shard owns."""
    streams = (bucket.plan.compressed, bucket.plan.dense)
    return sum(shard_bounds(count, strategy.exchange, strategy.world_size)[0][1] for count in streams)


def calibrated_costs(
    base: StepCosts, workload: Workload, strategy: Strategy, buckets: tuple[Bucket, ...], calibration: Calibration
) -> StepCosts:
    """Costs from measurements: the catalogue's shares of the layers, scaled so that the totals are the measured ones.

    Forward and backward grow in proportion to the micro batch where it differs from the calibration's.

    Raises:
        UserError: the calibration is of another workload or compression.
    """
    for name, given, wanted in (
        ("workload", calibration.workload, workload.name),
        ("compression", calibration.compression, strategy.compression),
    ):
        if given != wanted:
            raise UserError(f"the calibration is of {name} {given!r}, not {wanted!r}", "calibrate again for this one")
    grown = strategy.micro_batch_size / calibration.micro_batch_size
    optimizer = sum(base.optimizer)
    return StepCosts(
        base.forward.scaled(calibration.forward_s * grown / base.forward.total.sum()),
        base.backward.scaled(calibration.backward_s * grown / base.backward.total.sum()),
        (base.optimizer[0] * calibration.optimizer_s / optimizer, base.optimizer[1] * calibration.optimizer_s / optimizer),
        tuple(
            tuple(_calibrated_stages(bucket, stages, strategy, calibration))
            for bucket, stages in zip(buckets, base.exchanges, strict=True)
        ),
    )


def _calibrated_stages(
    bucket: Bucket, stages: tuple[Stage, ...], strategy: Strategy, calibration: Calibration
) -> Iterator[Stage]:
    """The stages with measured lines; even a dense gradient is divided by the number of workers and checked."""
    levels = {stage.name: stage.resource for stage in stages}
    yield Stage("encode", "codec", calibration.encode(bucket.elements), "codec")
    for phase in bucket.phases:
        line = calibration.allreduce if phase.ring else calibration.direct
        yield Stage(phase.name, "network", line(busiest_sent([phase])), levels[phase.name])
        if phase.name == "push":
            yield Stage("reduce", "codec", calibration.reduce(_owned(bucket, strategy) * strategy.world_size), "codec")
    yield Stage("decode", "codec", calibration.decode(bucket.elements), "codec")
