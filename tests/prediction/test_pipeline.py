"""Schedules of a pipeline: the closed forms of their bubbles, what each stage holds, and the order of every pass."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.prediction.pipeline import PipelineSchedule, schedule_pipeline, stage_order

sizes = st.tuples(st.integers(1, 6), st.integers(1, 4), st.integers(1, 3), st.sampled_from(["1f1b", "gpipe"])).map(
    lambda drawn: (drawn[0], drawn[0] * drawn[1], drawn[2] if drawn[0] > 1 and drawn[3] == "1f1b" else 1, drawn[3])
)
seconds = st.floats(0.1, 10.0)


def even(stages: int, micro: int, virtual: int, schedule: str, forward: float = 1.0, backward: float = 2.0) -> PipelineSchedule:
    parts = stages * virtual
    return schedule_pipeline(
        [forward / virtual] * parts, [backward / virtual] * parts, micro, stages, [0.0] * (parts - 1), schedule
    )


@given(sizes, seconds, seconds)
def test_the_bubble_of_even_stages_is_the_closed_form(
    drawn: tuple[int, int, int, str], forward: float, backward: float
) -> None:
    stages, micro, virtual, schedule = drawn
    end = max(even(stages, micro, virtual, schedule, forward, backward).ends)
    assert end == pytest.approx(micro * (forward + backward) + (stages - 1) * (forward + backward) / virtual)


@given(st.integers(1, 8), st.integers(1, 32))
def test_a_stage_of_1f1b_holds_as_many_micro_batches_as_stages_follow_it(stages: int, micro: int) -> None:
    assert even(stages, micro, 1, "1f1b").in_flight == tuple(min(micro, stages - stage) for stage in range(stages))
    assert even(stages, micro, 1, "gpipe").in_flight == (micro,) * stages


@given(sizes)
def test_every_pass_runs_once_behind_what_it_needs(drawn: tuple[int, int, int, str]) -> None:
    stages, micro, virtual, schedule = drawn
    parts = stages * virtual
    forward = [0.5 + 0.3 * (part % 3) for part in range(parts)]
    backward = [1.0 + 0.7 * (part % 2) for part in range(parts)]
    send = [0.05 * (part % 4) for part in range(parts - 1)]
    scheduled = schedule_pipeline(forward, backward, micro, stages, send, schedule)
    passes = {(p.part, p.micro_batch, p.backward): p for own in scheduled.passes for p in own}
    assert len(passes) == sum(map(len, scheduled.passes)) == 2 * parts * micro
    for (part, number, back), p in passes.items():
        assert p.stage == part % stages
        needs = (part, number, False) if back and part == parts - 1 else (part + 1 if back else part - 1, number, back)
        if needs in passes:
            assert p.start_s >= passes[needs].end_s - 1e-12
    for own in scheduled.passes:
        assert all(a.end_s <= b.start_s + 1e-12 for a, b in itertools.pairwise(own))


def test_the_interleaved_order_is_megatrons() -> None:
    # Narayanan et al. 2021, arXiv:2104.04473, figure 4 (bottom), device 1 of 4 with two parts and 8 micro batches
    order = stage_order(0, 4, 8, virtual=2)
    warm = [(part, micro) for part, micro, backward in order[:11] if not backward]
    assert warm[:8] == [(0, 0), (0, 1), (0, 2), (0, 3), (4, 0), (4, 1), (4, 2), (4, 3)]
    assert order[8:14] == [(0, 4, False), (0, 5, False), (0, 6, False), (4, 0, True), (0, 7, False), (4, 1, True)]


@given(st.integers(2, 6), st.integers(2, 12), st.floats(1.0, 5.0))
def test_the_slowest_stage_sets_the_pace(stages: int, micro: int, slow: float) -> None:
    forward, backward = [1.0] * stages, [2.0] * stages
    forward[-1], backward[-1] = slow, 2 * slow
    end = max(schedule_pipeline(forward, backward, micro, stages, [0.0] * (stages - 1)).ends)
    assert end >= micro * 3 * slow + (stages - 1) * 1.0 - 1e-9  # the last stage works without a pause once it has begun
