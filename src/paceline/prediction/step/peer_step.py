"""Step of peers that leave late ones behind (``round_deadline_s``): the mean over simulated rounds (``late_peers``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil
from typing import Literal

from paceline.calibration.constants import Efficiency
from paceline.errors import UserError
from paceline.hardware.cluster import Cluster
from paceline.prediction.exchange.exchange_plan import exchange_plan
from paceline.prediction.exchange.exchange_seconds import exchange_seconds
from paceline.prediction.exchange.group_view import group_view
from paceline.prediction.exchange.late_peers import PeerRounds, peer_rounds
from paceline.prediction.exchange.local_steps import outer_seconds
from paceline.prediction.passes.compute import Resource
from paceline.prediction.step.costs import slowest
from paceline.prediction.step.step import Step
from paceline.prediction.step.step_model import PassTimes, StepModel
from paceline.prediction.step.worker_step import WorkerStep, one_worker, sent_bytes, without_gathers, worker_step
from paceline.strategy.compression.formats import FP32
from paceline.strategy.strategy import Strategy
from paceline.workload.table import Workload


@dataclass(frozen=True)
class PeerStep(WorkerStep):
    """Mean step of peers, with their waits, exchanges and fetches of shared weights.

    Attributes:
        rounds: means over the peers' rounds.
        fetched_bytes: bytes that a device receives to have the shared weights.
        far: whether peers send over the network between nodes.
    """

    rounds: PeerRounds
    fetched_bytes: float
    far: bool

    @property
    def counted(self) -> float:
        """Share of the steps that count in the shared weights."""
        return self.rounds.counted

    @cached_property
    def between_s(self) -> float:
        """Seconds that a step waits for other peers, for the exchange and for shared weights."""
        return self._lost_s + self._sent_s

    @property
    def _lost_s(self) -> float:
        """Seconds of a step in which a peer waits for others, or trains longer than a usual one."""
        return self.seconds - self.own.seconds - sum(self.outer) - self._sent_s

    @property
    def _sent_s(self) -> float:
        return (self.rounds.exchange_s + self.rounds.fetch_s) / self.strategy.sync_every

    @property
    def seconds(self) -> float:
        """Seconds of the step. Peers that are faster take more of them."""
        return self.rounds.round_s / self.strategy.sync_every

    @cached_property
    def exposed(self) -> Mapping[Resource, float]:
        """Seconds by the resource that the step waits for. They sum to the step."""
        spent, every, x = dict(self.own.exposed), self.strategy.sync_every, self.exchange
        codec = float(x.waited[x.plan.codec].sum()) / max(float(x.waited.sum()), 1e-300)
        exchanged = self.rounds.exchange_s / every
        spent["memory bandwidth"] += self.outer[0]
        spent["launch overhead"] += self.outer[1]
        spent["stragglers"] += self._lost_s
        spent["codec"] += codec * exchanged
        spent["network" if self.far else "intra-node link"] += (1 - codec) * exchanged + self.rounds.fetch_s / every
        return spent

    @property
    def waited_s(self) -> float:
        """Seconds that the step waits for exchanges, within the peers and between them."""
        return self.own.waited_s + self.between_s

    @property
    def wire_bytes(self) -> int:
        """Bytes that a device sends within its peer and between peers, shared weights included, as a mean over the steps."""
        sent = self.rounds.sent_bytes + self.rounds.fetches * self.fetched_bytes
        return self.own.wire_bytes + self.strategy.local.per_step(ceil(sent))

    @property
    def dense_wire_bytes(self) -> int:
        """Bytes that the same device sends without compression."""
        plain = exchange_plan(self.workload, self.strategy.uncompressed(), self.cluster.places)
        ratio = sent_bytes(plain) / max(1, sent_bytes(self.exchange.plan))
        sent = self.rounds.sent_bytes * ratio + self.rounds.fetches * self.fetched_bytes
        return self.own.wire_bytes + self.strategy.local.per_step(ceil(sent))

    def busy_s(self, lane: Literal["network", "codec"]) -> float:
        """Return the seconds that a lane is busy."""
        of_lane = self.exchange.plan.codec == (lane == "codec")
        share = self.rounds.exchange_s / max(float(self.exchange.waited.sum()), 1e-300)
        fetched = self.rounds.fetch_s if lane == "network" else 0.0
        between = float(self.exchange.pieces[of_lane].sum()) * share + fetched
        return self.own.busy_s(lane) + between / self.strategy.sync_every

    def seconds_with_links(self, between: float, inside: float) -> float:
        """Return the step's seconds with factors ``between`` and ``inside`` on collectives between nodes and inside them."""
        own = self.own.seconds_with_links(between, inside) - self.own.seconds
        return self.seconds + own + self._sent_s * ((between if self.far else inside) - 1)


