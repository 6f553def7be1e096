"""An exchange on a GPU that does not end: found within its time limit, though the host waits for nothing."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from paceline.errors import LostRank
from paceline.training.attach import exchange_thread, exchange_watch, liveness
from paceline.training.attach.exchange_thread import Exchanges, promise
from paceline.training.attach.exchange_watch import Flight, abort, look
from paceline.training.attach.local import worker_exchange
from paceline.training.attach.local.worker_exchange import WorkerRanks
from paceline.training.attach.local.worker_ranks import Seat, WorkerPlace
from paceline.training.exchanges import exchange_setup
from paceline.training.exchanges.exchange_setup import own_wires
from paceline.training.exchanges.wires.collectives import Wire, WireError
from paceline.training.exchanges.wires.meter import Meter
from paceline.training.exchanges.wires.process_groups import limit
from stream_stand_in import Event, World


def flight(late: list[str], name: str, now: float, done: bool | None = None) -> Flight:
    """Exchange with a limit of 10 s; ``done``: None if it is not yet queued."""
    one = Flight(10, lambda: late.append(name))
    one.since = now
    one.done = None if done is None else SimpleNamespace(query=lambda: done)
    return one


def test_only_the_first_that_has_not_ended_is_late() -> None:
    late: list[str] = []
    flights = deque([flight(late, "ended", 0, True), flight(late, "runs", 1, False), flight(late, "waits", 2)])
    look(flights, 9.0)
    assert len(flights) == 2 and flights[0].since == 9.0  # its time begins when the one before has ended
    look(flights, 18.0)
    assert not late
    look(flights, 19.5)
    assert late == ["runs", "waits"] and not flights


class AllAlive:
    """Roll of ranks of which all live."""

    def __init__(self, group: Any) -> None:
        self.group = group

    def verdict(self, error: Exception) -> LostRank:
        return LostRank(f"a rank is lost ({error})")


class Group:
    """Process group of some ranks, which notes that it was aborted."""

    def __init__(self, ranks: Sequence[int], aborted: list[tuple[int, ...]]) -> None:
        self.ranks, self._aborted = tuple(ranks), aborted

    def _get_backend(self, device: torch.device) -> Any:
        return SimpleNamespace(abort=lambda: self._aborted.append(self.ranks))


def nodes_of_two(wire: Wire) -> Any:
    return own_wires(wire, 2)


def worker_of_four(wire: Wire) -> Any:
    return WorkerRanks(Seat(WorkerPlace(0, 2, 0, 2), (0, 1, 2, 3), (0, 2)), wire, wire.group)


@pytest.mark.parametrize(
    ("stuck", "further", "ranks"),
    [
        ("host", nodes_of_two, {(0, 1, 2, 3), (0, 1), (0, 2)}),
        ("device", nodes_of_two, {(0, 1, 2, 3), (0, 1), (0, 2)}),
        ("device", worker_of_four, {(0, 4), (0, 1, 2, 3), (0, 2)}),
    ],
)
def test_who_waits_for_a_lost_rank_is_released_in_time(
    stuck: str, further: Callable[[Wire], Any], ranks: set[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exchange's thread waits for a value, or all is queued and the device does not end. All groups are aborted: also those
    of nodes, and of a worker of several ranks."""
    monkeypatch.setattr(exchange_thread, "Roll", AllAlive)
    monkeypatch.setattr(exchange_watch, "POLL_S", 0.01)
    monkeypatch.setattr(dist, "get_rank", lambda group: 0)
    monkeypatch.setattr(dist, "get_world_size", lambda group: len(group.ranks))
    monkeypatch.setattr(dist, "get_process_group_ranks", lambda group: group.ranks)
    aborted: list[tuple[int, ...]] = []

    def own_wire(parent: Group, ranks: Sequence[int], *settings: Any) -> Wire:
        group: Any = Group(ranks, aborted)
        return Wire(group, *settings)

    monkeypatch.setattr(exchange_setup, "own_wire", own_wire)
    monkeypatch.setattr(worker_exchange, "own_wire", own_wire)
    first: Any = Group((0, 4) if further is worker_of_four else (0, 1, 2, 3), aborted)
    wire = Wire(first, torch.device("cpu"), Meter(0), 0.1)
    further(wire)  # of an exchange that is no longer used: their groups may belong to another hook
    kept = further(wire)
    released = threading.Event()

    def exchange() -> None:
        if stuck == "host":
            released.wait(20)

    with World().installed():
        work = Exchanges(wire)
        monkeypatch.setattr(Event, "query", lambda event: stuck != "device")
        buffer = torch.ones(2)
        future = promise(buffer)
        work.submit(exchange, [(buffer, future)])
        started = time.monotonic()
        future.wait()
        while len(aborted) < len(ranks) and time.monotonic() < started + 20:
            time.sleep(0.01)
        with pytest.raises(LostRank, match="not ended within"):
            work.check()
        assert sorted(aborted) == sorted(ranks) and kept and not wire.soundness.sound
        released.set()
        last = promise(buffer)
        work.submit(lambda: None, [(buffer, last)])
        last.wait()  # the thread has left the world


def test_the_engine_waits_longer_than_the_watch_and_its_verdict() -> None:
    cuda, cpu = (limit(torch.device(kind), 5).total_seconds() for kind in ("cuda", "cpu"))
    assert cpu == 5 and cuda > 5 + 2 * (liveness.SETTLE_S + liveness.PATIENCE_S + liveness.ANSWER_S)


def test_only_groups_that_can_be_aborted_are() -> None:
    def refuses(device: torch.device) -> Any:
        raise RuntimeError("no such backend")

    groups: list[Any] = [SimpleNamespace(_get_backend=refuses), SimpleNamespace(_get_backend=lambda device: object())]
    abort(groups, torch.device("cpu"))


def test_hooks_of_a_device_share_one_thread_and_exchanges_may_wait_for_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange_thread, "Roll", AllAlive)
    wire: Any = SimpleNamespace(
        rank=0, world_size=2, group="a group", soundness=SimpleNamespace(sound=True), device=torch.device("cpu"), timeout_s=9.0
    )
    order: list[tuple[str, str]] = []

    def note(name: str) -> None:
        order.append((name, threading.current_thread().name))

    with World().installed() as world:
        first, second = Exchanges(wire), Exchanges(wire, holds=True)
        assert first.on_stream and first._queue is second._queue
        buffer = torch.ones(2)
        second.submit(lambda: note("held"), [], last=False)
        first.submit(lambda: note("at once"), [])
        future = promise(buffer)
        second.submit(lambda: note("last"), [(buffer, future)])
        future.wait()
        assert order == [(name, "paceline-exchange") for name in ("at once", "held", "last")]
        world.is_capturing = True
        with pytest.raises(Exception, match="captured"):
            first.receive(buffer)
        with pytest.raises(LostRank), first.naming():
            raise WireError("gone")
