"""Store in which peers meet: who has joined, who lives, who has left, and who wants the shared weights.

It is a ``TCPStore`` of ``torch.distributed``. A thread of each peer writes a heartbeat and reads those of the others.
"""

from __future__ import annotations

import json
import logging
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore
from torch.distributed.distributed_c10d import PrefixStore

from paceline.errors import LostRank, UserError
from paceline.training.attach import daemon_threads
from paceline.training.attach.peers.peers import Peers, address

_log = logging.getLogger("paceline")
BEATS_IN_PATIENCE = 10
"""Heartbeats in the time after which a peer counts as lost."""
POLL_S = 0.02
"""Time between two looks at a key."""


def host_store(where: str) -> Any:
    """Host a store at ``host:port``; port 0 takes a free one. Raises UserError if the address is taken or another machine's."""
    host, port = address(where)
    try:
        listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise UserError(
            f"no store can be hosted at {where}: {error}", "give an address of this machine, and a free port"
        ) from error
    port = int(listening.getsockname()[1])
    return TCPStore(host, port, None, True, timedelta(seconds=60), wait_for_workers=False, master_listen_fd=listening.detach())


def connect(peers: Peers, timeout_s: float) -> Any:
    """Return the run's store. Raises UserError if it is not there within ``timeout_s``."""
    store = peers.store
    if isinstance(store, str):
        host, port = address(store)
        until = time.monotonic() + timeout_s
        while True:  # PyTorch's own attempts write a page of stack to the log each
            try:
                socket.create_connection((host, port), timeout=max(1.0, min(5.0, timeout_s))).close()
                break
            except OSError as error:
                if time.monotonic() > until:
                    raise UserError(
                        f"the store of the peers does not answer at {store}: {error}",
                        f"start it first: python -m paceline.training.attach.peers {store}",
                    ) from error
                time.sleep(0.1)
        store = TCPStore(host, port, None, False, timedelta(seconds=max(peers.patience_s, 1.0)), wait_for_workers=False)
    else:
        store = store.clone()  # a blocking call of the script would stop this peer
    return PrefixStore(f"paceline/peers/{peers.run}", store)


