"""The range of a speed-up is that of what differs: common errors cancel."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.hardware import cluster
from paceline.planning import parse_change, whatif
from paceline.planning.compare.speedup_range import ratio_spread
from paceline.strategy import Strategy
from paceline.workload import Workload

LLAMA = Workload.named("llama-3-8b")
SIXTEEN = cluster("H100", 8, 2, "400Gb/s")
SHARED_OUT = Strategy.of(
    world_size=16,
    global_batch_size=64,
    precision="bf16",
    sharding="zero1",
    context=2,
    pipeline=2,
    grad_accum_steps=16,
)
SPREADS = st.floats(0.0, 3.0)


@given(SPREADS, st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_the_spread_shrinks_with_the_share_that_moves(spread: float, shared: float, moved: float) -> None:
    whole = ratio_spread(spread, spread, shared)
    assert ratio_spread(spread, spread, shared, 0.0) == 0
    assert ratio_spread(spread, spread, shared, moved) == pytest.approx(moved * whole)


@given(SPREADS, SPREADS, st.floats(0.0, 1.0))
def test_where_everything_moves_only_the_shared_errors_cancel(before: float, after: float, shared: float) -> None:
    squares = before**2 + after**2 - 2 * shared * before * after
    assert ratio_spread(before, after, shared) ** 2 == pytest.approx(squares, abs=1e-9)


@pytest.mark.parametrize("change", ["bucket=50MB", "bucket=26MB", "optimizer=lamb", "recompute=full", "recompute=none"])
def test_a_change_that_moves_little_is_known_well(change: str) -> None:
    outcome = whatif(LLAMA, SIXTEEN, SHARED_OUT, [parse_change(change)]).changes[0]
    assert outcome.speedup_low <= outcome.speedup <= outcome.speedup_high
    width = outcome.speedup_high / outcome.speedup_low
    if outcome.speedup == 1:
        assert width == pytest.approx(1, abs=0.01)
    if abs(outcome.speedup - 1) < 0.003:
        assert width < 1.05


def test_what_nothing_moves_is_known_exactly() -> None:
    outcome = whatif(LLAMA, SIXTEEN, SHARED_OUT, [parse_change("global-batch=64")]).changes[0]
    assert outcome.speedup_low == outcome.speedup == outcome.speedup_high == 1


def test_the_errors_of_a_network_that_both_sides_wait_for_cancel() -> None:
    mixed = cluster("A100", (1, 7), 2, "1Gb/s")
    resnet, dense = Workload.named("resnet-50"), Strategy.of(world_size=8, global_batch_size=64, precision="bf16")
    outcome = whatif(resnet, mixed, dense, [parse_change("device=H100")]).changes[0]
    assert outcome.prediction.high_s / outcome.prediction.low_s > 2.5
    assert 0.95 < outcome.speedup_low < outcome.speedup_high < 1.05
