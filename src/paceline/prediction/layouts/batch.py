"""Step time and memory of very many strategies at once, for the ranking of ``plan``.

Strategies that exchange the same way on the same machines are priced once and scheduled together, as arrays. The passes of
equal micro batches are computed once. The numbers equal those of one step at a time to rounding, as a test checks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from paceline.array_types import Array, Ints
from paceline.errors import UserError
from paceline.hardware.cluster import Cluster
from paceline.hardware.precision import RECIPES
from paceline.prediction.exchange.exchange_plan import BucketSizes, bucket_sizes, seconds_key
from paceline.prediction.exchange.local_steps import beside_share, outer_seconds
from paceline.prediction.exchange.matrix_exchange import matrix_exchange_seconds
from paceline.prediction.mesh.mesh_step import mesh_step
from paceline.prediction.passes.offload import check_offload, check_paged
from paceline.prediction.step.costs import run_again, slowest, update_seconds
from paceline.prediction.step.framework_memory import fragments_share, framework_bytes, free_bytes
from paceline.prediction.step.memory import (
    fixed_bytes,
    loss_of,
    sample_bytes,
    saved_numbers,
    update_bytes,
    usable_bytes,
)
from paceline.prediction.step.optimizer_state import PAGE, is_paged
from paceline.prediction.step.peer_step import any_worker_step
from paceline.prediction.step.runtime_memory import communicators_bytes, context_bytes
from paceline.prediction.step.step import Step
from paceline.prediction.step.step_model import StepModel
from paceline.prediction.step.timeline import columns, pieces, schedule_step, sums
from paceline.strategy.codec_place import check_fabric
from paceline.strategy.strategy import COMPUTING, Strategy, moving_of_step
from paceline.workload.table import Workload

Candidate = tuple[Cluster, Strategy]


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps of many candidates, one entry for each, in their order.

    Attributes:
        step_s: seconds of a step; NaN if it cannot be predicted, for the reason in ``refused`` by index.
        memory_bytes: bytes needed on one device. ``available_bytes``: bytes that it has without the headroom
            (``memory.usable_bytes``). A search that leaves out what does not fit has a lower bound for some of those, and no
            seconds.
    """

    step_s: Array
    memory_bytes: Array
    available_bytes: Array
    refused: Mapping[int, str]

    @property
    def fits(self) -> NDArray[np.bool_]:
        """True for each step that fits the device's memory with its headroom."""
        return self.memory_bytes <= self.available_bytes


class Evaluation(ABC):
    """Method of computing the steps of many candidates."""

    @abstractmethod
    def steps(self, candidates: Sequence[Candidate], *, fitting: bool = False) -> Steps:
        """Return the steps of every candidate, in their order.

        Args:
            fitting: whether only those that fit, and the memory of the one that lacks least, are needed.
        """


@final
@dataclass(frozen=True, slots=True)
class Batched(Evaluation):
    """Evaluation of undivided networks as arrays, by a model without a calibration, free resources and slow workers."""

    model: StepModel

    def steps(self, candidates: Sequence[Candidate], *, fitting: bool = False) -> Steps:
        """Return the steps of candidates whose devices each hold the whole network."""
        workload = self.model.workload
        candidates = [pair if pair[1].optimizer else (pair[0], pair[1].settled(workload, pair[0])) for pair in candidates]
        steps, refused = _empty(candidates), dict[int, str]()
        passes = _PassTable(self.model)
        too_large: list[_SameExchange] = []
        for members in _groups(candidates, refused):
            group = _SameExchange.of(candidates, members, passes, refused)
            if not len(group.members):
                continue
            if fitting:
                sizes = group.bytes_of(self.model, group.sizes(workload))
                steps.memory_bytes[group.members] = group.needed(sizes, group.micro)
                if (group.needed(sizes, 1) > steps.available_bytes[group.members]).all():
                    too_large.append(group)
                    continue
            steps.step_s[group.members] = group.seconds(passes)
            steps.memory_bytes[group.members] = group.memory(self.model)
        self._nearest(steps, too_large)
        return replace(steps, refused=refused)

    def _nearest(self, steps: Steps, too_large: Sequence[_SameExchange]) -> None:
        """Replace lower bounds of groups that do not fit by the bytes, as far as the least shortage of all needs it."""

        def missing(group: _SameExchange) -> float:
            return float((steps.memory_bytes - steps.available_bytes)[group.members].min())

        bounded = np.zeros(len(steps.step_s), dtype=np.bool_)
        for group in too_large:
            bounded[group.members] = True
        others = (steps.memory_bytes - steps.available_bytes)[~bounded & ~steps.fits]
        least = float(others.min(initial=np.inf))
        for bound, group in sorted(((missing(group), group) for group in too_large), key=lambda of: of[0]):
            if bound > least:
                return
            steps.memory_bytes[group.members] = group.memory(self.model)
            least = min(least, missing(group))


