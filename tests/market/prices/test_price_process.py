"""The price process: a closed form, random starts, oscillation and drift."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from paceline.errors import UserError
from paceline.market.prices.price_process import Gradient, price_process

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


def concave(values: np.ndarray, curvature: np.ndarray | float) -> Gradient:  # type: ignore[type-arg]
    return lambda price, quantities: values - curvature * quantities - price


WIDE = np.full(3, 1e4)


def radius(curvature: np.ndarray, kappa: float, step: float) -> float:  # type: ignore[type-arg]
    """Of the linear map of one step, without limits: (q, p) -> (q + step (v - h q - p), p + kappa sum of the new q)."""
    sites = len(curvature)
    moved = np.hstack([np.diag(1 - step * curvature), np.full((sites, 1), -step)])
    priced = kappa * moved.sum(axis=0) + np.append(np.zeros(sites), 1.0)
    return float(np.abs(np.linalg.eigvals(np.vstack([moved, priced]))).max())


@given(
    curvature=st.lists(st.floats(0.1, 3), min_size=1, max_size=4),
    kappa=st.floats(0.02, 1.5),
    step=st.floats(0.05, 1.0),
    seed=st.integers(0, 99),
)
def test_a_process_that_is_stable_never_oscillates(curvature: list[float], kappa: float, step: float, seed: int) -> None:
    steep, rng = np.array(curvature), np.random.default_rng(seed)
    size = radius(steep, kappa, step)
    assume(size < 1 - 1e-5)
    limit, values = np.full(len(steep), 1e4), rng.uniform(102, 112, len(steep))  # far from the limits and from a price of 0
    found = price_process(concave(values, steep), -limit, limit, 105.0, kappa=kappa, step=step, tolerance=1e-10)
    assume(np.abs(found.quantities).max() < 1e4 and found.prices.min() > 0)
    assert not found.oscillates and (found.converged or size > 0.99)


@pytest.mark.long
def test_a_process_that_is_unstable_oscillates() -> None:
    """Between the limits, in the end."""
    unstable = 0
    for seed in range(150):
        rng = np.random.default_rng(seed)
        steep, kappa, step = rng.uniform(0.2, 3, rng.integers(2, 5)), rng.uniform(0.02, 1.5), rng.uniform(0.05, 1.0)
        if radius(steep, kappa, step) > 1.01:
            limit = np.full(len(steep), 50.0)
            values = rng.uniform(2, 12, len(steep))
            found = price_process(concave(values, steep), -limit, limit, 5.0, kappa=kappa, step=step)
            assert found.oscillates and not found.converged and found.period >= 1.9, seed
            unstable += 1
    assert unstable > 20


@pytest.mark.parametrize("sites", [1, 3])
@pytest.mark.parametrize(("side", "settles"), [(0.97, True), (1.03, False)])
def test_both_sides_of_the_largest_stable_rate(sites: int, side: float, settles: bool) -> None:
    """With unit curvature a step has the determinant 1 - step: stable where kappa step sites < 2 (2 - step)."""
    step = 0.5
    kappa = side * 2 * (2 - step) / (step * sites)
    limit = np.full(sites, 20.0)
    found = price_process(concave(np.full(sites, 6.0) + np.arange(sites), 1.0), -limit, limit, 5.0, kappa=kappa, step=step)
    assert found.converged == settles and found.oscillates == (not settles)
    assert settles or 1.5 < found.period < 3


@pytest.mark.parametrize("rate", [0.05, 0.012, 0.006])
@pytest.mark.parametrize("drift", [0.0, 1e-3])
def test_a_slow_cycle_is_found(rate: float, drift: float) -> None:
    """Linear utilities have nothing that damps: a cycle takes 2 pi / (rate sqrt(3)) steps, 73 to 605. A fourth site drifts."""
    utilities, moved = np.array([5.0, 6.0, 7.0, 0.0]), np.array([1.0, 1.0, 1.0, 0.0])

    def linear(price: float, quantities: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
        return (utilities - price) * moved + drift * (1 - moved)

    limit = np.full(4, 1e4)
    found = price_process(linear, -limit, limit, 8.0, np.array([40.0, -20.0, -20.0, 0.0]), kappa=rate, step=rate)
    assert found.oscillates and not found.converged
    assert found.period == pytest.approx(2 * math.pi / (rate * math.sqrt(3)), rel=0.02)


@pytest.mark.everyday("0.01", "0.0001")
@pytest.mark.parametrize("damping", [1e-2, 1e-3, 1e-4, 3e-5])
def test_slow_convergence_is_no_oscillation(damping: float) -> None:
    """The swings, of 73 steps each, shrink by damping x 0.05 / 2 a step: to 2 % to 99 % over the judged 15,000 steps."""
    like = concave(np.full(3, 6.0), damping)
    found = price_process(like, -WIDE, WIDE, 0.0, kappa=0.05, step=0.05, most_steps=20_000)
    shrunk = np.ptp(found.prices[-100:]) / np.ptp(found.prices[5000:5100])
    assert shrunk == pytest.approx(math.exp(-damping * 0.025 * 14_900), rel=0.02, abs=0.01)
    assert not found.oscillates and not found.converged and "not come to rest" in found.advice


@pytest.mark.parametrize("curvature", [0.02, 0.002])
def test_a_slow_approach_without_swings_is_no_oscillation(curvature: float) -> None:
    found = price_process(concave(VALUES, curvature), -WIDE, WIDE, 6.0, kappa=1e-5, step=0.1)
    assert not found.oscillates


@pytest.mark.everyday("0", "3", "7")
@pytest.mark.parametrize("seed", range(20))
def test_chance_has_no_period(seed: int) -> None:
    """Utilities that change at random: it never rests, and there is no cycle to damp."""
    rng = np.random.default_rng(seed)
    walk = np.zeros(3)

    def random(price: float, quantities: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
        walk[:] = 0.9 * walk + rng.normal(0, 1, 3) if seed % 2 else rng.normal(0, 3, 3)
        return VALUES + walk - quantities - price

    found = price_process(random, LOW, HIGH)
    assert not found.converged and not found.oscillates


def test_sites_that_swing_against_each_other_oscillate() -> None:
    """The excess is 0 all the time: each step goes twice too far, and what one buys the other sells."""
    found = price_process(concave(np.array([5.0, 5.0]), 2.0), -WIDE[:2], WIDE[:2], 5.0, np.array([1.0, -1.0]), step=1.05)
    assert found.oscillates and found.period == pytest.approx(2)


def test_tiny_rates_do_not_rest_because_they_move_little() -> None:
    found = price_process(quadratic, LOW, HIGH, 0.0, kappa=1e-9, step=1e-8)
    assert not found.converged and not found.oscillates


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
