"""Why a job waits."""

from __future__ import annotations

from paceline.scheduling.starts.forecast import Forecaster, ForecastOptions
from paceline.scheduling.starts.wait_reasons import wait_reasons
from queues import nodes, queue, runs, waits


def test_free_devices_jobs_before_it_and_the_first_ends_are_said() -> None:
    there = queue(
        runs("r", 12, 10.0, 3600.0, user="ann"),
        waits("before", 8, 3600.0, 90.0, user="bob"),
        waits("mine", 4, 3600.0, 10.0, reason="(Priority)"),
        on=nodes(8, 2),
    )
    says = " ".join(wait_reasons(Forecaster(there, ForecastOptions(futures=8)), there, there.job("mine")))
    assert "jobs of higher priority" in says and "4 of 16 are free" in says
    assert "1 job is before it and asks for 8 devices: before (bob, 8)." in says and "when r (in " in says
