"""Orders of a pipeline's passes: how many forward passes a stage runs before its passes take turns."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paceline.strategy.pass_order import GPIPE, ONE_FORWARD_ONE_BACKWARD, SCHEDULES, ZERO_BUBBLE

SIZES = (st.integers(1, 16), st.integers(1, 64))


def test_the_orders_and_what_they_have() -> None:
    assert tuple(SCHEDULES) == ("1f1b", "gpipe", "zero_bubble")
    assert [order.interleaves for order in SCHEDULES.values()] == [True, False, False]
    assert [order.splits_backward for order in SCHEDULES.values()] == [False, False, True]


@given(*SIZES)
def test_gpipe_runs_all_forward_passes_and_1f1b_as_many_as_stages_follow(stages: int, micro: int) -> None:
    for stage in range(stages):
        assert GPIPE.warm_up(stage, stages, micro) == micro
        warm = ONE_FORWARD_ONE_BACKWARD.warm_up(stage, stages, micro)
        assert warm == ZERO_BUBBLE.warm_up(stage, stages, micro) == min(stages - 1 - stage, micro)


@given(*SIZES, st.integers(2, 4))
def test_interleaved_stages_begin_earlier_in_the_next_part(stages: int, rounds: int, virtual: int) -> None:
    """Narayanan et al. 2021, section 2.2: twice the stages that follow, and the other parts of all of them."""
    passes = rounds * stages * virtual
    warm = [ONE_FORWARD_ONE_BACKWARD.warm_up(stage, stages, passes, virtual) for stage in range(stages)]
    assert warm == [min(2 * (stages - 1 - stage) + (virtual - 1) * stages, passes) for stage in range(stages)]
