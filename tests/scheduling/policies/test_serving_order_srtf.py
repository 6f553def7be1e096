"""Shortest remaining time first, stopped or not."""

from __future__ import annotations

from functools import partial
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import UserError
from paceline.scheduling.policies.serving_order import srtf
from paceline.scheduling.simulate.run import DurationRun
from paceline.scheduling.simulate.schedule import ClusterSettings
from scheduling_toys import Fleet, ends, rigid, simulated, state

ONE = Fleet.named("1x1xT4")
COSTLY = ClusterSettings(round_s=0.0, restart_s=10.0)


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=10))
def test_of_jobs_that_are_all_there_the_shortest_end_first(lengths: list[int]) -> None:
    end = ends(simulated([rigid(f"{i}", length) for i, length in enumerate(lengths)], srtf, ONE))
    assert sorted(end.values()) == pytest.approx([float(end) for end in accumulate(sorted(lengths))])


def test_a_shorter_job_stops_a_longer_one_where_that_pays_for_the_restart() -> None:
    def second(length: float, preemptive: bool = True) -> float:
        jobs = [rigid("long", 100), rigid("short", length, arrival_s=50.0)]  # 60 s are left: 10 of the start have passed
        return ends(simulated(jobs, partial(srtf, preemptive=preemptive), ONE, COSTLY))["short"]

    assert second(49.0) == 50 + 10 + 49
    assert second(51.0) == 110 + 10 + 51  # with its start it is no shorter
    assert second(49.0, preemptive=False) == 110 + 10 + 49


def test_unknown_durations_are_refused() -> None:
    job = rigid("a", 10)
    with pytest.raises(UserError, match="remaining work of job"):
        srtf(state([job], outlooks=[DurationRun(job)]))
