"""Step time and memory of very many strategies at once: what ``plan`` ranks by.

Strategies that exchange the same way on the same machines are priced once and placed together, as arrays; the passes of equal
micro batches are worked out once. The numbers are those of ``predict`` to rounding; a test holds them equal.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from paceline.calibration.constants import TYPICAL, Efficiency
from paceline.errors import UserError
from paceline.hardware.cluster import Cluster
from paceline.prediction.compute import layer_seconds
from paceline.prediction.costs import ExchangeSeconds, exchange_seconds, run_again, slowest, update_seconds
from paceline.prediction.exchange_plan import Array, Ints, exchange_plan, plan_key
from paceline.prediction.memory import fixed_bytes, reserve_bytes, sample_bytes
from paceline.prediction.predict import check_fits_together
from paceline.prediction.timeline import Pieces, place, sums, unit_bounds
from paceline.strategy.strategy import Strategy
from paceline.workload.table import Workload

Candidate = tuple[Cluster, Strategy]


@dataclass(frozen=True, slots=True)
class Steps:
    """One entry for each candidate, in their order.

    Attributes:
        step_s: seconds of a step; NaN where it cannot be predicted, for the reason in ``refused`` by index.
        memory_bytes: needed on one device. ``available_bytes``: what it has.
    """

    step_s: Array
    memory_bytes: Array
    available_bytes: Array
    refused: Mapping[int, str]

    @property
    def fits(self) -> NDArray[np.bool_]:
        """Whether it fits the device's memory."""
        return self.memory_bytes <= self.available_bytes


def step_seconds(
    workload: Workload,
    candidates: Sequence[Candidate],
    *,
    overlap: bool = True,
    loader_samples_per_s: float = 0.0,
    efficiency: Efficiency = TYPICAL,
) -> Steps:
    """What ``predict`` says of every candidate's ``step_time_s`` and ``memory_bytes``, without a calibration.

    Args:
        overlap, loader_samples_per_s: as for ``predict``.
        efficiency: its typical one.
    """
    candidates = [(c, s if s.optimizer else s.settled(workload, c)) for c, s in candidates]
    count = len(candidates)
    step, memory = np.full(count, np.nan), np.zeros(count)
    available = np.array([cluster.device.memory.value for cluster, _ in candidates], dtype=np.float64)
    refused: dict[int, str] = {}
    passes = _Passes(workload, efficiency)
    for members in _groups(candidates, loader_samples_per_s, refused):
        found = _Group.of(workload, candidates, members, passes, refused)
        if not len(found.members):
            continue
        step[found.members] = _place(workload, found, passes, overlap, loader_samples_per_s)
        memory[found.members] = _memory(workload, found)
    return Steps(step, memory, available, refused)


def _groups(candidates: Sequence[Candidate], loader: float, refused: dict[int, str]) -> list[list[int]]:
    """Indices of the candidates with the same exchange on the same machines."""
    groups: dict[Hashable, list[int]] = {}
    for index, (c, strategy) in enumerate(candidates):
        try:
            check_fits_together(c, strategy, loader)
        except UserError as error:
            refused[index] = error.message
            continue
        where = id(c.device), id(c.intra_link), id(c.network), c.devices_per_node, c.num_nodes
        groups.setdefault((where, plan_key(strategy)), []).append(index)
    return list(groups.values())


@dataclass(slots=True)
class _Passes:
    """Sums of the layers' seconds over both passes, a row for each micro batch, precision and device."""

    workload: Workload
    efficiency: Efficiency
    rows: dict[Hashable, int | UserError] = field(default_factory=dict)
    forward: list[Array] = field(default_factory=list)
    backward: list[Array] = field(default_factory=list)

    def row(self, cluster: Cluster, strategy: Strategy, micro: int) -> int | UserError:
        """Its row; the reason where the device cannot run it."""
        key = id(cluster.device), strategy.precision, micro, strategy.parallelism.recompute
        found = self.rows.get(key)
        if found is None:
            found = self.rows[key] = self._made(cluster, strategy, micro)
        return found

    def _made(self, cluster: Cluster, strategy: Strategy, micro: int) -> int | UserError:
        try:
            forward, backward = layer_seconds(self.workload, micro, strategy.precision, cluster.device, self.efficiency)
        except UserError as error:
            return error
        again, _ = run_again(self.workload, strategy.parallelism.recompute, forward.total)
        self.forward.append(sums(forward.total))
        self.backward.append(sums(backward.total + again))
        return len(self.forward) - 1


