"""What each piece of a step costs in seconds; who waits for whom is ``timeline``'s business.

Costs come from the catalogue by roofline and alpha-beta, or from a calibration where one is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from paceline.errors import UserError
from paceline.hardware.cluster import Cluster
from paceline.hardware.device import Device
from paceline.prediction.calibration import Calibration, Line
from paceline.prediction.compute import Seconds, layer_seconds, memory_rate, optimizer_seconds
from paceline.prediction.efficiency import Efficiency
from paceline.prediction.network import phase_cost
from paceline.strategy.buckets import BucketPlan
from paceline.strategy.compression import COMPRESSIONS, Compression
from paceline.strategy.exchange import Traffic
from paceline.strategy.formats import FP32, Level
from paceline.strategy.optimizer import OPTIMIZERS
from paceline.strategy.phase import Phase, busiest_sent
from paceline.strategy.strategy import Strategy
from paceline.workload.layers import Workload

Resource = Literal["compute", "memory bandwidth", "launch overhead", "network", "intra-node link", "codec"]
RESOURCES: tuple[Resource, ...] = ("compute", "memory bandwidth", "launch overhead", "network", "intra-node link", "codec")


@dataclass(frozen=True, slots=True)
class Bucket:
    """Gradients exchanged together: ``layers`` are those whose backward passes make them."""

    layers: tuple[int, ...]
    plan: BucketPlan
    traffic: Traffic

    @property
    def elements(self) -> int:
        """Elements of all its gradients."""
        return self.plan.elements

    @property
    def phases(self) -> tuple[Phase, ...]:
        """All its collectives, in order."""
        return self.traffic.phases


@dataclass(frozen=True, slots=True)
class Stage:
    """One piece of a bucket's exchange. ``lane`` is ``network`` or ``codec``."""

    name: str
    lane: Literal["network", "codec"]
    seconds: float
    resource: Resource


