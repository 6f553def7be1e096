"""Overlap of pushes and pulls at a parameter server: the table against a simulation of connections that keep their order."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from paceline.prediction.exchange.exchange_plan import exchange_plan
from paceline.prediction.exchange.exchange_seconds import exchange_seconds
from paceline.prediction.exchange.server_overlap import hidden_share
from paceline.strategy import Strategy
from prediction_toys import IDEAL, make_cluster, make_workload

SERVER = -1
OPPOSITE = {"push": "pull", "pull": "push"}
Message = tuple[str, int, int, int]
"""Direction, worker, chunk and step of a message."""


class Connections:
    """A server and its workers: one link each way at the server, which the connections share. Time and sizes are in chunks."""

    def __init__(self, workers: int, steps: tuple[tuple[str, float], ...], chunks: int) -> None:
        self.workers, self.steps, self.chunks, self.now = workers, steps, chunks, 0.0
        self.queues: dict[tuple[str, int], deque[list[Any]]] = {(way, w): deque() for way in OPPOSITE for w in range(workers)}
        self.posted: set[Message] = set()
        self.announced: set[Message] = set()
        self.done: set[Message] = set()

    def begin(self, rank: int, chunk: int, step: int) -> list[Message]:
        """Post the sends or receives of a rank. Returns its messages."""
        way = self.steps[step][0]
        messages = [(way, w, chunk, step) for w in (range(self.workers) if rank == SERVER else (rank,))]
        for message in messages:
            if (way == "pull") == (rank == SERVER):
                self.posted.add(message)
                self.start(message)
            else:  # an announcement waits behind this rank's messages on the same connection
                self.queues[OPPOSITE[way], message[1]].append([message, 0.0, True])
        return messages

    def start(self, message: Message) -> None:
        """Queue a message that both ranks want."""
        if message in self.posted and message in self.announced:
            self.queues[message[0], message[1]].append([message, self.steps[message[3]][1], False])

    def program(self, rank: int, depth: int = 3) -> Iterator[list[Message]]:
        """Yield what the pipeline of a rank waits for (``training/exchanges/pipeline.py``)."""
        begun, under_way = 0, deque[tuple[int, int, list[Message]]]()
        while begun < self.chunks or under_way:
            while begun < self.chunks and len(under_way) < depth:
                under_way.append((begun, 0, self.begin(rank, begun, 0)))
                begun += 1
            chunk, step, messages = under_way.popleft()
            yield messages
            if step + 1 < len(self.steps):
                under_way.append((chunk, step + 1, self.begin(rank, chunk, step + 1)))

    def run(self) -> float:
        """Return the time of all chunks."""
        programs = {rank: self.program(rank) for rank in range(SERVER, self.workers)}
        waits: dict[int, list[Message]] = {rank: [] for rank in programs}
        while programs:
            moved = True
            while moved:
                moved = False
                for queue in self.queues.values():
                    while queue and queue[0][2]:
                        message = queue.popleft()[0]
                        self.announced.add(message)
                        self.start(message)
                        moved = True
                for rank in [rank for rank in programs if self.done.issuperset(waits[rank])]:
                    moved = True
                    waits[rank] = next(programs[rank], None)  # type: ignore[assignment]
                    if waits[rank] is None:
                        del programs[rank]
            self.advance()
        return self.now

    def advance(self) -> None:
        """Move on to the end of the next message."""
        weights = {key: 1 + 0.5 * key[1] / max(1, self.workers - 1) for key, queue in self.queues.items() if queue}
        total = {way: sum(of for key, of in weights.items() if key[0] == way) for way in OPPOSITE}
        rates = {key: of / total[key[0]] for key, of in weights.items()}
        span = min((self.queues[key][0][1] / rate for key, rate in rates.items()), default=0.0)
        self.now += span
        for key, rate in rates.items():
            head = self.queues[key][0]
            head[1] -= span * rate
            if head[1] <= 1e-9:
                self.done.add(self.queues[key].popleft()[0])


@pytest.mark.parametrize(("workers", "chunks"), [(1, 6), (2, 9), (3, 18), (4, 3), (4, 18), (8, 6)])
def test_the_table_is_what_connections_in_order_give(workers, chunks):
    seconds = Connections(workers, (("push", 1.0), ("pull", 1.0)), chunks).run() / (workers * chunks)
    (share,) = hidden_share(np.array([chunks]), workers + 1, 1)
    assert share == pytest.approx(2 - seconds, abs=0.02)


def test_nothing_overlaps_where_lengths_travel_first():
    steps = (("push", 1e-6), ("push", 1.0), ("pull", 1e-6), ("pull", 1.0))
    assert Connections(3, steps, 9).run() == pytest.approx(2 * 3 * 9, rel=0.01)


def test_a_server_that_every_worker_is_hides_nothing():
    assert hidden_share(np.array([1, 9, 60]), 4, 4) == pytest.approx(0)
    half = hidden_share(np.array([9]), 5, 3)
    assert half == pytest.approx(hidden_share(np.array([9]), 5, 1) / 2)


@pytest.mark.parametrize(("compression", "overlaps"), [("dense", True), ("inceptionn", False)])
def test_pulls_are_shorter_on_cpus_where_lengths_are_known(compression, overlaps):
    chosen = Strategy.of(
        world_size=4,
        global_batch_size=16,
        optimizer="sgd",
        compression=compression,
        exchange="parameter_server",
        bucket_bytes=1 << 30,
    )
    plan = exchange_plan(make_workload(layers=8, width=2048), chosen, 1)
    place, pulled = make_cluster(1, 4), {}
    for kind in ("cpu", "gpu"):
        priced = exchange_seconds(plan, replace(place, device=replace(place.device, kind=kind)), IDEAL)
        pulled[kind] = sum(float(s) for p, s in zip(plan.pieces, priced.pieces, strict=True) if p.name == "pull")
    assert (pulled["cpu"] < 0.9 * pulled["gpu"]) == overlaps
