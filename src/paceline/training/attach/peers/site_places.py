"""Ranks of one site that hold different shards: they decide as one in the run's store, and each exchanges its own shard.

The ranks meet in the store and not in a process group: a rank waits there as long as the first one waits for other sites, no
group's timeout ends the wait, and the script's collectives may run at the same time.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.tensor import Shard

from paceline.errors import LostRank, UserError
from paceline.training.attach.local.worker_ranks import ShardPart, WorkerPlace
from paceline.training.attach.peers.peer_store import POLL_S, PeerStore

T = TypeVar("T")


class SitePlaces:
    """Ranks of one site that exchange, one for each shard. The first one decides with the other sites.

    All of them make the same calls in the same order. A site of one shard decides alone.

    Args:
        meeting: connection of this rank to the store. ``place``: place of this rank in its site.
        token: number that only the ranks of this site have.
        timeout_s: seconds to wait for the other ranks to connect.

    Attributes:
        number: number of the site in the run, which is that of its first rank.
    """

    def __init__(self, meeting: PeerStore, place: WorkerPlace, token: int, timeout_s: float) -> None:
        self._meeting, self._shard, self._shards, self._key = meeting, place.shard, place.shards, f"site/{token:x}"
        self._turn, self._ranks = 0, list[int]()
        self._until = time.monotonic() + timeout_s
        self._ranks = self.everyone(meeting.number)
        self.number = self._ranks[0]
        self.decide(lambda: meeting.set_ranks(self._ranks))

    def everyone(self, value: Any) -> list[Any]:
        """Return the values of all ranks of the site, in order of shards. They are values of JSON."""
        if self._shards == 1:
            return [value]
        key = self._next_key()
        self._meeting.note(key, json.dumps([self._shard, value]))
        lines = self._wait(lambda: found if len(found := self._meeting.lines(key)) == self._shards else [])
        return [value for _, value in sorted(map(json.loads, lines), key=lambda item: item[0])]

    def decide(self, call: Callable[[], T]) -> T:
        """Return what ``call`` returns on the first rank, a value of JSON.

        Raises:
            LostRank: a rank of this site is lost; on the other ranks if the call failed on the first one, which raises its own
                error. A UserError is raised on all ranks.
        """
        if self._shards == 1:
            return call()
        key = self._next_key()
        if self._shard == 0:
            try:
                self._refuse_lost()
                value = call()
            except UserError as error:
                self._meeting.store.set(key, json.dumps({"illegal": [error.message, error.fix]}))
                raise
            except Exception as error:
                self._meeting.store.set(key, json.dumps({"failed": str(error)}))
                raise
            self._meeting.store.set(key, json.dumps({"value": value}))
            return value
        told = json.loads(self._wait(lambda: self._meeting.value(key)))
        if "illegal" in told:
            raise UserError(*told["illegal"])
        if "failed" in told:
            raise LostRank(f"the first rank of this site could not exchange with the other sites: {told['failed']}")
        decided: T = told["value"]
        return decided

    def counterpart(self, site: int) -> int:
        """Return the number of the rank with this rank's shard at another site."""
        return self._meeting.ranks_of(site)[self._shard]

    def store(self) -> Any:
        """Return a connection for process groups of the ranks with this rank's shard."""
        return PrefixStore(f"shard/{self._shard}", self._meeting.store.clone())

    def _next_key(self) -> str:
        self._turn += 1
        return f"{self._key}/{self._turn}"

    def _wait(self, met: Callable[[], T]) -> T:
        while not (answer := met()):
            self._meeting.check()
            self._refuse_lost()
            if not self._ranks and time.monotonic() > self._until:
                raise LostRank(f"not all {self._shards} ranks of this site reach the store of the peers: see their errors")
            time.sleep(POLL_S)
        return answer

    def _refuse_lost(self) -> None:
        lost = [shard for shard, number in enumerate(self._ranks) if not self._meeting.beats(number)]
        if lost:
            raise LostRank(f"the rank with shard {lost[0]} of this site is lost: start the site again")


def sharding_of(place: WorkerPlace, parts: Sequence[ShardPart], dims: Sequence[int]) -> str:
    """Describe how a site divides its tensors. Sites with equal descriptions have equal shards.

    Args:
        dims: dimension by which each tensor is divided.
    """
    if place.shards == 1:
        return "whole"
    common = max(sorted(set(dims)), key=list(dims).count)
    other = [f", {part.name} of dimension {dim}" for part, dim in zip(parts, dims, strict=True) if dim != common]
    return f"in {place.shards} shards of dimension {common}{''.join(other)}"


def dim_of(p: Any) -> int:
    """Return the dimension by which a parameter is divided; 0 for a whole one."""
    return next((placement.dim for placement in getattr(p, "placements", ()) if isinstance(placement, Shard)), 0)
