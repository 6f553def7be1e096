"""Tabu search against a search of everything."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.market.sharing.tabu_search import tabu_search


@given(data=st.data(), size=st.integers(1, 300))
def test_a_value_with_one_hump_is_solved(data: st.DataObject, size: int) -> None:
    start, top = (data.draw(st.integers(0, size - 1)) for _ in range(2))
    slopes = np.array(data.draw(st.lists(st.floats(0.01, 10), min_size=size, max_size=size)))
    values = [-float(slopes[min(i, top) : max(i, top)].sum()) for i in range(size)]
    tried = tabu_search(values.__getitem__, size, start)
    assert max(tried, key=lambda place: tried[place]) == top
    assert all(tried[place] == values[place] for place in tried)


def test_it_leaves_a_hump_that_is_not_the_highest() -> None:
    """A climb to the better neighbour ends on the first hump; with no patience so does this one."""
    values = [0, 5, 4, 3, 2, 3, 4, 9, 1, 0]
    assert max(tabu_search(values.__getitem__, 10, 0).values()) == 9
    assert max(tabu_search(values.__getitem__, 10, 0, patience=1).values()) == 5


@pytest.mark.parametrize("size", [65, 200])
def test_of_rough_values_it_finds_a_good_one_with_a_part_of_the_work(size: int) -> None:
    """Concave values with noise, as simulations give: within a hundredth of the best, by half of the places."""
    good, work = [], []
    for seed in range(100):
        rng = np.random.default_rng(seed)
        places = np.arange(size)
        values = 100 - 100 * ((places - rng.integers(size)) / size) ** 2 + rng.normal(0, 0.3, size)
        tried = tabu_search(values.__getitem__, size, int(rng.integers(size)))
        good.append(max(tried.values()) >= values.max() - 1)
        work.append(len(tried) / size)
    assert np.mean(good) >= 0.9 and np.mean(work) <= 0.5


def test_every_place_is_asked_once() -> None:
    asked: list[int] = []
    tabu_search(lambda place: asked.append(place) or -abs(place - 7.0), 40, 39)  # type: ignore[func-returns-value]
    assert len(asked) == len(set(asked))
