"""Placements hold the devices asked for, take none that is not free, and follow their rule."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from paceline.scheduling.placement import RULES, fewest_nodes, most_free, shape

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


def test_the_fewest_nodes_leave_the_least_over() -> None:
    free = np.array([4, 2, 3])
    assert fewest_nodes(free, 2) == ((1, 2),)
    assert most_free(free, 2) == ((0, 2),)
    assert fewest_nodes(free, 6) == ((0, 4), (1, 2))
    assert most_free(free, 6) == ((0, 4), (2, 2))
