"""Seconds and bytes of what the devices of a group exchange within a pass."""

from __future__ import annotations

import numpy as np
import pytest

from paceline import Cluster, Strategy
from paceline.calibration.constants import efficiency
from paceline.prediction.mesh.group_collectives import group_seconds, group_work, width
from paceline.prediction.mesh.tensor_parallel import Collective

EIGHT = Cluster.named("8 B200")
INPUT = Collective(0, False, "gather", 4e10, operand=True)
SUMS = Collective(0, False, "scatter", 4e10)
LOSS = Collective(1, False, "allreduce", 4e4, wide=True)


def strategy(precision: str) -> Strategy:
    return Strategy.of(world_size=8, global_batch_size=1, tensor=8, sequence=True, precision=precision)


@pytest.mark.parametrize(
    ("precision", "operand"), [("bf16", 2.0), ("fp8", 1.0), ("fp8-block", 1.03125), ("mxfp8", 1.03125), ("nvfp4", 0.5625)]
)
def test_what_products_read_travels_quantised_and_sums_do_not(precision: str, operand: float) -> None:
    assert [4 * width(c, strategy(precision)) for c in (INPUT, SUMS, LOSS)] == [operand, 2.0, 4.0]


def test_quantised_operands_take_as_much_less_time_as_they_have_fewer_bytes() -> None:
    (wide, sums), (narrow, same) = (
        group_seconds((INPUT, SUMS), EIGHT, strategy(p), efficiency("tuned"))[0] for p in ("bf16", "fp8")
    )
    assert sums == same == wide and narrow == pytest.approx(wide / 2, rel=0.02)


def test_the_work_of_a_layer_is_that_of_its_collectives() -> None:
    work = group_work((INPUT, SUMS, LOSS), np.array([2.0, 3.0, 5.0]), strategy("fp8"))
    assert work[0] == (5.0, pytest.approx((1e10 + 2e10) * 7 / 8)) and work[1] == (5.0, pytest.approx(2 * 4e4 * 7 / 8))
