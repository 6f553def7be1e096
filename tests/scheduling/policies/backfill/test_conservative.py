"""Policies with reservations decide for thousands of jobs in time. Schedules of conservative backfill are in ``test_easy``."""

from __future__ import annotations

import time

import numpy as np
import pytest

from paceline.scheduling.fleet import Fleet
from paceline.scheduling.policies.backfill.conservative import conservative
from paceline.scheduling.policies.backfill.easy import easy, priority
from paceline.scheduling.policies.backfill.kueue import kueue
from paceline.scheduling.policies.backfill.slurm import slurm
from paceline.scheduling.state import Policy
from processor_budget import slowness
from scheduling_toys import rigid, state


@pytest.mark.long
@pytest.mark.parametrize("policy", [easy, conservative, priority, slurm, kueue])
def test_two_thousand_jobs_on_ten_thousand_devices(policy: Policy) -> None:
    generator = np.random.default_rng(0)
    fleet = Fleet.named("1250x8xA100, 100Gb/s")
    sizes = generator.choice([1, 2, 4, 8, 16, 64, 256], 2000, p=[0.4, 0.15, 0.15, 0.2, 0.05, 0.03, 0.02])
    seconds = generator.exponential(20_000, 2000) + 60
    jobs = [rigid(f"j{n}", float(seconds[n]), int(size), priority=n % 3) for n, size in enumerate(sizes)]
    held = np.where(np.cumsum(sizes) <= 9_500, sizes, 0)
    given = state(jobs, fleet, devices=held, type_index=np.where(held > 0, 0, -1), run_s=np.zeros((2000, 1)))
    taken = []
    for _ in range(5):
        start = time.process_time()
        policy(given)
        taken.append(time.process_time() - start)
    assert np.median(taken) < 0.2 * slowness()
