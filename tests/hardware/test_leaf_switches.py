"""Leaf switches as a user describes them: read in either way, and refused where they change nothing."""

from __future__ import annotations

import pytest

from paceline import Cluster, UserError
from paceline.hardware.leaf_switches import on_leaves, parse_oversubscription

FOUR = Cluster.named("4x8 A100", network="100Gb/s")


@pytest.mark.parametrize(("text", "factor"), [("2:1", 2.0), ("3:2", 1.5), ("4", 4.0), ("1", 1.0)])
def test_down_to_up_is_a_factor(text: str, factor: float) -> None:
    assert parse_oversubscription(text) == factor


@pytest.mark.parametrize("text", ["", "two", "2:0", "2:1:1", ":"])
def test_another_text_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"oversubscription .*; write 2:1, or 2"):
        parse_oversubscription(text)


@pytest.mark.parametrize("factor", ["nan", "inf", "-2", "0.5"])
def test_a_factor_that_cannot_be_is_refused(factor: str) -> None:
    with pytest.raises(UserError):
        on_leaves(FOUR, 2, parse_oversubscription(factor))


def test_switches_that_block_are_placed_and_taken_away() -> None:
    blocked = on_leaves(FOUR, 2, 2.0)
    assert (blocked.leaf_nodes, blocked.oversubscription) == (2, 2.0)
    assert on_leaves(blocked, 0, 1.0) == FOUR and on_leaves(FOUR, 0, 1.0) is FOUR


@pytest.mark.parametrize(("nodes", "factor"), [(2, 1.0), (4, 2.0), (8, 2.0)])
def test_switches_that_change_nothing_are_refused(nodes: int, factor: float) -> None:
    with pytest.raises(UserError, match="change nothing"):
        on_leaves(FOUR, nodes, factor)
