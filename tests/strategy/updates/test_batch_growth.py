"""Stages of a batch that grows, and the steps of each epoch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import UserError
from paceline.strategy import Strategy
from paceline.strategy.updates.batch_growth import BatchGrowth, StepPlan

GROWTH = BatchGrowth.of("16@100,32@250")


def test_stages_are_read_and_written() -> None:
    assert str(BatchGrowth.of("16@0.1k, 32@250")) == str(GROWTH) == "16@100,32@250" and not BatchGrowth.of("")
    assert [GROWTH.batch(8, samples) for samples in (0, 99, 100, 249, 250, 10**9)] == [8, 8, 16, 16, 32, 32]
    for text in ("16", "16@", "x@5", "16@5,8@9", "16@9,32@5", "0@5"):
        with pytest.raises(UserError, match="batch growth"):
            BatchGrowth.of(text)


def test_micro_batches_stay_and_each_stage_takes_more_of_them() -> None:
    first = Strategy.of(world_size=2, global_batch_size=8, grad_accum_steps=2)
    found = GROWTH.strategies(first)
    assert [(samples, s.global_batch_size, s.parallelism.micro_batches) for samples, s in found] == [
        (0, 8, 2),
        (100, 16, 4),
        (250, 32, 8),
    ]
    assert {s.micro_batch_size for _, s in found} == {2}
    with pytest.raises(UserError, match="such as 16"):
        BatchGrowth.of("12@5").strategies(first)


@given(st.integers(32, 90), st.integers(0, 8))
def test_the_plan_covers_an_epoch_without_a_gap_and_counts_as_it_lists(samples: int, epochs: int) -> None:
    plan, listed = StepPlan(samples, 8, GROWTH), []
    for epoch in range(epochs):
        end = 0
        for first, batch in plan.epoch(epoch):
            assert first == end and batch == GROWTH.batch(8, epoch * samples + first)
            end = first + batch
            listed.append((epoch * (samples // 8) + first // 8, batch))
        assert samples - end < 32
    assert plan.before(epochs) == len(listed)
    assert [plan.place(step) for step in range(len(listed))] == listed


@given(st.integers(8, 90), st.integers(0, 10**6))
def test_a_constant_batch_has_equal_epochs(samples: int, epochs: int) -> None:
    plan = StepPlan(samples, 8)
    assert plan.before(epochs) == epochs * (samples // 8) and len(plan.epoch(epochs)) == samples // 8
