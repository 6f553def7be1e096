"""First in, first out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paceline.scheduling.fleet import Fleet
from paceline.scheduling.policies.serving_order import fifo
from scheduling_toys import ends, rigid, simulated


def test_the_first_that_does_not_fit_holds_up_the_rest() -> None:
    schedule = simulated([rigid("a", 10, 5), rigid("b", 10, 5), rigid("c", 10, 1)], fifo)
    assert ends(schedule) == {"a": 10, "b": 20, "c": 20}


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50), st.integers(1, 8)), min_size=1, max_size=10))
def test_nobody_starts_before_one_that_came_before_and_nobody_is_stopped(rows: list[tuple[int, int, int]]) -> None:
    jobs = [rigid(f"{i}", work, devices, arrival) for i, (arrival, work, devices) in enumerate(rows)]
    outcomes = simulated(jobs, fifo).outcomes
    in_order = sorted(outcomes, key=lambda outcome: outcome.job.arrival_s)
    starts = [outcome.start_s for outcome in in_order]
    assert starts == sorted(starts) and all(len(outcome.spans) == 1 for outcome in outcomes)


def test_a_job_waits_only_for_earlier_ones_that_may_use_its_type() -> None:
    """Kueue's issue 8309: a job for A100 arrives after two for H100, of which one runs and one waits."""
    fleet = Fleet.named("1x8xH100 + 1x8xA100")
    h100, a100 = ((name,) for name in fleet.types)
    jobs = [
        rigid("runs", 100, 8, device_types=h100),
        rigid("waits", 100, 8, 1, device_types=h100),
        rigid("other", 100, 8, 2, device_types=a100),
        rigid("any", 100, 8, 3),
    ]
    starts = {outcome.job.name: outcome.start_s for outcome in simulated(jobs, fifo, fleet).outcomes}
    assert starts == {"runs": 0, "waits": 100, "other": 2, "any": 102}
