"""``gavel_fifo``: first in, first out as Gavel's simulator runs it."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from gavel_fifo import gavel_fifo, gavel_fifo_fastest

from cluster_states import Known, state
from paceline.scheduling.job import Job

RIGID = Job(name="rigid", steps=1)
TWO = "1x1xV100 + 1x1xK80"


def even(*speeds: float) -> Known:
    return Known(lambda kind, devices: speeds[kind] * np.ones_like(devices))


def test_types_are_taken_in_their_order_whatever_the_speed() -> None:
    now = state(TWO, [even(1.0, 5.0)] * 3, RIGID)
    first = gavel_fifo(now)
    assert first.type_index.tolist()[:2] == [0, 1] and first.devices.tolist() == [1, 1, 0]


def test_a_job_keeps_its_type_and_the_next_inherits_it() -> None:
    now = state(TWO, [even(1.0, 5.0)] * 3, RIGID)
    memory = gavel_fifo(now).memory
    later = replace(
        now, jobs=now.jobs[1:], outlooks=now.outlooks[1:], requested=now.requested[1:], arrival_s=now.arrival_s[1:],
        devices=np.array([1, 0]), type_index=np.array([1, -1]), run_s=np.array([[0.0, 2000.0], [0.0, 0.0]]),
        time_s=now.time_s + 2000, memory=memory, restart_s=np.zeros(2), restarting_s=np.zeros(2), held_s=np.zeros(2),
    )  # fmt: skip
    assert gavel_fifo(later).type_index.tolist() == [1, 0]


def test_a_type_may_be_given_to_more_than_it_holds() -> None:
    """The second of two devices does not fit beside the first, and is sent there all the same, because the other type does."""
    jobs = [replace(RIGID, name=str(n), devices=d) for n, d in enumerate((1, 2))]
    now = state("2x1xV100 + 2x1xK80", [even(1.0, 1.0)] * 2, jobs)
    assert gavel_fifo(now).memory.past.types == {"0": 0, "1": 0}


def test_the_fastest_type_that_is_free_goes_first_and_the_head_of_the_line_blocks() -> None:
    assert gavel_fifo_fastest(state(TWO, [even(1.0, 5.0)] * 2, RIGID)).type_index.tolist() == [1, 0]
    jobs = [replace(RIGID, name=str(n), devices=d) for n, d in enumerate((1, 2, 1))]
    now = state("2x1xV100", [even(1.0)] * 3, jobs)
    assert gavel_fifo_fastest(now).devices.tolist() == [1, 0, 0]
