"""What single operations tie."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.array_types import Bools, Ints
from paceline.slimming.structures.rules import RULES, Ties
from paceline.slimming.structures.structures import Labelled, Units, vector


def tensor(forest: Units, *shape: int) -> tuple[Labelled, list[Ints]]:
    """A tensor with units of its own on every dimension."""
    units = [forest.new(size) for size in shape]
    return Labelled(shape, tuple(vector(of, dim, len(shape)) for dim, of in enumerate(units))), units


def along(of: Labelled, dim: int) -> Ints:
    """Units of a dimension that no other shares."""
    (field,) = (field for field in of.fields if field.shape[dim] > 1)
    return field.ravel()


def fixed(forest: Units, units: Ints) -> Bools:
    """Which of these units stay: they are tied to unit 0."""
    return np.asarray(forest.roots(units) == 0)


def tied(forest: Units, one: Ints, other: Ints) -> bool:
    return bool((forest.roots(one) == forest.roots(other)).all())


def test_what_is_added_is_tied_and_what_has_no_units_fixes_it() -> None:
    forest = Units()
    ties = Ties(forest)
    (left, (rows, columns)), (right, (others,)) = tensor(forest, 2, 3), tensor(forest, 3)
    sums = RULES["add"](ties, [left, right], (2, 3))
    assert tied(forest, columns, others) and not fixed(forest, columns).any()
    assert along(sums, 0).tolist() == rows.tolist()
    RULES["mul"](ties, [sums, Labelled((3,))], (2, 3))
    assert fixed(forest, columns).all() and not fixed(forest, rows).any()
    RULES["mul"](ties, [sums, 2.0], (2, 3))
    assert not fixed(forest, rows).any(), "a number fixes nothing"


def test_a_head_is_a_row_of_what_was_split_and_is_found_behind_a_reshape() -> None:
    forest = Units()
    ties = Ties(forest)
    flat, (units,) = tensor(forest, 6)
    split = RULES["reshape"](ties, [flat, [2, 3]], (2, 3))
    assert split.fields[0].shape == (2, 3)
    heads = ties.vector_of(split, 0)
    assert tied(forest, units[:3], heads[:1]) and tied(forest, units[3:], heads[1:])
    assert not tied(forest, heads[:1], heads[1:])
    again = RULES["reshape"](ties, [RULES["transpose"](ties, [split, 0, 1], (3, 2)), [6]], (6,))
    assert along(again, 0).tolist() == units.reshape(2, 3).T.ravel().tolist()


def test_queries_that_share_keys_are_one_structure() -> None:
    forest = Units()
    ties = Ties(forest)
    made = [tensor(forest, heads)[1][0] for heads in (4, 2, 2)]
    q, k, v = (Labelled((1, len(of), 5, 8), (vector(of, 1, 4),)) for of in made)
    RULES["scaled_dot_product_attention"](ties, [q, k, v], (1, 4, 5, 8))
    assert tied(forest, made[0][:2], made[1][:1]) and tied(forest, made[1], made[2])
    assert not tied(forest, made[0][:1], made[0][2:3])


def test_groups_go_whole_and_a_depthwise_filter_with_its_channel() -> None:
    forest = Units()
    ties = Ties(forest)
    x, (_, channels, *_) = tensor(forest, 1, 6, 1, 1)
    weight, (out, *_) = tensor(forest, 4, 3, 1, 1)
    RULES["conv2d"](ties, [x, weight], (1, 4, 1, 1))
    assert tied(forest, channels[:3], out[:1]) and tied(forest, out[:1], out[1:2]) and not tied(forest, out[1:2], out[2:3])
    deep, (own, *_) = tensor(forest, 6, 1, 3, 3)
    RULES["conv2d"](ties, [x, deep], (1, 6, 1, 1))
    assert tied(forest, own, channels)


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_a_deconvolution_has_its_inputs_first(dims: int) -> None:
    forest = Units()
    ties = Ties(forest)
    kernel = (3,) * dims
    x, (_, channels, *_) = tensor(forest, 1, 4, *kernel)
    weight, (into, out, *window) = tensor(forest, 4, 6, *kernel)
    bias, (own,) = tensor(forest, 6)
    made = RULES[f"conv_transpose{dims}d"](ties, [x, weight, bias], (1, 6, *kernel))
    assert tied(forest, channels, into) and tied(forest, own, out) and along(made, 1).tolist() == out.tolist()
    assert not tied(forest, into[:1], out[:1]) and not fixed(forest, np.concatenate([into, out])).any()
    assert all(fixed(forest, units).all() for units in window)


def test_a_grouped_deconvolution_stays_whole() -> None:
    forest = Units()
    (x, (_, channels, *_)), (weight, (into, out, *_)), (bias, (own,)) = (
        tensor(forest, *shape) for shape in ((1, 4, 1, 1), (4, 3, 1, 1), (6,))
    )
    RULES["conv_transpose2d"](Ties(forest), [x, weight, bias], (1, 6, 1, 1))
    assert fixed(forest, np.concatenate([channels, into, out, own])).all()


@pytest.mark.parametrize("name", ["layer_norm", "softmax", "mean", "std"])
def test_what_is_averaged_over_stays(name: str) -> None:
    forest = Units()
    ties = Ties(forest)
    ties.name = name
    x, (rows, columns) = tensor(forest, 2, 4)
    operands = {"layer_norm": [x, [4]], "softmax": [x, -1], "mean": [x, [-1]], "std": [x, [1]]}[name]
    shape = {"mean": (2,), "std": (2, 4)}.get(name, (2, 4))
    left = RULES[name](ties, operands, shape)
    assert fixed(forest, columns).all() and not fixed(forest, rows).any()
    assert along(left, 0).tolist() == rows.tolist()


def test_a_product_ties_what_it_sums_over() -> None:
    forest = Units()
    ties = Ties(forest)
    left, (rows, inner) = tensor(forest, 2, 3)
    right, (other, columns) = tensor(forest, 3, 4)
    result = RULES["matmul"](ties, [left, right], (2, 4))
    assert tied(forest, inner, other)
    assert (along(result, 0).tolist(), along(result, 1).tolist()) == (rows.tolist(), columns.tolist())


def test_rows_of_a_table_are_tokens() -> None:
    forest = Units()
    table, (rows, columns) = tensor(forest, 5, 3)
    result = RULES["embedding"](Ties(forest), [table, Labelled((2, 7))], (2, 7, 3))
    assert fixed(forest, rows).all() and np.array_equal(along(result, -1), columns)