@dataclass(frozen=True, slots=True)
class _Group:
    """Candidates with one plan; arrays have one entry for each."""

    cluster: Cluster
    strategies: list[Strategy]
    members: Ints
    rows: Ints
    micro: Ints
    times: Ints
    exchange: ExchangeSeconds

    @classmethod
    def of(
        cls,
        workload: Workload,
        candidates: Sequence[Candidate],
        members: list[int],
        passes: _Passes,
        refused: dict[int, str],
    ) -> _Group:
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
        plan = exchange_plan(workload, first.settled(workload, cluster), cluster.devices_per_node)
        return cls(
            cluster,
            strategies,
            np.array(kept, dtype=np.int64),
            np.array(rows, dtype=np.int64),
            np.array(micro, dtype=np.int64),
            np.array([s.parallelism.micro_batches for s in strategies], dtype=np.int64),
            exchange_seconds(plan, cluster, passes.efficiency),
        )


def _place(workload: Workload, group: _Group, passes: _Passes, overlap: bool, loader_samples_per_s: float) -> Array:
    """Seconds of a step of each candidate (see ``timeline.pieces``)."""
    first, x, e = group.strategies[0], group.exchange, passes.efficiency
    plan, slow = x.plan, slowest(first.world_size, e)
    shared = first.parallelism.shares.weights
    layers = len(workload.layers)
    columns = unit_bounds(plan, layers) if shared else np.array([*plan.first, layers], dtype=np.int64)
    forward, backward = (
        np.array([some[row][columns] for row in group.rows]) * slow for some in (passes.forward, passes.backward)
    )
    by_unit = [np.diff(some).T if shared else () for some in (forward, backward)]
    ready, exchange = ((), x.buckets.tolist()) if shared else _as_one(backward[:, -1:] - backward[:, :-1], x.buckets)
    updates: dict[str, float] = {}
    for s in group.strategies:
        if s.optimizer not in updates:
            updates[s.optimizer] = sum(update_seconds(workload, s, plan, group.cluster.device, e))
    gathers = dict(zip(plan.gathers, x.gathers.tolist(), strict=True))
    batch = group.micro * group.times * first.world_size
    parts = Pieces(
        group.times,
        forward[:, -1],
        backward[:, -1],
        list(by_unit[0]),
        list(by_unit[1]),
        ready,
        exchange,
        gathers.get("gather_forward", ()),
        gathers.get("gather_backward", ()),
        sum(gathers.get("gather_update", ())),
        np.array([updates[s.optimizer] for s in group.strategies]),
        batch / loader_samples_per_s if loader_samples_per_s else 0.0,
        e.overlap_penalty,
    )
    found: Array = place(parts, overlap, shared, np.maximum).step
    return found


def _as_one(ready: Array, seconds: Array) -> tuple[list[Array], list[float]]:
    """Buckets that follow each other as one that ends when they do: at the latest of ``ready`` (candidates, buckets) and all
    that is exchanged from there on.
    """
    if not len(seconds):
        return [], []
    total = float(seconds.sum())
    rest = np.cumsum(seconds[::-1])[::-1]
    return [(ready + rest).max(axis=1) - total], [total]


def _memory(workload: Workload, group: _Group) -> Array:
    """Bytes on one device of each candidate (see ``memory_breakdown``)."""
    made: dict[Hashable, tuple[float, float]] = {}
    plan = group.exchange.plan
    rows = []
    for s in group.strategies:
        key = s.precision, s.optimizer, s.parallelism.recompute
        if key not in made:
            fixed = sum(fixed_bytes(workload, s, plan).values()) + reserve_bytes(group.cluster.device)
            made[key] = fixed, sum(sample_bytes(workload, s.precision, s.parallelism.recompute).values())
        rows.append(made[key])
    table = np.array(rows)
    found: Array = table[:, 0] + table[:, 1] * group.micro
    return found
