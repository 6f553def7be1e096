"""Agreement of peers on members and results, in one process over a store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from paceline.errors import LostRank
from paceline.training.attach.peers.peer_store import PeerStore, host_store
from paceline.training.attach.peers.peers import Peers
from paceline.training.attach.peers.rounds import COMMITTED, Attempt, Rounds
from peer_threads import at_once


@pytest.fixture(scope="module")
def store() -> Any:
    return host_store("127.0.0.1:0")


@pytest.fixture
def peers(store: Any, request: pytest.FixtureRequest) -> Iterator[list[PeerStore]]:
    made = [PeerStore(Peers(store, run=request.node.name, patience_s=60), 60) for _ in range(3)]
    for one in made:
        one.activate()
    yield made
    for one in made:
        one.leave()


def rounds(peer: PeerStore, deadline_s: float | None = None, min_peers: int = 1, timeout_s: float = 60.0) -> Rounds:
    return Rounds(peer, min_peers, deadline_s, timeout_s)


def test_all_peers_are_members_and_each_decides_the_same(peers: list[PeerStore]) -> None:
    found = at_once([lambda p=p: rounds(p).gather(1, p is not peers[0], ("", ())) for p in peers])
    key = "round/1/0"
    assert found == [Attempt(key, 1, tuple(p.number for p in peers), 2, 3, key)] * 3
    for p in peers:
        assert rounds(p).verdict(found[0]) == ""
        rounds(p).succeed(found[0])
    assert {rounds(p).verdict(found[0]) for p in peers} == {COMMITTED}
    rounds(peers[0]).commit(found[0])
    assert [rounds(p).newest(0) for p in peers] == [1, 1, 1]
    assert rounds(peers[0]).holders(1) == [p.number for p in peers[1:]]


def test_a_late_peer_is_left_out_and_learns_of_it(peers: list[PeerStore]) -> None:
    found = at_once([lambda p=p: rounds(p, 0.05, min_peers=2).gather(1, True, ("", ())) for p in peers[:2]])
    assert found[0].members == (peers[0].number, peers[1].number)
    assert found[0].peers == 3
    assert rounds(peers[2], 0.05).gather(1, True, ("", ())) == found[0]


def test_a_failed_attempt_is_tried_again_and_a_lost_peer_is_not_waited_for(
    peers: list[PeerStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = at_once([lambda p=p: rounds(p).gather(1, True, ("", ())) for p in peers])[0]
    assert rounds(peers[0]).verdict(first) == ""
    monkeypatch.setattr(PeerStore, "lives", lambda self, number: number != peers[2].number)
    assert rounds(peers[0]).verdict(first).startswith("lost: ")
    rounds(peers[1]).succeed(first)  # too late
    second = at_once([lambda p=p: rounds(p).gather(1, True, ("", ())) for p in peers[:2]])[0]
    assert (second.key, second.members, second.peers) == ("round/1/1", first.members[:2], 2)


def test_a_group_is_used_again_by_the_same_members_alone(peers: list[PeerStore]) -> None:
    members = tuple(p.number for p in peers)
    again = at_once([lambda p=p: rounds(p).gather(1, True, ("old", members)) for p in peers])
    other = at_once([lambda p=p: rounds(p).gather(2, True, ("old", members[:2])) for p in peers])
    forgotten = at_once([lambda p=p: rounds(p).gather(3, True, ("old" * (p is peers[0]), members)) for p in peers])
    assert [again[0].group, other[0].group, forgotten[0].group] == ["old", "round/2/0", "round/3/0"]


def test_fewer_than_min_peers_wait_and_then_fail(peers: list[PeerStore]) -> None:
    with pytest.raises(LostRank, match="1 of at least 2 peers came to outer step 1"):
        rounds(peers[0], 0.0, 2, timeout_s=0.05).gather(1, True, ("", ()))


def test_one_that_fetched_without_a_change_to_give_is_not_waited_for(peers: list[PeerStore]) -> None:
    rounds(peers[2]).announce(1)
    rounds(peers[2]).withdraw(1)
    found = rounds(peers[0], 0.0).gather(1, True, ("", ()))
    assert found.members == (peers[0].number,)


def test_one_that_fetched_and_left_is_not_waited_for(peers: list[PeerStore]) -> None:
    rounds(peers[2]).announce(1)
    peers[2].leave()
    found = rounds(peers[0], 0.0).gather(1, True, ("", ()))
    assert found.members == (peers[0].number,)


def test_one_that_fetches_is_waited_for_even_past_the_deadline(peers: list[PeerStore]) -> None:
    first, second = peers[:2]
    rounds(second).announce(1)

    def fetched() -> Attempt:
        second.wait_until(lambda: second.lines("round/1/0/came"), 60)
        return rounds(second, 0.0).gather(1, True, ("", ()))

    both = at_once([lambda: rounds(first, 0.0).gather(1, True, ("", ())), fetched])
    assert both[0].members == (peers[0].number, peers[1].number)


def test_an_outer_step_has_one_version_though_a_peer_took_others_for_lost(peers: list[PeerStore]) -> None:
    solo = rounds(peers[0], 0.0).gather(1, True, ("", ()))
    assert rounds(peers[1]).claim(1)
    assert not rounds(peers[0]).commit(solo)
    assert rounds(peers[2]).newest(0) == 1
    assert rounds(peers[2]).holders(1) == [peers[1].number]
