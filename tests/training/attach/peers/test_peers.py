"""Settings of peers: legal values, and what peers refuse."""

from __future__ import annotations

from typing import Any

import pytest

import paceline
from paceline.errors import UserError
from paceline.strategy import GradientExchange, LocalSteps
from paceline.training.attach.peers.peers import address, check_local


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"store": "site-a"}, "write host:port"),
        ({"store": "site-a:99999"}, "write host:port"),
        ({"store": "a:1", "min_peers": 0}, "peers"),
        ({"store": "a:1", "patience_s": 0.0}, "give seconds from 0.1 to 3600"),
        ({"store": "a:1", "name": 3}, "give a text"),
    ],
)
def test_an_illegal_setting_is_refused(given: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=told):
        paceline.Peers(**given)


def test_an_address_may_be_of_ipv6() -> None:
    assert [address("site-a:29400"), address("[::1]:80")] == [("site-a", 29400), ("::1", 80)]


@pytest.mark.parametrize(
    ("local", "exchange"),
    [
        ({"fragments": 2}, {}),
        ({"sync_delay": 1}, {}),
        ({"worker_devices": 2}, {}),
        ({}, {"compression": "int8", "exchange": "hierarchical", "ranks_per_node": 2}),
    ],
)
def test_what_peers_do_not_have_is_refused(local: dict[str, Any], exchange: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="with peers"):
        check_local(LocalSteps(sync_every=4, **local), GradientExchange(**exchange))
