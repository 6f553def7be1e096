"""Under policies of fairness a long job runs though shorter ones never cease to come."""

from __future__ import annotations

import pytest

from paceline.scheduling.fleet import Fleet
from paceline.scheduling.policies.registry import POLICIES
from paceline.scheduling.simulate.schedule import ClusterSettings
from scheduling_toys import rigid, simulated

EVERY_S, MANY = 80.0, 40


def held_s(policy: str, cluster: str) -> float:
    """Seconds for which a job that needs a whole node holds it, while others of 100 s come every 80 s to each node."""
    fleet = Fleet.named(cluster)
    nodes = len(fleet.groups)
    stream = [rigid(f"short{n}", 100, 4, arrival_s=EVERY_S * n / nodes) for n in range(MANY * nodes)]
    schedule = simulated(
        [rigid("long", 4000, 4), *stream], POLICIES[policy].decide, fleet, ClusterSettings(round_s=30, restart_s=1)
    )
    assert all(outcome.end_s > 0 for outcome in schedule.outcomes)
    spans = next(outcome.spans for outcome in schedule.outcomes if outcome.job.name == "long")
    return sum(max(0.0, min(span.end_s, EVERY_S * MANY) - span.start_s) for span in spans)


@pytest.mark.everyday("las-1x4xT4 + 1x4xV100", "max_min-1x4xT4", "themis-1x4xT4 + 1x4xV100", "drf-1x4xT4", others="long")
@pytest.mark.parametrize("cluster", ["1x4xT4", "1x4xT4 + 1x4xV100"])
@pytest.mark.parametrize("policy", ["las", "max_min", "finish_time_fairness", "themis", "drf"])
def test_the_long_job_runs_before_the_stream_ends(policy: str, cluster: str) -> None:
    assert held_s(policy, cluster) >= 60


def test_by_shortest_remaining_time_it_waits_for_the_end() -> None:
    assert held_s("srtf", "1x4xT4") == 0
