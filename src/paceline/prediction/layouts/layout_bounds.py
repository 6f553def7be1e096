"""Bounds of very many layouts at once: lower bounds on the step time and on the bytes of memory.

A layout is a strategy whose replicas are several devices each. The model of one step (``mesh_step``) takes milliseconds. A
search over a million layouts needs a figure in microseconds. The bounds combine the model's own seconds of each layer
(``division``), bytes of each block and parameter (``memory``) and collectives (``network``). Only the waits are bounded, not
simulated (``pipeline_bounds``). Those of exchanges are in ``exchange_bounds``.

A search predicts the layouts with the least bounds in full, until the bound of the next is above its best results.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from paceline.array_types import Array, Bools, Ints
from paceline.errors import UserError
from paceline.hardware.cluster import Cluster
from paceline.hardware.placement import Places
from paceline.prediction.exchange.exchange_plan import exchange_plan
from paceline.prediction.exchange.group_view import group_view, pairs_between
from paceline.prediction.layouts.exchange_bounds import ReplicaGroup, exchange_bounds
from paceline.prediction.layouts.layout_slices import PROBE, LayoutSlice, Shares, probe_network, with_common
from paceline.prediction.layouts.pipeline_bounds import ROUNDING, PipelineShape, in_flight, late_weights, pipelined_seconds
from paceline.prediction.mesh.divided_layers import Divided, divide, shared_layers
from paceline.prediction.mesh.expert_parallel import has_experts
from paceline.prediction.mesh.stages import Segments, segments_of
from paceline.prediction.passes.blocks import after_blocks, block_begins, part_sizes
from paceline.prediction.passes.host import host_launches, host_seconds
from paceline.prediction.passes.weight_gradients import weight_bytes
from paceline.prediction.step.costs import run_again, slowest
from paceline.prediction.step.memory import fixed_bytes, numbers_of, reserve_bytes, sample_bytes
from paceline.prediction.step.step_model import StepModel
from paceline.strategy.parallelism import Parallelism
from paceline.strategy.strategy import Strategy
from paceline.workload.prepared import Prepared, once, once_by

_MANY = 512
"""Number of tensors in a probe of the bytes of frozen elements."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of every combination of slices, shardings and batches with one pipeline. Arrays are (slices, shardings, batches).

    Attributes:
        micro_batches: micro batches of a step, (slices, batches); 0 if the batch does not divide, or not in rounds of virtual
            stages.
        legal: whether the mesh covers the devices, and the micro batches and the groups exist.
        memory_bytes: lower bound of the bytes on one device.
    """

    micro_batches: Ints
    legal: Bools
    memory_bytes: Array


def _of_state(own: LayoutSlice, shape: PipelineShape, shares: Shares) -> Hashable:
    """Return the choices that determine the state of each stage and its exchange. Some shardings are equal when divided."""
    device = own.tensor, own.expert, own.context > 1, own.precision
    return device, (shape.stages, shape.virtual, shape.ends), shares.sharding.divided, shares.in_node


@dataclass(frozen=True, eq=False)
class LayoutBounds(Prepared):
    """Bounds of the layouts of ``model.workload`` on ``cluster``.

    Args:
        slices, shardings, batches: choices to combine. Slices that cannot divide the network are left out (``refused``).
        template: strategy with the choices of every layout that do not divide. ``common``: those of the mesh (``with_common``).
    """

    model: StepModel
    cluster: Cluster
    slices: tuple[LayoutSlice, ...]
    shardings: tuple[Shares, ...]
    batches: tuple[int, ...]
    template: Strategy
    common: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def blocks(self) -> int:
        """Number of blocks of the network, which is the most parts of a pipeline."""
        return len(block_begins(self.model.workload))

    @once_by(lambda own: own.division)
    def segments(self, own: LayoutSlice) -> Segments:
        """Return one device's part of the layers as blocks. Raises UserError if they do not divide."""
        workload, *_ = shared_layers(self.model.workload, own.mesh())
        return segments_of(workload, max(1, self.blocks))

    def refused(self, own: LayoutSlice) -> str:
        """Return why no layout has this slice; empty if there are some."""
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

    def replicas(self, own: LayoutSlice, pipeline: int) -> int:
        """Return the number of devices that sum the gradients of one device's part."""
        return self.cluster.world_size // (own.tensor * pipeline)

    @once_by(
        lambda own, pipeline, shares, count=0: (own.tensor, own.context, own.expert, own.precision, pipeline, shares, count)
    )
    def _inner(self, own: LayoutSlice, pipeline: int, shares: Shares, count: int = 0) -> Strategy:
        """Return the strategy of the replicas of a stage. ``count``: their number, if not that of all parameters."""
        chosen: dict[str, Any] = {"sharding": shares.sharding}
        if count:
            mesh = Parallelism(data=count, pipeline=2, **chosen)  # several devices hold the network
        else:
            count = self.replicas(own, pipeline)
            chosen["shard_devices"] = shares.groups(own, pipeline, self.cluster) or 0
            mesh = replace(own.mesh(), data=max(1, count // own.context), expert=1, pipeline=pipeline, **chosen)
        mesh = with_common(mesh, self.common).replicas
        return replace(self.template, global_batch_size=count, precision=own.precision, parallelism=mesh)

    def bounds(self, shape: PipelineShape) -> Bounds:
        """Return legality and memory of all combinations."""
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

    @once_by(lambda own, pipeline: (own.tensor, own.expert, pipeline))
    def _groups(self, own: LayoutSlice, pipeline: int) -> Bools:
        """Return which shardings have groups that share state, (shardings,). Experts with their own replicas have none in a
        node."""
        apart = has_experts(self.model.workload) and own.expert != own.tensor
        sizes = [x.groups(own, pipeline, self.cluster) for x in self.shardings]
        return np.array([size == 0 or (size is not None and not apart) for size in sizes], dtype=np.bool_)

    def _even(self, tensor: int, context: int, pipeline: int) -> bool:
        """Return whether groups of replicas are even within nodes."""
        world = self.cluster.world_size
        if world % (tensor * context * pipeline):
            return False
        try:
            group_view(self.cluster, world // (tensor * pipeline), tensor)
        except UserError:
            return False
        return True

    @once
    def _parts(self, shape: PipelineShape) -> Ints:
        """Return the first segment of each part."""
        sizes = np.array(self._sizes(shape))
        firsts: Ints = np.cumsum(sizes) - sizes
        return firsts

    def _sizes(self, shape: PipelineShape) -> list[int]:
        """Return the blocks of each part."""
        after = after_blocks(self.model.workload)
        return part_sizes(max(1, self.blocks), shape.stages, shape.virtual, shape.ends, after)

    def _by_stage(self, values: Array, shape: PipelineShape) -> Array:
        """Sum values of segments over each stage: (..., segments) to (..., stages)."""
        parts = np.add.reduceat(values, self._parts(shape), axis=-1)
        whole: Array = parts.reshape(*parts.shape[:-1], shape.virtual, shape.stages).sum(axis=-2)
        return whole

    def _elements(self, own: LayoutSlice, shape: PipelineShape) -> tuple[Array, Array, Array]:
        """Return trained elements and tensors, and frozen elements, of each stage."""
        segments = self.segments(own)
        elements, tensors, frozen = (
            self._by_stage(values, shape) for values in (segments.elements, segments.tensors, segments.frozen)
        )
        if shape.stages == 1 and segments.tied:
            elements, tensors = elements - segments.tied, tensors - 1
        return elements, tensors, frozen

    def _memory(self, shape: PipelineShape, times: Ints) -> Array:
        """Return the bytes of the stage that needs most memory."""
        saved: dict[Hashable, tuple[Array, Array, Array]] = {}
        alike: dict[Hashable, list[int]] = {}
        out = np.full((len(self.slices), len(self.shardings), len(self.batches)), np.inf)
        held = in_flight(shape, times) / shape.virtual
        late = late_weights(shape, times)
        for row in np.flatnonzero(times.any(axis=1)).tolist():
            own = self.slices[row]
            alike.setdefault((own.tensor, own.expert, own.context > 1, own.precision), []).append(row)
        for rows in alike.values():
            fixed = np.stack([self._fixed(self.slices[rows[0]], shape, shares) for shares in self.shardings])
            of_rows = []
            for own in (self.slices[row] for row in rows):
                per_sample = (*own.division, own.precision, own.recompute)
                if per_sample not in saved:
                    slope, once, weights = self._saved(own)
                    most = np.maximum.reduceat(once, self._parts(shape)).reshape(shape.virtual, shape.stages).max(axis=0)
                    saved[per_sample] = self._by_stage(slope, shape), most, self._by_stage(weights, shape)
                of_rows.append(saved[per_sample])
            slopes, onces, weights = (np.stack(of)[:, None, :] for of in zip(*of_rows, strict=True))
            micro = np.array([self.slices[row].micro_batch_size for row in rows])[:, None, None]
            of_samples = (held[rows] * slopes + onces + late[rows] * weights) * micro
            for sharding, own_bytes in enumerate(fixed):
                out[rows, sharding] = (own_bytes + of_samples).max(axis=-1)
        return (out + reserve_bytes(self.cluster.device)) * (1 - ROUNDING)

    @once_by(_of_state)
    def _fixed(self, own: LayoutSlice, shape: PipelineShape, shares: Shares) -> Array:
        """Return the bytes of each stage that do not grow with the batch."""
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

    def _expert_replicas(self, own: LayoutSlice, shape: PipelineShape) -> int:
        """Return the devices of a stage that have the same experts."""
        return self.cluster.world_size // (shape.stages * own.expert)

    @once_by(
        lambda own, pipeline, shares, count=0: (own.tensor, own.context, own.expert, own.precision, pipeline, shares, count)
    )
    def _bytes_of(self, own: LayoutSlice, pipeline: int, shares: Shares, count: int = 0) -> tuple[float, float, float]:
        """Return the model's bytes of a trained element, of an element of the two largest units, and of a frozen element."""
        inner = self._inner(own, pipeline, shares, count)
        local = group_view(self.cluster, self.replicas(own, pipeline), own.tensor).devices_per_node
        return self._element_bytes(inner, local)

    @once_by(
        lambda inner, local: (
            inner.world_size,
            inner.parallelism.sharding,
            inner.parallelism.shard_devices,
            inner.precision,
            local,
        )
    )
    def _element_bytes(self, inner: Strategy, local: Places) -> tuple[float, float, float]:
        def needed(tensors: int, frozen: int = 0) -> float:
            probe = probe_network(self.model.workload, tensors, frozen)
            return sum(fixed_bytes(probe, inner, exchange_plan(probe, inner, local), divided=True).values())

        two, four = needed(2) / (2 * PROBE), needed(4) / (4 * PROBE)
        unit, of_frozen = 2 * (two - four), 0.0
        if self.model.workload.frozen:  # of many units, so that the two that are gathered at once count little
            of_frozen = (needed(_MANY, _MANY * PROBE) - needed(_MANY)) / (_MANY * PROBE)
        return two - unit, unit, of_frozen

    @once_by(lambda own: (own.division, own.precision, own.recompute))
    def _saved(self, own: LayoutSlice) -> tuple[Array, Array, Array]:
        """Return bytes of one sample in each segment: activations stored per micro batch in flight, activations stored once,
        and those that wait for the gradients of weights."""
        segments = self.segments(own)
        strategy = self._strategy_of(own)
        numbers, again = numbers_of(strategy), strategy.parallelism.recomputation
        known: dict[int, tuple[float, float, float]] = {}
        for segment in segments.workloads:
            if id(segment) not in known:
                first, second = (sum(sample_bytes(segment, numbers, again, n).values()) for n in (1.0, 2.0))
                waiting = weight_bytes(segment, numbers, own.tensor if own.sequence else 1)
                known[id(segment)] = second - first, 2 * first - second, waiting
        rows = np.array([known[id(segment)] for segment in segments.workloads])
        return rows[:, 0], rows[:, 1], rows[:, 2]

    def _strategy_of(self, own: LayoutSlice) -> Strategy:
        """Return a strategy with this slice.

        It has two stages, so that several devices hold the network, and very many micro batches, which share the work that
        happens once a step.
        """
        mesh = replace(own.mesh(), pipeline=2, recompute=own.recompute, micro_batches=_MANY)
        batch = own.micro_batch_size * mesh.data * _MANY
        return replace(self.template, global_batch_size=batch, precision=own.precision, parallelism=mesh)

    def seconds(self, shape: PipelineShape, times: Ints, rows: Ints) -> Array:
        """Return lower bounds on the step time, (rows, shardings, batches).

        Args:
            times: micro batches of a step, (slices, batches); from ``bounds``.
            rows: indices of the slices.
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
        if overlap and e.level == "tuned":  # gradients and weights travel during the passes (``exchange_beside``)
            last = update.max(axis=-1) + penalty * (gathered + ahead).max(axis=-1)
            exposed = penalty * after
        else:
            last = (update + gathered + np.maximum(0.0, ahead - whole_f)).max(axis=-1)
            exposed = penalty * after + (1 - penalty) * np.maximum(0.0, after - whole_b * overlap)
        return pipelined_seconds(shape, times[rows], (forward, backward, sends), exposed, micro, last, penalty)

    def _launched(self, parts: Array, shape: PipelineShape) -> tuple[Array, Array]:
        """Return both passes of each part, plus the excess time of the stage's host over them (``StepModel.launched``).

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

    @once
    def _passes(self, own: LayoutSlice) -> Array:
        """Return passes of one micro batch in each segment, (5, segments).

        Rows: seconds of the forward pass, of the backward pass and of recomputation before it, and the kernels that the host
        launches in both passes.
        """
        layers = self._divided(own)
        forward, backward = layers.passes
        again, _ = run_again(layers.workload, self._strategy_of(own).parallelism.recomputation, forward.total)
        precision = self._strategy_of(own).precision
        calls = host_launches(layers.workload, self.model.constants, self.cluster.device, precision)
        of_layers = np.stack([forward.total, backward.total, again, *calls])
        summed: Array = np.add.reduceat(of_layers, self.segments(own).starts, axis=1)
        if self.model.constants.level == "tuned" and calls.any():  # each block waits for its host (``host_excess``)
            host_s = host_seconds(self.cluster.device, self.model.constants)
            summed[:2] = np.maximum(summed[:2], summed[3:] * host_s)
            summed[3:] = 0.0
        return summed

    @once_by(lambda own: (own.division, own.precision, own.micro_batch_size))
    def _divided(self, own: LayoutSlice) -> Divided:
        """Return one device's part of the layers. Recomputation runs layers again, and changes no pass."""
        return divide(self.model, self.cluster, self._strategy_of(own))

    def _sends(self, slices: Sequence[LayoutSlice], shape: PipelineShape) -> Array:
        """Return seconds from each part to the next, (slices, parts - 1)."""
        parts, e = shape.stages * shape.virtual, self.model.constants
        if parts == 1:
            return np.zeros((len(slices), 0))
        block = self.cluster.world_size // shape.stages
        latency, each = np.zeros(parts - 1), np.zeros(parts - 1)
        for part in range(parts - 1):
            link, users, _ = pairs_between(self.cluster, block, part % shape.stages, (part + 1) % shape.stages)
            latency[part], each[part] = e.latency(link), users / e.bandwidth(link)
            if part >= shape.stages:
                latency[part], each[part] = latency[part - shape.stages], each[part - shape.stages]
        last = self._parts(shape)[1:] - 1
        sizes = np.stack([self.segments(own).boundary[last] * own.width * own.micro_batch_size / own.tensor for own in slices])
        return latency + sizes * each

    @once_by(
        lambda own, shape: (own.tensor, own.expert, own.context > 1, own.precision, shape.stages, shape.virtual, shape.ends)
    )
    def _exchange(self, own: LayoutSlice, shape: PipelineShape) -> list[Array]:
        """Return seconds of the exchange by sharding and stage, (shardings, stages).

        The entries are those of ``exchange_bounds``.
        """
        return [np.stack(of) for of in zip(*(self._exchange_of(own, shape, x) for x in self.shardings), strict=True)]

    @once_by(_of_state)
    def _exchange_of(self, own: LayoutSlice, shape: PipelineShape, shares: Shares) -> tuple[Array, ...]:
        elements, tensors, _ = self._elements(own, shape)
        return exchange_bounds(self._replica_groups(own, shape, shares, elements), tensors, self.model.constants)

    def _replica_groups(
        self, own: LayoutSlice, shape: PipelineShape, shares: Shares, elements: Array
    ) -> tuple[ReplicaGroup, ...]:
        """Return the replicas of the trained ``elements`` of each stage, with those of experts apart if they are others."""
        inner = self._inner(own, shape.stages, shares)
        view = group_view(self.cluster, inner.world_size, own.tensor)
        experts, replicas = self._by_stage(self.segments(own).experts, shape), self._expert_replicas(own, shape)
        if not experts.any() or replicas == inner.world_size:
            return (ReplicaGroup(inner, view, elements),)
        rest = ReplicaGroup(inner, view, elements - experts)
        try:
            of_experts = group_view(self.cluster, replicas, own.expert)
        except UserError:  # no such layout is legal
            return (rest,)
        return rest, ReplicaGroup(self._inner(own, shape.stages, shares, replicas), of_experts, experts)
