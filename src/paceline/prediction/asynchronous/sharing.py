"""Links that active connections share max-min fairly, in one direction of every host's link.

A connection (one worker, one server, one direction) sends its pieces in order, as one TCP stream does. All active connections
share the links of sender and receiver max-min fairly (progressive filling: Bertsekas, Gallager 1992, Data Networks,
section 6.5.2). Shares adapt at once and nothing is lost; switches do not block.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from paceline.array_types import Array, Bools


def fair_shares(sending: Bools, bandwidth: float) -> Array:
    """Return bytes/s of every connection, (senders, receivers); 0 for idle ones.

    The connections of the fullest link share it equally. The same then holds for the fullest of the remaining links, until
    every connection has a share.
    """
    rates = np.zeros(sending.shape)
    waiting = sending.astype(float)
    out, into = (np.full(n, bandwidth) for n in sending.shape)
    with np.errstate(invalid="ignore", divide="ignore"):  # links without connections have infinity or nan for each
        while waiting.any():
            each_out, each_into = out / np.add.reduce(waiting, 1), into / np.add.reduce(waiting, 0)
            share = min(np.fmin.reduce(each_out), np.fmin.reduce(each_into))
            limit = share * (1 + 1e-9)
            fixed = waiting * ((each_out <= limit)[:, None] | (each_into <= limit))
            rates += share * fixed
            waiting -= fixed
            out = np.maximum(out - share * np.add.reduce(fixed, 1), 0.0)
            into = np.maximum(into - share * np.add.reduce(fixed, 0), 0.0)
    return rates


class SharedLinks:
    """One direction of all links: ``senders`` links out of hosts and ``receivers`` links into hosts, of equal bandwidth.

    The owner calls :meth:`settle` after a change (``changed``), before time advances, and :meth:`pop` at ``next_time``.
    """

    def __init__(self, senders: int, receivers: int, bandwidth: float) -> None:
        self.bandwidth, self.receivers = bandwidth, receivers
        count = senders * receivers
        self.queues: list[deque[tuple[float, int]]] = [deque() for _ in range(count)]
        self.began = [0.0] * count
        self.changed = False
        self.next_time = np.inf
        self._next = 0
        self._out, self._in = [0] * senders, [0] * receivers
        self._sending = np.zeros((senders, receivers), dtype=bool)
        self._rates = np.zeros((senders, receivers))
        self._ends = np.full((senders, receivers), np.inf)
        self._fresh: dict[int, float] = {}

    def send(self, sender: int, receiver: int, size: float, what: int, now: float) -> None:
        """Queue a piece."""
        connection = sender * self.receivers + receiver
        self.queues[connection].append((size, what))
        if len(self.queues[connection]) == 1:
            self.began[connection] = now
            self._sending[sender, receiver] = True
            self._out[sender] += 1
            self._in[receiver] += 1
            if self._out[sender] == self._in[receiver] == 1:  # no other connection on these links, so no other share changes
                self._rates[sender, receiver] = self.bandwidth
                self._ends[sender, receiver] = now + size / self.bandwidth
                self._find()
            else:
                self._fresh[connection] = size
                self.changed = True

    def settle(self, now: float) -> None:
        """Divide the links among the connections with data to send."""
        self.changed = False
        with np.errstate(invalid="ignore", divide="ignore"):
            left = (self._ends - now) * self._rates
            for connection, size in self._fresh.items():
                left.flat[connection] = size
            self._fresh.clear()
            self._rates = fair_shares(self._sending, self.bandwidth)
            self._ends = np.where(self._sending, now + left / self._rates, np.inf)
        self._find()

    def pop(self) -> tuple[int, int, float, float, int]:
        """Return the piece that arrives at ``next_time``: sender, receiver, its start, its bytes and its content."""
        connection, now = self._next, self.next_time
        queue, began = self.queues[connection], self.began[connection]
        sender, receiver = divmod(connection, self.receivers)
        size, what = queue.popleft()
        self.began[connection] = now
        if queue:
            self._ends[sender, receiver] = now + queue[0][0] / self._rates[sender, receiver]
        else:
            self._ends[sender, receiver] = np.inf
            self._sending[sender, receiver] = False
            self._out[sender] -= 1
            self._in[receiver] -= 1
            self.changed |= self._out[sender] + self._in[receiver] > 0
        self._find()
        return sender, receiver, began, size, what

    def _find(self) -> None:
        self._next = int(self._ends.argmin())
        self.next_time = float(self._ends.flat[self._next])
