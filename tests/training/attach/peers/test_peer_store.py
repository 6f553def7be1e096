"""The store of peers: its host, heartbeats, and what an absent one means."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch.distributed as dist

from paceline.errors import LostRank, UserError
from paceline.training.attach.peers import peer_store
from paceline.training.attach.peers.__main__ import main
from paceline.training.attach.peers.peer_store import PeerStore, _Shared, connect, host_store
from paceline.training.attach.peers.peers import Peers


def test_a_peer_lives_until_its_heartbeat_stops_and_is_expected_until_it_leaves() -> None:
    peers = Peers(host_store("127.0.0.1:0"), patience_s=3.0)
    one, other, third = (PeerStore(peers, 60) for _ in range(3))
    for peer in (one, other):
        peer.activate()
    assert one.expected() == {one.number, other.number}  # the third has no weights yet
    other._shared.stop.set()
    assert one.wait_until(lambda: not one.lives(other.number), 60)
    assert one.lives(third.number)
    assert one.expected() == {one.number}
    one.leave()
    assert third.expected() == set()


def test_the_first_to_set_a_key_decides_and_lines_add_up() -> None:
    peer = PeerStore(Peers(host_store("127.0.0.1:0"), name="site-a"), 60)
    assert [peer.first("key", "a"), peer.first("key", "b"), peer.value("none")] == ["a", "a", ""]
    peer.note("lines", "1")
    peer.note("lines", "2")
    assert (peer.lines("lines"), peer.named([peer.number])) == (["1", "2"], "site-a")


def test_without_a_store_the_next_step_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match="start it first: python -m paceline"):
        connect(Peers("127.0.0.1:1"), 0.0)
    store = host_store("127.0.0.1:0")
    assert main([f"127.0.0.1:{store.port}"]) == 2
    assert "no store can be hosted" in capsys.readouterr().err


def test_an_error_of_the_store_says_to_start_it_again() -> None:
    peer = PeerStore(Peers(host_store("127.0.0.1:0")), 60)
    peer._shared.failed = dist.DistNetworkError("reset")
    with pytest.raises(LostRank, match="Start it again, and all peers with their saved states"):
        peer.check()


def test_time_in_which_a_suspended_peer_did_not_look_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(peer_store, "time", SimpleNamespace(monotonic=lambda: now))
    shared = _Shared(patience_s=10.0)
    shared.saw({1: 5, 2: 5})
    now += 3600.0
    assert shared.lives(1)
    shared.saw({1: 5, 2: 5})  # before the others, suspended too, could beat
    assert shared.lives(1)
    looks = 0
    while shared.lives(1):
        now += 1.0
        looks += 1
        shared.saw({1: 5, 2: 5 + looks})
    assert shared.lives(2) and now - 3600 <= 10
