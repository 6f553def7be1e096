"""What became of a job is added up from its stretches."""

from __future__ import annotations

import math

from paceline.scheduling.simulate.schedule import JobOutcome, Span
from scheduling_toys import rigid


def test_sums_of_an_outcome() -> None:
    spans = [Span(2.0, 5.0, "T4", ((0, 4), (1, 2))), Span(7.0, 8.0, "T4", ((1, 1),))]
    outcome = JobOutcome(rigid("a", 4, arrival_s=1.0, deadline_s=8.0), end_s=8.0, spans=spans)
    assert (outcome.jct_s, outcome.start_s, outcome.device_s, outcome.met) == (7.0, 2.0, 19.0, True)


def test_a_job_that_never_started_or_ended() -> None:
    outcome = JobOutcome(rigid("a", 4))
    assert math.isnan(outcome.jct_s) and math.isnan(outcome.start_s) and outcome.device_s == 0 and not outcome.met
