"""Seconds of each piece of a step. ``timeline`` decides which piece waits for which.

Costs follow from the catalogue by the roofline and the alpha-beta model, or from a calibration if one is given.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from math import ceil
from statistics import NormalDist
from typing import Literal, get_args

import numpy as np

from paceline.array_types import Array, Bools
from paceline.calibration.calibration import Calibration
from paceline.calibration.constants import Efficiency
from paceline.errors import UserError
from paceline.hardware.catalogue import link
from paceline.hardware.cluster import Cluster
from paceline.hardware.device import Device
from paceline.hardware.precision import BYTES_PER_ELEMENT
from paceline.prediction.exchange.collective_time import phase_seconds
from paceline.prediction.exchange.exchange_plan import CodecOperation, CodecPass, ExchangePlan
from paceline.prediction.passes.compute import Seconds, memory_rate, optimizer_seconds
from paceline.prediction.passes.offload import copy_seconds, host_update_seconds
from paceline.prediction.passes.recompute import recomputed
from paceline.strategy.codec_place import ON_HOST, Fabric, fabric
from paceline.strategy.compression.compression import Compression
from paceline.strategy.compression.compressions import COMPRESSIONS
from paceline.strategy.compression.formats import FP32
from paceline.strategy.optimizer import OPTIMIZERS
from paceline.strategy.phase import Phase
from paceline.strategy.recompute import Recompute
from paceline.strategy.strategy import Strategy
from paceline.workload.table import Workload

Resource = Literal[
    "compute",
    "memory bandwidth",
    "launch overhead",
    "network",
    "intra-node link",
    "codec",
    "stragglers",
    "input pipeline",
    "pipeline send",
    "pipeline bubble",
    "expert imbalance",
]
RESOURCES: tuple[Resource, ...] = get_args(Resource)


PRICES = 64
"""Number of priced exchanges that a plan caches."""


@dataclass(frozen=True, slots=True)
class ExchangeStage:
    """One piece of a bucket's exchange. ``lane`` is ``network`` or ``codec``."""

    name: str
    lane: Literal["network", "codec"]
    seconds: float
    resource: Resource


@dataclass(frozen=True, slots=True)
class ExchangeCost:
    """Stages of a bucket's exchange. Some process the whole bucket. The others process its chunks in a pipeline.

    The codec works on one chunk while another chunk is on the network. Let K be the seconds of the codec, W those of the
    network, and f the share of the largest chunk, whose own pieces run one after the other. The chunks then take
    ``max(K, W) + f min(K, W)``. One chunk (f = 1) takes K + W. A lower cost never makes this longer.
    """

    before: tuple[ExchangeStage, ...]
    chunked: tuple[ExchangeStage, ...]
    after: tuple[ExchangeStage, ...]
    largest: float

    @property
    def stages(self) -> tuple[ExchangeStage, ...]:
        """All stages, each with the seconds that its resource is busy."""
        return self.before + self.chunked + self.after

    def busy(self, lane: str) -> float:
        """Return the seconds that a lane is busy."""
        return sum(stage.seconds for stage in self.stages if stage.lane == lane)

    def path(self) -> tuple[ExchangeStage, ...]:
        """Stages in order, each with the seconds that the exchange waits for it."""
        work = {lane: sum(x.seconds for x in self.chunked if x.lane == lane) for lane in ("codec", "network")}
        hidden = "codec" if work["network"] >= work["codec"] else "network"
        waited = (replace(x, seconds=x.seconds * self.largest) if x.lane == hidden else x for x in self.chunked)
        return (*self.before, *waited, *self.after)

    @property
    def seconds(self) -> float:
        """Seconds of the exchange."""
        return sum(stage.seconds for stage in self.path())


