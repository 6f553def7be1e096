"""Seconds of a step's exchange by the catalogue: each collective, each pass of the codec, and each wait."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from paceline.array_types import Array, Bools
from paceline.calibration.constants import Efficiency
from paceline.hardware.catalogue import link
from paceline.hardware.cluster import Cluster
from paceline.hardware.device import Device
from paceline.prediction.exchange.collective_time import phase_seconds
from paceline.prediction.exchange.exchange_plan import CodecOperation, ExchangePlan
from paceline.prediction.exchange.server_overlap import hidden_share
from paceline.prediction.passes.compute import Resource, memory_rate
from paceline.strategy.codec_place import ON_HOST, fabric
from paceline.strategy.compression.compression import Compression
from paceline.strategy.compression.compressions import COMPRESSIONS, DENSE
from paceline.strategy.compression.formats import FP32
from paceline.strategy.phase import Phase
from paceline.workload.prepared import once_by

REMEMBERED = 64
"""Most machines and constants for which a plan keeps its seconds."""


@dataclass(frozen=True, slots=True)
class ExchangeStage:
    """One piece of a bucket's exchange. ``lane`` is ``network`` or ``codec``."""

    name: str
    lane: Literal["network", "codec"]
    seconds: float
    resource: Resource


@dataclass(frozen=True, slots=True)
class ExchangeCost:
    """Seconds per layer, collectives included. Some process the whole bucket. The others process its chunks in a pipeline.

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
        copies: seconds of ``gathers`` in which the host's memory sends a device its part of the weights.
    """

    plan: ExchangePlan
    pieces: Array
    network: Bools
    waited: Array
    buckets: Array
    gathers: Array
    gathers_network: Bools
    copies: Array | float = 0.0

    def copied(self, seconds: Array) -> ExchangeSeconds:
        """Return the exchange with copies from the host before each all-gather. ``seconds``: of each bucket, (buckets,)."""
        return priced(self.plan, self.pieces, self.network, self.gathers + seconds, self.gathers_network, self.copies + seconds)

    def slower(self, between: float, inside: float) -> ExchangeSeconds:
        """Return the same exchange on slower links.

        ``between`` and ``inside`` are factors on the seconds of the network between nodes and of the link inside a node.
        """
        factors = np.where(self.network, between, inside)
        pieces = np.where(self.plan.codec, self.pieces, self.pieces * factors)
        gathers = (self.gathers - self.copies) * np.where(self.gathers_network, between, inside) + self.copies
        return priced(self.plan, pieces, self.network, gathers, self.gathers_network, self.copies)

    def without(self, resources: Collection[Resource]) -> ExchangeSeconds:
        """Return the exchange if the given ones of ``network``, ``intra-node link``, ``codec`` and ``host`` took no time."""
        if not {"network", "intra-node link", "codec", "host"} & set(resources):
            return self
        copies = 0.0 if "host" in resources else self.copies
        near, far = ("intra-node link" in resources, "network" in resources)
        pieces = np.where(self.plan.codec, "codec" in resources, np.where(self.network, far, near))
        gathers = np.where(self.gathers_network, far, near)
        return priced(
            self.plan,
            np.where(pieces, 0.0, self.pieces),
            self.network,
            np.where(gathers, 0.0, self.gathers - self.copies) + copies,
            self.gathers_network,
            copies,
        )

    def spread(self, steps: int) -> ExchangeSeconds:
        """Return the mean over steps if the exchange takes place once in ``steps``."""
        if steps == 1:
            return self
        return priced(
            self.plan, self.pieces / steps, self.network, self.gathers / steps, self.gathers_network, self.copies / steps
        )

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


@once_by(lambda cluster, efficiency: (cluster, efficiency), most=REMEMBERED)
def exchange_seconds(plan: ExchangePlan, cluster: Cluster, efficiency: Efficiency) -> ExchangeSeconds:
    """Return the seconds of a step's exchange from the catalogue. The plan caches them, since no batch changes them."""
    between = fabric(plan.strategy.gradient_exchange, cluster)
    seconds, network = phase_seconds(plan.loads, cluster, efficiency, between)
    collectives = int((~plan.codec).sum())
    pieces, by_network = np.empty(len(plan.codec)), np.zeros(len(plan.codec), dtype=np.bool_)
    pieces[~plan.codec], by_network[~plan.codec] = seconds[:collectives], network[:collectives]
    if len(plan.codec_passes):
        pieces[plan.codec] = _codec_pass_seconds(plan, cluster.device, efficiency)
    if cluster.device.kind == "cpu" and plan.strategy.gradient_exchange.exchange.has_servers:
        pieces = _beside_pushes(plan, pieces)
    shape = (len(plan.gathers), plan.count)
    gathers = seconds[collectives:].reshape(shape), network[collectives:].reshape(shape)
    return priced(plan, pieces, by_network, *gathers)


