"""From measured points to lines, and from steps to the middle ones; the runs themselves are in test_train_every_choice."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from distributed import launch
from paceline.prediction import Line
from paceline.strategy import Strategy
from paceline.training.runs.calibrate import _middle, _phase_bytes, _spread, fit_line, means_over_ranks

COSTS = st.floats(1e-9, 1.0)


@given(COSTS, COSTS, st.lists(st.integers(1, 10**6), min_size=2, max_size=9, unique=True))
def test_points_of_a_line_give_the_line(fixed: float, slope: float, sizes: list[int]) -> None:
    line = fit_line([(size, fixed + slope * size) for size in sizes])
    assert all(line(size) == pytest.approx(fixed + slope * size, rel=1e-3) for size in sizes)


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 10)), max_size=9))
def test_no_term_is_negative(points: list[tuple[float, float]]) -> None:
    line = fit_line(points)
    assert line.fixed_s >= 0 and line.per_unit_s >= 0


def test_what_does_not_grow_is_fixed_and_what_would_begin_below_zero_has_no_fixed_cost() -> None:
    assert fit_line([]) == Line(0.0, 0.0)
    assert fit_line([(8, 1.0), (8, 3.0)]) == Line(2.0, 0.0)
    assert fit_line([(1, 3.0), (2, 2.0), (3, 1.0)]) == Line(2.0, 0.0)
    assert fit_line([(1, 1.0), (2, 4.0)]) == Line(0.0, 1.5)


@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=40))
def test_the_middle_half_of_the_steps_counts(totals: list[float]) -> None:
    middle = _middle([{"forward": total, "backward": 2 * total} for total in totals])
    kept = sorted(totals)[len(totals) // 4 : max(1, len(totals) - len(totals) // 4)]
    assert middle["forward"] == pytest.approx(sum(kept) / len(kept))
    assert middle["backward"] == pytest.approx(2 * middle["forward"])


def test_the_spread_is_that_of_the_quartiles() -> None:
    assert _spread([2.0] * 5) == 0.0 and _spread([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(1 / 3)


@pytest.mark.parametrize("exchange", ["allreduce", "sharded", "ring"])
def test_an_exchange_is_counted_by_the_busiest_rank(exchange: str) -> None:
    strategy = Strategy.of(world_size=4, global_batch_size=4, exchange=exchange)
    sizes = _phase_bytes(strategy, 1000)
    assert sum(sizes.values()) >= 2 * 3 / 4 * 4000 and all(size > 0 for size in sizes.values())


def averaged(rank: int, workers: int) -> list[float]:
    return means_over_ranks([1.0 + rank, 10.0**9 * rank], torch.device("cpu"))


def test_every_rank_has_the_mean_of_each_number() -> None:
    assert launch(averaged, 2) == [[1.5, 0.5e9]] * 2
