"""Agreement of peers on the members of an exchange and on its result, in their store.

An outer step is tried until an attempt succeeds. In an attempt each peer notes that it has come. The first that sees all, or
whose deadline is over, writes the members; the first to write decides. An attempt succeeds once every member has its result. It
fails for all if a member is lost or its exchange fails, so that either all members take an outer step or none.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from paceline.errors import LostRank
from paceline.training.attach.peers.peer_store import POLL_S, PeerStore

COMMITTED = "committed"


@dataclass(frozen=True)
class Attempt:
    """Decided attempt at an outer step.

    Attributes:
        key: its name in the store. ``outer_step``: number of the outer step.
        members: numbers of the peers that take part. ``contributors``: how many of them have a change of the weights.
        peers: how many peers there are, also those that are late.
        group: key of the process group of the members, new or of an earlier attempt.
    """

    key: str
    outer_step: int
    members: tuple[int, ...]
    contributors: int
    peers: int
    group: str

    def written(self) -> list[Any]:
        """Return the fields as values of JSON."""
        return [self.key, self.outer_step, list(self.members), self.contributors, self.peers, self.group]

    @classmethod
    def read(cls, fields: list[Any]) -> Attempt:
        """Return the attempt that ``written`` wrote."""
        key, outer_step, members, contributors, peers, group = fields
        return cls(key, outer_step, tuple(members), contributors, peers, group)


class Rounds:
    """Outer steps of a run, as one peer sees them.

    Args:
        min_peers: fewest members of an exchange.
        ranks: how many ranks of each peer exchange, one for each shard.
        deadline_s: seconds to wait for late peers; None: ``timeout_s``. ``timeout_s``: seconds to wait for ``min_peers``.
    """

    def __init__(self, meeting: PeerStore, min_peers: int, deadline_s: float | None, timeout_s: float, ranks: int = 1) -> None:
        self._meeting, self._min_peers, self._timeout_s = meeting, min_peers, timeout_s
        self._ranks = ranks
        self._deadline_s = timeout_s if deadline_s is None else deadline_s

    def newest(self, known: int) -> int:
        """Return the number of the newest outer step, which is at least ``known``."""
        known = max(known, int(self._meeting.value("newest") or 0))
        while self._meeting.store.check([f"members/{known + 1}"]):
            known += 1
        return known

    def holders(self, outer_step: int) -> list[int]:
        """Return the live peers that have had the shared weights of an outer step, except this one."""
        of_step = [*self._meeting.value(f"members/{outer_step}").split(","), *self._meeting.lines(f"holders/{outer_step}")]
        numbers = dict.fromkeys(int(number) for number in of_step if number)
        left = {int(number) for number in self._meeting.lines("left")}
        return [n for n in numbers if n != self._meeting.number and n not in left and self._meeting.lives(n)]

    def hold(self, outer_step: int) -> None:
        """Tell the others that this peer has the shared weights of an outer step."""
        self._meeting.note(f"holders/{outer_step}", str(self._meeting.number))

    def end(self, outer_step: int, digest: str) -> None:
        """Tell peers that come later that this one has finished, and with which shared weights."""
        self._meeting.note("ended", f"{outer_step} {digest}")

    def has_ended(self, outer_step: int, digest: str = "") -> bool:
        """Return True if a peer has finished after an outer step, with the shared weights of ``digest`` if that is given."""
        return any(line.startswith(f"{outer_step} {digest}") for line in self._meeting.lines("ended"))

    def announce(self, outer_step: int) -> None:
        """Ask the others to wait with an outer step until this peer, which is alive, has fetched the shared weights."""
        self._meeting.note(f"fetching/{outer_step}", str(self._meeting.number))

    def withdraw(self, outer_step: int) -> None:
        """Tell the others not to wait with an outer step: this peer, which fetched the shared weights, has no change for it."""
        self._meeting.note(f"withdrawn/{outer_step}", str(self._meeting.number))

    def gather(self, outer_step: int, contributes: bool, group: tuple[str, Sequence[int]]) -> Attempt:
        """Come to the next attempt at an outer step, and return it once it is decided, with or without this peer.

        Args:
            contributes: True if this peer has a change of the weights.
            group: key and members of the last process group that works; an empty key without one.

        Raises:
            LostRank: fewer than ``min_peers`` have come in time, or the store is lost.
        """
        meeting, key = self._meeting, self._open(outer_step)
        meeting.note(f"{key}/came", f"{meeting.number} {int(contributes)} {group[0] or '-'}")
        began = time.monotonic()
        while not (decided := meeting.value(f"{key}/decided")):
            came = {int(n): (flag == "1", of) for n, flag, of in map(str.split, meeting.lines(f"{key}/came"))}
            here = sorted(n for n in came if meeting.lives(n))
            expected = meeting.expected()
            done = {*came, *map(int, meeting.lines(f"withdrawn/{outer_step}")), *map(int, meeting.lines("left"))}
            fetching = [n for n in map(int, meeting.lines(f"fetching/{outer_step}")) if n not in done and meeting.lives(n)]
            waited = time.monotonic() - began
            ready = expected <= set(here) or waited >= self._deadline_s
            if len(here) >= self._min_peers and ready and (not fetching or waited >= self._timeout_s):
                keeps = bool(group[0]) and tuple(here) == tuple(group[1]) and all(came[n][1] == group[0] for n in here)
                text = {
                    "members": here,
                    "contributors": sum(came[n][0] for n in here),
                    "peers": len(expected | set(here)),
                    "group": group[0] if keeps else key,
                }
                decided = meeting.first(f"{key}/decided", json.dumps(text))
                break
            if len(here) < self._min_peers and waited >= self._timeout_s:
                raise LostRank(
                    f"{len(here)} of at least {self._min_peers} peers came to outer step {outer_step} within {waited:.0f} s: "
                    "start the others again, or give a smaller min_peers or a larger timeout_s"
                )
            meeting.check()
            time.sleep(POLL_S)
        read = json.loads(decided)
        return Attempt(key, outer_step, tuple(read["members"]), read["contributors"], read["peers"], read["group"])

    def _open(self, outer_step: int) -> str:
        """Return the key of the first attempt that has not failed."""
        number = 0
        while (verdict := self._meeting.value(f"round/{outer_step}/{number}/verdict")) and verdict != COMMITTED:
            number += 1
        return f"round/{outer_step}/{number}"

    def verdict(self, attempt: Attempt) -> str:
        """Return ``COMMITTED``, or why an attempt failed; empty if it is under way. A lost member makes it fail."""
        key = f"{attempt.key}/verdict"
        found = self._meeting.value(key)
        if found:
            return found
        lost = [n for n in attempt.members if not self._meeting.lives(n)]
        return self._meeting.first(key, f"lost: {self._meeting.named(lost)}") if lost else ""

    def succeed(self, attempt: Attempt) -> None:
        """Report this rank's result. The last rank of all members commits the attempt."""
        if int(self._meeting.store.add(f"{attempt.key}/done", 1)) == len(attempt.members) * self._ranks:
            self._meeting.first(f"{attempt.key}/verdict", COMMITTED)

    def fail(self, attempt: Attempt, why: str) -> None:
        """Report that this member has no result."""
        self._meeting.first(f"{attempt.key}/verdict", f"failed at {self._meeting.name}: {why}")

    def commit(self, attempt: Attempt) -> bool:
        """Record the members of a committed attempt, which hold the new shared weights.

        Returns False if a peer has claimed the outer step, since it took the holders of the one before for lost.
        """
        return self._record(attempt.outer_step, ",".join(map(str, attempt.members)))

    def claim(self, outer_step: int) -> bool:
        """Let this peer's weights be those of an outer step. Returns False if others have them."""
        return self._record(outer_step, str(self._meeting.number))

    def _record(self, outer_step: int, members: str) -> bool:
        """Set the members of an outer step. The first to set them decides, so that no outer step has two versions."""
        if self._meeting.first(f"members/{outer_step}", members) != members:
            return False
        self._meeting.store.set("newest", str(outer_step))
        return True
