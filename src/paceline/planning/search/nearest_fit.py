"""Nearest changes with which a job fits: first of its strategy on the same devices, then of the devices.

Micro steps, recomputation, sharding, offload and the layouts of the planner are predicted, one change first, then several
together, until something fits. The fastest represents all that change the same choices.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from paceline import hardware
from paceline.errors import UserError
from paceline.hardware import Cluster, Device, Link
from paceline.hardware.prices import price
from paceline.planning.compare.changes import Change, apply
from paceline.planning.compare.strategy_text import describe, saves_memory
from paceline.planning.search.divided_layouts import expert_groups
from paceline.planning.search.layout_space import LayoutSpace, dividing_shardings, powers
from paceline.planning.search.layouts import search_layouts
from paceline.prediction import ORDINARY, Prediction, Predictor, StepPredictor
from paceline.prediction.layouts.batch import Candidate
from paceline.prediction.mesh.expert_parallel import has_experts
from paceline.prediction.passes.offload import can_offload
from paceline.prediction.step.memory import usable_bytes
from paceline.strategy import OPTIMIZERS, GradientExchange, Strategy
from paceline.strategy.choices.choice import plain_values
from paceline.strategy.offload import OFFLOAD_OPTIMIZER, OFFLOAD_WEIGHTS
from paceline.strategy.parallelism import DIVIDING
from paceline.strategy.recompute import FULL_RECOMPUTE, NO_RECOMPUTE
from paceline.strategy.sharding import TORCH_SHARDINGS
from paceline.strategy.strategy import LAYOUT
from paceline.units import format_memory, format_seconds
from paceline.workload.table import Workload

DENSE = "dense all-reduce"
BITS, LOSS, ADAPTERS = "4 bits", "chunked loss", "adapters"
SHORTER, NARROW = "shorter sequences", "bf16 weights"
"""Kinds of change of the job itself: weights next to adapters in 4 bits, the loss in parts, adapters in place of all weights,
its length, and bf16 weights with 8-bit state, updated in the backward pass."""
ORDER = (
    *("micro steps", "recomputation", "sharding", "layout", BITS, LOSS, "offload", SHORTER, NARROW, ADAPTERS),
    *("more devices", "larger device", DENSE),
)
"""Kinds of change, the nearest first."""
_KINDS = {"grad_accum_steps": "micro steps", "recompute": "recomputation", "sharding": "sharding", "offload": "offload"}
"""Kind of change of each choice that keeps the devices and the division of the network."""
_IN_NODE = 8
"""Devices of a node, if more are offered than the cluster has."""
_DOUBLINGS = 4
"""Number of larger clusters to try, each twice as large as the one before."""
LESS = 0.99
"""Largest share of the memory that a change leaves if it counts as smaller."""
BETWEEN = "100Gb/s"
"""Network between nodes, if several are offered instead of one."""


@dataclass(frozen=True, kw_only=True)
class Fitting:
    """A change with which the job fits.

    Attributes:
        kinds: kinds of the change, from ``ORDER``.
        lora, tokens: text of other adapters, and tokens of a shorter sequence; empty and 0 if the job itself stays.
        prediction: prediction of the changed job. Its ``fit`` is ``fits``.
    """

    kinds: tuple[str, ...]
    cluster: Cluster
    strategy: Strategy
    prediction: Prediction
    lora: str = ""
    tokens: int = 0

    def __str__(self) -> str:
        p = self.prediction
        figures = f"{format_memory(p.memory_bytes)}, {format_seconds(p.step_time_s)} a step"
        return f"{', '.join(filter(None, (*self.job, describe(self.cluster, self.strategy))))} ({figures})"

    @property
    def job(self) -> tuple[str, ...]:
        """Changed options of the job itself: ``--lora r=16,bits=4``, ``--seq-len 2048``."""
        lora = f"--lora {self.lora}" if self.lora else ""
        return tuple(filter(None, (lora, f"--seq-len {self.tokens}" if self.tokens else "")))

    def to_json(self) -> dict[str, Any]:
        """Return a plain dict: bytes on the fullest device, seconds, samples/s."""
        names = ("memory_bytes", "step_time_s", "low_s", "high_s", "samples_per_s", "cluster", "strategy")
        job = {name: value for name, value in (("lora", self.lora), ("seq_len", self.tokens)) if value}
        return {"changes": list(self.kinds), **job, **{name: getattr(self.prediction, name) for name in names}}


def nearest_fit(
    workload: Workload,
    cluster: Cluster,
    strategy: Strategy,
    *,
    predictor: StepPredictor = ORDINARY,
    network: Link | None = None,
    most_batches: int = 1,
) -> tuple[Fitting, ...]:
    """Return the nearest changes with which the job fits with the headroom for fragments, the nearest first.

    Empty if it fits unchanged, or if nothing is found.

    Args:
        network: network between nodes, if several are offered instead of one; by default ``BETWEEN``.
        most_batches: largest factor on the global batch, a power of two, if that fits too.

    Raises:
        UserError: as ``Predictor.step``.
    """
    base = predictor.step(workload, cluster, strategy)
    if base.fit == "fits":
        return ()
    search = ChangeSearch(workload, predictor.uncorrected.changed(calibration=None, loader=0.0, free=frozenset()))
    strategy = strategy.settled(workload, cluster)
    offers = search.offers(cluster, strategy, network, base.memory_bytes)
    if not offers and (dense := _dense(strategy)) != strategy:
        offers = [
            ((*kinds, DENSE), candidate) for kinds, candidate in search.offers(cluster, dense, network, base.memory_bytes)
        ]
    fitting = []
    for kinds, (machines, choice) in offers:
        chosen = search.grown(machines, choice, most_batches)
        step = predictor.step(workload, machines, chosen)
        if step.fit == "fits":
            fitting.append(Fitting(kinds=kinds, cluster=machines, strategy=chosen, prediction=step))
    return tuple(fitting)


def smaller_steps(
    workload: Workload, cluster: Cluster, strategy: Strategy, base: Prediction, *, predictor: StepPredictor = ORDINARY
) -> tuple[Fitting, ...]:
    """Return changes of one choice with less memory than ``base`` on the same devices, the least memory first.

    The fastest represents all changes of a kind. Micro steps are doubled.

    Raises:
        UserError: as ``Predictor.step``.
    """
    search = ChangeSearch(workload, predictor.uncorrected)
    strategy = strategy.settled(workload, cluster)
    values = search.values(
        strategy,
        OFFLOAD_OPTIMIZER.name if can_offload(workload.num_parameters, cluster) and not strategy.parallelism.offload else "",
    )
    best: dict[str, Fitting] = {}
    for name, kind in _KINDS.items():
        others = [value for value in values[name] if value != strategy.choice(name)]
        for value in others[:1] if kind == "micro steps" else others:
            with suppress(UserError):
                changed = strategy.changed(**{name: value})
                step = predictor.step(workload, cluster, changed)
                if step.memory_bytes > LESS * base.memory_bytes:
                    continue
                found = Fitting(kinds=(kind,), cluster=cluster, strategy=changed, prediction=step)
                best[kind] = min(best.get(kind, found), found, key=lambda own: own.prediction.step_time_s)
    return tuple(sorted(best.values(), key=lambda found: found.prediction.memory_bytes))


Offer = tuple[tuple[str, ...], Candidate]


@dataclass(frozen=True)
class ChangeSearch:
    """Choices to try, and a predictor to find which of them fit."""

    workload: Workload
    predictor: Predictor

    def offers(self, cluster: Cluster, strategy: Strategy, network: Link | None, needed: float) -> list[Offer]:
        """Return offers on the same devices, on more of them if state is sharded, and on larger ones. ``needed``: bytes."""
        offers = self.nearest(cluster, strategy, host=can_offload(self.workload.num_parameters, cluster))
        larger = self.larger_device(cluster, strategy, needed)
        if all("offload" in kinds for kinds, _ in offers):
            between = cluster.network if cluster.num_nodes > 1 else network or hardware.network(BETWEEN)
            offers += self.more_devices(cluster, strategy, between)
            larger = larger or self.any_device(cluster, strategy)
        return offers + larger

    def nearest(self, cluster: Cluster, strategy: Strategy, *, host: bool = False) -> list[Offer]:
        """Return offers on the same devices, by the farthest kind of change: the fewest changes, then the fastest.

        Args:
            host: whether optimizer state may move to host memory if nothing else fits.
        """
        fitting = [*self.fitting(self.whole(cluster, strategy)), *self.fitting(self._divided(cluster, strategy))]
        fitting = fitting or self.fitting(self._divided(cluster, strategy, free=True))
        for state in (OFFLOAD_OPTIMIZER, OFFLOAD_WEIGHTS) if host and self.workload.frozen else (OFFLOAD_OPTIMIZER,) * host:
            fitting = fitting or self.fitting(self.whole(cluster, strategy, state.name))
        of_kind: dict[str, tuple[int, float, Candidate]] = {}
        for seconds, candidate in fitting:
            kind, changes = _kinds(strategy, candidate[1])[-1], len(_changes(strategy, candidate[1]))
            if kind not in of_kind or (changes, seconds) < of_kind[kind][:2]:
                of_kind[kind] = changes, seconds, candidate
        nearest = sorted(of_kind.items(), key=lambda of: (of[1][0], ORDER.index(of[0])))
        return [(_kinds(strategy, candidate[1]), candidate) for _, (*_, candidate) in nearest]

    def more_devices(self, cluster: Cluster, strategy: Strategy, network: Link) -> list[Offer]:
        """Return the fewest more devices of the same kind on which the job fits."""
        optimizer, update = OPTIMIZERS[strategy.optimizer], strategy.weight_update
        each = update.width + (0.0 if optimizer.paged else update.least_state_bytes(optimizer))  # all sharded
        least = each * self.workload.num_parameters / usable_bytes(cluster.device)
        for local, nodes in _larger(cluster, least):
            changes = [Change("devices-per-node", "=", str(local)), Change("nodes", "=", str(nodes))]
            try:
                machines = cluster.changed(network=network) if nodes > 1 else cluster
                machines, more, _ = apply(changes, machines, strategy, "strong")
            except UserError:
                continue
            if offers := self._as_it_is(machines, more) or self.nearest(machines, more):
                return [((*offers[0][0], "more devices"), offers[0][1])]
        return []

    def larger_device(self, cluster: Cluster, strategy: Strategy, needed: float) -> list[Offer]:
        """Return the device with the least memory on which the job fits, the same number of them and no other change."""
        for machines in _others(cluster, strategy.precision):
            if usable_bytes(machines.device) >= needed and (offers := self._as_it_is(machines, strategy)):
                return [(("larger device",), offers[0][1])]
        return []

    def any_device(self, cluster: Cluster, strategy: Strategy) -> list[Offer]:
        """Return the device with the least memory on which the job fits with other changes, the same number of them."""
        memory = cluster.device.memory.value
        for machines in _others(cluster, strategy.precision):
            if machines.device.memory.value > memory:
                memory = machines.device.memory.value
                if offers := self.nearest(machines, strategy):
                    return [((*offers[0][0], "larger device"), offers[0][1])]
        return []

    def grown(self, cluster: Cluster, strategy: Strategy, most: int) -> Strategy:
        """Return the strategy with the largest batch that fits, a power of two up to ``most`` times its own."""
        sizes = [(cluster, strategy.changed(global_batch_size=strategy.global_batch_size * n)) for n in powers(most)]
        fitting = [s for _, (_, s) in self.fitting(sizes)] if most > 1 else []
        return max(fitting, key=lambda s: s.global_batch_size, default=strategy)

    def fitting(self, candidates: list[Candidate]) -> list[tuple[float, Candidate]]:
        """Return the candidates that fit, with seconds of their step."""
        if not candidates:
            return []
        try:
            steps = self.predictor.many(self.workload, candidates)
        except UserError:  # the kernel of attention or the precision does not run there
            return []
        of = zip(steps.step_s.tolist(), candidates, steps.fits.tolist(), strict=True)
        return [(seconds, candidate) for seconds, candidate, fits in of if fits and seconds == seconds]

    def _as_it_is(self, cluster: Cluster, strategy: Strategy) -> list[Offer]:
        return [((), candidate) for _, candidate in self.fitting([(cluster, strategy)])]

    def values(self, strategy: Strategy, offload: str = "") -> dict[str, list[Any]]:
        """Return the values to try of each choice of ``_KINDS``, its own first unless ``offload`` replaces it."""
        mesh, micro = strategy.parallelism, strategy.micro_batch_size
        level = TORCH_SHARDINGS.index(mesh.sharding.name) if mesh.sharding.of_torch else 0
        again = saves_memory(self.workload) and not mesh.recompute.whole_blocks
        return {
            "grad_accum_steps": [mesh.micro_batches * n for n in powers(micro) if micro % n == 0],
            "recompute": [mesh.recompute.name, *([FULL_RECOMPUTE.name] if again else [])],
            "sharding": [mesh.sharding.name, *(TORCH_SHARDINGS[level + 1 :] if mesh.data > 1 else ())],
            "offload": [offload or mesh.offload.name],
        }

    def whole(self, cluster: Cluster, strategy: Strategy, offload: str = "") -> list[Candidate]:
        """Return every other legal combination of choices that do not divide the network further."""
        values = self.values(strategy, offload)
        candidates = []
        for combination in product(*values.values()):
            chosen = {name: value for name, value in zip(values, combination, strict=True) if value != strategy.choice(name)}
            with suppress(UserError):
                candidates += [(cluster, strategy.changed(**chosen))] if chosen else []
        return candidates

    def _divided(self, cluster: Cluster, strategy: Strategy, *, free: bool = False) -> list[Candidate]:
        """Return the best layout on the cluster. ``free``: also with other shardings and recomputation."""
        mesh, exchange = strategy.parallelism, strategy.gradient_exchange
        dense, update = exchange.is_plain, plain_values(strategy.weight_update)
        tried = TORCH_SHARDINGS if free else (mesh.sharding.name,)
        shardings = dividing_shardings(tried, strategy.optimizer, update, strategy.precision)
        if cluster.world_size == 1 or not cluster.even or not dense or not shardings:
            return []
        space = LayoutSpace(
            batches=(strategy.global_batch_size,),
            precisions=(strategy.precision,),
            virtual_stages=(1,),
            micro_batch_sizes=(1,) if has_experts(self.workload) else LayoutSpace.micro_batch_sizes,
            experts=tuple(expert_groups(self.workload, cluster.world_size)) if free else (1,),
            shardings=shardings,
            recomputes=tuple(map(str, (NO_RECOMPUTE, FULL_RECOMPUTE))) if free else (mesh.recompute.name,),
            balanced=False,
            node_groups=False,
            common=update,
            optimizer=strategy.optimizer,
        )
        search = search_layouts(self.workload, cluster, space, predictor=self.predictor, keep=1)
        divided = [best for _, best in search.candidates if best.parallelism.model_devices > 1]
        try:
            return [(cluster, strategy.changed(**{name: best.choice(name) for name in LAYOUT})) for best in divided]
        except UserError:  # it conflicts with another choice of the strategy
            return []


def _changes(before: Strategy, after: Strategy) -> list[str]:
    """Return names of the choices that differ."""
    old, new = before.to_json(), after.to_json()
    return [name for name in new if new[name] != old[name] and name != "sequence"]  # ``tensor`` implies it


def _kinds(before: Strategy, after: Strategy) -> tuple[str, ...]:
    """Return the kinds of change, from ``ORDER``. A layout includes its own micro steps."""
    kinds = {kind for name, kind in _KINDS.items() if before.choice(name) != after.choice(name)}
    if any(before.choice(name) != after.choice(name) for name in DIVIDING):
        kinds = {*kinds, "layout"} - {"micro steps"}
    return tuple(sorted(kinds, key=ORDER.index))


def _dense(strategy: Strategy) -> Strategy:
    """Return the strategy with dense gradients in all-reduces, which every sharding and layout supports."""
    exchange = strategy.gradient_exchange
    if exchange.is_plain:
        return strategy
    return replace(strategy, gradient_exchange=GradientExchange())


def _larger(cluster: Cluster, least: float) -> Iterator[tuple[int, int]]:
    """Yield (devices a node, nodes) of clusters with 2, 4, ... times as many devices, at least ``least``."""
    local, nodes, tries = cluster.devices_per_node, cluster.num_nodes, 0
    while cluster.even and tries < _DOUBLINGS and local * nodes <= 4 * max(least, cluster.world_size):
        local, nodes = (min(2 * local, _IN_NODE), 1) if nodes == 1 and local < _IN_NODE else (local, 2 * nodes)
        if local * nodes >= least:
            tries += 1
            yield local, nodes


def _others(cluster: Cluster, precision: str) -> Iterator[Cluster]:
    """Yield the same number of listed devices of this kind with more memory, by memory, then by price."""
    device = cluster.device
    listed = [(d, price(d.name)) for d in hardware.devices() if _larger_than(d, device) and precision in d.precisions]
    known = [
        (d.memory.value, listing.usd_per_device_hour, d.name, d) for d, listing in listed if listing and not listing.market
    ]
    for *_, other in sorted(known, key=lambda of: of[:3]):
        try:
            yield cluster.changed(device=other, intra_link=hardware.link(other.link))
        except UserError:  # its link joins fewer devices
            continue


def _larger_than(device: Device, other: Device) -> bool:
    return device.kind == other.kind and device.memory.value > other.memory.value
