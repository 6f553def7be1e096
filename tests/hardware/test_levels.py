"""Levels as an exchange sees them: two kinds of links, and leaf switches."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import UserError
from paceline.hardware import Level, link, network
from paceline.hardware.levels import leaves, tiers

NVLINK, INFINIBAND = link("NVLink 5"), network("InfiniBand NDR")


@given(st.integers(1, 8), st.integers(1, 8), st.integers(2, 8), st.floats(1.5, 8))
def test_leaves_leave_two_kinds_of_links(local: int, leaf: int, count: int, x: float) -> None:
    levels = Level("node", local, NVLINK), Level("rack", leaf, INFINIBAND), Level("pod", count, INFINIBAND, x)
    assert [(tier.size, tier.link) for tier in tiers(levels)] == [(local, NVLINK), (leaf * count, INFINIBAND)]
    assert leaves(levels) == (leaf, x)


def test_a_domain_of_switches_below_leaves() -> None:
    """Four racks of 72 on NVLink below each leaf."""
    levels = Level("node", 4, NVLINK), Level("rack", 18, NVLINK), Level("pod", 4, INFINIBAND), Level("site", 2, INFINIBAND, 2.0)
    assert [tier.size for tier in tiers(levels)] == [72, 8] and leaves(levels) == (4, 2.0)


def test_no_blocking_level_has_no_leaf() -> None:
    assert leaves((Level("node", 8, NVLINK), Level("pod", 4, INFINIBAND))) == (0, 1.0)
    assert leaves((Level("node", 8, NVLINK), Level("pod", 1, INFINIBAND, 2.0))) == (0, 1.0), "nothing leaves the only leaf"


def test_three_kinds_of_links_are_refused() -> None:
    levels = Level("node", 4, NVLINK), Level("rack", 18, INFINIBAND), Level("site", 2, network("10Gb/s"), 2.0)
    with pytest.raises(UserError, match="3 kinds of links"):
        leaves(levels)
