"""Protocols: half the bandwidth for a short start, or the reverse; what is measured lies beneath what the words allow."""

from __future__ import annotations

import pytest

from paceline.calibration.protocols import BARE, KINDS, LL, LL128, NCCL, SIMPLE, Protocol
from paceline.hardware import links

EVERY = pytest.mark.parametrize("protocol", (*NCCL, *BARE), ids=lambda protocol: protocol.name)


@EVERY
def test_shares_are_shares_and_seconds_are_not_negative(protocol: Protocol) -> None:
    assert all(0 < share <= 1 for share in protocol.share.values()) and 0 <= protocol.switch_share <= 1
    assert min(protocol.ring_s, protocol.tree_s, protocol.switch_s) >= 0
    assert set(protocol.share) <= set(KINDS) and all(factor > 0 for factor in protocol.latency.values())


@EVERY
def test_where_it_is_used_it_has_a_latency(protocol: Protocol) -> None:
    assert set(protocol.share) <= set(protocol.latency) and set(protocol.latency) == set(protocol.tree_latency)


def test_half_of_what_ll_sends_are_flags_and_an_eighth_of_a_line_of_ll128_is_one_of_sixteen_words() -> None:
    assert max(LL.share.values()) <= 1 / 2 and max(LL128.share.values()) <= 120 / 128 + 0.03
    for kind in ("nvlink", "infiniband", "ethernet"):
        assert LL.share[kind] < LL128.share[kind] <= SIMPLE.share[kind]
        assert LL.latency[kind] <= LL128.latency[kind] <= SIMPLE.latency[kind]


def test_what_starts_quickest_has_the_least_bandwidth() -> None:
    assert LL.ring_s < SIMPLE.ring_s and "pcie" not in LL128.share
    assert LL.ring_s + 1e9 / LL.share["nvlink"] > SIMPLE.ring_s + 1e9 / SIMPLE.share["nvlink"]


def test_every_kind_of_link_is_known() -> None:
    assert set(KINDS) == set(SIMPLE.share) == set(BARE[0].share) and {link.kind for link in links()} <= set(KINDS)


def test_bare_links_cost_nothing_more() -> None:
    (bare,) = BARE
    assert (bare.ring_s, bare.tree_s, bare.switch_s) == (0, 0, 0)
    assert set(bare.share.values()) == set(bare.latency.values()) == set(bare.tree_latency.values()) == {1.0}