@dataclass(frozen=True, slots=True)
class ExchangeSeconds:
    """Seconds of all exchanges of a step.

    Attributes:
        pieces: seconds that each piece keeps its resource busy, (pieces,).
        network: whether that resource is the network between nodes, (pieces,).
        waited: seconds that the exchange waits for each piece (``ExchangeCost``), (pieces,).
        buckets: seconds that the exchange of each bucket takes, (buckets,).
        gathers: seconds of each all-gather of weights, (gathers, buckets).
        gathers_network: whether the network between nodes limits the all-gather, (gathers, buckets).
    """

    plan: ExchangePlan
    pieces: Array
    network: Bools
    waited: Array
    buckets: Array
    gathers: Array
    gathers_network: Bools

    def slower(self, between: float, inside: float) -> ExchangeSeconds:
        """Return the same exchange on slower links.

        ``between`` and ``inside`` are factors on the seconds of the network between nodes and of the link inside a node.
        """
        factors = np.where(self.network, between, inside)
        pieces = np.where(self.plan.codec, self.pieces, self.pieces * factors)
        gathers = self.gathers * np.where(self.gathers_network, between, inside)
        return priced(self.plan, pieces, self.network, gathers, self.gathers_network)

    def without(self, resources: Collection[Resource]) -> ExchangeSeconds:
        """Return the exchange if the given ones of ``network``, ``intra-node link`` and ``codec`` took no time."""
        if not {"network", "intra-node link", "codec"} & set(resources):
            return self
        near, far = ("intra-node link" in resources, "network" in resources)
        pieces = np.where(self.plan.codec, "codec" in resources, np.where(self.network, far, near))
        gathers = np.where(self.gathers_network, far, near)
        return priced(
            self.plan,
            np.where(pieces, 0.0, self.pieces),
            self.network,
            np.where(gathers, 0.0, self.gathers),
            self.gathers_network,
        )

    def spread(self, steps: int) -> ExchangeSeconds:
        """Return the mean over steps if the exchange takes place once in ``steps``."""
        if steps == 1:
            return self
        return priced(self.plan, self.pieces / steps, self.network, self.gathers / steps, self.gathers_network)

    def busy(self, lane: Literal["network", "codec"]) -> float:
        """Return the seconds that a lane is busy in one step."""
        times = self.plan.strategy.exchanges_per_step
        own = float(self.pieces[self.plan.codec == (lane == "codec")].sum())
        return times * (own + (float(self.gathers.sum()) if lane == "network" else 0.0))

    def cost(self, index: int) -> ExchangeCost:
        """Return the stages of one bucket."""
        parts: dict[str, list[ExchangeStage]] = {"before": [], "chunked": [], "after": []}
        for i in np.flatnonzero(self.plan.bucket == index):
            piece, codec = self.plan.pieces[i], bool(self.plan.codec[i])
            resource: Resource = "codec" if codec else "network" if self.network[i] else "intra-node link"
            lane: Literal["codec", "network"] = "codec" if codec else "network"
            parts[piece.part].append(ExchangeStage(piece.name, lane, float(self.pieces[i]), resource))
        before, chunked, after = (tuple(stages) for stages in parts.values())
        return ExchangeCost(before, chunked, after, float(self.plan.largest[index]))


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Seconds of a step on one device.

    Attributes:
        forward, backward: the passes of one micro step, per layer in forward order.
        again: recomputation before the backward pass of each layer, (layers,).
        again_share: recomputed share of each layer's forward pass, 0 or 1, (layers,).
        slowest: time of the slowest worker divided by the mean time of all workers, at least 1.
        optimizer: seconds of memory traffic and of kernel launches in one step.
        overlap_penalty: share of the time that is lost while compute and exchange both run.
    """

    forward: Seconds
    backward: Seconds
    again: Array
    again_share: Array
    slowest: float
    optimizer: tuple[float, float]
    exchange: ExchangeSeconds
    overlap_penalty: float = 0.0


def run_again(workload: Workload, choice: Recompute, forward: Array) -> tuple[Array, Array]:
    """Return seconds of recomputation before each layer's backward pass, and which layers are recomputed, both (layers,).

    Each part is recomputed as a whole, before the backward pass of its last layer."""
    plan = recomputed(workload, choice)
    again = np.zeros_like(forward)
    np.add.at(again, plan.before, plan.again * forward)
    return again, plan.again


def slowest(workers: int, efficiency: Efficiency) -> float:
    """Return the time of the slowest of N workers over the mean: 1 + s times the expected maximum of N normal values (Blom
    1958)."""
    if workers == 1 or not efficiency.straggler_spread:
        return 1.0
    return 1 + efficiency.straggler_spread * NormalDist().inv_cdf((workers - 0.375) / (workers + 0.25))


def update_seconds(
    workload: Workload,
    strategy: Strategy,
    plan: ExchangePlan,
    device: Device,
    efficiency: Efficiency,
    backward_s: float = 0.0,
) -> tuple[float, float]:
    """Return seconds of memory traffic and of kernel launches of the optimizer on one worker or on its host.

    The worker updates its shard of the weights: a part of every tensor under FSDP 2, whole tensors under ZeRO-1. A host's
    copies of gradients overlap a backward pass of ``backward_s`` seconds."""
    mesh = strategy.parallelism
    level, workers = mesh.sharding, mesh.sharers if mesh.sharding.optimizer else 1
    tensors = ceil(len(workload.parameters) / (1 if level.weights else workers))
    own = ceil(workload.num_parameters / workers)
    if mesh.offload:
        optimizer, width = OPTIMIZERS[strategy.optimizer], BYTES_PER_ELEMENT[strategy.precision]
        times = strategy.exchanges_per_step
        return host_update_seconds(optimizer, own, width, device, efficiency, times, backward_s), 0.0
    return optimizer_seconds(OPTIMIZERS[strategy.optimizer], own, tensors, device, efficiency)


def exchange_seconds(plan: ExchangePlan, cluster: Cluster, efficiency: Efficiency) -> ExchangeSeconds:
    """Return the seconds of a step's exchange from the catalogue. The plan caches them, since no batch changes them."""
    parts = cluster.device, cluster.intra_link, cluster.network, efficiency
    between = fabric(plan.strategy.gradient_exchange, cluster)
    key = cluster.num_nodes, between, *map(id, parts)
    remembered = plan.prices.get(key)
    if remembered is None:
        if len(plan.prices) >= PRICES:
            plan.prices.clear()
        remembered = plan.prices[key] = (
            parts,
            _priced(plan, cluster, efficiency, between),
        )  # parts stay alive, so no id is used twice
    exchange: ExchangeSeconds = remembered[1]
    return exchange


