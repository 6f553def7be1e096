"""Samples a second over the range of a step: the slow end first."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import samples
from paceline.reporting.values import rate_bounds, rate_range

RUN = samples.record("dense")


@given(st.floats(1e-3, 1e3), st.floats(1, 10), st.floats(1, 10), st.floats(1, 1e6))
def test_a_long_step_is_the_slow_end(step_s: float, faster: float, slower: float, batch: float) -> None:
    run = replace(RUN, step_time_s=step_s, low_s=step_s / faster, high_s=step_s * slower, samples_per_s=batch / step_s)
    assert rate_bounds(run) == pytest.approx((batch / run.high_s, batch / run.low_s))


def test_the_range_as_text() -> None:
    run = replace(RUN, step_time_s=0.1, low_s=0.05, high_s=0.2, samples_per_s=320.0)
    assert rate_range(run) == "160-640"
    endless = replace(run, low_s=0.0)
    assert rate_range(endless) == "range unknown" and math.isnan(rate_bounds(endless)[1])