class OneByOne(Evaluation):
    """Evaluation that computes each step separately."""

    @abstractmethod
    def figures(self, cluster: Cluster, strategy: Strategy) -> tuple[float, float]:
        """Return seconds and bytes of one step. Raises UserError if it cannot be predicted."""

    def steps(self, candidates: Sequence[Candidate], *, fitting: bool = False) -> Steps:
        """Return the steps of every candidate."""
        del fitting
        steps, refused = _empty(candidates), dict[int, str]()
        for index, (cluster, strategy) in enumerate(candidates):
            try:
                steps.step_s[index], steps.memory_bytes[index] = self.figures(cluster, strategy)
            except UserError as error:
                refused[index] = error.message
        return replace(steps, refused=refused)


@final
@dataclass(frozen=True, slots=True)
class OnMesh(OneByOne):
    """Evaluation of networks divided among several devices, without ranges."""

    model: StepModel

    def figures(self, cluster: Cluster, strategy: Strategy) -> tuple[float, float]:
        """Return seconds of a step and bytes on the fullest device. Raises UserError as ``mesh_step``, or for a wrong mesh."""
        strategy.parallelism.check_covers(cluster.world_size)
        settled = strategy.settled(self.model.workload, cluster)
        step: Step = (any_worker_step if settled.parallelism.whole else mesh_step)(self.model, cluster, settled)
        return step.seconds, sum(step.memory().values())


def refused_steps(candidates: Sequence[Candidate], errors: Iterable[UserError]) -> Steps:
    """Return entries for candidates that cannot be predicted, each with its reason."""
    return replace(_empty(candidates), refused={index: error.message for index, error in enumerate(errors)})


def merged_steps(*parts: tuple[Sequence[int], Steps]) -> Steps:
    """Merge steps of candidates that were predicted separately, each with their indices among all."""
    count = sum(len(indices) for indices, _ in parts)
    step_s, memory, available, refused = np.empty(count), np.empty(count), np.empty(count), dict[int, str]()
    for indices, steps in parts:
        own = np.array(indices, dtype=np.int64)
        step_s[own], memory[own], available[own] = steps.step_s, steps.memory_bytes, steps.available_bytes
        refused |= {int(own[index]): why for index, why in steps.refused.items()}
    return Steps(step_s, memory, available, refused)


def _empty(candidates: Sequence[Candidate]) -> Steps:
    """Return steps in which every candidate is still unknown."""
    count = len(candidates)
    clusters = {id(cluster): cluster for cluster, _ in candidates}
    known = {key: usable_bytes(cluster.device) for key, cluster in clusters.items()}
    available = np.array([known[id(cluster)] for cluster, _ in candidates], dtype=np.float64)
    return Steps(np.full(count, np.nan), np.zeros(count), available, {})


def _groups(candidates: Sequence[Candidate], refused: dict[int, str]) -> list[list[int]]:
    """Group indices of the candidates with the same exchange on the same machines."""
    groups: dict[Hashable, list[int]] = {}
    group_of: dict[Hashable, list[int] | UserError] = {}  # by identity of the parts that very many candidates share
    for index, (c, s) in enumerate(candidates):
        parts = (
            id(c),
            id(s.parallelism),
            id(s.gradient_exchange),
            id(s.local),
            s.precision,
            moving_of_step(s),
            s.optimizer,
            id(s.weight_update),
        )
        group = group_of.get(parts)
        if group is None:
            group = group_of[parts] = _group(c, s, groups)
        if isinstance(group, UserError):
            refused[index] = group.message
        else:
            group.append(index)
    return list(groups.values())


