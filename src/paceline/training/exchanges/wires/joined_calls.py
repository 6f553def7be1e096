"""Calls of a GPU's engine that carry the messages of all chunks at once.

A call costs more than a chunk's bytes where a codec and a link inside a node are fast. So all chunks of an exchange go on
together: what they send is collected until the first of them waits. The bytes are those of single calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from paceline.training.exchanges.wires.message_buffers import FRESH, Buffers

SIZES = "sizes"
"""Name of calls that announce lengths. The host reads them, so they do not share a call with messages."""


class Carrier(Protocol):
    """The part of a ``Wire`` that sends."""

    joint: Joint | None

    def all_to_all(self, outgoing: Sequence[torch.Tensor], expected: Sequence[int], name: str, buffers: Buffers = FRESH) -> Any:
        """Send a message to each rank; see ``Wire``."""

    def shift(self, message: torch.Tensor, expected: int, name: str, buffers: Buffers = FRESH) -> Any:
        """Send a message to the right neighbour; see ``Wire``."""


@contextmanager
def joined(wire: Carrier) -> Iterator[None]:
    """Send what generators on ``wire`` deliver within the block in one call for all that wait at the same time."""
    wire.joint = Joint(wire)
    try:
        yield
    finally:
        wire.joint = None


class Joint:
    """Collection of what the chunks of an exchange send next, in the same order on every rank."""

    def __init__(self, wire: Carrier) -> None:
        self._wire = wire
        self._posts: list[Post] = []

    def all_to_all(self, outgoing: Sequence[torch.Tensor], expected: Sequence[int], name: str) -> Post:
        """Collect an ``all_to_all`` of the wire."""
        return self._post("all_to_all", outgoing, expected, name)

    def shift(self, message: torch.Tensor, expected: int, name: str) -> Post:
        """Collect a ``shift`` of the wire."""
        return self._post("shift", [message], [expected], name)

    def _post(self, kind: str, outgoing: Sequence[torch.Tensor], expected: Sequence[int], name: str) -> Post:
        self._posts.append(Post(self, kind, outgoing, expected, name))
        return self._posts[-1]

    def send(self) -> None:
        """Send all that is collected: one call for each kind."""
        posts, self._posts = self._posts, []
        kinds: dict[tuple[str, bool], list[Post]] = {}
        for post in posts:
            kinds.setdefault((post.kind, post.name == SIZES), []).append(post)
        for (kind, _), of_kind in kinds.items():
            ends = range(len(of_kind[0].outgoing))
            cats: dict[tuple[int, ...], torch.Tensor] = {}  # one message may go to several ranks
            outgoing = [_together([post.outgoing[end] for post in of_kind], cats) for end in ends]
            expected = [sum(post.expected[end] for post in of_kind) for end in ends]
            name = of_kind[0].name
            pending: Any
            if kind == "shift":
                pending = self._wire.shift(outgoing[0], expected[0], name, FRESH)
            else:
                pending = self._wire.all_to_all(outgoing, expected, name, FRESH)
            arrival = _Arrival(pending.wait, [post.expected for post in of_kind])
            for number, post in enumerate(of_kind):
                post.arrived = _part(arrival, number)


class Post:
    """One chunk's part of a call, for which its generator waits."""

    def __init__(self, joint: Joint, kind: str, outgoing: Sequence[torch.Tensor], expected: Sequence[int], name: str) -> None:
        self.kind, self.outgoing, self.expected, self.name = kind, outgoing, expected, name
        self.arrived: Callable[[], list[torch.Tensor]] | None = None
        self._joint = joint

    def wait(self) -> Any:
        """Return the received messages, as the wire's call does. The first that waits sends for all."""
        if self.arrived is None:
            self._joint.send()
        assert self.arrived is not None, "it was collected, so it was sent"
        messages = self.arrived()
        return messages[0] if self.kind == "shift" else messages


class _Arrival:
    """Received messages of a call, which are split when the first chunk asks."""

    def __init__(self, wait: Callable[[], Any], expected: Sequence[Sequence[int]]) -> None:
        self._wait, self._expected = wait, expected
        self._messages: list[list[torch.Tensor]] = []

    def messages(self, number: int) -> list[torch.Tensor]:
        """Return the messages of one chunk."""
        if not self._messages:
            arrived = self._wait()
            by_end = [arrived] if torch.is_tensor(arrived) else arrived
            split = [whole.split([sizes[end] for sizes in self._expected]) for end, whole in enumerate(by_end)]
            self._messages = [[parts[chunk] for parts in split] for chunk in range(len(self._expected))]
        return self._messages[number]


def _part(arrival: _Arrival, number: int) -> Callable[[], list[torch.Tensor]]:
    return lambda: arrival.messages(number)


def _together(parts: Sequence[torch.Tensor], cats: dict[tuple[int, ...], torch.Tensor]) -> torch.Tensor:
    """Return messages to one rank one after the other, the same tensor for equal messages."""
    some = [part for part in parts if part.numel()] or [parts[0]]
    key = tuple(map(id, some))
    if key not in cats:
        cats[key] = some[0] if len(some) == 1 else torch.cat(some)
    return cats[key]