def priced(
    plan: ExchangePlan,
    pieces: Array,
    network: Bools,
    gathers: Array,
    gathers_network: Bools,
    copies: Array | float = 0.0,
) -> ExchangeSeconds:
    """Return the seconds of ``ExchangeCost.path`` for all buckets at once."""
    waited = pieces
    if plan.codec.any():
        chunks = np.where(plan.chunked, pieces, 0.0)
        codec = np.add.reduceat(np.where(plan.codec, chunks, 0.0), plan.begin)
        wire = np.add.reduceat(np.where(plan.codec, 0.0, chunks), plan.begin)
        hidden = plan.chunked & (plan.codec == (wire >= codec)[plan.bucket])
        waited = np.where(hidden, pieces * plan.largest[plan.bucket], pieces)
    buckets = np.add.reduceat(waited, plan.begin) if len(waited) else np.zeros(plan.count)
    return ExchangeSeconds(plan, pieces, network, waited, buckets, gathers, gathers_network, copies)


def _beside_pushes(plan: ExchangePlan, pieces: Array) -> Array:
    """Return the pieces with each pull shortened by the time in which it overlaps the pushes of later chunks."""
    names = np.array([piece.name for piece in plan.pieces])
    push, pull, sizes = (names == name for name in ("push", "pull", "sizes"))
    known = np.bincount(plan.bucket, sizes, plan.count) == 0
    rounds = np.array([p.what.rounds if isinstance(p.what, Phase) else 0 for p in plan.pieces], dtype=np.float64)
    chunks: Array = np.bincount(plan.bucket, rounds * push, plan.count).astype(np.float64)
    pushed, pulled = (np.bincount(plan.bucket, pieces * of, plan.count) for of in (push, pull))
    share = hidden_share(chunks, plan.strategy.world_size, plan.strategy.gradient_exchange.servers)
    hidden = known * share * np.minimum(pushed, pulled)
    kept = np.where(pulled > 0, 1 - hidden / np.where(pulled > 0, pulled, 1.0), 1.0)
    return np.where(pull, pieces * kept[plan.bucket], pieces)


def _codec_pass_seconds(plan: ExchangePlan, device: Device, efficiency: Efficiency) -> Array:
    """Return seconds of every pass of the codec, (passes,): kernel launches, and the memory traffic of both formats.

    A CPU also copies between gradients and one buffer, at rates of fp32 messages. Copies in a GPU's memory take almost no time.
    """
    encodes, calls, packed, dense, copied, gathered = plan.codec_passes.T
    seconds: Array = calls * efficiency.launch_s[device.kind]
    if plan.strategy.gradient_exchange.codec_at is ON_HOST and device.kind != "cpu":
        return _host_pass_seconds(plan, device, efficiency)
    if copied.any():
        seconds = seconds + FP32.element_bits / 8 * copied / efficiency.bandwidth(link(device.host_link))
    kinds = [(plan.strategy.description, packed), (_rest(plan), dense)]
    for compression, count in [*kinds, (DENSE, gathered)] if device.kind == "cpu" else kinds:
        rates = [codec_seconds(compression, w, 1, device, efficiency) for w in ("decode", "encode")]
        seconds = seconds + count * np.where(encodes > 0, rates[1], rates[0])
    return seconds


def _rest(plan: ExchangePlan) -> Compression:
    """Return the compression of tensors that the codec does not encode."""
    return COMPRESSIONS["bf16" if plan.strategy.gradient_exchange.dense_bits == 16 else "dense"]


def _host_pass_seconds(plan: ExchangePlan, device: Device, efficiency: Efficiency) -> Array:
    """Return the seconds of passes on the cores of a GPU's host, (passes,): copies over the host link, and the cores' rates."""
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

    Memory bandwidth limits it. On a CPU the rate of the cores (``strategy/compression/compression.py``) may be the lower limit.
    """
    moved = compression.encode_bytes if work == "encode" else compression.decode_bytes
    seconds = moved * count / memory_rate(device, efficiency)
    if device.kind != "cpu":
        return seconds
    rate = compression.cpu_rate.encode if work == "encode" else compression.cpu_rate.decode
    return max(seconds, FP32.push_bytes(count) / (rate.value * efficiency.codec_cores))
