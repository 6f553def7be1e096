"""How much ratios differ near each other: as assumed until observations say more, and then as they say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from paceline.prediction.correction.gaussian_process import AMPLITUDES, CovarianceKernel, amplitude

KERNEL = CovarianceKernel(every=0.1, task=0.2, near=0.25, noise=0.04)
PLACES = np.arange(60.0).reshape(6, 10)  # far apart


def test_without_a_word_on_it_the_width_stays() -> None:
    """Its mean square is 1 before anything was observed: of no observation, and of those that ``near`` has no part in."""
    assert amplitude(KERNEL, PLACES[:0], np.zeros(0)) == 1.0
    assert amplitude(replace(KERNEL, near=1e-9), PLACES, np.full(6, 0.1)) == pytest.approx(1.0, abs=0.1)


@given(arrays(np.float64, 6, elements=st.floats(-1, 1)), st.floats(1.1, 3))
def test_ratios_further_apart_widen_it(ratios: np.ndarray, times: float) -> None:
    narrow, wide = (amplitude(KERNEL, PLACES, values) for values in (ratios, times * ratios))
    assert AMPLITUDES[0] <= narrow <= wide * (1 + 1e-12) and wide <= AMPLITUDES[-1]