@dataclass(frozen=True, slots=True)
class ExchangeCost:
    """The stages of a bucket's exchange: some for the whole of it, and those of its chunks, which are pipelined.

    While one chunk is on the network the codec works on another, so with K seconds of codec and W of network
    in all, the chunks take ``max(K, W) + f min(K, W)``, where f is the share of the largest chunk: its own pieces follow each
    other. One chunk (f = 1) takes K + W. No cost that shrinks makes that longer.
    """

    before: tuple[Stage, ...]
    chunked: tuple[Stage, ...]
    after: tuple[Stage, ...]
    largest: float

    @property
    def stages(self) -> tuple[Stage, ...]:
        """All of them with the seconds that their resource is busy."""
        return self.before + self.chunked + self.after

    def busy(self, lane: str) -> float:
        """Seconds that a lane works."""
        return sum(stage.seconds for stage in self.stages if stage.lane == lane)

    def path(self) -> tuple[Stage, ...]:
        """The stages with the seconds that the exchange waits for them; they follow each other."""
        work = {lane: sum(x.seconds for x in self.chunked if x.lane == lane) for lane in ("codec", "network")}
        hidden = "codec" if work["network"] >= work["codec"] else "network"
        waited = (replace(x, seconds=x.seconds * self.largest) if x.lane == hidden else x for x in self.chunked)
        return (*self.before, *waited, *self.after)

    @property
    def seconds(self) -> float:
        """How long it takes."""
        return sum(stage.seconds for stage in self.path())


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Seconds of a step: per layer forward and backward (forward order), optimizer (memory, launches), buckets."""

    forward: Seconds
    backward: Seconds
    optimizer: tuple[float, float]
    exchanges: tuple[ExchangeCost, ...]


def plan_buckets(workload: Workload, strategy: Strategy, level: Level = "expected") -> tuple[Bucket, ...]:
    """What is exchanged in one step; nothing for one worker. ``level``: of lengths that depend on values."""
    if strategy.world_size == 1:
        return ()
    groups = strategy.groups(workload.parameters, workload.ready_order, level)
    return tuple(Bucket(tuple({p.layer for p in g.tensors}), g.plan, g.traffic) for g in groups)


def catalogue_costs(
    workload: Workload, cluster: Cluster, strategy: Strategy, buckets: tuple[Bucket, ...], efficiency: Efficiency
) -> StepCosts:
    """Costs from datasheet numbers. Raises UserError for a precision that the device does not have."""
    forward, backward = layer_seconds(workload, strategy.micro_batch_size, strategy.precision, cluster.device, efficiency)
    optimizer = optimizer_seconds(
        OPTIMIZERS[strategy.optimizer], workload.num_parameters, len(workload.parameters), cluster.device, efficiency
    )
    exchanges = tuple(_catalogue_exchange(bucket, cluster, strategy, efficiency) for bucket in buckets)
    return StepCosts(forward, backward, optimizer, exchanges)


def _catalogue_exchange(bucket: Bucket, cluster: Cluster, strategy: Strategy, efficiency: Efficiency) -> ExchangeCost:
    """Encode, collectives, decode; behind the first collective of the chunks what was received is added."""
    traffic, device = bucket.traffic, cluster.device
    calls = max([traffic.chunks, *(phase.rounds for phase in traffic.chunked if phase.pattern == "shift")])
    packed, dense = strategy.description, COMPRESSIONS["dense"]

    def network(phase: Phase) -> Stage:
        cost = phase_cost(phase, cluster, efficiency)
        return Stage(phase.name, "network", cost.seconds, cost.level)

    def codec(work: Literal["encode", "reduce", "decode"]) -> Iterator[Stage]:
        parts = [(packed, getattr(traffic.compressed, work)), (dense, getattr(traffic.dense, work))]
        seconds = sum(codec_seconds(one, work, count, device, efficiency) for one, count in parts)
        if seconds:
            yield Stage(work, "codec", calls * efficiency.launch_s[device.kind] + seconds, "codec")

    before: list[Stage] = []
    for phase in traffic.before:
        before.append(network(phase))
        if traffic.inner.reduce and phase.name == "inner_reduce":
            added = codec_seconds(dense, "reduce", traffic.inner.reduce, device, efficiency)
            before.append(Stage("inner_add", "codec", efficiency.launch_s[device.kind] + added, "codec"))
    chunked = _in_order(traffic, network, codec)
    return ExchangeCost(tuple(before), chunked, tuple(map(network, traffic.after)), traffic.largest)


def _in_order(
    traffic: Traffic,
    network: Callable[[Phase], Stage],
    codec: Callable[[Literal["encode", "reduce", "decode"]], Iterable[Stage]],
) -> tuple[Stage, ...]:
    """The stages of the chunks: what is received in the first collective that carries data is added behind it."""
    stages = list(codec("encode"))
    added = False
    for phase in traffic.chunked:
        stages.append(network(phase))
        if not added and phase.name != "sizes" and not phase.ring:
            stages += codec("reduce")
            added = True
    return (*stages, *codec("decode"))


def codec_seconds(
    compression: Compression, work: Literal["encode", "reduce", "decode"], count: int, device: Device, efficiency: Efficiency
) -> float:
    """Seconds of a codec over ``count`` elements on one device.

    It streams through memory; on a CPU the cores' rate (``strategy/rates.py``) may be what limits it.
    """
    moved = compression.encode_bytes if work == "encode" else compression.decode_bytes
    seconds = moved * count / memory_rate(device, efficiency)
    if device.kind != "cpu":
        return seconds
    rate = compression.cpu_rate.encode if work == "encode" else compression.cpu_rate.decode
    return max(seconds, FP32.push_bytes(count) / (rate.value * efficiency.codec_cores))


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
        tuple(_calibrated_exchange(bucket, cost, calibration) for bucket, cost in zip(buckets, base.exchanges, strict=True)),
    )


def _calibrated_exchange(bucket: Bucket, base: ExchangeCost, calibration: Calibration) -> ExchangeCost:
    """The stages with measured lines, the fixed part of each once a chunk.

    Even a dense gradient is divided by the number of workers and checked. Where exchange and backward pass share their cores,
    codec and network share them too, and nothing is pipelined.
    """
    traffic, chunks = bucket.traffic, max(1, bucket.traffic.chunks)
    levels = {stage.name: stage.resource for stage in base.stages}

    def line(cost: Line, size: float, times: int = chunks) -> float:
        return times * cost.fixed_s + cost.per_unit_s * size

    def network(phase: Phase, times: int = chunks) -> Stage:
        measured = calibration.allreduce if phase.ring else calibration.direct
        return Stage(phase.name, "network", line(measured, busiest_sent([phase]), times), levels[phase.name])

    def codec(work: Literal["encode", "reduce", "decode"]) -> Iterator[Stage]:
        added = traffic.compressed.reduce + traffic.dense.reduce + traffic.inner.reduce
        size = added if work == "reduce" else bucket.elements
        cost: Line = getattr(calibration, work)
        yield Stage(work, "codec", line(cost, size), "codec")

    before, after = (tuple(network(phase, 1) for phase in some) for some in (traffic.before, traffic.after))
    return ExchangeCost(before, _in_order(traffic, network, codec), after, traffic.largest if calibration.overlap else 1.0)
