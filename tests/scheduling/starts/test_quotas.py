"""Quotas of Kueue: what a queue may use."""

from __future__ import annotations

import pytest

from paceline.errors import UserError
from paceline.scheduling.starts.forecast import Forecaster, ForecastOptions
from paceline.scheduling.starts.quotas import nodes_of_quotas
from paceline.scheduling.traces.record import JobLog, QueueQuota
from queues import NOW, queue, runs, waits


def test_a_queue_borrows_from_its_cohort_but_not_what_is_not_lent() -> None:
    quotas = (
        QueueQuota(name="a", cohort="all", devices=8, local=("ns/team-a",)),
        QueueQuota(name="b", cohort="all", devices=4),
        QueueQuota(name="c", cohort="all", devices=2, lending=0.0),
        QueueQuota(name="d", devices=16),
    )
    there = nodes_of_quotas(JobLog(jobs=(), quotas=quotas, moment_s=NOW))
    assert there.of_queue["a"] == (0, 1) and there.of_queue["c"] == (0, 1, 2) and there.of_queue["d"] == (3,)
    assert there.of_queue["team-a"] == (0, 1)
    jobs = (runs("r", 10, 10.0, 3600.0, account="a"), waits("w", 4, 600.0, account="b"), waits("o", 16, 60.0, account="d"))
    found = Forecaster(
        queue(*jobs, on=there, form="kueue"), ForecastOptions(futures=2, arrivals=False, lengths="limits")
    ).forecast()
    assert {each.job.name: each.start() for each in found.jobs} == {"w": 3590.0, "o": 0.0}
    with pytest.raises(UserError, match="no quota"):
        nodes_of_quotas(JobLog(jobs=()))
