"""Step of workers that are groups of devices: each worker trains by itself, and exchanges pseudo-gradients with the others.

A worker's own step is that of its devices alone, with any sharding. A round adds the outer step and the exchange
between the workers. A step is the mean over the round:

``step = own + (outer step + sum of max(0, exchange of a fragment - delay x own)) / H``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from paceline.array_types import Array
from paceline.hardware.cluster import Cluster
from paceline.prediction.exchange.exchange_plan import ExchangePlan, exchange_plan
from paceline.prediction.exchange.exchange_seconds import ExchangeSeconds, exchange_seconds, priced
from paceline.prediction.exchange.group_view import group_view
from paceline.prediction.exchange.local_steps import local_bytes, outer_seconds
from paceline.prediction.exchange.residual_memory import on_host, residual_bytes
from paceline.prediction.passes.compute import Resource, Seconds
from paceline.prediction.step.step import Step
from paceline.prediction.step.step_model import PassTimes, StepModel, WholeStep
from paceline.prediction.step.waits import BETWEEN, LANE, wait
from paceline.record import Event
from paceline.strategy.strategy import Strategy
from paceline.workload.table import Workload

OUTER_STEP = "outer step"


@dataclass(frozen=True)
class WorkerStep(Step):
    """Mean step of a round of local steps, of workers with several devices.

    Attributes:
        own: step of one worker's devices alone.
        exchange: exchange of a whole round between the workers.
        outer: seconds of an outer step by memory traffic and by launches, as a mean over the steps.
        hidden_s: seconds of steps that each fragment's exchange overlaps.
        lost: share of the overlapped time that is lost because both share the device.
    """

    own: WholeStep
    workload: Workload
    cluster: Cluster
    strategy: Strategy
    exchange: ExchangeSeconds
    outer: tuple[float, float]
    hidden_s: float
    lost: float

    @property
    def _waits(self) -> Array:
        """Seconds of a round that the workers wait for each piece of the exchange, (pieces,)."""
        x = self.exchange
        share = np.maximum(0.0, x.buckets - self.hidden_s) / np.maximum(x.buckets, 1e-300)
        waits: Array = x.waited * share[x.plan.bucket]
        return waits

    @cached_property
    def between_s(self) -> float:
        """Seconds that a step waits for the exchange between workers."""
        overlapped = float(np.minimum(self.exchange.buckets, self.hidden_s).sum())
        return (float(self._waits.sum()) + self.lost * overlapped) / self.strategy.sync_every

    @property
    def seconds(self) -> float:
        """Seconds of the step."""
        return self.own.seconds + sum(self.outer) + self.between_s

    @cached_property
    def exposed(self) -> Mapping[Resource, float]:
        """Seconds by the resource that the step waits for. They sum to the step."""
        spent, x, every = dict(self.own.exposed), self.exchange, self.strategy.sync_every
        waits, codec = self._waits / every, x.plan.codec
        lost = self.between_s - float(waits.sum())
        spent["memory bandwidth"] += self.outer[0]
        spent["launch overhead"] += self.outer[1]
        spent["codec"] += float(waits[codec].sum())
        spent["network"] += float(waits[~codec & x.network].sum()) + lost
        spent["intra-node link"] += float(waits[~codec & ~x.network].sum())
        return spent

    @property
    def waited_s(self) -> float:
        """Seconds that the step waits for exchanges, within the workers and between them."""
        return self.own.waited_s + self.between_s

    @property
    def feed_s(self) -> float:
        """Seconds that the input pipeline needs for the samples of the step."""
        return self.own.feed_s

    @property
    def kernels(self) -> tuple[Seconds, Seconds]:
        """Seconds of the kernels of the forward and of the backward pass, by layer."""
        return self.own.kernels

    @property
    def wire_bytes(self) -> int:
        """Bytes that a device sends within its worker and between workers, as a mean over the steps."""
        return self.own.wire_bytes + self.strategy.local.per_step(sent_bytes(self.exchange.plan))

    @property
    def dense_wire_bytes(self) -> int:
        """Bytes that the same device sends without compression."""
        if not self.strategy.gradient_exchange.compression.compresses:
            return self.wire_bytes
        plain = exchange_plan(self.workload, self.strategy.uncompressed(), self.cluster.places)
        return self.own.wire_bytes + self.strategy.local.per_step(sent_bytes(plain))

    def busy_s(self, lane: Literal["network", "codec"]) -> float:
        """Return the seconds that a lane is busy."""
        of_lane = self.exchange.plan.codec == (lane == "codec")
        return self.own.busy_s(lane) + float(self.exchange.pieces[of_lane].sum()) / self.strategy.sync_every

    def memory(self) -> dict[str, float]:
        """Return bytes by purpose on one device."""
        return {**self.own.memory(), **self.between_bytes}

    @property
    def between_bytes(self) -> dict[str, float]:
        """Bytes of the anchor, the outer momentum, a pseudo-gradient, residuals and buffers, of a device's part of them."""
        plan, strategy = self.exchange.plan, self.strategy
        kept, copies = residual_bytes(strategy, self.workload.num_parameters, plan.elements.tolist())
        feedback = copies if on_host(strategy.gradient_exchange) else kept + copies
        parts = {
            **local_bytes(self.workload, strategy, plan),
            "error feedback": feedback,
            "codec buffers": float(plan.codec_bytes),
        }
        return {name: size / strategy.worker_devices for name, size in parts.items()}

    def seconds_with_links(self, between: float, inside: float) -> float:
        """Return the step's seconds with factors ``between`` and ``inside`` on collectives between nodes and inside them."""
        slower = replace(self, exchange=self.exchange.slower(between, inside))
        return self.own.seconds_with_links(between, inside) + sum(self.outer) + slower.between_s

    def events(self) -> tuple[Event, ...]:
        """Return the step as bars of a timeline: the worker's own step, the mean outer step, and the mean wait for others."""
        own, begin = self.own.events(), self.own.seconds
        outer = Event(name=OUTER_STEP, lane="compute", start_s=begin, duration_s=sum(self.outer))
        late = begin + sum(self.outer)
        sent = (Event(name=BETWEEN, lane="network", start_s=late, duration_s=self.between_s),) if self.between_s else ()
        waits = [event for event in own if event.lane == LANE]
        rest = [event for event in own if event.lane != LANE]
        return (*waits, *((wait(BETWEEN, late, self.between_s),) if self.between_s else ()), *rest, outer, *sent)