def _group(c: Cluster, strategy: Strategy, groups: dict[Hashable, list[int]]) -> list[int] | UserError:
    """Return a candidate's group in ``groups``, or the reason why it cannot be predicted."""
    try:
        strategy.parallelism.check_covers(c.world_size)
        check_offload(strategy.parallelism.offload, c.device)
        check_paged(strategy, c.device)
        x = strategy.gradient_exchange
        if x.placed:
            check_fabric(x, c)
    except UserError as error:
        return error
    where = id(c.device), id(c.intra_link), id(c.network), id(c.nic), id(c.aggregation), c.places, c.num_nodes
    return groups.setdefault((where, seconds_key(strategy)), [])


@dataclass(slots=True)
class _PassTable:
    """Table of the layers' total seconds over both passes, with a row for each micro batch, precision and device."""

    model: StepModel
    rows: dict[Hashable, int | UserError] = field(default_factory=dict)
    forward: list[Array] = field(default_factory=list)
    backward: list[Array] = field(default_factory=list)

    def row(self, cluster: Cluster, strategy: Strategy, micro: int) -> int | UserError:
        """Return the row of a candidate, or the reason why the device cannot run it."""
        times = strategy.parallelism.micro_batches if strategy.precision in RECIPES else 1
        mesh = strategy.parallelism
        alone = self.model.workload.tables is None and mesh.host_activations is None
        where = id(cluster.device) if alone else id(cluster)
        choices = COMPUTING(strategy), strategy.weight_update.narrow, mesh.recomputation, mesh.host_activations
        key = where, choices, micro, times
        row = self.rows.get(key)
        if row is None:
            row = self.rows[key] = self._add(cluster, strategy)
        return row

    def _add(self, cluster: Cluster, strategy: Strategy) -> int | UserError:
        try:
            forward, backward = self.model.waiting(self.model.passes(cluster.device, strategy), cluster, strategy)
        except UserError as error:
            return error
        again, _ = run_again(self.model.workload, strategy.parallelism.recomputation, forward.repeated)
        self.forward.append(sums(forward.total))
        self.backward.append(sums(backward.total + again))
        return len(self.forward) - 1


