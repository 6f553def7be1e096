"""The specification of the simulation against a queue that is written down by its definition."""

from __future__ import annotations

import heapq
import math
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from market.federations import free_rules, random_demand
from paceline.market.federation.federation_state import FederationDemand
from paceline.market.federation.reference_simulation import ReferenceSimulation

seeds = st.integers(0, 2**32 - 1)


@given(seeds)
def test_one_pool_is_a_queue_with_greedy_backfill(seed: int) -> None:
    rng = np.random.default_rng(seed)
    jobs = random_demand(rng, 1, 40, types=1, shared=True)
    jobs = replace(jobs, delay_s=np.zeros_like(jobs.delay_s))
    simulation = ReferenceSimulation(jobs, free_rules(1), 1)
    assert simulation.run_until(math.inf)
    got = simulation.outcome()
    expected = _backfilled(jobs)
    assert got.first_start_s.tolist() == expected


def _backfilled(jobs: FederationDemand) -> list[float]:
    """Starts by the definition: at every moment, all that waits in order of arrival."""
    free, ends, starts, waiting = int(jobs.capacity[0]), [], [np.nan] * len(jobs.arrival_s), []
    moments = list(jobs.arrival_s)
    heapq.heapify(moments)
    while moments:
        now = heapq.heappop(moments)
        while ends and ends[0][0] <= now:
            free += heapq.heappop(ends)[1]
        waiting = [i for i, at in enumerate(jobs.arrival_s) if at <= now and np.isnan(starts[i])]
        for i in waiting:
            if jobs.devices[i] <= free:
                starts[i] = float(now)
                free -= int(jobs.devices[i])
                heapq.heappush(ends, (now + float(jobs.duration_s[i]), int(jobs.devices[i])))
                heapq.heappush(moments, ends[0][0])
                heapq.heappush(moments, now + float(jobs.duration_s[i]))
    return starts
