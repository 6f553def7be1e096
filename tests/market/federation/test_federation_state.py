"""Outcomes from lists."""

import numpy as np

from paceline.market.federation.federation_state import CLOUD, FederationOutcome


def test_outcomes_of_lists() -> None:
    got = FederationOutcome.of_lists([0.0], [4.0], [1], [(0, 2, 0.0, 1.0), (0, CLOUD, 2.0, 4.0)])
    assert got.run_pool.tolist() == [2, -1] and got.run_end_s.tolist() == [1, 4]
    assert got.run_job.dtype == got.restarts.dtype == np.int64


def test_outcomes_without_runs() -> None:
    got = FederationOutcome.of_lists([], [], [], [])
    assert got.run_job.shape == got.run_start_s.shape == (0,) and got.run_pool.dtype == np.int64
