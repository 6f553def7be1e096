"""Schedules of a pipeline: the closed forms of their bubbles, what each stage holds, and the order of every pass."""

from __future__ import annotations

import itertools
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.prediction.mesh.pipeline import PipelineSchedule, program, schedule_pipeline, stage_order
from paceline.strategy.pass_order import SCHEDULES

sizes = st.tuples(st.integers(1, 6), st.integers(1, 4), st.integers(1, 3), st.sampled_from(["1f1b", "gpipe"])).map(
    lambda drawn: (drawn[0], drawn[0] * drawn[1], drawn[2] if drawn[0] > 1 and drawn[3] == "1f1b" else 1, drawn[3])
)
seconds = st.floats(0.1, 10.0)


def even(stages: int, micro: int, virtual: int, schedule: str, forward: float = 1.0, backward: float = 2.0) -> PipelineSchedule:
    parts = stages * virtual
    return schedule_pipeline(
        [forward / virtual] * parts, [backward / virtual] * parts, micro, stages, [0.0] * (parts - 1), SCHEDULES[schedule]
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
    scheduled = schedule_pipeline(forward, backward, micro, stages, send, SCHEDULES[schedule])
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


@given(sizes, st.randoms(use_true_random=False))
def test_every_pass_starts_when_its_stage_and_what_it_needs_are_ready(drawn: tuple[int, int, int, str], random: Random) -> None:
    """Against a plain simulation: look for any stage whose next pass can run, until none is left."""
    stages, micro, virtual, schedule = drawn
    parts = stages * virtual
    forward, backward, send = ([random.random() for _ in range(count)] for count in (parts, parts, parts - 1))
    orders = [stage_order(stage, stages, micro, virtual, SCHEDULES[schedule]) for stage in range(stages)]
    ends: dict[tuple[int, int, int], float] = {}
    clocks = [0.0] * stages
    while any(orders):
        for stage, order in enumerate(orders):
            if not order:
                continue
            part, number, back = order[0]
            ready = 0.0 if part == 0 else ends.get((part - 1, number, 0), -1.0) + send[part - 1]
            if back:
                ready = ends.get((part, number, 0), -1.0)
            if back and part < parts - 1:
                ready = ends[part + 1, number, 1] + send[part] if (part + 1, number, 1) in ends else -1.0
            if ready < 0 or (not back and part and (part - 1, number, 0) not in ends):
                continue
            clocks[stage] = max(clocks[stage], ready) + (backward if back else forward)[part]
            ends[part, number, back] = clocks[stage]
            order.pop(0)
    scheduled = schedule_pipeline(forward, backward, micro, stages, send, SCHEDULES[schedule])
    assert {(p.part, p.micro_batch, int(p.backward)): p.end_s for own in scheduled.passes for p in own} == ends


def test_orders_are_remembered() -> None:
    assert program(4, 8, 2, SCHEDULES["1f1b"]) is program(4, 8, 2, SCHEDULES["1f1b"])


def zero_bubble(stages: int, micro: int, forward: float, backward: float, weights: float) -> PipelineSchedule:
    whole = [backward + weights] * stages
    return schedule_pipeline(
        [forward] * stages, whole, micro, stages, [0.0] * (stages - 1), SCHEDULES["zero_bubble"], [weights] * stages
    )


@given(st.integers(1, 8), st.integers(0, 16), seconds)
def test_the_bubble_of_zb_h1_is_the_closed_form(stages: int, more: int, each: float) -> None:
    # Qi et al. 2024, arXiv:2401.10241, table 2: (p - 1)(f + b - w), a third of that of 1F1B where the three are equal
    micro = stages + more
    end = max(zero_bubble(stages, micro, each, each, each).ends)
    assert end == pytest.approx(micro * 3 * each + (stages - 1) * each)
    uneven = max(zero_bubble(stages, micro, each, 1.2 * each, 0.8 * each).ends)
    assert uneven == pytest.approx(micro * 3 * each + (stages - 1) * 1.4 * each)


@given(st.integers(1, 8), st.integers(1, 16), seconds, seconds, st.floats(0.0, 1.0))
def test_a_zero_bubble_pipeline_holds_no_more_and_takes_no_longer_than_1f1b(
    stages: int, micro: int, forward: float, backward: float, share: float
) -> None:
    weights = share * min(forward, backward)
    split = zero_bubble(stages, micro, forward, backward, weights)
    whole = even(stages, micro, 1, "1f1b", forward, backward + weights)
    assert max(split.ends) <= max(whole.ends) * (1 + 1e-12)
    assert split.in_flight == whole.in_flight
    assert max(a + b for a, b in zip(split.in_flight, split.late, strict=True)) == max(whole.in_flight)
    passes = {(p.part, p.micro_batch, p.backward, p.weights): p for own in split.passes for p in own}
    assert len(passes) == 3 * stages * micro
    for (part, number, back, late), p in passes.items():
        if late:
            assert back and p.start_s >= passes[part, number, True, False].end_s - 1e-12


@given(sizes)
def test_the_first_and_the_last_pass_of_a_part(drawn: tuple[int, int, int, str]) -> None:
    scheduled = even(*drawn)
    passes = [p for own in scheduled.passes for p in own]
    for part in range(drawn[0] * drawn[2]):
        own = [p for p in passes if p.part == part]
        assert scheduled.first_start(part) == min(p.start_s for p in own)
        last = max((p for p in own if p.backward), key=lambda p: p.end_s)
        assert scheduled.last_pass(part) == (last.start_s, last.end_s)


@given(st.integers(2, 6), st.integers(2, 12), st.floats(1.0, 5.0))
def test_the_slowest_stage_sets_the_pace(stages: int, micro: int, slow: float) -> None:
    forward, backward = [1.0] * stages, [2.0] * stages
    forward[-1], backward[-1] = slow, 2 * slow
    end = max(schedule_pipeline(forward, backward, micro, stages, [0.0] * (stages - 1)).ends)
    assert end >= micro * 3 * slow + (stages - 1) * 1.0 - 1e-9  # the last stage works without a pause once it has begun


@pytest.mark.parametrize(("stages", "virtual", "schedule"), [(3, 1, "1f1b"), (4, 1, "zero_bubble"), (2, 3, "1f1b")])
@pytest.mark.parametrize("micro", [60, 61])
def test_a_long_pipeline_that_is_timed_by_its_period_equals_that_of_all_passes(
    stages: int, virtual: int, schedule: str, micro: int
) -> None:
    """Stages of different lengths, and sends: the ends are those of every pass, which ``passes`` computes."""
    parts, micro = stages * virtual, micro - micro % stages if virtual > 1 else micro
    forward = [1.0 + 0.1 * part for part in range(parts)]
    weights = [0.9] * parts if schedule == "zero_bubble" else []
    send = [0.05] * (parts - 1)
    scheduled = schedule_pipeline(forward, [2.0] * parts, micro, stages, send, SCHEDULES[schedule], weights)
    assert len(scheduled.starts) < (2 + bool(weights)) * parts * micro, "it was timed whole: the test needs a longer pipeline"
    assert scheduled.ends == pytest.approx([own[-1].end_s for own in scheduled.passes])
    for part in range(parts):
        own = [p for p in scheduled.passes[part % stages] if p.part == part]
        assert scheduled.first_start(part) == own[0].start_s
        assert scheduled.last_pass(part) == pytest.approx((own[-1].start_s, own[-1].end_s))
        assert len(own) == (2 + bool(weights)) * micro
