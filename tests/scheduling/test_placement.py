"""Placements hold the devices asked for, take none that is not free, and follow their rule."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from paceline.scheduling.placement import RULES, Rule, fewest_nodes, most_free, placed, racks_of, repacked, shape

FREE = st.lists(st.integers(0, 8), min_size=1, max_size=12).map(np.array)


@given(FREE, st.integers(0, 40), st.sampled_from(sorted(RULES)))
def test_a_placement_is_whole_or_empty(free: np.ndarray, devices: int, rule: str) -> None:
    before = free.copy()
    placement = RULES[rule](free, devices)  # type: ignore[index]
    assert (free == before).all()
    assert sum(shape(placement)) == (devices if devices <= free.sum() else 0)
    assert len({node for node, _ in placement}) == len(placement)
    assert all(0 < count <= free[node] for node, count in placement)


@given(FREE, st.integers(1, 40))
def test_no_placement_is_on_fewer_nodes(free: np.ndarray, devices: int) -> None:
    if devices <= free.sum():
        least = int(np.searchsorted(np.sort(free)[::-1].cumsum(), devices)) + 1
        assert len(fewest_nodes(free, devices)) == len(most_free(free, devices)) == least


@given(FREE, st.integers(0, 40), st.sampled_from(sorted(RULES)), st.integers(1, 4))
def test_racks_change_where_a_placement_is_and_never_whether_there_is_one(
    free: np.ndarray, devices: int, rule: Rule, leaf_nodes: int
) -> None:
    placement = placed(rule, free, devices, leaf_nodes)
    assert sum(shape(placement)) == (devices if devices <= free.sum() else 0)
    assert all(0 < count <= free[node] for node, count in placement)
    sums = [int(free[first : first + leaf_nodes].sum()) for first in range(0, len(free), leaf_nodes)]
    if 0 < devices <= max(sums) and rule != "in_order":
        assert racks_of(placement, leaf_nodes) == 1
    if devices and rule == "fewest_nodes" and free.max() >= devices:
        assert len(placement) == 1


def test_one_node_then_one_rack_then_the_fewest_racks() -> None:
    free = np.array([4, 1, 2, 3, 4, 4])  # racks of 5, 5 and 8
    assert placed("fewest_nodes", free, 5, 2) == ((0, 4), (1, 1)) != placed("most_free", free, 5)
    assert placed("fewest_nodes", free, 4, 2) == ((0, 4),)
    assert placed("fewest_nodes", free, 8, 2) == ((4, 4), (5, 4))
    assert racks_of(placed("fewest_nodes", free, 12, 2), 2) == 2
    assert racks_of(((0, 1), (5, 1)), 0) == 1


def test_jobs_are_repacked_into_one_rack() -> None:
    sizes, across = np.array([2, 2, 2, 2]), ((1, 2), (2, 2))
    assert repacked(sizes, [across], np.array([4])) == [across]
    assert repacked(sizes, [across], np.array([4]), 2) == [((0, 2), (1, 2))]


def test_the_fewest_nodes_leave_the_least_over() -> None:
    free = np.array([4, 2, 3])
    assert fewest_nodes(free, 2) == ((1, 2),)
    assert most_free(free, 2) == ((0, 2),)
    assert fewest_nodes(free, 6) == ((0, 4), (1, 2))
    assert most_free(free, 6) == ((0, 4), (2, 2))
