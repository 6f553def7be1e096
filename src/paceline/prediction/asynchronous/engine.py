"""Event simulation of an asynchronous job. ``simulate`` calls it and documents the model."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from paceline.prediction.asynchronous.profile import Profile, assign_servers
from paceline.prediction.asynchronous.sharing import SharedLinks
from paceline.record import Event

Pull = Literal["step", "server", "tensor"]
_DRAWS = 64  # profiled steps per draw
_READY, _UPDATED, _ASKED = range(3)


class MomentCounts(NamedTuple):
    """Counters at one moment."""

    seconds: float
    steps: tuple[int, ...]
    last: tuple[float, ...]
    computed: float
    up: tuple[float, ...]
    down: tuple[float, ...]
    updating: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """Counters at ``begin`` and at ``end``. ``stale``: number of updates by staleness between them."""

    begin: MomentCounts
    end: MomentCounts
    stale: Counter[int]
    events: tuple[Event, ...]


class _Worker:
    """State of a worker. It computes as early as it can. ``clock``: end of its last computation."""

    __slots__ = ("applied", "arrived", "clock", "draws", "finished", "layer", "missing", "random", "read", "row", "steps")

    def __init__(self, layers: int, groups: int, seed: np.random.SeedSequence) -> None:
        self.random = np.random.default_rng(seed)
        self.draws: list[int] = []
        self.arrived: list[float | None] = [None] * layers
        self.read = [0] * layers
        self.missing = [0] * groups
        self.clock = self.finished = 0.0
        self.layer = self.row = self.applied = self.steps = 0


class Simulation:
    """N workers and M servers. A layer and its tensor have the same number; a layer without parameters has no tensor."""

    def __init__(
        self,
        profile: Profile,
        workers: int,
        servers: int,
        bandwidth: float,
        latency: float,
        pull: Pull,
        seed: Sequence[int],
        drawn: int,
    ) -> None:
        self.workers, self.servers, self.latency, self.pull = workers, servers, latency, pull
        layers = profile.layers
        self.names = [layer.name for layer in layers]
        self.sizes = [layer.size for layer in layers]
        self.tensors = [i for i, size in enumerate(self.sizes) if size > 0]
        placed = assign_servers([self.sizes[i] for i in self.tensors], servers)
        self.server = dict(zip(self.tensors, placed, strict=True))
        self.group = self._groups()
        self.in_group = [[i for i in self.tensors if self.group[i] == g] for g in range(len(set(self.group.values())))]
        self.forward = list(zip(*(layer.forward_s for layer in layers), strict=True))
        self.backward = list(zip(*(layer.backward_s for layer in layers), strict=True))
        self.cost = {i: profile.update_s + profile.update_s_per_byte * self.sizes[i] for i in self.tensors}
        self.rate = bandwidth * profile.link_share
        self.up, self.down = SharedLinks(workers, servers, self.rate), SharedLinks(servers, workers, self.rate)
        self.alone_s = profile.compute_s + 2 * profile.size / self.rate
        self.free = [0.0] * servers
        self.versions = dict.fromkeys(self.tensors, 0)
        seeds = np.random.SeedSequence(seed).spawn(workers)
        self.states = [_Worker(len(layers), len(self.in_group), s) for s in seeds]
        self.heap: list[tuple[float, int, int, int, int]] = []
        self.order = 0
        self.drawn, self.events = drawn, list[Event]()
        self.stale: Counter[int] = Counter()
        self.computed, self.updating = 0.0, [0.0] * servers
        self.sent, self.received = [0.0] * servers, [0.0] * servers

    def _groups(self) -> dict[int, int]:
        """Return groups of tensors. A worker reads any tensor of a group only after the updates of all of them."""
        if self.pull == "step":
            return dict.fromkeys(self.tensors, 0)
        if self.pull == "tensor":
            return {tensor: i for i, tensor in enumerate(self.tensors)}
        used = sorted(set(self.server.values()))
        return {tensor: used.index(self.server[tensor]) for tensor in self.tensors}

    def run(self, steps: int, warm: int) -> SimulatedRun:
        """Run until every worker has done ``steps`` steps. Counting begins when every worker has done ``warm`` steps."""
        begin: MomentCounts | None = None
        waiting, behind = self.workers, self.workers
        for worker, state in enumerate(self.states):
            start = state.random.uniform(
                0.0, self.alone_s
            )  # workers in lockstep would share links as no real job does for long
            for group in range(len(self.in_group)):
                self._push(start, _ASKED, worker, group)
        now = 0.0
        while behind:
            up, down = self.up.next_time, self.down.next_time
            at = self.heap[0][0] if self.heap else math.inf
            soon = min(up, down, at)
            if soon > now:
                if self.up.changed or self.down.changed:
                    for fabric in (self.up, self.down):
                        if fabric.changed:
                            fabric.settle(now)
                    continue
                now = soon
            if at == soon:
                _, _, kind, worker, what = heapq.heappop(self.heap)
                if kind == _READY:
                    self.up.send(worker, self.server[what], self.sizes[what], what, now)
                elif kind == _UPDATED:
                    if self._updated(worker, what, now):
                        done = self.states[worker].steps
                        waiting -= done == warm
                        behind -= done == steps
                        if not waiting and begin is None:
                            begin, self.stale = self._count(now), Counter()
                else:
                    self._answer(worker, what, now)
            elif up == soon:
                worker, _, began, size, what = self.up.pop()
                self._arrived(worker, what, size, began, now)
            else:
                server, worker, began, size, what = self.down.pop()
                self.sent[server] += size
                self._draw(worker, f"pull {self.names[what]}", "network", began, now - began)
                self.states[worker].arrived[what] = now + self.latency
                self._compute(worker)
        assert begin is not None
        return SimulatedRun(begin, self._count(now), self.stale, tuple(self.events))

    def _push(self, at: float, kind: int, worker: int, what: int) -> None:
        self.order += 1
        heapq.heappush(self.heap, (at, self.order, kind, worker, what))

    def _answer(self, worker: int, group: int, now: float) -> None:
        """Let a server read the tensors of a group and send them in layer order."""
        state = self.states[worker]
        state.missing[group] = len(self.in_group[group])
        for tensor in self.in_group[group]:
            state.read[tensor] = self.versions[tensor]
            self.down.send(self.server[tensor], worker, self.sizes[tensor], tensor, now)

    def _compute(self, worker: int) -> None:
        """Run all forward layers that have their parameters; after the last one, the whole backward pass."""
        state = self.states[worker]
        count = len(self.sizes)
        while state.layer < count:
            layer = state.layer
            if self.sizes[layer]:
                arrived = state.arrived[layer]
                if arrived is None:
                    return
                state.clock = max(state.clock, arrived)
                state.arrived[layer] = None
            if layer == 0:
                state.row = self._drawn(state)
            seconds = self.forward[state.row][layer]
            self._draw(worker, f"forward {self.names[layer]}", "compute", state.clock, seconds)
            state.clock += seconds
            state.layer += 1
        backward = self.backward[state.row]
        for layer in range(count - 1, -1, -1):
            self._draw(worker, f"backward {self.names[layer]}", "compute", state.clock, backward[layer])
            state.clock += backward[layer]
            if self.sizes[layer]:
                self._push(state.clock, _READY, worker, layer)
        state.layer = 0
        self.computed += sum(self.forward[state.row]) + sum(backward)

    def _drawn(self, state: _Worker) -> int:
        if not state.draws:
            state.draws = state.random.integers(len(self.forward), size=_DRAWS).tolist()
        return state.draws.pop()

    def _arrived(self, worker: int, tensor: int, size: float, began: float, now: float) -> None:
        """Add a gradient that has arrived. The server applies gradients one at a time, in the order of arrival."""
        server = self.server[tensor]
        self.received[server] += size
        self._draw(worker, f"push {self.names[tensor]}", "network", began, now - began)
        start = max(now + self.latency, self.free[server])
        self.free[server] = start + self.cost[tensor]
        self.updating[server] += self.cost[tensor]
        self._draw(worker, f"update {self.names[tensor]}", "compute", start, self.cost[tensor], self.workers + server)
        self._push(self.free[server], _UPDATED, worker, tensor)

    def _updated(self, worker: int, tensor: int, now: float) -> bool:
        """Count the staleness of an update. Returns whether it was the last one of the worker's step."""
        state = self.states[worker]
        self.stale[self.versions[tensor] - state.read[tensor]] += 1
        self.versions[tensor] += 1
        group = self.group[tensor]
        state.missing[group] -= 1
        state.applied += 1
        ended = state.applied % len(self.tensors) == 0
        if ended:
            state.steps += 1
            state.finished = now
        if not state.missing[group]:
            if self.pull == "step":
                self._push(now + 2 * self.latency, _ASKED, worker, group)  # the worker is told, and requests the parameters
            else:
                self._push(now, _ASKED, worker, group)
        return ended

    def _count(self, now: float) -> MomentCounts:
        steps, last = zip(*((state.steps, state.finished) for state in self.states), strict=True)
        return MomentCounts(now, steps, last, self.computed, tuple(self.received), tuple(self.sent), tuple(self.updating))

    def _draw(self, worker: int, name: str, lane: str, start: float, seconds: float, rank: int | None = None) -> None:
        if self.states[worker].steps < self.drawn and seconds > 0:
            where = worker if rank is None else rank
            self.events.append(Event(name=name, lane=lane, start_s=start, duration_s=seconds, rank=where))
