"""Ends of the range of software that is newer than the fit."""

from __future__ import annotations

from paceline.calibration.software_progress import later_ends


def test_only_software_after_the_fit_is_uncertain_and_more_each_year() -> None:
    assert later_ends(0.0) == later_ends(2021.5) == (0.0, 0.0)
    near, far = later_ends(2027.0), later_ends(2028.0)
    assert 0.0 < near[0] < far[0] and near[1] == far[1] == 0.0
