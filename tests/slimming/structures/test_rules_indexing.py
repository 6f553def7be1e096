"""Parts of a tensor keep the units of their elements, whether code splits, slices or indexes it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from paceline.slimming.structures import rules_indexing
from paceline.slimming.structures.rules import RULES, Ties
from paceline.slimming.structures.structures import Labelled, Units, vector


def test_parts_of_one_size_stay_equal_and_are_joined_in_order() -> None:
    forest = Units()
    ties = Ties(forest)
    ties.name = "chunk"
    units = forest.new(6)
    first, second = rules_indexing.parted(ties, [Labelled((6,), (units,)), 2], (3,))
    assert forest.roots(units[:3]).tolist() == forest.roots(units[3:]).tolist()
    joined = rules_indexing.joined(ties, [[second, first]], (6,))
    assert forest.roots(joined.fields[0]).tolist() == forest.roots(np.concatenate([units[3:], units[:3]])).tolist()
    ties.name = "split_with_sizes"
    others = forest.new(5)
    left, right = rules_indexing.parted(ties, [Labelled((5,), (others,)), [2, 3]], (2,))
    assert [*left.fields[0], *right.fields[0]] == others.tolist()


POSITIONS = Labelled((2,), values=np.array([-1, 1]))


@pytest.mark.parametrize(
    ("name", "operands", "taken"),
    [
        ("slice", [1, -5, None, 2], [1, 3, 5]),
        ("slice", [1, 2, 4], [2, 3]),
        ("index", [[None, POSITIONS]], [5, 1]),
        ("index_select", [1, POSITIONS], [5, 1]),
    ],
)
def test_stated_parts_have_the_units_of_their_elements(name: str, operands: list[Any], taken: list[int]) -> None:
    forest = Units()
    ties = Ties(forest)
    ties.name = name
    units = forest.new(6)
    result = RULES[name](ties, [Labelled((2, 6), (vector(units, 1, 2),)), *operands], (2, len(taken)))
    assert result.fields[0].ravel().tolist() == units[taken].tolist() and not (forest.roots(units) == 0).any()


def test_elements_of_heads_stay_apart_when_parts_are_joined() -> None:
    forest = Units()
    ties = Ties(forest)
    whole, heads = forest.new(6).reshape(2, 3), forest.new(2)[:, None]
    joined = rules_indexing.joined(ties, [[Labelled((2, 3), (whole,)), Labelled((2, 2), (heads,))], 1], (2, 5))
    assert joined.fields[0].tolist() == np.concatenate([whole, heads, heads], 1).tolist()
    assert len(set(forest.roots(joined.fields[0]).ravel().tolist())) == 8


def test_what_reads_positions_stays() -> None:
    forest = Units()
    ties = Ties(forest)
    ties.name = "index"
    rows, columns, places = forest.new(7), forest.new(4), forest.new(5)
    table = Labelled((4, 7), (vector(columns, 0, 2), vector(rows, 1, 2)))
    read = rules_indexing.indexed(ties, [table, [None, Labelled((5, 5), (vector(places, 0, 2),))]], (4, 5, 5))
    assert (forest.roots(np.concatenate([rows, places])) == 0).all()
    assert read.fields[0].shape == (4, 1, 1) and read.fields[0].ravel().tolist() == columns.tolist()
