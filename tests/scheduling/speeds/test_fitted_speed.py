"""The fit of step times: its gradient is that of its loss, and it finds what made the times."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.optimize import check_grad

from paceline.scheduling.speeds import fitted_speed
from paceline.scheduling.speeds.fitted_speed import FittedSpeed

SEEN = [(1, 1, 8), (1, 2, 8), (1, 4, 16), (2, 8, 16), (3, 12, 32)]
NODES, DEVICES, LOCAL = np.array(SEEN).T
PARAMETERS = st.lists(st.floats(0.01, 1.0), min_size=6, max_size=6)


@given(PARAMETERS, st.floats(1.0, 9.0))
def test_the_gradient_is_that_of_the_loss(values: list[float], overlap: float) -> None:
    assume(abs(values[0] - 0.1) > 1e-3 or abs(values[1] - 0.01) > 1e-4)  # the loss has a kink where it fits exactly
    beyond = np.maximum(DEVICES - 2, 1e-8)
    seen = (NODES > 1, DEVICES > 1, beyond, LOCAL, np.log(0.1 + 0.01 * LOCAL), np.log(0.3 + 0.02 * LOCAL))
    x = np.array([*values, overlap])
    loss, gradient = fitted_speed._loss(x, *seen)
    error = check_grad(lambda y: fitted_speed._loss(y, *seen)[0], lambda y: fitted_speed._loss(y, *seen)[1], x)
    assert error <= 1e-4 * max(1.0, float(np.abs(gradient).max())) and loss > 0


def test_times_that_the_model_made_are_found_again() -> None:
    true = FittedSpeed((0.05, 0.002), (0.03, 0.001), (0.01, 0.0005), 1.5)
    step, compute = true.step_s(NODES, DEVICES, LOCAL)
    fit = FittedSpeed.of({key: (s, s - c) for key, s, c in zip(SEEN, step.tolist(), compute.tolist(), strict=True)})
    again, accumulate = fit.step_s(NODES, DEVICES, LOCAL)
    assert again == pytest.approx(step, rel=0.05) and accumulate == pytest.approx(compute, rel=0.05)


def test_what_was_never_seen_counts_as_free() -> None:
    fit = FittedSpeed.of({(1, 1, 8): (0.1, 0.0)})
    step, compute = fit.step_s(np.array([1, 1, 4]), np.array([1, 4, 16]), np.array([8, 8, 8]))
    assert step == pytest.approx(compute, rel=1e-3) and compute[0] == pytest.approx(0.1, rel=1e-3)
    assert fit.compute[0] == pytest.approx(0.05)  # half of one observation is constant


def test_a_network_between_nodes_is_no_faster_than_links_within() -> None:
    fit = FittedSpeed.of({(1, 1, 8): (0.1, 0.0), (1, 4, 8): (0.15, 0.05), (1, 3, 16): (0.2, 0.04)})
    assert fit.between[0] >= 1.1 * fit.within[0] and fit.between[1] >= 1.1 * fit.within[1]
