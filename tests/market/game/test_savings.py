"""Savings games of simulated federations."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from market.sites import job, site, two_sites
from paceline.market.federation.site import Federation
from paceline.market.game.savings import Savings, SharingRules
from paceline.scheduling.policies.solvers.rigid import filled
from paceline.scheduling.simulate.run import DurationRun
from paceline.scheduling.simulate.schedule import ClusterSettings
from paceline.scheduling.simulate.simulator import simulate as schedule_jobs
from paceline.scheduling.state import Decision, State


@pytest.mark.parametrize("one_pool", [False, True])
def test_what_two_sites_save(one_pool: bool) -> None:
    savings = Savings.of(two_sites(), SharingRules(one_pool=one_pool))
    assert savings.total(0b01) == pytest.approx(1000 / 3600)
    assert savings.worth(0b01) == savings.worth(0b10) == 0
    assert savings.worth(0b11) == pytest.approx(2000 / 3600)
    assert savings.mean_wait_s(0b11) == 0 and savings.mean_wait_s(0b10) == 500


def test_all_coalitions_are_simulated_once_with_progress() -> None:
    savings, told = Savings.of(two_sites()), []
    savings.simulate_all(progress=lambda done, of: told.append((done, of)))
    assert told == [(1, 3), (2, 3), (3, 3)]
    savings.simulate_all(progress=lambda done, of: told.append((done, of)))
    assert len(told) == 3
    assert savings.game().table.tolist() == pytest.approx([0, 0, 0, 2000 / 3600])


def test_delays_are_counted() -> None:
    free = Savings.of(two_sites(data_bytes={"": 1e9}))
    slow = Savings.of(two_sites(data_bytes={"": 1e9}, wan_bytes_per_s=1e7))
    assert free.worth(0b11) - slow.worth(0b11) == pytest.approx(2 * 100 / 3600)


@given(seed=st.integers(0, 2**32 - 1))
def test_a_site_alone_is_what_paceline_schedule_simulates(seed: int) -> None:
    """Two simulators, one queue: first in first out, what runs keeps its devices, what does not fit holds up nobody."""
    rng = np.random.default_rng(seed)
    jobs = [
        job(f"j{i}", float(rng.integers(0, 500)) + i / 64, float(rng.integers(1, 900)), int(rng.choice([1, 2, 4, 8])))
        for i in range(25)
    ]
    alone = site("A", sorted(jobs, key=lambda each: each.arrival_s))

    def backfilled(state: State) -> Decision:
        return filled(state, np.lexsort((np.arange(len(state.jobs)), state.devices == 0)))

    settings = ClusterSettings(round_s=0.0, restart_s=0.0)
    schedule = schedule_jobs(alone.jobs, alone.fleet, backfilled, DurationRun, settings)
    outcome = Savings.of(Federation(sites=(alone,))).outcome(1)
    assert [each.end_s for each in schedule.outcomes] == pytest.approx(outcome.end_s.tolist())
