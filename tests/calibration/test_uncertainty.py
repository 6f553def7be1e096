"""Standard deviations of predictions: wider for what no fit has seen."""

from __future__ import annotations

import math

from paceline.calibration.uncertainty import Z80, Sigmas, log_spread

SIGMAS = Sigmas(base=0.05, device=0.12, model=0.1, kind=0.3, conv=0.2)


def test_what_was_not_seen_and_what_is_no_gpu_is_wider() -> None:
    sigma = SIGMAS.work(True, True)
    assert sigma == SIGMAS.base and SIGMAS.work(True, True, gpu=False) == math.hypot(0.05, 0.3)
    assert SIGMAS.work(True, True, plain_conv=0.6) == math.hypot(0.05, 0.6 * 0.2)
    assert sigma < SIGMAS.work(True, False) < SIGMAS.work(False, True) < SIGMAS.work(False, False)


def test_the_spread_of_an_interval_is_that_of_its_ends() -> None:
    assert math.isclose(log_spread(math.exp(-Z80), math.exp(Z80)), 1.0) and log_spread(0.0, 1.0) == 0.0
