"""Peers that are killed, leave, join, come late, learn NaN or lose their store; 20 times in ``benchmarks/peer_faults.py``."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

import peer_ranks
from distributed import launch_and_let_fail, launch_once
from paceline.errors import UserError
from paceline.training.attach.peers.peer_store import PeerStore, host_store


@pytest.mark.everyday("killed-dense", others="long")
@pytest.mark.parametrize("compression", ["dense", "topk"])
@pytest.mark.parametrize("name", peer_ranks.CASES)
def test_the_others_go_on_with_equal_weights(name: str, compression: str) -> None:
    outcomes = launch_and_let_fail(peer_ranks.case, 3, name=name, compression=compression)
    assert peer_ranks.problems(name, outcomes) == []


def ended(rank: int, workers: int) -> list[Any]:
    """A run of one peer, one that comes when it is over, and one that continues it."""
    where = host_store("127.0.0.1:0")
    first = peer_ranks.Peer(rank, where=where)
    first.round()
    first.sync.finish()
    with pytest.raises(UserError, match="this run has ended after 1 outer steps; start a new store, or give load_state_dict"):
        peer_ranks.Peer(rank, where=where).sync.join()
    again = peer_ranks.Peer(rank, where=where)
    again.sync.load_state_dict(first.sync.state_dict())
    again.round()
    return [first.sync.outer_step, again.sync.outer_step]


def late_heartbeat(rank: int, workers: int) -> list[Any]:
    """A peer that joins while the only other one seems lost, a hundred times that it looks; the other's round after that."""
    where = host_store("127.0.0.1:0")
    first = peer_ranks.Peer(rank, where=where, round_deadline_s=0.0, max_age=3)
    first.round()
    lives, looks = PeerStore.lives, count()
    PeerStore.lives = lambda self, number: (number == self.number or next(looks) >= 100) and lives(self, number)  # type: ignore[method-assign]
    second = peer_ranks.Peer(rank, where=where, round_deadline_s=0.0, max_age=3)
    second.sync.join()
    joins = first.sync.shared.digest() == second.sync.shared.digest() and next(looks) > 100
    first.round()  # waits for no change of the other, which has just begun to train
    return [joins, first.sync.members]


def test_a_peer_that_joins_waits_for_a_late_heartbeat_and_is_not_waited_for() -> None:
    assert launch_once(late_heartbeat, 1) == [[True, ["peer-0"]]]


@pytest.mark.long
def test_a_run_that_has_ended_says_so_and_continues_from_its_last_state() -> None:
    assert launch_once(ended, 1) == [[1, 2]]
