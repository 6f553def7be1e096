"""Rounds of peers that leave late ones behind, simulated event by event as ``training/attach/peers`` runs them.

A peer that has trained comes to the next outer step. It takes place among those that have come once all have, or once the first
of them has waited for the deadline. A peer that comes later fetches the newest shared weights. Its change then counts in the
next outer step if it is at most ``max_age`` outer steps old, and is lost otherwise. Peers wait for one that fetches and whose
change may still count. Without a deadline this is DiLoCo's synchronous round; with a deadline of 0 learners are decoupled
(Douillard et al. 2026, arXiv:2604.21428, whose learners send fragments to a central server instead).
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

ROUNDS, WARM = 40, 5
"""Counted rounds of a peer in the mean, after so many that are not."""

Exchange = Callable[[int], tuple[float, float]]
"""Function from the number of members to seconds of an exchange and bytes that each of them sends."""
Kind = Literal["came", "late", "fetched", "done"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerRounds:
    """Means over the rounds of all peers.

    Attributes:
        round_s: seconds from the start of a round to that of the next one; peers that are faster have more rounds.
        work_s, exchange_s, fetch_s, wait_s: its parts: training, exchange, fetching shared weights, waiting for other peers.
        counted: share of the rounds whose change counts in an outer step.
        age: outer steps by which a change that counts is old.
        members: members of an outer step. ``fetches``: times that a round fetches the shared weights.
        sent_bytes: bytes that a peer sends in exchanges in a round.
    """

    round_s: float
    work_s: float
    exchange_s: float
    fetch_s: float
    wait_s: float
    counted: float
    age: float
    members: float
    fetches: float
    sent_bytes: float


def peer_rounds(
    work_s: Sequence[float],
    *,
    deadline_s: float | None,
    max_age: int,
    exchange: Exchange,
    fetch_s: float,
    spread: float = 0.0,
) -> PeerRounds:
    """Simulate the rounds of peers.

    Args:
        work_s: mean seconds that each peer trains in a round.
        deadline_s: seconds that an outer step waits for late peers; None: for all of them.
        fetch_s: seconds in which a peer fetches the shared weights, if no other fetches them at once.
        spread: standard deviation of a peer's seconds from round to round, relative to their mean.
    """
    return _PeerRun(work_s, deadline_s, max_age, exchange, fetch_s, spread).run()


class _Peer:
    """One peer: the outer step that it knows, the one from which its change is, and when it came to the present exchange."""

    __slots__ = ("came_s", "known", "rounds", "since")

    def __init__(self) -> None:
        self.known = self.since = self.rounds = 0
        self.came_s = 0.0


class _PeerRun:
    """State of the peers.

    Attributes:
        newest: the last outer step. ``here``: peers that have come to the next one, and when. ``members``: those that exchange.
        missed: peers that came during that exchange. ``fetching``: those for which the next outer step waits.
        transfers: peers that receive the weights of an outer step, each with the copies that are ``served`` at its end.
    """

    def __init__(
        self, work_s: Sequence[float], deadline_s: float | None, max_age: int, exchange: Exchange, fetch_s: float, spread: float
    ) -> None:
        count = len(work_s)
        self.work_s, self.max_age, self.exchange, self.fetch_time = work_s, max_age, exchange, max(fetch_s, 1e-9)
        self.deadline_s = math.inf if deadline_s is None else deadline_s
        self.scores = [spread * NormalDist().inv_cdf((i + 0.625) / (count + 0.25)) for i in range(count)]  # Blom 1958
        self.random, self.orders = random.Random(44), list[list[int]]()
        self.peers = [_Peer() for _ in work_s]
        self.newest = 0
        self.here: dict[int, float] = {}
        self.fetching: set[int] = set()
        self.members: tuple[int, ...] = ()
        self.missed: list[int] = []
        self.transfers: dict[int, deque[tuple[float, int]]] = {}
        self.served: dict[int, float] = {}
        self.moved_s, self.turn, self.ends = 0.0, 0, 0
        self.heap: list[tuple[float, int, Kind, int, int]] = []
        self.order = 0
        self._clear()

    def _clear(self) -> None:
        self.work = self.exchanged = self.fetched_s = self.sent = 0.0
        self.rounds = self.counted = self.ages = self.steps = self.joined = self.fetches = 0

    def run(self) -> PeerRounds:
        """Run until the peers have done enough rounds."""
        count, begin, now = len(self.peers), 0.0, 0.0
        for peer in range(count):
            self._train(peer, 0.0)
        warm = False
        while self.rounds < ROUNDS * count:
            if not warm and self.rounds >= WARM * count:
                warm, begin = True, now
                self._clear()
            now, _, kind, peer, step = heapq.heappop(self.heap)
            if kind == "came":
                self.peers[peer].came_s = now
                self._proceed(peer, now)
            elif kind == "fetched":
                if step == self.turn:
                    self._receive(now)
            elif kind == "late":
                self._decide(now, step)
            else:
                self._commit(now)
        rounds = self.rounds
        round_s = (now - begin) * count / rounds
        parts = [self.work / rounds, self.exchanged / rounds, self.fetched_s / rounds]
        return PeerRounds(
            round_s=round_s,
            work_s=parts[0],
            exchange_s=parts[1],
            fetch_s=parts[2],
            wait_s=max(0.0, round_s - sum(parts)),
            counted=self.counted / rounds,
            age=self.ages / max(1, self.counted),
            members=self.joined / max(1, self.steps),
            fetches=self.fetches / rounds,
            sent_bytes=self.sent / rounds,
        )

    def _push(self, at: float, kind: Kind, peer: int, step: int = 0) -> None:
        self.order += 1
        heapq.heappush(self.heap, (at, self.order, kind, peer, step))

    def _train(self, number: int, now: float) -> None:
        """Let a peer train a round. In each round every peer takes another one of the expected order statistics."""
        peer = self.peers[number]
        while len(self.orders) <= peer.rounds:
            self.orders.append(self.random.sample(range(len(self.peers)), len(self.peers)))
        seconds = self.work_s[number] * (1 + self.scores[self.orders[peer.rounds][number]])
        peer.rounds += 1
        peer.since = peer.known
        self.work += seconds
        self._push(now + seconds, "came", number)

    def _proceed(self, number: int, now: float) -> None:
        """Let a peer with a change fetch the newest weights, give its change up, or come to the next outer step."""
        peer = self.peers[number]
        if peer.known < self.newest:
            self.fetches += 1
            if self.max_age:
                self.fetching.add(number)
            self._begin_transfer(number, now)
            return
        self.fetching.discard(number)
        if peer.known - peer.since > self.max_age:
            self.rounds += 1
            self._train(number, now)
            self._decide(now, self.newest)
        elif self.members:
            self.missed.append(number)
        else:
            self.here[number] = now
            if math.isfinite(self.deadline_s):
                self._push(now + self.deadline_s, "late", number, self.newest)
            self._decide(now, self.newest)

    def _move(self, now: float) -> None:
        """Count what the transfers have moved until now. One peer sends the weights of an outer step to all that fetch them."""
        passed = now - self.moved_s
        for step, receivers in self.transfers.items():
            self.served[step] += passed / (self.fetch_time * len(receivers))
            self.fetched_s += passed * len(receivers)
        self.moved_s = now

    def _begin_transfer(self, number: int, now: float) -> None:
        """Let a peer fetch the newest weights."""
        self._move(now)
        served = self.served.setdefault(self.newest, 0.0)
        self.transfers.setdefault(self.newest, deque()).append((served + 1.0, number))
        self._await_transfer(now)

    def _await_transfer(self, now: float) -> None:
        """Plan the end of the transfer that ends first."""
        self.turn += 1
        if self.transfers:
            first, self.ends = min(((of[0][0] - self.served[step]) * len(of), step) for step, of in self.transfers.items())
            self._push(now + max(0.0, first * self.fetch_time), "fetched", 0, self.turn)

    def _receive(self, now: float) -> None:
        """End the transfers that are complete."""
        self._move(now)
        self.served[self.ends] = max(self.served[self.ends], self.transfers[self.ends][0][0])  # also where seconds are rounded
        complete: list[tuple[int, int]] = []
        for step, receivers in self.transfers.items():
            while receivers and receivers[0][0] <= self.served[step] + 1e-9:
                complete.append((receivers.popleft()[1], step))
        self.transfers = {step: receivers for step, receivers in self.transfers.items() if receivers}
        self._await_transfer(now)
        for number, step in complete:
            self.peers[number].known = step
            self._proceed(number, now)

    def _decide(self, now: float, step: int) -> None:
        """Begin the exchange after outer step ``step`` among those that are here, if it need not wait longer."""
        if step != self.newest or self.members or not self.here or self.fetching - self.here.keys():
            return
        waited = now - min(self.here.values())
        if len(self.here) < len(self.peers) and waited < self.deadline_s - 1e-12 * now:
            return
        self.members = tuple(self.here)
        seconds, sent = self.exchange(len(self.members))
        self.exchanged += seconds * len(self.members)
        self.sent += sent * len(self.members)
        self._push(now + seconds, "done", 0)

    def _commit(self, now: float) -> None:
        """Take the outer step. Its members train again, and those that came too late fetch its weights."""
        members, missed = self.members, self.missed
        self.here, self.members, self.missed = {}, (), []
        self.newest += 1
        self.steps += 1
        self.joined += len(members)
        for number in members:
            peer = self.peers[number]
            self.rounds += 1
            self.counted += 1
            self.ages += peer.known - peer.since
            peer.known = self.newest
            self._train(number, now)
        for number in missed:
            self._proceed(number, now)