class PeerStore:
    """Connection of one peer to the run's store.

    Attributes:
        store: the store under the run's prefix, used by one thread at a time: the caller's.
        number: number of this peer; unique in the run. ``name``: its name in messages.
        wanted: numbers of requests for the shared weights that this peer has not answered.
    """

    def __init__(self, peers: Peers, timeout_s: float) -> None:
        self._ranks: dict[int, list[int]] = {}
        self._peers, self._where = peers, peers.store if isinstance(peers.store, str) else "the given store"
        self.store = connect(peers, timeout_s)
        with self.answering():
            self.number = int(self.store.add("numbers", 1))
            self.name = peers.name or f"{socket.gethostname()}-{self.number}"
            self.store.set(f"name/{self.number}", self.name)
            self.store.add(f"beat/{self.number}", 1)
        self._shared = _Shared(peers.patience_s)
        beats = self._clone()
        every = peers.patience_s / BEATS_IN_PATIENCE
        daemon_threads.start(self, _beat, (beats, self.number, every, self._shared), "paceline-peer", self._shared.stop.set)

    def _clone(self) -> Any:
        """Return a second connection, since a blocking call of one thread would stop another's heartbeat."""
        return self.store.clone()

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Turn the store's errors in this block into a LostRank that says what to do."""
        try:
            yield
        except dist.DistError as error:
            raise LostRank(
                f"the store of the peers at {self._where} does not answer: its host is lost or the link is cut. Start it "
                f"again, and all peers with their saved states ({str(error).splitlines()[0][:120]})"
            ) from error

    def check(self) -> None:
        """Raise LostRank if the heartbeat could not be written."""
        if self._shared.failed is not None:
            with self.answering():
                raise self._shared.failed

    def value(self, key: str) -> str:
        """Return the text of a key; empty without one."""
        return str(self.store.get(key).decode()) if self.store.check([key]) else ""

    def first(self, key: str, text: str) -> str:
        """Set a key unless it is set, and return its text: ``text``, or that of the first peer that set it."""
        return str(self.store.compare_set(key, "", text).decode())

    def note(self, key: str, text: str) -> None:
        """Add a line to the lines of a key."""
        self.store.append(key, f"{text}\n")

    def lines(self, key: str) -> list[str]:
        """Return the lines of a key."""
        return self.value(key).splitlines()

    def activate(self) -> None:
        """Tell the others that this peer has the shared weights, and that exchanges wait for it from now on."""
        self.note("active", str(self.number))

    def leave(self) -> None:
        """Tell the others that this peer comes to no further exchange, and end its heartbeat."""
        with self.answering():
            self.note("left", str(self.number))
        self._shared.stop.set()

    def expected(self) -> set[int]:
        """Return the peers that an exchange waits for: those that have joined, have not left and live."""
        self.check()
        left = set(self.lines("left"))
        return {int(n) for n in dict.fromkeys(self.lines("active")) if n not in left and self.lives(int(n))}

    def lives(self, number: int) -> bool:
        """Return True if the heartbeats of all ranks of a peer have been seen within the patience."""
        return all(map(self.beats, self.ranks_of(number)))

    def beats(self, number: int) -> bool:
        """Return True if a rank's heartbeat has been seen within the patience."""
        return number == self.number or self._shared.lives(number)

    def set_ranks(self, numbers: list[int]) -> None:
        """Tell the others the numbers of this peer's ranks that exchange, one for each shard."""
        self.store.set(f"ranks/{numbers[0]}", json.dumps(numbers))

    def ranks_of(self, number: int) -> list[int]:
        """Return the numbers of a peer's ranks that exchange, in order of shards."""
        if number not in self._ranks:
            told = self.value(f"ranks/{number}")
            if not told:
                return [number]
            self._ranks[number] = json.loads(told)
        return self._ranks[number]

    def named(self, numbers: Iterator[int] | set[int] | list[int]) -> str:
        """Format names of peers."""
        return ", ".join(self.value(f"name/{number}") or str(number) for number in sorted(numbers))

    def wait_until(self, met: Callable[[], Any], timeout_s: float) -> Any:
        """Return the first true answer of ``met``, or its last one after ``timeout_s``."""
        until = time.monotonic() + timeout_s
        while not (answer := met()) and time.monotonic() < until:
            self.check()
            time.sleep(POLL_S)
        return answer

    @property
    def wanted(self) -> queue.SimpleQueue[int]:
        """Requests for the shared weights, by number."""
        return self._shared.wanted


class _Shared:
    """Values that the heartbeat's thread shares with its peer."""

    def __init__(self, patience_s: float) -> None:
        self.patience_s, self.stop = patience_s, threading.Event()
        self.failed: Exception | None = None
        self.wanted: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._seen: Mapping[int, tuple[int, float]] = {}
        """Count of each heartbeat, and seconds without a new one."""
        self._looked = time.monotonic()

    def saw(self, beats: Mapping[int, int]) -> None:
        """Record the counts of all heartbeats."""
        now, before = time.monotonic(), self._seen
        since = min(now - self._looked, 2 * self.patience_s / BEATS_IN_PATIENCE)
        silent = {n: since + before[n][1] for n, count in beats.items() if n in before and before[n][0] == count}
        self._seen, self._looked = {n: (count, silent.get(n, 0.0)) for n, count in beats.items()}, now

    def lives(self, number: int) -> bool:
        """Return True if the heartbeat has changed within the patience; a peer that has just come lives.

        Time in which this process did not look does not count against the others: the machine may have suspended them too.
        """
        seen = self._seen.get(number)
        return seen is None or seen[1] < self.patience_s


def _beat(store: Any, number: int, every_s: float, shared: _Shared) -> None:
    """Write the heartbeat, read the others', and collect requests until stopped."""
    asked, look, others = 0, 0.0, list[int]()
    try:
        while not shared.stop.is_set():
            if time.monotonic() >= look:
                look = time.monotonic() + every_s
                store.add(f"beat/{number}", 1)
                for n in range(len(others) + 1, int(store.add("numbers", 0)) + 1):
                    store.add(f"beat/{n}", 0)  # a key that multi_get can read
                    others.append(n)
                counts = map(int, store.multi_get([f"beat/{n}" for n in others]))
                shared.saw(dict(zip(others, counts, strict=True)))
            requests = int(store.add(f"wants/{number}", 0))
            for request in range(asked + 1, requests + 1):
                shared.wanted.put(request)
            asked = requests
            shared.stop.wait(min(every_s, 0.05))
    except Exception as error:  # raised by the peer's next exchange
        shared.failed = error
