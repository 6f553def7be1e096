"""Recipes: which devices have them, and the bytes of what they quantise."""

from __future__ import annotations

import pytest

from facts import facts
from paceline.errors import UserError
from paceline.hardware import BYTES_PER_ELEMENT, PRECISIONS, RECIPES, device
from paceline.hardware.precision import WIDE, gathered_bytes


def test_recipes_have_the_peak_of_what_they_run_on() -> None:
    h100, b200, l4, mi355x, tpu = (device(name) for name in ("H100", "B200", "L4", "MI355X", "TPU7x"))
    assert set(h100.precisions) >= {"fp8", "fp8-current", "fp8-block"} and not {"mxfp8", "nvfp4"} & set(h100.precisions)
    assert h100.peak("fp8-block") is h100.peak("fp8-current") is h100.peak("fp8")
    assert set(b200.precisions) >= set(PRECISIONS) and b200.peak("mxfp8").value == b200.peak("fp8").value
    assert b200.peak("nvfp4").value == pytest.approx(2 * b200.peak("fp8").value)
    assert "fp8-block" not in l4.precisions and "fp8-current" in l4.precisions
    assert "mxfp8" in mi355x.precisions and "nvfp4" not in mi355x.precisions
    assert "fp8" in tpu.precisions and "mxfp8" not in tpu.precisions
    with pytest.raises(UserError, match=facts("H100 SXM", "'nvfp4'", "fp32", "fp8-current", "fp8-block")):
        h100.peak("nvfp4")


def test_recipes_are_precisions_that_keep_what_bf16_does() -> None:
    assert set(RECIPES) < set(PRECISIONS) == set(BYTES_PER_ELEMENT)
    assert {BYTES_PER_ELEMENT[name] for name in RECIPES} == {BYTES_PER_ELEMENT[WIDE]}


@pytest.mark.parametrize(
    ("name", "operand"),
    [("fp8", 1.0), ("fp8-current", 1.0), ("fp8-block", 1.03125), ("mxfp8", 1.03125), ("nvfp4", 0.5625)],
)
def test_operands_have_their_scales_and_casts_read_what_a_scale_needs(name: str, operand: float) -> None:
    recipe = RECIPES[name]
    assert recipe.operand == operand < BYTES_PER_ELEMENT[WIDE]
    hopper, blackwell = (recipe.cast_bytes(chip, weight=False) for chip in ("Hopper", "Blackwell"))
    assert hopper - blackwell == (0.0 if recipe.twice else operand)
    assert recipe.cast_bytes("Hopper", weight=True) <= hopper
    assert recipe.cast_bytes("Hopper", weight=False) == 2 * recipe.kernels(weight=False) + 2 * operand


def test_weights_travel_in_no_fewer_bits_than_their_recipe_lets_them() -> None:
    assert [gathered_bytes(name, 8) for name in PRECISIONS] == [4, 4, 2, 2, 1, 1, 2, 2, 2]
    assert [gathered_bytes(name, 16) for name in ("fp32", "bf16", "fp8")] == [4, 2, 2]
