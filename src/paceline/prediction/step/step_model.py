"""Model of a step: its exchange, the cost of each piece, and the schedule.

Every prediction of a step uses it: for one strategy (``StepModel.step``), for very many (``batch``), and for a worker that
waits for no other (``StepModel.passes``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from paceline.array_types import Array
from paceline.calibration.calibration import Calibration
from paceline.calibration.constants import Efficiency
from paceline.hardware.cluster import Cluster
from paceline.hardware.device import Device
from paceline.hardware.hosts import HostShare, host_share
from paceline.hardware.precision import BYTES_PER_ELEMENT
from paceline.prediction.exchange.exchange_plan import BucketSizes, ExchangePlan, exchange_plan
from paceline.prediction.exchange.exchange_seconds import ExchangeSeconds, exchange_seconds
from paceline.prediction.exchange.local_steps import beside_share, outer_seconds
from paceline.prediction.exchange.matrix_exchange import matrix_exchange_seconds
from paceline.prediction.exchange.table_exchange import wire_bytes, with_table_exchange
from paceline.prediction.passes.activation_offload import blocks_on_host, with_copies
from paceline.prediction.passes.compute import Resource, Seconds, layer_seconds
from paceline.prediction.passes.cut_loss import with_cut_loss
from paceline.prediction.passes.host import hook_seconds, host_excess, host_launches, host_seconds
from paceline.prediction.passes.offload import check_offload, check_paged, copy_rate, paging_seconds
from paceline.prediction.passes.recompute import recomputed
from paceline.prediction.step.costs import StepCosts, calibrated_costs, run_again, slowest_of, update_seconds
from paceline.prediction.step.expert_replicas import ExpertReplicas, together
from paceline.prediction.step.exposed import exposed_seconds, waits_within
from paceline.prediction.step.memory import fixed_bytes, loss_of, memory_breakdown, numbers_of
from paceline.prediction.step.optimizer_state import is_paged
from paceline.prediction.step.step import Step
from paceline.prediction.step.timeline import (
    Schedule,
    StepDurations,
    columns,
    events,
    pieces,
    schedule_step,
    sums,
    with_exchange,
)
from paceline.prediction.step.waits import OVERLAP_LOSS, wait, waits
from paceline.record import Event
from paceline.strategy.compression.formats import PayloadBound
from paceline.strategy.frameworks import ORDINARY, Framework
from paceline.strategy.recompute import Recompute
from paceline.strategy.strategy import Strategy
from paceline.workload.layers import Numbers
from paceline.workload.table import Workload

PassTimes = tuple[Seconds, Seconds]
"""Seconds of the forward and of the backward pass of one micro step, by layer."""


@dataclass(frozen=True)
class WholeStep(Step):
    """Step of an undivided network: its costs, the resulting durations, and its schedule."""

    workload: Workload
    strategy: Strategy
    cluster: Cluster
    costs: StepCosts
    pieces: StepDurations
    schedule: Schedule
    overlap: bool
    shared: bool
    experts: ExpertReplicas | None = None
    framework: Framework = ORDINARY

    @property
    def plan(self) -> ExchangePlan:
        """Plan of the exchange."""
        return self.costs.exchange.plan

    @property
    def seconds(self) -> float:
        """Seconds of the step."""
        return float(self.schedule.step)

    @property
    def passes_s(self) -> float:
        """Seconds of all passes, including each micro batch's wait for shared weights and gradients."""
        return float(self.pieces.micro_steps * self.schedule.micro_step)

    @cached_property
    def exposed(self) -> dict[Resource, float]:
        """Seconds by the resource that the step waits for; they sum to the step."""
        return exposed_seconds(self.costs, self.pieces, self.schedule)

    @property
    def waited_s(self) -> float:
        """Seconds that the step waits for the exchange, and within the passes for vectors of divided tables."""
        p = self.pieces
        return float(self.schedule.update_start - p.micro_steps * (p.forward + p.backward) + p.after) + sum(self._within_s)

    @cached_property
    def _within_s(self) -> tuple[float, float]:
        return waits_within(self.costs, self.pieces)

    @property
    def feed_s(self) -> float:
        """Seconds that the input pipeline needs for the samples of the step."""
        return float(self.pieces.feed)

    @property
    def kernels(self) -> tuple[Seconds, Seconds]:
        """Seconds of the kernels of the forward and of the backward pass, by layer."""
        return self.costs.forward, self.costs.backward

    def busy_s(self, lane: Literal["network", "codec"]) -> float:
        """Return the seconds that a lane is busy."""
        own = self.costs.exchange.busy(lane)
        return own if lane == "codec" else own + sum(self._within_s)

    @property
    def wire_bytes(self) -> int:
        """Bytes sent by the device that sends most."""
        return self.plan.wire_bytes + wire_bytes(self.workload.tables, self.strategy)

    @property
    def dense_wire_bytes(self) -> int:
        """Bytes sent without compression."""
        if not self.strategy.gradient_exchange.compression.compresses:
            return self.wire_bytes
        own = exchange_plan(self.workload, self.strategy.uncompressed(), self.cluster.places).wire_bytes
        own += wire_bytes(self.workload.tables, self.strategy)
        if self.experts is None:
            return own
        return own + replace(self.experts, strategy=self.experts.strategy.uncompressed()).plan().wire_bytes

    def memory(self) -> dict[str, float]:
        """Return bytes by purpose on one device."""
        return self._memory(divided=False)

    def memory_of_part(self) -> dict[str, float]:
        """Return bytes by purpose on one device, if the network is one device's part of a larger one."""
        return self._memory(divided=True)

    def _memory(self, divided: bool) -> dict[str, float]:
        if self.experts is None:
            return memory_breakdown(self.workload, self.strategy, self.plan, self.cluster, divided, framework=self.framework)
        plan = exchange_plan(self.workload, self.strategy, self.cluster.places)
        sizes, of_experts = (
            memory_breakdown(self.workload, self.strategy, plan, self.cluster, divided=True, framework=self.framework),
            self.experts.fixed_bytes(),
        )
        return {name: size + of_experts.get(name, 0.0) for name, size in sizes.items()}

    def seconds_with_links(self, between: float, inside: float) -> float:
        """Return the seconds with these factors on the network between nodes and on the link inside them."""
        parts = with_exchange(self.pieces, self.costs.exchange.slower(between, inside))
        step = float(schedule_step(parts, self.overlap, self.shared).step)
        if self.workload.tables is None:
            return step
        near, far = self._within_s
        return step + near * (inside - 1) + far * (between - 1)

    def events(self) -> tuple[Event, ...]:
        """Return the step as bars, including its waits."""
        names = [layer.name for layer in self.workload.layers]
        again = recomputed(self.workload, self.strategy.parallelism.recomputation).names
        split = self.workload.tables is not None
        bars = tuple(events(self.costs, self.pieces, self.schedule, names, again, split))
        loss = float(self.schedule.penalty)
        lost = wait(OVERLAP_LOSS, float(self.schedule.update_start) - loss, loss)
        return (*waits(bars, self.seconds, (lost,) if loss else ()), *bars)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepModel:
    """Model of the steps of one workload. Strategies are settled (``Strategy.settled``).

    Attributes:
        constants: reached shares of the peak rates of device and links.
        calibration: measurements that replace the catalogue.
        overlap: whether the exchange overlaps the passes.
        loader: samples/s of the input pipeline, for all workers together; 0: never a limit.
        free: resources that cost no time.
        level: bound of payloads whose length depends on their values.
        workers: workers that compute at once and wait for the slowest; 0 means those of the strategy.
        worker_times: time of a step of each worker relative to a usual one; those that are not given take 1.
        experts: parameters of the layers that ``workload`` leaves out, with other replicas.
        host_devices: devices of a node, which share its host; 0: those of the cluster.
        numbers: numbers that the network computes on; None: those of the strategy.
    """

    workload: Workload
    constants: Efficiency
    calibration: Calibration | None = None
    overlap: bool = True
    loader: float = 0.0
    free: frozenset[Resource] = frozenset()
    level: PayloadBound = "expected"
    workers: int = 0
    worker_times: tuple[float, ...] = ()
    experts: ExpertReplicas | None = None
    host_devices: int = 0
    numbers: Numbers | None = None

    def step(self, cluster: Cluster, strategy: Strategy, passes: PassTimes | None = None) -> WholeStep:
        """Return the step of a strategy.

        Args:
            passes: passes by the catalogue, if already known.

        Raises:
            UserError: a precision that the device lacks; a calibration of another workload or compression.
        """
        costs = self.costs(cluster, strategy, passes)
        shared = strategy.parallelism.sharding.weights
        at = columns(costs.exchange.plan, len(self.workload.layers), shared)
        durations = pieces(
            (sums(costs.forward.total) * costs.slowest)[at],
            (sums(costs.backward.total + costs.again) * costs.slowest)[at],
            costs.exchange,
            shared,
            strategy.parallelism.micro_batches,
            costs.update,
            self.feed_s(strategy),
            costs.overlap_penalty,
            beside_share(strategy, self.overlap),
        )
        schedule = schedule_step(durations, self.overlap, shared)
        parts = (costs, durations, schedule, self.overlap, shared, self.experts, self.constants.framework)
        return WholeStep(self.workload, strategy, cluster, *parts)

    def costs(self, cluster: Cluster, strategy: Strategy, passes: PassTimes | None = None) -> StepCosts:
        """Return seconds of every piece, by the catalogue or by the calibration. Args and errors as ``step``."""
        check_offload(strategy.parallelism.offload, cluster.device)
        forward, backward = self.waiting(passes or self.passes(cluster.device, strategy), cluster, strategy)
        recomputation = strategy.parallelism.recomputation
        check_paged(strategy, cluster.device)
        again, again_share = run_again(self.workload, recomputation, forward.repeated)
        exchange = self.exchange(cluster, strategy)
        beside = float((backward.total + again).sum())
        slow, longest = self._slowest(strategy)
        update, hosted = self._update_seconds(cluster, strategy, exchange.plan, beside * slow)
        update, hosted = (update[0] * longest, update[1] * longest, update[2] * longest), hosted * longest
        costs = StepCosts(
            forward,
            backward,
            again,
            again_share,
            slow,
            update,
            exchange,
            self.constants.overlap_penalty,
            hosted,
            matrix_exchange_seconds(self.workload, strategy, cluster, self.constants),
        )
        if self.calibration is not None:
            plan = self.plan(cluster, strategy, measured=True)
            costs = calibrated_costs(costs, self.workload, strategy, plan, self.calibration)
        if strategy.sync_every > 1:
            outer = outer_seconds(self.workload, strategy, cluster.device, self.constants)
            memory, launches, products = costs.optimizer
            costs = replace(costs, optimizer=(memory + outer[0], launches + outer[1], products))
        return self._without_free(costs, recomputation) if self.free else costs

    def _slowest(self, strategy: Strategy) -> tuple[float, float]:
        """Return the time of the passes of the slowest worker that a step waits for over the mean, and that of its update."""
        workers = self.workers or strategy.world_size
        return slowest_of(workers, self.worker_times, self.constants)

    def waiting(self, passes: PassTimes, cluster: Cluster, strategy: Strategy) -> PassTimes:
        """Return the passes including their waits for the host, for its copies and for vectors of divided tables."""
        hooks = hook_seconds(self.workload, strategy, self.constants)
        passes, tables = self.launched(passes, cluster.device, strategy.precision, hooks), self.workload.tables
        if tables is not None:
            passes = with_table_exchange(passes, tables, cluster, strategy, self.constants)
            if free := self.free & {"network", "intra-node link"}:
                passes = passes[0].without(free), passes[1].without(free)
        return self._with_activation_copies(passes, cluster, strategy)

    def _with_activation_copies(self, passes: PassTimes, cluster: Cluster, strategy: Strategy) -> PassTimes:
        """Return the passes including their waits for activations in the host's memory."""
        mesh, share = strategy.parallelism, self.host_share(cluster, strategy)
        if mesh.host_activations is None or share is None or "host" in self.free:
            return passes
        numbers = self.numbers or numbers_of(strategy, self.constants.framework)
        blocks = blocks_on_host(self.workload, mesh.recomputation, mesh.host_activations, numbers, strategy.precision)
        forward, backward = (part.without(self.free) for part in passes) if self.free else passes
        again, _ = run_again(self.workload, mesh.recomputation, forward.total)
        copies = blocks.sizes * strategy.micro_batch_size / copy_rate(share, self.constants)
        return with_copies(passes, (forward.total, backward.total + again), copies, blocks)

    def host_share(self, cluster: Cluster, strategy: Strategy) -> HostShare | None:
        """Return the part of the host of each device; None if nothing is offloaded."""
        if not strategy.parallelism.offload:
            return None
        return host_share(cluster.device, self.host_devices or max(cluster.node_sizes))

    def launched(self, passes: PassTimes, device: Device, precision: str, hooks: Array | None = None) -> PassTimes:
        """Return the passes, at least as long as the host needs to launch their kernels (``host_excess``).

        Args:
            hooks: seconds of the host for hooks of modules, (2, layers).
        """
        host_s = host_seconds(device, self.constants)
        calls = host_launches(self.workload, self.constants, device, precision)
        if hooks is not None and host_s:
            calls = calls + hooks / host_s
        if not host_s or not calls.any():
            return passes
        forward, backward = passes
        more = host_excess(self.workload, self.constants, (forward.total, backward.total), calls, host_s)
        first, second = (replace(part, launch=part.launch + of) for part, of in zip((forward, backward), more, strict=True))
        return first, second

    def passes(self, device: Device, strategy: Strategy) -> PassTimes:
        """Return the layers' seconds by roofline. Raises UserError for a precision that the device lacks.

        Tuned software casts weights only in the first micro batch of a step (Megatron-Core, ``is_first_microbatch``).
        """
        casts = 1 / strategy.parallelism.micro_batches if self.constants.level == "tuned" else 1.0
        size, precision, order = strategy.micro_batch_size, strategy.precision, strategy.memory_format
        autocast = not strategy.weight_update.narrow
        forward, backward = layer_seconds(self.workload, size, precision, device, self.constants, casts, order, autocast)
        if not loss_of(strategy, self.constants.framework).again:
            return forward, backward
        return with_cut_loss(self.workload, forward, backward)

    def plan(self, cluster: Cluster, strategy: Strategy, measured: bool = False) -> ExchangePlan:
        """Return the exchange plan. ``measured``: True if a calibration prices it."""
        planned = measured_ratio(strategy, self.calibration)
        return exchange_plan(self.workload, planned, cluster.places, self.level, measured)

    def exchange(self, cluster: Cluster, strategy: Strategy) -> ExchangeSeconds:
        """Return the exchange by the catalogue; with local steps, the mean over steps."""
        own = exchange_seconds(self.plan(cluster, strategy), cluster, self.constants).spread(strategy.sync_every)
        share = self.host_share(cluster, strategy)
        if self.experts is None:
            return self._with_weight_copies(own, share)
        apart = exchange_seconds(self.experts.plan(self.level), self.experts.cluster, self.constants)
        return together(self._with_weight_copies(own, share), self._with_weight_copies(apart, share))

    def _with_weight_copies(self, exchange: ExchangeSeconds, share: HostShare | None) -> ExchangeSeconds:
        """Return the exchange with copies of a device's part of offloaded weights before each all-gather."""
        strategy = exchange.plan.strategy
        if share is None or not strategy.parallelism.offload.weights:
            return exchange
        moved = exchange.plan.gathered_bytes(BYTES_PER_ELEMENT[strategy.precision]) / strategy.parallelism.sharers
        seconds = np.array(moved, dtype=np.float64) / copy_rate(share, self.constants)
        return exchange.copied(seconds)

    def _update_seconds(
        self, cluster: Cluster, strategy: Strategy, plan: ExchangePlan, backward_s: float
    ) -> tuple[tuple[float, float, float], float]:
        """Return seconds of memory traffic, of launches and of products, and those that a step waits for the host. Copies to a
        host overlap ``backward_s`` of backward pass."""
        share, device = self.host_share(cluster, strategy), cluster.device
        memory, launch, products, host = update_seconds(
            self.workload, strategy, plan, device, self.constants, backward_s, share
        )
        host += self.paging_seconds(cluster, strategy, plan)
        if self.experts is None:
            return (memory, launch, products), host
        own = self.experts
        more = update_seconds(own.workload, own.strategy, plan, device, self.constants, backward_s, share)
        return (memory + more[0], launch + more[1], products + more[2]), host + more[3]

    def paging_seconds(self, cluster: Cluster, strategy: Strategy, plan: BucketSizes) -> float:
        """Return the seconds in which a step moves paged optimizer state; 0 for other optimizers, and if all of it fits."""
        if not is_paged(strategy):
            return 0.0
        sizes = memory_breakdown(self.workload, strategy, plan, cluster, framework=self.constants.framework)
        state = fixed_bytes(self.workload, strategy, plan, cluster.device)["optimizer state"]
        return paging_seconds(state - sizes["optimizer state"], cluster.device, self.constants)

    def feed_s(self, strategy: Strategy) -> float:
        """Return the seconds that the input pipeline needs for the samples of a step."""
        if not self.loader or "input pipeline" in self.free:
            return 0.0
        return strategy.global_batch_size / self.loader

    def _without_free(self, costs: StepCosts, recomputation: Recompute) -> StepCosts:
        """Return the costs with zero time for the free resources."""
        memory, launches, products = costs.optimizer
        forward = costs.forward.without(self.free)
        return replace(
            costs,
            forward=forward,
            backward=costs.backward.without(self.free),
            again=run_again(self.workload, recomputation, forward.repeated)[0],
            slowest=1.0 if "stragglers" in self.free else costs.slowest,
            optimizer=(
                0.0 if "memory bandwidth" in self.free else memory,
                0.0 if "launch overhead" in self.free else launches,
                0.0 if "compute" in self.free else products,
            ),
            exchange=costs.exchange.without(self.free),
            host=0.0 if "host" in self.free else costs.host,
            matrices=(
                0.0 if "intra-node link" in self.free else costs.matrices[0],
                0.0 if "network" in self.free else costs.matrices[1],
            ),
        )


def measured_ratio(strategy: Strategy, calibration: Calibration | None) -> Strategy:
    """Return the strategy with the calibration's compression ratio, if the strategy gives none."""
    takes = "ratio" in strategy.description.option_values
    if calibration is None or not calibration.ratio or not takes or strategy.description.option("ratio"):
        return strategy
    return strategy.changed(options={**dict(strategy.gradient_exchange.options), "ratio": calibration.ratio})