def any_worker_step(model: StepModel, cluster: Cluster, strategy: Strategy, passes: PassTimes | None = None) -> Step:
    """Return the step of a strategy whose devices hold the whole network, also of workers with several devices,
    and of peers that leave late ones behind.

    Raises:
        UserError: as ``StepModel.step``; workers that nodes' boundaries cut unevenly.
    """
    if strategy.local.round_deadline_s is not None:
        return peer_step(model, cluster, strategy, passes)
    if strategy.worker_devices == 1:
        return model.step(cluster, strategy, passes)
    return worker_step(model, cluster, strategy, passes)


def peer_step(model: StepModel, cluster: Cluster, strategy: Strategy, passes: PassTimes | None = None) -> PeerStep:
    """Return the step of peers with a deadline. Raises UserError as ``worker_step``."""
    view, alone = one_worker(cluster, strategy)
    devices, peers, every = strategy.worker_devices, strategy.worker_count, strategy.sync_every
    every_device = replace(model, workers=devices, worker_times=())
    own = every_device.step(view, alone.settled(model.workload, view), passes)
    outer = outer_seconds(model.workload, strategy, cluster.device, model.constants)
    outer = (0.0 if "memory bandwidth" in model.free else outer[0], 0.0 if "launch overhead" in model.free else outer[1])
    own_exchange = without_gathers(exchange_seconds(model.plan(cluster, strategy), cluster, model.constants))
    found: dict[int, tuple[float, float]] = {1: (0.0, 0.0)}
    far = cluster.num_nodes > 1

    def exchange(members: int) -> tuple[float, float]:
        if members not in found:
            found[members] = _exchange(model, cluster, strategy, members)
        return found[members]

    sized, spread = shared_bytes(model.workload, strategy), 0.0
    if model.constants.straggler_spread and "stragglers" not in model.free and own.seconds:
        most = slowest(peers, model.constants) - 1
        beyond = (slowest(cluster.world_size, model.constants) - slowest(devices, model.constants)) / most
        spread = model.constants.straggler_spread * beyond * own.passes_s / own.seconds
    times = peer_times(model.worker_times, peers)
    of_link = "network" if far else "intra-node link"
    rounds = peer_rounds(
        [every * (own.seconds * factor + sum(outer)) for factor in times],
        deadline_s=strategy.local.round_deadline_s,
        max_age=strategy.local.max_age,
        exchange=exchange,
        fetch_s=0.0 if of_link in model.free else _fetch_seconds(sized, cluster, devices, model.constants),
        spread=spread,
    )
    if model.free:
        own_exchange = own_exchange.without(model.free)
    parts = (own, model.workload, cluster, strategy, own_exchange, outer, 0.0, 0.0)
    return PeerStep(*parts, rounds, sized / devices, far)


def peer_times(given: tuple[float, ...], peers: int) -> list[float]:
    """Return the time of each peer's step relative to a usual one. Raises UserError for more times than peers."""
    if len(given) > peers:
        raise UserError(f"{len(given)} times for {peers} workers", "give at most one for each worker; the others take 1")
    return [*given, *[1.0] * (peers - len(given))]


def shared_bytes(workload: Workload, strategy: Strategy) -> float:
    """Return the bytes of the shared weights that a late peer fetches (``SharedWeights.parts``).

    They are the anchor, the outer momentum, and, if older changes count, the changes since the momentum moved.
    """
    momentum = strategy.local.outer_momentum > 0
    tensors = 1 + momentum + (momentum and strategy.local.max_age > 0)
    return tensors * float(FP32.push_bytes(workload.num_parameters))


def _fetch_seconds(size: float, cluster: Cluster, devices: int, efficiency: Efficiency) -> float:
    """Return the seconds in which one peer fetches ``size`` bytes from another, all its devices at once."""
    if cluster.num_nodes > 1:
        link, share = cluster.network, max(1.0, devices / cluster.devices_per_node)
        return efficiency.latency(link) + size / share / efficiency.bandwidth(link, 2)
    link = cluster.intra_link
    return efficiency.latency(link) + size / devices / efficiency.bandwidth(link, 2)


def _exchange(model: StepModel, cluster: Cluster, strategy: Strategy, members: int) -> tuple[float, float]:
    """Return seconds of an exchange among some of the peers, and the bytes that a device sends in it.

    Members that fill no whole nodes count as those that do.
    """
    count, local = members * strategy.worker_devices, max(cluster.node_sizes)
    if cluster.num_nodes > 1 and count < cluster.world_size:
        count = -(-count // local) * local
        where = cluster.changed(num_nodes=count // local)
    else:
        where = group_view(cluster, count, 1)
    batch = strategy.global_batch_size // strategy.world_size * count
    among = strategy.changed(world_size=count, global_batch_size=batch)
    plan = model.plan(where, among)
    seconds = without_gathers(exchange_seconds(plan, where, model.constants))
    if model.free:
        seconds = seconds.without(model.free)
    return float(seconds.waited.sum()), float(sent_bytes(plan))