@dataclass(frozen=True, slots=True)
class _SameExchange:
    """Candidates with one exchange plan on the same machines; arrays have one entry for each."""

    cluster: Cluster
    strategies: list[Strategy]
    members: Ints
    rows: Ints
    micro: Ints
    settled: Strategy

    @classmethod
    def of(
        cls, candidates: Sequence[Candidate], members: list[int], passes: _PassTable, refused: dict[int, str]
    ) -> _SameExchange:
        """Collect the ``members`` that the device can run, and list the others in ``refused``."""
        cluster, first = candidates[members[0]]
        kept, rows, strategies, micro = [], [], [], []
        for index in members:
            strategy = candidates[index][1]
            size = strategy.micro_batch_size
            row = passes.row(cluster, strategy, size)
            if isinstance(row, UserError):
                refused[index] = row.message
                continue
            kept.append(index)
            rows.append(row)
            micro.append(size)
            strategies.append(strategy)
        return cls(
            cluster,
            strategies,
            np.array(kept, dtype=np.int64),
            np.array(rows, dtype=np.int64),
            np.array(micro, dtype=np.int64),
            first.settled(passes.model.workload, cluster),
        )

    def sizes(self, workload: Workload) -> BucketSizes:
        """Return the buckets of the exchange."""
        return bucket_sizes(workload, self.settled)

    def seconds(self, passes: _PassTable) -> Array:
        """Return seconds of a step of each candidate (see ``StepModel.step``)."""
        model, first, exchange = passes.model, self.strategies[0], passes.model.exchange(self.cluster, self.settled)
        plan = exchange.plan
        workload, constants = model.workload, model.constants
        shared = first.parallelism.sharding.weights
        at = columns(plan, len(workload.layers), shared)
        forward, backward = (np.array([rows[row][at] for row in self.rows]) for rows in (passes.forward, passes.backward))
        slow = slowest(first.world_size, constants)
        forward, backward = forward * slow, backward * slow
        updates: dict[Hashable, float] = {}
        share = model.host_share(self.cluster, first)
        of: list[tuple[Any, ...]] = []  # parameters of an update's seconds; the last three only on a host
        for s, beside in zip(self.strategies, backward[:, -1].tolist(), strict=True):
            on_host = s.parallelism.offload.optimizer
            paged = (COMPUTING(s), s.micro_batch_size, s.parallelism.recomputation) if is_paged(s) else ()
            with_update = s.optimizer, s.weight_update, paged
            of.append((*with_update, *((s.precision, s.exchanges_per_step, beside) if on_host else ("", 0, 0.0))))
        for s, key in zip(self.strategies, of, strict=True):
            if key not in updates:
                own = update_seconds(workload, s, plan, self.cluster.device, constants, key[-1], share)
                paging_s = model.paging_seconds(self.cluster, s, plan)
                matrices = matrix_exchange_seconds(workload, s, self.cluster, constants)
                updates[key] = sum((*own, paging_s, *matrices, *outer_seconds(workload, s, self.cluster.device, constants)))
        times = np.array([s.parallelism.micro_batches for s in self.strategies], dtype=np.int64)
        durations = pieces(
            forward,
            backward,
            exchange,
            shared,
            times,
            np.array([updates[key] for key in of]),
            self.micro * times * first.world_size / model.loader if model.loader else 0.0,
            constants.overlap_penalty,
            beside_share(first, model.overlap),
        )
        step_s: Array = schedule_step(durations, model.overlap, shared, np.maximum).step
        return step_s

    def memory(self, model: StepModel) -> Array:
        """Return bytes on one device for each candidate (see ``memory_breakdown``)."""
        return self.needed(self.bytes_of(model, model.plan(self.cluster, self.settled)), self.micro)

    def needed(self, of: tuple[Array, Array, Array, Array], micro: Ints | int) -> Array:
        """Return bytes on one device for each candidate with micro batches of ``micro`` samples. ``of``: from ``bytes_of``."""
        fixed, of_sample, update, paged = of
        needed: Array = fixed + np.maximum(of_sample * micro, update)
        missing = np.maximum(needed - usable_bytes(self.cluster.device), 0.0)
        on_device: Array = needed - np.minimum(np.ceil(missing / PAGE) * PAGE, paged)
        return on_device

    def bytes_of(self, model: StepModel, plan: BucketSizes) -> tuple[Array, Array, Array, Array]:
        """Return bytes on one device for each candidate: those that do not grow with the batch, of a sample, of an update, and
        of paged state, which leaves the device when that is full."""
        workload = model.workload
        bytes_of: dict[Hashable, tuple[float, float, float, float]] = {}
        rows = []
        for s in self.strategies:
            mesh = s.parallelism
            key = COMPUTING(s), s.weight_update, mesh.recomputation, mesh.host_activations, mesh.data, mesh.shard_devices
            row = bytes_of.get(key)
            if row is None:
                framework = model.constants.framework
                parts = fixed_bytes(workload, s, plan, self.cluster.device)
                parts |= framework_bytes(workload, s, framework, parts)
                context = context_bytes(self.cluster.device)
                gpu = self.cluster.device.kind == "gpu"
                whole = 1 + fragments_share(s, framework) if gpu and not framework.stream_pools else 1.0
                fixed = whole * sum(parts.values()) + context + (free_bytes(s, framework, 0.0) if gpu else 0.0)
                if context:
                    fixed += communicators_bytes(mesh, self.cluster, megatron=framework.megatron)
                update = whole * (update_bytes(workload, s, framework, plan) - parts["gathered"])
                paged = parts["optimizer state"] if is_paged(s) else 0.0
                of_sample = sample_bytes(
                    workload,
                    saved_numbers(s, framework),
                    mesh.recomputation,
                    s.precision,
                    loss=loss_of(s, framework),
                    on_host=mesh.host_activations,
                )
                row = bytes_of[key] = fixed, whole * sum(of_sample.values()), update, paged
            rows.append(row)
        table = np.array(rows)
        return table[:, 0], table[:, 1], table[:, 2], table[:, 3]