def _priced(plan: ExchangePlan, cluster: Cluster, efficiency: Efficiency, between: Fabric) -> ExchangeSeconds:
    seconds, network = phase_seconds(plan.loads, cluster, efficiency, between)
    collectives = int((~plan.codec).sum())
    pieces, by_network = np.empty(len(plan.codec)), np.zeros(len(plan.codec), dtype=np.bool_)
    pieces[~plan.codec], by_network[~plan.codec] = seconds[:collectives], network[:collectives]
    if len(plan.codec_passes):
        pieces[plan.codec] = _codec_pass_seconds(plan, cluster.device, efficiency)
    shape = (len(plan.gathers), plan.count)
    gathers = seconds[collectives:].reshape(shape), network[collectives:].reshape(shape)
    if plan.strategy.parallelism.offload.weights:
        width = BYTES_PER_ELEMENT[plan.strategy.precision] / plan.strategy.parallelism.sharers
        copies = copy_seconds(1.0, cluster.device, efficiency) * width * plan.gathered
        gathers = gathers[0] + copies, gathers[1]
    return priced(plan, pieces, by_network, *gathers)


def priced(plan: ExchangePlan, pieces: Array, network: Bools, gathers: Array, gathers_network: Bools) -> ExchangeSeconds:
    """Return the seconds of ``ExchangeCost.path`` for all buckets at once."""
    waited = pieces
    if plan.codec.any():
        chunks = np.where(plan.chunked, pieces, 0.0)
        codec = np.add.reduceat(np.where(plan.codec, chunks, 0.0), plan.begin)
        wire = np.add.reduceat(np.where(plan.codec, 0.0, chunks), plan.begin)
        hidden = plan.chunked & (plan.codec == (wire >= codec)[plan.bucket])
        waited = np.where(hidden, pieces * plan.largest[plan.bucket], pieces)
    buckets = np.add.reduceat(waited, plan.begin) if len(waited) else np.zeros(plan.count)
    return ExchangeSeconds(plan, pieces, network, waited, buckets, gathers, gathers_network)


def _codec_pass_seconds(plan: ExchangePlan, device: Device, efficiency: Efficiency) -> Array:
    """Return seconds of every pass of the codec, (passes,): kernel launches, and the memory traffic of both formats.

    A CPU also copies between gradients and one buffer, at the rates of fp32 messages. Copies within a GPU's memory take
    next to nothing.
    """
    encodes, calls, packed, dense, copied, gathered = plan.codec_passes.T
    seconds: Array = calls * efficiency.launch_s[device.kind]
    if plan.strategy.gradient_exchange.codec_at is ON_HOST and device.kind != "cpu":
        return _host_pass_seconds(plan, device, efficiency)
    if copied.any():
        seconds = seconds + FP32.element_bits / 8 * copied / efficiency.bandwidth(link(device.host_link))
    kinds = [(plan.strategy.description, packed), (_rest(plan), dense)]
    for compression, count in [*kinds, (COMPRESSIONS["dense"], gathered)] if device.kind == "cpu" else kinds:
        rates = [codec_seconds(compression, w, 1, device, efficiency) for w in ("decode", "encode")]
        seconds = seconds + count * np.where(encodes > 0, rates[1], rates[0])
    return seconds


def _rest(plan: ExchangePlan) -> Compression:
    """Return the compression of the tensors that the codec does not encode."""
    return COMPRESSIONS["bf16" if plan.strategy.gradient_exchange.dense_bits == 16 else "dense"]


