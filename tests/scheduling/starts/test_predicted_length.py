"""A length from a predicted range."""

from __future__ import annotations

import pytest

from paceline.scheduling.starts.predicted_length import from_range


def test_quantiles_are_those_of_the_range() -> None:
    found = from_range(50.0, 100.0, 400.0)
    assert [float(found.quantile(share)) for share in (0.1, 0.5, 0.9)] == pytest.approx([50.0, 100.0, 400.0], rel=0.03)
