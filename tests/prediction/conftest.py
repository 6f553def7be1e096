"""Fixtures of the prediction tests."""

from __future__ import annotations

import pytest

from paceline.calibration.constants import Efficiency
from prediction_toys import IDEAL


@pytest.fixture
def ideal() -> Efficiency:
    """Every share 1, no fixed cost: the closed forms hold exactly."""
    return IDEAL
