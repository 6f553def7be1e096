"""Units that are tied, and fields of tensors."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from paceline.array_types import Bools, Ints
from paceline.slimming.structures.structures import ParameterSlice, Structures, Units, compressed, vector


def fixed(forest: Units, units: Ints) -> Bools:
    """Return which units stay: those tied to unit 0."""
    return np.asarray(forest.roots(units) == 0)


@given(st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12)), max_size=20))
def test_what_is_tied_is_one_set_as_a_closure_says(pairs: list[tuple[int, int]]) -> None:
    forest = Units()
    forest.new(12)
    sets = [{unit} for unit in range(13)]
    for one, other in pairs:
        forest.tie(np.array([one]), np.array([other]))
        both = sets[one] | sets[other]
        for unit in both:
            sets[unit] = both
    roots = forest.roots(np.arange(13))
    for one in range(13):
        for other in range(13):
            assert (roots[one] == roots[other]) == (other in sets[one])


def test_fixed_units_stay_and_fix_what_is_tied_to_them() -> None:
    forest = Units()
    units = forest.new(4)
    forest.fix(units[:1], "the input")
    forest.tie(units[:1], units[2:3])
    assert fixed(forest, units).tolist() == [True, False, True, False]


def test_a_field_is_small_where_nothing_changes() -> None:
    field = np.broadcast_to(np.array([1, 2, 3])[None, :, None], (4, 3, 5))
    assert compressed(field).shape == (1, 3, 1)
    assert vector(np.array([1, 2, 3]), -2, 3).shape == (1, 3, 1)


def test_structures_have_their_slices_and_the_layer_that_makes_them() -> None:
    forest = Units()
    out, into, own = forest.new(2), forest.new(2), forest.new(3)
    forest.tie(out, into)
    forest.fix(own, "the output")
    found = Structures(forest, {"b.weight": (own, into), "a.weight": (out, np.zeros(1, np.int64))})
    found.collect()
    assert [structure.layer for structure in found.every] == ["a.weight", "a.weight"]
    assert found.every[1].slices == (ParameterSlice("b.weight", 1, (1,)), ParameterSlice("a.weight", 0, (1,)))
