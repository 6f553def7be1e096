"""The price process: a closed form, random starts, oscillation and drift."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import UserError
from paceline.market.price_process import price_process

VALUES = np.array([10.0, 6.0, 2.0])
"""U_i = v_i q - q^2 / 2 - p q, so q_i = v_i - p, and the excess is 0 at the mean of v."""


def quadratic(price: float, quantities: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    return VALUES - quantities - price


LOW, HIGH = np.full(3, -20.0), np.full(3, 20.0)


@given(start=st.floats(0, 30), first=st.lists(st.floats(-20, 20), min_size=3, max_size=3))
def test_it_converges_from_anywhere_where_utilities_are_concave(start: float, first: list[float]) -> None:
    found = price_process(quadratic, LOW, HIGH, start, np.array(first))
    assert found.converged and not found.oscillates
    assert found.price == pytest.approx(6.0, abs=1e-3)
    assert found.quantities[-1] == pytest.approx([4.0, 0.0, -4.0], abs=1e-3)


def test_limits_bind() -> None:
    found = price_process(quadratic, np.full(3, -1.0), HIGH, 0.0)
    # Only one unit a site can be sold: 10 - p = 2 at a price of 8, where both others sell all they may.
    assert found.converged and found.price == pytest.approx(8.0, abs=1e-3)
    assert found.quantities[-1] == pytest.approx([2.0, -1.0, -1.0], abs=1e-3)


def test_too_large_rates_oscillate_and_the_smaller_ones_that_are_advised_do_not() -> None:
    wild = price_process(quadratic, LOW, HIGH, 0.0, kappa=1.2, step=0.9)
    assert wild.oscillates and not wild.converged and "kappa=0.3" in wild.advice
    assert price_process(quadratic, LOW, HIGH, 0.0, kappa=0.3, step=0.225).converged


def test_few_steps_are_no_answer() -> None:
    found = price_process(quadratic, LOW, HIGH, 0.0, most_steps=5)
    assert not found.converged and not found.oscillates and "not come to rest in 5 steps" in found.advice
    assert found.prices.shape == (6,) and found.quantities.shape == (6, 3)


def test_nobody_wants_it() -> None:
    found = price_process(lambda price, q: -1.0 - q - price, np.full(2, -1.0), np.ones(2), 3.0)
    assert found.converged and found.price == 0


@pytest.mark.parametrize("wrong", [{"kappa": 0.0}, {"step": -1.0}, {"tolerance": float("inf")}])
def test_mistakes(wrong: dict[str, float]) -> None:
    with pytest.raises(UserError, match="give a number above 0"):
        price_process(quadratic, LOW, HIGH, **wrong)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="no ranges"):
        price_process(quadratic, HIGH, LOW)
