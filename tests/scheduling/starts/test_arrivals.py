"""Jobs still to come: stretches of the history."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.scheduling.queues.slurm_settings import SlurmSettings
from paceline.scheduling.starts.arrivals import LEAST_JOBS, Arrivals
from paceline.scheduling.starts.forecast import Forecaster, ForecastOptions
from paceline.scheduling.starts.wait_reasons import wait_reasons
from paceline.scheduling.starts.waiting_queue import WaitingQueue
from paceline.scheduling.traces.snapshot import parse_queue
from queues import NOW, ended, nodes


def test_futures_have_the_rate_of_the_history_and_end_at_the_horizon() -> None:
    past = [ended(f"j{at}", 1, 60.0, ago_s=1800.0 * at + 60) for at in range(480)]
    arrivals = Arrivals.of(past, NOW)
    drawn = arrivals.draw(16, 0, 86400.0)
    counts = [len(moments) for moments, _ in drawn]
    assert min(counts) >= 40 and max(counts) <= 56  # 48 a day
    assert all(
        np.all(np.diff(moments) >= 0) and moments[-1] <= 86400.0 and len(set(rows)) == len(rows) for moments, rows in drawn
    )
    assert [m.tolist() for m, _ in arrivals.draw(16, 0, 86400.0)] == [m.tolist() for m, _ in drawn]
    assert not Arrivals.of(past[:1], NOW) and len(Arrivals.of((), NOW).draw(3, 0)) == 3


def test_a_few_jobs_are_no_history() -> None:
    jobs = [ended(str(number), 1, 60.0, ago_s=3600.0 * number + 60) for number in range(LEAST_JOBS)]
    assert Arrivals.of(jobs, NOW) and not Arrivals.of(jobs[1:], NOW)


COLUMNS = "JOBID|ST|TIME|TIME_LIMIT|NODES|TRES_PER_NODE|PRIORITY|REASON|DEPENDENCY"


@pytest.mark.parametrize("settings", [None, SlurmSettings()])
def test_jobs_start_after_those_that_they_wait_for(settings: SlurmSettings | None) -> None:
    """sbatch(1), --dependency. Every job runs to its limit of an hour, and job 1 for half an hour more."""
    rows = [
        "1|R|30:00|1:00:00|1|gres/gpu:4|9|None|(null)",
        "2|PD|0:00|1:00:00|1|gres/gpu:1|9|Dependency|afterok:1(unfulfilled)",
        "3_[1-2]|PD|0:00|1:00:00|1|gres/gpu:1|8|Dependency|afterany:2(unfulfilled)",
        "4|PD|0:00|1:00:00|1|gres/gpu:1|0|Dependency|afterany:3_*(unfulfilled),after:1(unfulfilled)",
        "5|PD|0:00|1:00:00|1|gres/gpu:8|7|Priority|(null)",
        "6|PD|0:00|1:00:00|1|gres/gpu:1|7|Dependency|afterok:99(unfulfilled)",
        "7|PD|0:00|1:00:00|1|gres/gpu:1|7|Dependency|afterok:1(unfulfilled)?afterok:2(unfulfilled)",
    ]
    log = parse_queue("\n".join([COLUMNS, *rows]), "squeue.txt", NOW)
    queue = WaitingQueue.of(log, nodes(16), settings=settings)
    forecaster = Forecaster(queue, ForecastOptions(futures=8, arrivals=False, lengths="limits"))
    found = {each.job.name: each.start() for each in forecaster.forecast().jobs}
    assert found == {"2": 1800.0, "3_1": 5400.0, "3_2": 5400.0, "4": 9000.0, "5": 0.0}
    assert [job.name for job in queue.held] == ["7", "6"] and queue.held[1].reason == "Dependency on 99"
    assert "It may start after the end of 1 (in 30 min)." in wait_reasons(forecaster, queue, queue.job("2"))


def test_components_of_a_heterogeneous_job_start_together() -> None:
    """Slurm, heterogeneous_jobs.html: the scheduler starts all components at one time."""
    rows = [
        "1|R|30:00|1:00:00|1|gres/gpu:6|9|None|(null)",
        "2+0|PD|0:00|1:00:00|1|gres/gpu:2|9|Resources|(null)",
        "2+1|PD|0:00|1:00:00|2|gres/gpu:2|9|Resources|(null)",
        "2+2|PD|0:00|1:00:00|1|N/A|9|Resources|(null)",
    ]
    log = parse_queue("\n".join([COLUMNS, *rows]), "squeue.txt", NOW)
    queue = WaitingQueue.of(log, nodes(8))
    options = ForecastOptions(futures=8, arrivals=False, lengths="limits")
    assert [(each.job.devices, each.start()) for each in Forecaster(queue, options).forecast().jobs] == [(6, 1800.0)]
    assert queue.remarks == ("2+0 stands for 3 components of job 2, which start together.",) and not queue.skipped
