"""Protocols: half the bandwidth for a short start, or the reverse; what is measured lies beneath what the words allow."""

from __future__ import annotations

import pytest

from paceline.calibration.protocols import BARE, KINDS, Protocol, by_kind, nccl
from paceline.hardware import links, network

LL, LL128, SIMPLE = nccl()
EVERY = pytest.mark.parametrize("protocol", (*nccl(), *BARE), ids=lambda protocol: protocol.name)


@EVERY
def test_shares_are_shares_and_seconds_are_not_negative(protocol: Protocol) -> None:
    shares = (*protocol.share.values(), *protocol.alltoall_share.values())
    assert all(0 < share <= 1 for share in shares) and 0 <= protocol.switch_share <= 1
    assert min(protocol.ring_s, protocol.tree_s, protocol.switch_s, *protocol.copy.values()) >= 0
    assert set(protocol.share) <= set(KINDS) and all(factor > 0 for factor in protocol.latency.values())


@EVERY
def test_where_it_is_used_it_has_a_latency(protocol: Protocol) -> None:
    assert set(protocol.share) <= set(protocol.latency)
    assert set(protocol.latency) & set(KINDS) == set(protocol.tree_latency) & set(KINDS)


def test_a_transport_that_differs_from_its_kind_has_its_own_value() -> None:
    """NCCL runs RoCE as InfiniBand; TCP over the same Ethernet costs the same with every protocol."""
    roce, tcp, fast = network("100Gb/s RoCE"), network("100Gb/s"), network("InfiniBand EDR")
    for table in (LL.latency, LL.tree_latency, LL128.latency, SIMPLE.tree_latency):
        assert LL.of_link(table, roce) == LL.of_link(table, fast) and LL.of_link(table, tcp) == 1.0


def test_half_of_what_ll_sends_are_flags_and_an_eighth_of_a_line_of_ll128_is_one_of_sixteen_words() -> None:
    assert max(LL.share.values()) <= 1 / 2 and max(LL128.share.values()) <= 120 / 128 + 0.03
    for kind in ("nvlink", "infiniband", "ethernet"):
        assert LL.share[kind] < LL128.share[kind] <= SIMPLE.share[kind]
        assert LL.latency[kind] <= LL128.latency[kind] <= SIMPLE.latency[kind]


def test_what_starts_quickest_has_the_least_bandwidth() -> None:
    assert LL.ring_s < SIMPLE.ring_s and "pcie" not in LL128.share
    assert LL.start < LL128.start < SIMPLE.start and LL.alltoall_start < SIMPLE.alltoall_start
    assert all(LL.alltoall_share[kind] < SIMPLE.alltoall_share[kind] for kind in KINDS)
    assert LL.ring_s + 1e9 / LL.share["nvlink"] > SIMPLE.ring_s + 1e9 / SIMPLE.share["nvlink"]


def test_every_kind_of_link_is_known() -> None:
    assert set(KINDS) == set(SIMPLE.share) == set(BARE[0].share) and {link.kind for link in links()} <= set(KINDS)


def test_other_is_every_kind_without_an_entry_and_fabrics_take_the_value_of_nvlink() -> None:
    assert by_kind({"other": 1.0, "nvlink": 0.5})["fabric"] == 0.5
    assert by_kind({"other": 1.0, "nvlink": 0.5})["ici"] == 1.0
    assert by_kind({"other": 1.0})["pcie"] == 1.0 and "pcie" not in by_kind({"nvlink": 0.5})


def test_bare_links_cost_nothing_more() -> None:
    (bare,) = BARE
    assert {bare.ring_s, bare.tree_s, bare.switch_s, bare.alltoall_latencies, *bare.copy.values()} == {0.0}
    assert set(bare.share.values()) == set(bare.latency.values()) == set(bare.tree_latency.values()) == {1.0}
