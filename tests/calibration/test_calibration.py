"""What was measured on the machine: lines of cost, and the same from JSON."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.calibration.calibration import Line
from paceline.prediction import Calibration
from prediction_toys import make_calibration


def test_calibration_survives_json():
    calibration = make_calibration()
    assert Calibration.from_json(json.loads(json.dumps(calibration.to_json()))) == calibration


@given(st.floats(0, 1), st.floats(0, 1e-3), st.integers(0, 10**9), st.integers(0, 10**9))
def test_a_line_is_linear_above_its_fixed_cost(fixed: float, slope: float, first: int, second: int) -> None:
    line = Line(fixed, slope)
    assert line(0) == fixed and line(first) >= fixed
    assert line(first + second) - fixed == pytest.approx(line(first) - fixed + line(second) - fixed, abs=1e-6)


def test_a_ratio_that_was_measured_survives_json_and_an_unknown_key_does_not() -> None:
    measured = make_calibration(ratio=7.5, overlap=True)
    data = measured.to_json()
    assert data["encode"] == {"fixed_s": 1e-5, "per_unit_s": 1e-9} and data["ratio"] == 7.5
    assert Calibration.from_json({k: v for k, v in data.items() if k != "ratio"}) == make_calibration(overlap=True)
    with pytest.raises(TypeError, match="extra"):
        Calibration.from_json({**data, "extra": 1})
