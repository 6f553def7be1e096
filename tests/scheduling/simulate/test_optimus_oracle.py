"""The oracle of Pollux's simulator: whole epochs, true step times."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from paceline.scheduling.job import Job
from paceline.scheduling.simulate.optimus_oracle import OptimusOracle
from paceline.scheduling.speeds.expected_speed import Measured
from scheduling_toys import SMALL, profile


def test_seconds_left_do_not_see_the_current_epoch(tmp_path: Path) -> None:
    job = Job(name="a", model="toy", batch=32, epochs=3, adapts=frozenset({"devices"}))
    toy = profile(tmp_path)
    run = OptimusOracle(job, toy, SMALL, adapts_batch=False, beliefs=Measured(toy))
    run.place("T4", (2,))
    two = 0.02 + 0.016 + 0.002
    one = 2 * (0.02 + 0.016)  # one device takes two passes
    assert run.seconds_left(0, 2) == pytest.approx([np.inf, 200 * one, 200 * two])
    run.goes_to(50.0)
    assert run.seconds_left(0, 2)[2] == pytest.approx(200 * two)
    run.cross()
    run.cross()
    assert run.seconds_left(0, 2)[2] == pytest.approx(two)  # in its last epoch it counts as one step
