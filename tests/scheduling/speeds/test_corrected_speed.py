"""Predicted steps follow reported ones: computing by batch, exchanges by devices, and how much of them is hidden."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.scheduling.speeds.corrected_speed import OVERLAPS, CorrectedSpeed, ObservedSteps, whole_exchange
from scheduling_toys import predicted

SURFACE = predicted(16)
KEYS = [(1, 1, 8), (1, 1, 64), (1, 4, 8), (1, 4, 64), (2, 8, 8), (2, 8, 24), (2, 8, 64), (4, 16, 8), (4, 16, 24), (4, 16, 64)]


def arrays(key: tuple[int, int, int]) -> list[np.ndarray]:
    return [np.array([value]) for value in key]


def steps(speed: CorrectedSpeed, *key: int) -> tuple[float, float]:
    step, compute = speed.step_s(*arrays(key))  # type: ignore[arg-type]
    return float(step[0]), float(compute[0])


def truth(key: tuple[int, int, int], slower: float, longer: float, overlap: float) -> tuple[float, float]:
    """The step and what shows of its exchange on a cluster whose devices and network are slower than predicted."""
    nodes, devices, local = arrays(key)
    compute = slower * float(SURFACE.step_s(nodes, devices, local)[1][0])
    whole = longer * float(whole_exchange(SURFACE, nodes, devices)[0]) if key[1] > 1 else 0.0
    step = (compute**overlap + whole**overlap) ** (1 / overlap)
    return step, step - compute


def test_what_was_seen_comes_out_and_its_ratios_hold_beyond() -> None:
    seen = {(1, 1, 8): (0.16, 0.0), (1, 4, 8): (0.16 + 0.06, 0.06), (2, 8, 64): (0.64 + 0.035, 0.035)}
    observed = ObservedSteps.of(SURFACE, seen)
    corrected = CorrectedSpeed.of(SURFACE, observed, [observed])
    for key, (step, exchange) in seen.items():
        assert steps(corrected, *key) == (pytest.approx(step), pytest.approx(step - exchange))
    assert steps(corrected, 4, 16, 64)[0] == pytest.approx(0.64 + 0.035)  # the network's ratio of eight devices


@given(st.floats(0.5, 3.0), st.floats(1.0, 9.0), st.sampled_from(OVERLAPS))
def test_a_slower_cluster_is_learned_whatever_it_hides(slower: float, longer: float, overlap: float) -> None:
    """Then steps that nobody saw are right too: other batches, and other models on the same network."""
    seen = {key: truth(key, slower, longer, overlap) for key in KEYS}
    observed = ObservedSteps.of(SURFACE, seen)
    if any(0.05 < shown / step < 0.95 for step, shown in seen.values()):  # else every overlap fits
        corrected = CorrectedSpeed.of(SURFACE, observed, [observed])
        for key in [(2, 8, 12), (3, 12, 40), (4, 16, 33)]:
            assert steps(corrected, *key)[0] == pytest.approx(truth(key, slower, longer, overlap)[0], rel=0.03)
        other = CorrectedSpeed.of(SURFACE, None, [observed])
        assert steps(other, 2, 8, 8)[0] == pytest.approx(truth((2, 8, 8), 1.0, longer, overlap)[0], rel=0.03)


def test_an_exchange_that_does_not_show_says_nothing_of_the_network() -> None:
    observed = ObservedSteps.of(SURFACE, {(2, 8, 64): (0.64, 0.001)})
    corrected = CorrectedSpeed.of(SURFACE, observed, [observed])
    assert all(not ratios.between[0] for ratios in observed.ratios)
    assert steps(corrected, 2, 8, 8)[0] - steps(corrected, 1, 1, 8)[0] == pytest.approx(
        float(whole_exchange(SURFACE, *arrays((2, 8, 8))[:2])[0])
    )


def test_without_anything_seen_it_is_the_prediction() -> None:
    corrected = CorrectedSpeed.of(SURFACE, None, [])
    for key in KEYS:
        assert steps(corrected, *key)[0] == pytest.approx(float(SURFACE.step_s(*arrays(key))[0][0]))


def test_of_overlaps_that_fit_alike_the_least_counts() -> None:
    """One step of each size fits under all of them, but for rounding."""
    for key in KEYS[4:]:
        observed = ObservedSteps.of(SURFACE, {key: truth(key, 1.3, 6.0, 3.0)})
        assert CorrectedSpeed.of(SURFACE, observed, [observed]).overlap == OVERLAPS[0]
