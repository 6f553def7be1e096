"""Bounds of very many layouts at once: seconds that no step of a layout undercuts, and bytes that it needs at least.

A layout is a strategy whose replicas are several devices each. The model of one step (``mesh_step``) takes milliseconds; a
search over a million of them needs a figure in microseconds. The bounds here are put together from the model's own seconds of
each layer (``division``), bytes of each block and parameter (``memory``) and collectives (``network``). Only what waits for
what is bounded, not simulated (``pipeline_bounds``). One collective of all bytes takes no longer than several of parts of them,
since the time of one is concave in its bytes.

A search predicts the layouts with the least bounds whole, until the bound of the next is above what it has.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from paceline.array_types import Array, Bools, Ints
from paceline.errors import UserError
from paceline.hardware.cluster import Cluster
from paceline.prediction.exchange.exchange_plan import exchange_plan
from paceline.prediction.exchange.group_view import group_view, pairs_between
from paceline.prediction.layouts.layout_exchange import exchange_bounds
from paceline.prediction.layouts.layout_slices import NOTHING_COMMON, PROBE, Common, Shares, Slice, probe_network
from paceline.prediction.layouts.pipeline_bounds import ROUNDING, PipelineShape, in_flight, pipelined_seconds
from paceline.prediction.mesh.divided_layers import Divided, divide, shared_layers
from paceline.prediction.mesh.expert_parallel import has_experts
from paceline.prediction.mesh.segments import Segments, segments_of
from paceline.prediction.mesh.stages import block_begins, part_sizes
from paceline.prediction.passes.costs import run_again, slowest
from paceline.prediction.passes.host import host_launches, host_seconds
from paceline.prediction.passes.memory import fixed_bytes, numbers_of, reserve_bytes, sample_bytes
from paceline.prediction.step_model import StepModel
from paceline.strategy.parallelism import Parallelism
from paceline.strategy.strategy import Strategy

T = TypeVar("T")
_MANY = 512
"""Tensors that ask what frozen elements need."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of every combination of slices, shardings and batches with one pipeline; arrays are (slices, shardings, batches).

    Attributes:
        micro_batches: of a step, (slices, batches); 0 where the batch does not divide, or not in rounds of virtual stages.
        legal: whether the mesh covers the devices, the micro batches exist and the groups do.
        memory_bytes: needed at least on one device.
    """

    micro_batches: Ints
    legal: Bools
    memory_bytes: Array


@dataclass(frozen=True, eq=False)
class LayoutBounds:
    """Bounds of the layouts of ``model.workload`` on ``cluster``.

    Args:
        slices, shardings, batches: what is combined. Slices that the network cannot be divided into are left out
            (``refused``).
        template: optimizer and buckets of every layout; ``common``: what else all have.
    """

    model: StepModel
    cluster: Cluster
    slices: tuple[Slice, ...]
    shardings: tuple[Shares, ...]
    batches: tuple[int, ...]
    template: Strategy
    common: Common = NOTHING_COMMON
    _memo: dict[Hashable, Any] = field(default_factory=dict, repr=False)

    def _once(self, key: Hashable, make: Callable[[], T]) -> T:
        """The result of ``make()``, computed once."""
        if key not in self._memo:
            self._memo[key] = make()
        result: T = self._memo[key]
        return result

    @cached_property
    def blocks(self) -> int:
        """Blocks of the network: the most parts of a pipeline."""
        return len(block_begins(self.model.workload))

    def segments(self, own: Slice) -> Segments:
        """The blocks of a device's part of the layers. Raises UserError where they do not divide."""

        def make() -> Segments:
            workload, *_ = shared_layers(self.model.workload, own.mesh())
            return workload.once("segments of blocks", lambda: segments_of(workload, max(1, self.blocks)))

        return self._once(("segments", own.division), make)

    def refused(self, own: Slice) -> str:
        """Why no layout has this slice; empty where there are some."""
        if own.tensor > self.cluster.devices_per_node:
            return "a tensor-parallel group lies within a node"
        if self.cluster.world_size % (own.tensor * own.context):
            return "the devices are no whole replicas of the divided network"
        try:
            group_view(self.cluster, own.context, own.tensor)
            self.segments(own)
        except UserError as error:
            return error.message
        return ""

    def replicas(self, own: Slice, pipeline: int) -> int:
        """Devices that add up the gradients of one device's part."""
        return self.cluster.world_size // (own.tensor * pipeline)

    def _inner(self, own: Slice, pipeline: int, shares: Shares, count: int = 0) -> Strategy:
        """What the replicas of a stage see; ``count``: how many, where it is not those of all parameters."""
        chosen: dict[str, Any] = {"sharding": shares.sharding, **self.common.of(shares.sharding)}
        if count:
            mesh = Parallelism(data=count, pipeline=2, **chosen)  # several devices hold the network
        else:
            count = self.replicas(own, pipeline)
            chosen["shard_devices"] = shares.groups(own, pipeline, self.cluster) or 0
            mesh = replace(own.mesh(), data=max(1, count // own.context), expert=1, pipeline=pipeline, **chosen)
        return replace(self.template, global_batch_size=count, precision=own.precision, parallelism=mesh.replicas)

    def bounds(self, shape: PipelineShape) -> Bounds:
        """Legality and memory of all combinations."""
        p = shape.stages
        devices = np.array([own.tensor * own.context * p for own in self.slices])
        micro = np.array([own.micro_batch_size for own in self.slices])
        world = self.cluster.world_size
        data = world // devices
        batches = np.array(self.batches)
        samples = data * micro
        experts = np.array([own.expert for own in self.slices])
        whole = (world % devices == 0) & (data > 0) & (world // p % experts == 0)
        times = np.where(whole[:, None], batches[None, :] // np.maximum(samples, 1)[:, None], 0)
        legal = whole[:, None] & (times > 0) & (batches % np.maximum(samples, 1)[:, None] == 0)
        if shape.virtual > 1:
            legal &= times % p == 0
        usable = {key: self._even(*key, p) for key in {(own.tensor, own.context) for own in self.slices}}
        legal &= np.array([usable[own.tensor, own.context] for own in self.slices])[:, None]
        times = np.where(legal, times, 0)
        groups = np.stack([self._groups(own, p) for own in self.slices])
        return Bounds(times, legal[:, None, :] & groups[:, :, None], self._memory(shape, times))

    def _groups(self, own: Slice, pipeline: int) -> Bools:
        """For which shardings groups share out, (shardings,). Experts with replicas of their own have none in a node."""

        def make() -> Bools:
            apart = has_experts(self.model.workload) and own.expert != own.tensor
            sizes = [x.groups(own, pipeline, self.cluster) for x in self.shardings]
            return np.array([size == 0 or (size is not None and not apart) for size in sizes], dtype=np.bool_)

        return self._once(("groups", own.tensor, own.expert, pipeline), make)

    def _even(self, tensor: int, context: int, pipeline: int) -> bool:
        """Whether groups of replicas lie evenly in nodes."""
        world = self.cluster.world_size
        if world % (tensor * context * pipeline):
            return False
        try:
            group_view(self.cluster, world // (tensor * pipeline), tensor)
        except UserError:
            return False
        return True

    def _parts(self, shape: PipelineShape) -> Ints:
        """First segment of each part."""

        def make() -> Ints:
            sizes = np.array(self._sizes(shape))
            firsts: Ints = np.cumsum(sizes) - sizes
            return firsts

        return self._once(("parts", shape), make)

    def _sizes(self, shape: PipelineShape) -> list[int]:
        """Blocks of each part."""
        return part_sizes(max(1, self.blocks), shape.stages, shape.virtual, shape.ends)

    def _by_stage(self, values: Array, shape: PipelineShape) -> Array:
        """Sums over each stage of values of segments: (..., segments) to (..., stages)."""
        parts = np.add.reduceat(values, self._parts(shape), axis=-1)
        whole: Array = parts.reshape(*parts.shape[:-1], shape.virtual, shape.stages).sum(axis=-2)
        return whole

    def _elements(self, own: Slice, shape: PipelineShape) -> tuple[Array, Array, Array]:
        """Trained elements and tensors, and frozen elements, of each stage."""
        segments = self.segments(own)
        elements, tensors, frozen = (
            self._by_stage(values, shape) for values in (segments.elements, segments.tensors, segments.frozen)
        )
        if shape.stages == 1 and segments.tied:
            elements, tensors = elements - segments.tied, tensors - 1
        return elements, tensors, frozen

    def _memory(self, shape: PipelineShape, times: Ints) -> Array:
        """Bytes of the stage that needs most."""
        fixed: dict[Hashable, Array] = {}
        saved: dict[Hashable, tuple[Array, Array]] = {}
        out = np.full((len(self.slices), len(self.shardings), len(self.batches)), np.inf)
        held = in_flight(shape, times) / shape.virtual
        for row, own in enumerate(self.slices):
            if not times[row].any():
                continue
            key = own.tensor, own.expert, own.context > 1, own.precision
            if key not in fixed:
                fixed[key] = np.stack([self._fixed(own, shape, shares) for shares in self.shardings])
            per_sample = (*own.division, own.precision, own.recompute)
            if per_sample not in saved:
                slope, once = self._saved(own)
                most = np.maximum.reduceat(once, self._parts(shape)).reshape(shape.virtual, shape.stages).max(axis=0)
                saved[per_sample] = self._by_stage(slope, shape), most
            slope, once = saved[per_sample]
            of_samples = (held[row] * slope + once) * own.micro_batch_size
            out[row] = (fixed[key][:, None, :] + of_samples).max(axis=-1)
        return (out + reserve_bytes(self.cluster.device)) * (1 - ROUNDING)

    def _fixed(self, own: Slice, shape: PipelineShape, shares: Shares) -> Array:
        """Bytes of each stage that do not grow with the batch."""
        each, unit, of_frozen = self._bytes_of(own, shape.stages, shares)
        elements, _, frozen = self._elements(own, shape)
        experts = self._by_stage(self.segments(own).experts, shape)
        of_expert, replicas = each, self._expert_replicas(own, shape)
        if experts.any() and replicas != self.replicas(own, shape.stages):
            of_expert = self._bytes_of(own, shape.stages, shares, replicas)[0]
        count = np.bincount(np.arange(shape.stages * shape.virtual) % shape.stages, self._sizes(shape), shape.stages)
        smallest = float((self.segments(own).elements - self.segments(own).experts).min())
        whole = each * (elements - experts) + of_expert * experts
        return whole + unit * np.minimum(count, 2) * smallest + of_frozen * np.maximum(frozen - 1, 0)

    def _expert_replicas(self, own: Slice, shape: PipelineShape) -> int:
        """Devices of a stage that have the same experts."""
        return self.cluster.world_size // (shape.stages * own.expert)

    def _bytes_of(self, own: Slice, pipeline: int, shares: Shares, count: int = 0) -> tuple[float, float, float]:
        """Bytes that the model needs for a trained element, for an element of the two largest units, for a frozen one."""
        inner = self._inner(own, pipeline, shares, count)
        local = group_view(self.cluster, self.replicas(own, pipeline), own.tensor).devices_per_node
        mesh = inner.parallelism
        key = "bytes of an element", inner.world_size, mesh.sharding, mesh.shard_devices, own.precision, local

        def make() -> tuple[float, float, float]:
            def needed(tensors: int, frozen: int = 0) -> float:
                probe = probe_network(self.model.workload, tensors, frozen)
                return sum(fixed_bytes(probe, inner, exchange_plan(probe, inner, local), divided=True).values())

            two, four = needed(2) / (2 * PROBE), needed(4) / (4 * PROBE)
            unit, of_frozen = 2 * (two - four), 0.0
            if self.model.workload.frozen:  # of many units, so that the two that are gathered at once count little
                of_frozen = (needed(_MANY, _MANY * PROBE) - needed(_MANY)) / (_MANY * PROBE)
            return two - unit, unit, of_frozen

        return self._once(key, make)

    def _saved(self, own: Slice) -> tuple[Array, Array]:
        """Bytes of one sample in each segment: those that every micro batch in flight holds, and those that are held once."""

        def make() -> tuple[Array, Array]:
            segments = self.segments(own)
            strategy = self._strategy_of(own)
            numbers, again = numbers_of(strategy), strategy.parallelism.recomputation
            known: dict[int, tuple[float, float]] = {}
            for segment in segments.workloads:
                if id(segment) not in known:
                    first, second = (sum(sample_bytes(segment, numbers, again, n).values()) for n in (1.0, 2.0))
                    known[id(segment)] = second - first, 2 * first - second
            rows = np.array([known[id(segment)] for segment in segments.workloads])
            return rows[:, 0], rows[:, 1]

        return self._once(("saved", *own.division, own.precision, own.recompute), make)

    def _strategy_of(self, own: Slice) -> Strategy:
        """A strategy with this slice, of two stages, so that several devices hold the network, and of very many micro batches,
        which share what happens once a step."""
        mesh = replace(own.mesh(), pipeline=2, recompute=own.recompute, micro_batches=_MANY)
        batch = own.micro_batch_size * mesh.data * _MANY
        return replace(self.template, global_batch_size=batch, precision=own.precision, parallelism=mesh)

    def seconds(self, shape: PipelineShape, times: Ints, rows: Ints) -> Array:
        """Seconds that no step undercuts, (rows, shardings, batches).

        Args:
            times: micro batches of a step, (slices, batches); from ``bounds``.
            rows: the slices that are asked about.
        """
        if self.model.free:
            return np.zeros((len(rows), len(self.shardings), len(self.batches)))
        slices = [self.slices[row] for row in rows.tolist()]
        passes = np.stack([self._passes(own) for own in slices])
        parts = np.add.reduceat(passes, self._parts(shape), axis=2)
        slow = slowest(self.cluster.world_size, self.model.constants)
        forward, backward = (of * slow for of in self._launched(parts, shape))
        sends = self._sends(slices, shape)
        exchange = [self._exchange(own, shape) for own in slices]
        after, micro, update, gathered, ahead = (np.stack([of[n] for of in exchange]) for n in range(5))
        e, overlap = self.model.constants, self.model.overlap
        penalty = e.overlap_penalty if overlap else 0.0
        of_stages = (of.reshape(len(slices), shape.virtual, shape.stages).sum(axis=1)[:, None, :] for of in (forward, backward))
        whole_f, whole_b = of_stages
        if overlap and e.level == "tuned":  # gradients and weights travel beside the passes (``exchange_beside``)
            last = update.max(axis=-1) + penalty * (gathered + ahead).max(axis=-1)
            exposed = penalty * after
        else:
            last = (update + gathered + np.maximum(0.0, ahead - whole_f)).max(axis=-1)
            exposed = penalty * after + (1 - penalty) * np.maximum(0.0, after - whole_b * overlap)
        return pipelined_seconds(shape, times[rows], (forward, backward, sends), exposed, micro, last, penalty)

    def _launched(self, parts: Array, shape: PipelineShape) -> tuple[Array, Array]:
        """Both passes of each part, with what the host of its stage needs beyond them (``StepModel.launched``).

        Args:
            parts: as ``_passes`` has them for segments, (slices, 5, parts).
        """
        forward, backward, again, calls, calls_back = parts.transpose(1, 0, 2)
        host_s = host_seconds(self.cluster.device, self.model.constants)
        if host_s:
            worked, count = (
                of.reshape(len(of), shape.virtual, shape.stages).sum(axis=1) for of in (forward + backward, calls + calls_back)
            )
            more = np.tile(np.maximum(0.0, count * host_s - worked) / np.maximum(count, 1.0), shape.virtual)
            forward, backward = forward + calls * more, backward + calls_back * more
        return forward, backward + again

    def _passes(self, own: Slice) -> Array:
        """Of one micro batch in each segment, (5, segments): seconds of the forward and of the backward pass, and of what runs
        again before the latter; kernels that the host launches in both."""

        def divided() -> Divided:
            return divide(self.model, self.cluster, self._strategy_of(own))

        def make() -> Array:
            # Recomputation runs layers again, and changes no pass.
            layers = self._once(("passes", *own.division, own.precision, own.micro_batch_size), divided)
            forward, backward = layers.passes
            again, _ = run_again(layers.workload, self._strategy_of(own).parallelism.recomputation, forward.total)
            calls = host_launches(layers.workload, self.model.constants)
            of_layers = np.stack([forward.total, backward.total, again, *calls])
            summed: Array = np.add.reduceat(of_layers, self.segments(own).starts, axis=1)
            return summed

        return self._once(("passes of segments", own), make)

    def _sends(self, slices: Sequence[Slice], shape: PipelineShape) -> Array:
        """Seconds from each part to the next, (slices, parts - 1)."""
        parts, e = shape.stages * shape.virtual, self.model.constants
        if parts == 1:
            return np.zeros((len(slices), 0))
        block = self.cluster.world_size // shape.stages
        latency, each = np.zeros(parts - 1), np.zeros(parts - 1)
        for part in range(parts - 1):
            link, users, _ = pairs_between(self.cluster, block, part % shape.stages, (part + 1) % shape.stages)
            latency[part], each[part] = link.latency.value * e.latency_factor, users / e.bandwidth(link)
            if part >= shape.stages:
                latency[part], each[part] = latency[part - shape.stages], each[part - shape.stages]
        last = self._parts(shape)[1:] - 1
        sizes = np.stack([self.segments(own).boundary[last] * own.width * own.micro_batch_size / own.tensor for own in slices])
        return latency + sizes * each

    def _exchange(self, own: Slice, shape: PipelineShape) -> list[Array]:
        """Seconds by sharding and stage, (shardings, stages): of what is exchanged after the last micro batch, of what every
        micro batch exchanges, of the update, of the all-gathers behind it and of those beside the next forward pass."""
        key = "exchange", own.tensor, own.expert, own.context > 1, own.precision, shape.stages, shape.virtual, shape.ends

        def make() -> list[Array]:
            return [np.stack(of) for of in zip(*(self._exchange_of(own, shape, x) for x in self.shardings), strict=True)]

        return self._once(key, make)

    def _exchange_of(self, own: Slice, shape: PipelineShape, shares: Shares) -> tuple[Array, ...]:
        inner = self._inner(own, shape.stages, shares)
        view = group_view(self.cluster, inner.world_size, own.tensor)
        elements, tensors, _ = self._elements(own, shape)
        experts = self._by_stage(self.segments(own).experts, shape)
        of_stages = elements, tensors, experts
        return exchange_bounds(inner, view, self.model.constants, of_stages, self._expert_replicas(own, shape))