def worker_step(model: StepModel, cluster: Cluster, strategy: Strategy, passes: PassTimes | None = None) -> WorkerStep:
    """Return the step of workers with several devices.

    Raises:
        UserError: as ``StepModel.step``; workers that nodes' boundaries cut unevenly.
    """
    view, alone = one_worker(cluster, strategy)
    each = tuple(factor for factor in model.worker_times for _ in range(strategy.worker_devices))
    every = replace(model, workers=strategy.world_size, worker_times=each)
    own = every.step(view, alone.settled(model.workload, view), passes)
    exchange = exchange_seconds(model.plan(cluster, strategy), cluster, model.constants)
    exchange = without_gathers(exchange)
    memory_s, launch_s = outer_seconds(model.workload, strategy, cluster.device, model.constants)
    if model.free:
        exchange = exchange.without(model.free)
        memory_s = 0.0 if "memory bandwidth" in model.free else memory_s
        launch_s = 0.0 if "launch overhead" in model.free else launch_s
    hidden_s = strategy.local.sync_delay * own.seconds if model.overlap else 0.0
    lost = model.constants.overlap_penalty
    return WorkerStep(own, model.workload, cluster, strategy, exchange, (memory_s, launch_s), hidden_s, lost)


def one_worker(cluster: Cluster, strategy: Strategy) -> tuple[Cluster, Strategy]:
    """Return the devices of one worker, and its strategy, which exchanges dense gradients in every step.

    Raises:
        UserError: nodes' boundaries cut the workers unevenly.
    """
    devices, mesh = strategy.worker_devices, strategy.parallelism
    view = group_view(cluster, devices, 1, "worker_devices")
    shared = mesh.shard_devices if mesh.sharding.weights and mesh.shard_devices < devices else 0
    alone = strategy.changed(
        sync_every=1,
        world_size=devices,
        global_batch_size=strategy.global_batch_size // strategy.worker_count,
        compression="dense",
        exchange="",
        shard_devices=shared,
    )
    return view, alone


def without_gathers(exchange: ExchangeSeconds) -> ExchangeSeconds:
    """Return the exchange without the all-gathers of weights, which belong to each worker's own step."""
    plan = replace(exchange.plan, gathers=(), gathering=tuple(() for _ in exchange.plan.gathering))
    none = np.zeros((0, plan.count))
    return priced(plan, exchange.pieces, exchange.network, none, none.astype(np.bool_))


def sent_bytes(plan: ExchangePlan, apart: int = 0) -> int:
    """Return the bytes that the rank that sends most sends in a round.

    Args:
        apart: count only the collectives among ranks that are this far apart: those between workers of so many devices.
    """
    often = np.bincount(plan.partition.index, minlength=len(plan.traffic)).tolist()
    sent = np.zeros(1, dtype=np.int64)
    for times, traffic in zip(often, plan.traffic, strict=True):
        for phase in traffic.phases:
            if not apart or phase.stride == apart:
                sent = sent + times * phase.sent_by_rank()
    return int(np.max(sent))