def _host_pass_seconds(plan: ExchangePlan, device: Device, efficiency: Efficiency) -> Array:
    """Return the same on the cores of a GPU's host, (passes,): copies over the GPU's host link, and the cores' rates."""
    encodes, calls, packed, dense, copied, _ = plan.codec_passes.T
    seconds: Array = np.where(copied > 0, calls * efficiency.launch_s[device.kind], 0.0)
    seconds = seconds + FP32.element_bits / 8 * copied / efficiency.bandwidth(link(device.host_link))
    for compression, count in ((plan.strategy.description, packed), (_rest(plan), dense)):
        rate = compression.cpu_rate
        of_pass = np.where(encodes > 0, rate.encode.value, rate.decode.value) * efficiency.codec_cores
        seconds = seconds + FP32.element_bits / 8 * count / of_pass
    return seconds


def codec_seconds(compression: Compression, work: CodecOperation, count: int, device: Device, efficiency: Efficiency) -> float:
    """Return seconds of a codec over ``count`` elements on one device.

    Memory bandwidth limits it. On a CPU the rate of the cores (``strategy/compression/codec_rates.py``) may be the lower limit.
    """
    moved = compression.encode_bytes if work == "encode" else compression.decode_bytes
    seconds = moved * count / memory_rate(device, efficiency)
    if device.kind != "cpu":
        return seconds
    rate = compression.cpu_rate.encode if work == "encode" else compression.cpu_rate.decode
    return max(seconds, FP32.push_bytes(count) / (rate.value * efficiency.codec_cores))


def calibrated_costs(
    base: StepCosts, workload: Workload, strategy: Strategy, plan: ExchangePlan, calibration: Calibration
) -> StepCosts:
    """Return costs from measurements: the catalogue gives each layer's share, the calibration the totals.

    Forward and backward are proportional to the micro batch if it differs from the calibration's. The measurements already
    include stragglers.

    Args:
        plan: an exchange plan for measured costs.

    Raises:
        UserError: the calibration is of another workload or compression.
    """
    for name, given, wanted in (
        ("workload", calibration.workload, workload.name),
        ("compression", calibration.compression, strategy.gradient_exchange.compression.name),
    ):
        if given != wanted:
            raise UserError(f"the calibration is of {name} {given!r}, not {wanted!r}", "calibrate again for this one")
    x = strategy.gradient_exchange
    if x.placed:
        place = f"of a codec {x.codec_at.text}" if x.codec_at else "of residuals in the host's memory"
        what = "of exchange switch" if x.exchange.uses_switch else place
        raise UserError(f"a calibration has no measurement {what}", "leave the calibration out, or leave that choice out")
    grown = strategy.micro_batch_size / calibration.micro_batch_size
    forward = calibration.forward_s * grown / base.forward.total.sum()
    backward = calibration.backward_s * grown / base.backward.total.sum()
    workers = strategy.parallelism.sharers if strategy.parallelism.sharding.optimizer else 1
    update = calibration.optimizer_s / workers / sum(base.optimizer)
    return replace(
        base,
        forward=base.forward.scaled(forward),
        backward=base.backward.scaled(backward),
        again=base.again * forward,
        slowest=1.0,
        optimizer=(base.optimizer[0] * update, base.optimizer[1] * update),
        exchange=_calibrated_exchange(plan, base.exchange, calibration).spread(strategy.sync_every),
    )


def _calibrated_exchange(plan: ExchangePlan, base: ExchangeSeconds, calibration: Calibration) -> ExchangeSeconds:
    """Return the seconds of the pieces by the measured lines. Each chunk pays the fixed part.

    If exchange and backward pass share the cores, codec and network share them too, and nothing is pipelined.
    """
    levels = {piece.name: by for piece, by in zip(base.plan.pieces, base.network.tolist(), strict=True)}
    seconds, sent = [], iter(plan.sent.tolist())
    for piece in plan.pieces:
        if isinstance(piece.what, CodecPass):
            line, size = getattr(calibration, piece.what.work), piece.what.packed
        else:
            line, size = calibration.allreduce if _summed(piece.what) else calibration.direct, next(sent)
        seconds.append(piece.times * line.fixed_s + line.per_unit_s * size)
    largest = plan.largest if calibration.overlap else np.ones_like(plan.largest)
    flat = replace(plan, largest=largest)
    network = np.array([levels.get(piece.name, False) for piece in plan.pieces], dtype=np.bool_)
    each = np.array([[calibration.allreduce(phase.sent(0)) for phase in gathers] for gathers in plan.gathering])
    gathers = each.reshape(len(plan.gathering), len(plan.gathers))[plan.partition.index].T
    return priced(flat, np.array(seconds), network, gathers, base.gathers_network)


def _summed(phase: Phase) -> bool:
    """Return whether it is a collective of the engine, which the calibration measured as an all-reduce."""
    return phase.pattern in ("allreduce", "gather", "scatter")
