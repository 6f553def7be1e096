"""Bounds of very many layouts at once: lower bounds on the step time and on the bytes of memory.

A layout is a strategy whose replicas are several devices each. The model of one step (``mesh_step``) takes milliseconds. A
search over a million layouts needs a figure in microseconds. The bounds combine the model's own seconds of each layer
(``division``), bytes of each block and parameter (``memory``) and collectives (``network``). Only the waits are bounded, not
simulated (``pipeline_bounds``). Those of exchanges are in ``exchange_bounds``.

A search predicts the layouts with the least bounds in full, until the bound of the next is above its best results.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np

from paceline.array_types import Array, Bools, Ints
from paceline.calibration.constants import Efficiency
from paceline.errors import UserError
from paceline.hardware.cluster import Cluster
from paceline.hardware.device import Device
from paceline.hardware.placement import Places
from paceline.prediction.exchange.exchange_plan import exchange_plan
from paceline.prediction.exchange.group_view import group_view, pairs_between
from paceline.prediction.layouts.exchange_bounds import ReplicaGroup, exchange_bounds
from paceline.prediction.layouts.layout_slices import PROBE, LayoutSlice, Shares, probe_network, with_common
from paceline.prediction.layouts.pipeline_bounds import (
    ROUNDING,
    Cut,
    PipelineShape,
    in_flight,
    late_weights,
    pipelined_seconds,
    scheduled_seconds,
)
from paceline.prediction.mesh.divided_layers import Divided, divide, shared_layers
from paceline.prediction.mesh.expert_parallel import has_experts
from paceline.prediction.mesh.stages import Segments, segments_of
from paceline.prediction.passes.blocks import after_blocks, block_begins, part_sizes
from paceline.prediction.passes.host import host_launches, host_seconds
from paceline.prediction.passes.weight_gradients import weight_bytes, weight_seconds
from paceline.prediction.step.costs import run_again, slowest
from paceline.prediction.step.framework_memory import PIECES
from paceline.prediction.step.memory import WORKSPACE, fixed_bytes, numbers_of, sample_bytes
from paceline.prediction.step.runtime_memory import communicators_bytes, context_bytes, workspace_bytes
from paceline.prediction.step.step_model import StepModel
from paceline.strategy.optimizer import OPTIMIZERS
from paceline.strategy.parallelism import Parallelism
from paceline.strategy.pass_order import ONE_FORWARD_ONE_BACKWARD
from paceline.strategy.recompute import Recompute
from paceline.strategy.strategy import Strategy
from paceline.workload.prepared import Prepared, once, once_by

T = TypeVar("T")

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


@dataclass(frozen=True, slots=True)
class Unlike(Generic[T]):
    """Distinct members of a sequence by a key. ``number``: that of each item, (items,). ``first``: the first with each key."""

    number: Ints
    first: tuple[T, ...]

    @classmethod
    def of(cls, items: Sequence[T], key: Callable[[T], Hashable]) -> Unlike[T]:
        """Number the items by their key."""
        numbers: dict[Hashable, int] = {}
        first: list[T] = []
        number = np.zeros(len(items), dtype=np.int64)
        for i, item in enumerate(items):
            number[i] = numbers.setdefault(key(item), len(first))
            if number[i] == len(first):
                first.append(item)
        return cls(number, tuple(first))


def _state(own: LayoutSlice) -> Hashable:
    """Return the choices of a slice that determine the state of each stage and its exchange."""
    return own.tensor, own.expert, own.context > 1, own.precision


@dataclass(frozen=True, eq=False)
class LayoutBounds(Prepared):
    """Bounds of the layouts of ``model.workload`` on ``cluster``.

    Args:
        slices, shardings, batches: choices to combine. Slices that cannot divide the network are left out (``refused``).
        template: strategy with the choices of every layout that do not divide. ``common``: those of the mesh (``with_common``).
        shapes: pipelines whose exchanges are bounded together.
    """

    model: StepModel
    cluster: Cluster
    slices: tuple[LayoutSlice, ...]
    shardings: tuple[Shares, ...]
    batches: tuple[int, ...]
    template: Strategy
    common: Mapping[str, Any] = field(default_factory=dict)
    shapes: tuple[PipelineShape, ...] = ()

    @cached_property
    def blocks(self) -> int:
        """Number of blocks of the network, which is the most parts of a pipeline."""
        return len(block_begins(self.model.workload))

    @cached_property
    def _states(self) -> Unlike[LayoutSlice]:
        return Unlike.of(self.slices, _state)

    @cached_property
    def _divisions(self) -> Unlike[LayoutSlice]:
        return Unlike.of(self.slices, lambda own: own.division)

    @cached_property
    def _samples(self) -> Unlike[LayoutSlice]:
        """Slices whose samples need the same bytes."""
        return Unlike.of(self.slices, lambda own: (own.division, own.precision, own.recompute))

    @cached_property
    def _shares(self) -> Unlike[Shares]:
        """Shardings that differ when they are divided."""
        return Unlike.of(self.shardings, lambda shares: (shares.sharding.divided, shares.in_node))

    @cached_property
    def _sizes_of_slices(self) -> Ints:
        """Devices of a stage's replica, samples of a micro batch, tensor and expert groups, (4, slices)."""
        rows = [(own.tensor * own.context, own.micro_batch_size, own.tensor, own.expert) for own in self.slices]
        return np.array(rows, dtype=np.int64).reshape(-1, 4).T

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
        of_stage, micro, _, experts = self._sizes_of_slices
        devices = of_stage * p
        world = self.cluster.world_size
        data = world // devices
        batches = np.array(self.batches)
        samples = data * micro
        whole = (world % devices == 0) & (data > 0) & (world // p % experts == 0)
        times = np.where(whole[:, None], batches[None, :] // np.maximum(samples, 1)[:, None], 0)
        legal = whole[:, None] & (times > 0) & (batches % np.maximum(samples, 1)[:, None] == 0)
        if shape.virtual > 1:
            legal &= times % p == 0
        divisions = self._divisions
        legal &= np.array([self._even(own.tensor, own.context, p) for own in divisions.first])[divisions.number, None]
        times = np.where(legal, times, 0)
        groups = np.stack([self._groups(own, p) for own in self._states.first])[self._states.number]
        return Bounds(times, legal[:, None, :] & groups[:, :, None], self._memory(shape, times))

    @once_by(lambda own, pipeline: (own.tensor, own.expert, pipeline))
    def _groups(self, own: LayoutSlice, pipeline: int) -> Bools:
        """Return which shardings have groups that share state, (shardings,). Experts with their own replicas have none in a
        node."""
        apart = has_experts(self.model.workload) and own.expert != own.tensor
        sizes = [x.groups(own, pipeline, self.cluster) for x in self.shardings]
        return np.array([size == 0 or (size is not None and not apart) for size in sizes], dtype=np.bool_)

    @once
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

    @cached_property
    def _trained(self) -> Array:
        """Trained elements, those of experts, tensors and frozen elements by state and segment, (states, 4, segments)."""
        segments = [self.segments(own) for own in self._states.first]
        return np.stack([np.stack((of.elements, of.experts, of.tensors, of.frozen)) for of in segments])

    @once
    def _elements(self, stages: int, virtual: int, ends: tuple[int, int]) -> Array:
        """Return ``_trained`` by stage, (states, 4, stages)."""
        whole = self._by_stage(self._trained, PipelineShape(stages, virtual, ONE_FORWARD_ONE_BACKWARD, ends))
        if stages == 1:
            for of, own in zip(whole, self._states.first, strict=True):
                if tied := self.segments(own).tied:
                    of[0] -= tied
                    of[2] -= 1
        return whole

    def _memory(self, shape: PipelineShape, times: Ints) -> Array:
        """Return the bytes of the stage that needs most memory."""
        out = np.full((len(self.slices), len(self._shares.first), len(self.batches)), np.inf)
        rows = np.flatnonzero(times.any(axis=1))
        if not len(rows):
            return out[:, self._shares.number]
        state, firsts = self._present(rows)
        fixed = self._fixed(firsts, shape)
        slopes, onces, weights = self._saved_by_stage(shape)[:, self._samples.number[rows]]
        held, late = in_flight(shape, times[rows]) / shape.virtual, late_weights(shape, times[rows])
        most = self._fullest((fixed, slopes, onces, weights), (held, late))
        slopes, onces, weights = (of[:, None, most] for of in (slopes, onces, weights))
        of_samples = held[..., most] * slopes + onces + late[..., most] * weights
        of_samples *= self._sizes_of_slices[1, rows, None, None]
        fixed = fixed[:, :, None, most]
        for sharding in range(len(self._shares.first)):
            out[rows, sharding] = (fixed[state, sharding] + of_samples).max(axis=-1)
        beyond = np.array([self._beyond_tensors(own, shape.stages) for own in self.slices])
        return np.asarray((out + beyond[:, None, None]) * (1 - ROUNDING))[:, self._shares.number]

    def _beyond_tensors(self, own: LayoutSlice, stages: int) -> float:
        """Return bytes of context, workspace and communicators; less for a mesh that does not divide the devices."""
        device, framework = self.cluster.device, self.model.constants.framework
        pieces = 0.0 if device.kind != "gpu" or framework.stream_pools else PIECES
        context = context_bytes(device) + workspace_bytes(device) + pieces
        world, divided = self.cluster.world_size, own.tensor * own.context * stages
        if not context or world % divided or world // stages % own.expert:
            return context
        mesh = replace(own.mesh(), data=world // divided, pipeline=stages)
        return context + communicators_bytes(mesh, self.cluster, megatron=framework.megatron)

    def _present(self, rows: Ints) -> tuple[Ints, Ints]:
        """Return the state of each row, numbered among those of all rows, and the first row with each."""
        _, first, state = np.unique(self._states.number[rows], return_index=True, return_inverse=True)
        return state, rows[first]

    @staticmethod
    def _fullest(of_stage: Sequence[Array], held: Sequence[Array]) -> Ints:
        """Return the stages that may need most memory: those of equal parts as the stage before hold no more than it."""
        stages = held[0].shape[-1]
        fewer = [
            all(bool((of[..., i] == of[..., i - 1]).all()) for of in of_stage)
            and all(bool((of[..., i] <= of[..., i - 1]).all()) for of in held)
            for i in range(1, stages)
        ]
        return np.flatnonzero([True, *(not of for of in fewer)])

    def _fixed(self, rows: Ints, shape: PipelineShape) -> Array:
        """Return the bytes of each stage that do not grow with the batch, (rows, shardings, stages)."""
        of_states = [self._bytes_of_state(self.slices[row], shape.stages) for row in rows.tolist()]
        each, unit, of_frozen, of_expert = np.stack(of_states, axis=1)[..., None]
        states = self._states.number[rows]
        trained = self._elements(*shape.cut)[states]
        elements, experts, _, frozen = trained.transpose(1, 0, 2)[:, :, None]
        count = np.bincount(np.arange(shape.stages * shape.virtual) % shape.stages, self._sizes(shape), shape.stages)
        smallest = (self._trained[states, 0] - self._trained[states, 1]).min(axis=-1)[:, None, None]
        whole: Array = each * (elements - experts) + of_expert * experts
        whole = whole + unit * np.minimum(count, 2) * smallest + of_frozen * np.maximum(frozen - 1, 0)
        return whole

    @once_by(lambda own, pipeline: (_state(own), pipeline))
    def _bytes_of_state(self, own: LayoutSlice, pipeline: int) -> Array:
        """Return ``_bytes_of`` by sharding, and the bytes of a trained element of experts, (4, shardings)."""
        shared = self._shares.first
        plain = np.array([self._bytes_of(own, pipeline, shares) for shares in shared]).T
        of_expert, replicas = plain[0], self._expert_replicas(own, pipeline)
        if self.segments(own).experts.any() and replicas != self.replicas(own, pipeline):
            of_expert = np.array([self._bytes_of(own, pipeline, shares, replicas)[0] for shares in shared])
        return np.stack((*plain, of_expert))

    def _expert_replicas(self, own: LayoutSlice, pipeline: int) -> int:
        """Return the devices of a stage that have the same experts."""
        return self.cluster.world_size // (pipeline * own.expert)

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
            plan = exchange_plan(probe, inner, local)
            sizes = fixed_bytes(probe, inner, plan, self.cluster.device, divided=True)
            optimizer, mesh = OPTIMIZERS[inner.optimizer], inner.parallelism
            if not optimizer.plain:  # its state depends on the shapes of tensors, which the probe does not have
                least = inner.weight_update.least_state_bytes(optimizer) * probe.num_parameters
                sizes["optimizer state"] = least / (mesh.sharers if mesh.sharding.optimizer else 1)
            return sum(sizes.values()) - sizes.get(WORKSPACE, 0.0)  # of no element

        two, four = needed(2) / (2 * PROBE), needed(4) / (4 * PROBE)
        unit, of_frozen = 2 * (two - four), 0.0
        if self.model.workload.frozen:  # of many units, so that the two that are gathered at once count little
            of_frozen = (needed(_MANY, _MANY * PROBE) - needed(_MANY)) / (_MANY * PROBE)
        return two - unit, unit, of_frozen

    def _saved_by_stage(self, shape: PipelineShape) -> Array:
        """Return ``_saved`` by stage, (3, samples, stages); those stored once are of the fullest part."""
        slope, once, weights = self._saved_tables
        most = np.maximum.reduceat(once, self._parts(shape), axis=-1)
        most = most.reshape(len(most), shape.virtual, shape.stages).max(axis=1)
        return np.stack((self._by_stage(slope, shape), most, self._by_stage(weights, shape)))

    @cached_property
    def _saved_tables(self) -> Array:
        """Results of ``_saved``, (3, samples, segments)."""
        return np.stack([np.stack(self._saved(own)) for own in self._samples.first], axis=1)

    def _saved(self, own: LayoutSlice) -> tuple[Array, Array, Array]:
        """Return bytes of one sample in each segment: activations stored per micro batch in flight, activations stored once,
        and those that wait for the gradients of weights."""
        segments = self.segments(own)
        strategy = self._strategy_of(own)
        numbers, again = numbers_of(strategy), strategy.parallelism.recomputation
        on_host = strategy.parallelism.host_activations
        known: dict[int, tuple[float, float, float]] = {}
        for segment in segments.workloads:
            if id(segment) not in known:
                first, second = (
                    sum(sample_bytes(segment, numbers, again, own.precision, n, on_host=on_host).values()) for n in (1.0, 2.0)
                )
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
        return pipelined_seconds(shape, times[rows], *self._stage_seconds(shape, times[rows], rows))[:, self._shares.number]

    def scheduled_seconds(self, shape: PipelineShape, times: int, row: int, sharding: int) -> float:
        """Return a closer lower bound on the step time of one layout, from the schedule of its passes."""
        if self.model.free:
            return 0.0
        (forward, backward, sends), exposed, micro, last, _ = self._stage_seconds(shape, np.array([[times]]), np.array([row]))
        parts, shares = (forward[0], backward[0], sends[0]), self._shares.number[sharding]
        weights = self._weights(self.slices[row]) if shape.schedule.splits_backward else None
        if weights is not None:
            weights = np.add.reduceat(weights, self._parts(shape), axis=1)
            weights *= slowest(self.cluster.world_size, self.model.constants)
        return scheduled_seconds(shape, times, parts, exposed[0, shares], micro[0, shares], last[0, shares, 0], weights)

    def _stage_seconds(
        self, shape: PipelineShape, times: Ints, rows: Ints
    ) -> tuple[tuple[Array, Array, Array], Array, Array, Array, float]:
        """Return lower bounds on seconds of parts and of stages, as ``pipelined_seconds`` has them."""
        passes = np.stack([self._passes(row) for row in rows.tolist()])
        parts = np.add.reduceat(passes, self._parts(shape), axis=2)
        slow = slowest(self.cluster.world_size, self.model.constants)
        forward, backward = (of * slow for of in self._launched(parts, shape))
        sends = self._sends(rows, shape)
        (state, firsts), cuts = self._present(rows), self._cuts(shape)
        exchange = np.stack([self._exchange(self.slices[row], row, cuts)[shape.cut] for row in firsts.tolist()])
        after, micro, update, gathered, ahead, copied, copied_once = exchange[state].transpose(2, 0, 1, 3)
        e, overlap = self.model.constants, self.model.overlap
        penalty = e.overlap_penalty if overlap else 0.0
        of_stages = (of.reshape(len(rows), shape.virtual, shape.stages).sum(axis=1)[:, None, :] for of in (forward, backward))
        whole_f, whole_b = of_stages
        if e.level != "tuned" and not shape.schedule.splits_backward:  # where ``whole_b`` is the pass, and no bound of it
            update = update + np.maximum(0.0, copied_once - whole_b)
            waits = np.maximum(0.0, copied - whole_b)
        else:
            waits = np.zeros_like(copied)
        if overlap and e.level == "tuned":  # gradients and weights travel during the passes (``exchange_beside``)
            ends = update + penalty * (gathered + ahead).max(axis=-1, keepdims=True)
            exposed = penalty * after
        else:
            ends = update + gathered + np.maximum(0.0, ahead - whole_f)
            exposed = penalty * after + (1 - penalty) * np.maximum(0.0, after - whole_b * overlap)
        if waits.any():
            last = (ends[:, :, None, :] + times[:, None, :, None] * waits[:, :, None, :]).max(axis=-1)
        else:
            last = np.broadcast_to(ends.max(axis=-1)[..., None], (*ends.shape[:2], times.shape[1]))
        return (forward, backward, sends), exposed, micro, last, penalty

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
    def _passes(self, row: int) -> Array:
        """Return ``_segment_passes`` of a slice."""
        own = self.slices[row]
        recomputation = replace(own.mesh(), recompute=own.recompute).recomputation
        return _segment_passes(
            self._divided(own), recomputation, own.precision, self.model.constants, self.cluster.device, self.segments(own)
        )

    @once_by(lambda own: (own.division, own.precision, own.micro_batch_size))
    def _weights(self, own: LayoutSlice) -> Array:
        """Return the most and the least seconds of the gradients of weights in each segment, (2, segments)."""
        layers, constants = self._divided(own), self.model.constants
        most = weight_seconds(layers.workload, own.micro_batch_size, own.precision, self.cluster.device, constants)
        of_layers = np.stack((most, np.minimum(most, layers.passes[1].kernels)))
        weights: Array = np.add.reduceat(of_layers, self.segments(own).starts, axis=1)
        return weights

    @once_by(lambda own: (own.division, own.precision, own.micro_batch_size))
    def _divided(self, own: LayoutSlice) -> Divided:
        """Return one device's part of the layers. Recomputation runs layers again, and changes no pass."""
        return divide(self.model, self.cluster, self._strategy_of(own))

    @cached_property
    def _boundaries(self) -> Array:
        """Bytes that leave each segment, (divisions, segments)."""
        return np.stack([self.segments(own).boundary for own in self._divisions.first])

    @cached_property
    def _widths(self) -> Array:
        """Width of a number of each slice, (slices,)."""
        return np.array([own.width for own in self.slices])

    def _sends(self, rows: Ints, shape: PipelineShape) -> Array:
        """Return seconds from each part to the next, (slices, parts - 1)."""
        parts = shape.stages * shape.virtual
        if parts == 1:
            return np.zeros((len(rows), 0))
        latency, each = self._links(shape.stages)[:, np.arange(parts - 1) % shape.stages]
        last = self._parts(shape)[1:] - 1
        _, micro, tensor, _ = self._sizes_of_slices[:, rows, None]
        sizes = self._boundaries[self._divisions.number[rows, None], last] * self._widths[rows, None] * micro / tensor
        sends: Array = latency + sizes * each
        return sends

    @once
    def _links(self, stages: int) -> Array:
        """Return the latency from each stage to the next, and seconds of a byte, (2, stages)."""
        e, block = self.model.constants, self.cluster.world_size // stages
        found = [pairs_between(self.cluster, block, stage, (stage + 1) % stages) for stage in range(stages)]
        return np.array([(e.latency(link), users / e.bandwidth(link)) for link, users, _ in found]).T

    def _cuts(self, shape: PipelineShape) -> tuple[Cut, ...]:
        """Return how the pipelines with as many stages cut the network."""
        return tuple(dict.fromkeys(of.cut for of in (*self.shapes, shape) if of.stages == shape.stages))

    @once_by(lambda own, row, cuts: (_state(own), cuts))
    def _exchange(self, own: LayoutSlice, row: int, cuts: tuple[Cut, ...]) -> dict[Cut, Array]:
        """Return seconds of the exchange by sharding and stage for each way to cut the network, (shardings, 7, stages).

        The entries are those of ``exchange_bounds``.
        """
        state = self._states.number[row]
        trained = np.concatenate([self._elements(*cut)[state, :3] for cut in cuts], axis=-1)
        unlike, stage = np.unique(trained, axis=1, return_inverse=True)
        elements, experts, tensors = unlike
        pipeline = cuts[0][0]
        found = np.stack(
            [
                np.stack(
                    exchange_bounds(
                        self._replica_groups(own, pipeline, shares, elements, experts), tensors, self.model.constants
                    )
                )
                for shares in self._shares.first
            ]
        )[..., stage.ravel()]
        ends = np.cumsum([cut[0] for cut in cuts])[:-1]
        return dict(zip(cuts, np.split(found, ends, axis=-1), strict=True))

    def _replica_groups(
        self, own: LayoutSlice, pipeline: int, shares: Shares, elements: Array, experts: Array
    ) -> tuple[ReplicaGroup, ...]:
        """Return the replicas of the trained ``elements`` of each stage, with those of experts apart if they are others."""
        inner = self._inner(own, pipeline, shares)
        view, share = group_view(self.cluster, inner.world_size, own.tensor), self.model.host_share(self.cluster, inner)
        replicas = self._expert_replicas(own, pipeline)
        if not experts.any() or replicas == inner.world_size:
            return (ReplicaGroup(inner, view, elements, share),)
        rest = ReplicaGroup(inner, view, elements - experts, share)
        try:
            of_experts = group_view(self.cluster, replicas, own.expert)
        except UserError:  # no such layout is legal
            return (rest,)
        return rest, ReplicaGroup(self._inner(own, pipeline, shares, replicas), of_experts, experts, share)


@once_by(lambda recomputation, *others: recomputation)
def _segment_passes(
    layers: Divided, recomputation: Recompute, precision: str, e: Efficiency, device: Device, segments: Segments
) -> Array:
    """Return passes of one micro batch in each segment, (5, segments).

    Rows: seconds of the forward pass, of the backward pass and of recomputation before it, and the kernels that the host
    launches in both passes.
    """
    forward, backward = layers.passes
    again, _ = run_again(layers.workload, recomputation, forward.total)
    calls = host_launches(layers.workload, e, device, precision)
    of_layers = np.stack([forward.total, backward.total, again, *calls])
    summed: Array = np.add.reduceat(of_layers, segments.starts, axis=1)
    if e.level == "tuned" and calls.any():  # each block waits for its host (``host_excess``)
        summed[:2] = np.maximum(summed[:2], summed[3:] * host_seconds(device, e))
        summed[3:] = 0.0
    return summed
