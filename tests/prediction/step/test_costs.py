"""What the pieces of a step cost: closed forms, and costs without a resource."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.calibration.calibration import Calibration, Line
from paceline.calibration.constants import TYPICAL
from paceline.errors import UserError
from paceline.prediction.exchange.exchange_plan import exchange_plan
from paceline.prediction.passes.compute import Seconds
from paceline.prediction.step.costs import run_again, slowest, update_seconds
from paceline.prediction.step.step_model import StepModel
from paceline.strategy import Strategy
from paceline.strategy.recompute import FULL_RECOMPUTE as FULL
from paceline.strategy.recompute import NO_RECOMPUTE as NOTHING
from prediction_toys import IDEAL, make_cluster, make_workload

NET = make_workload(layers=4, blocks=2)


def strategy(workers: int = 4, **choices: object) -> Strategy:
    return Strategy.of(world_size=workers, global_batch_size=4 * workers, **{"optimizer": "sgd", **choices})


def test_a_pass_without_a_resource() -> None:
    part = Seconds(np.array([1.0, 2.0]), np.array([3.0, 4.0]), np.array([5.0, 6.0]), 0.5)
    assert part.without({"compute"}).total.tolist() == [8.0, 10.0]
    assert part.without({"memory bandwidth"}).total.tolist() == [6.0, 8.0]
    assert part.without({"launch overhead"}).total.tolist() == [4.0, 6.0]
    assert not part.without({"compute", "memory bandwidth", "launch overhead"}).total.any()
    assert part.without({"network"}).total.tolist() == part.total.tolist()
    assert (part.without({"compute"}).plain_conv, part.without({"codec"}).plain_conv) == (0.0, 0.5)


def test_blocks_run_again_in_front_of_their_last_layer() -> None:
    again, share = run_again(NET, FULL, np.array([1.0, 2.0, 3.0, 4.0]))
    assert again.tolist() == [0.0, 1.0, 0.0, 3.0] and share.tolist() == [1.0, 0.0, 1.0, 0.0]
    assert not run_again(NET, NOTHING, np.ones(4))[0].any()


@given(st.integers(1, 4096))
def test_the_slowest_of_more_workers_is_no_faster(workers: int) -> None:
    uneven = replace(IDEAL, straggler_spread=0.02)
    assert 1 <= slowest(workers, uneven) <= slowest(workers + 1, uneven) < 1.1
    assert slowest(workers, IDEAL) == 1


@pytest.mark.parametrize(("sharding", "share"), [("ddp", 1), ("zero1", 4), ("zero3", 4)])
def test_a_sharded_optimizer_updates_its_share(sharding: str, share: int) -> None:
    chosen, place = strategy(sharding=sharding, optimizer="adam"), make_cluster(1, 4)
    memory, *_ = update_seconds(NET, chosen, exchange_plan(NET, chosen, 1), place.device, IDEAL)
    whole, *_ = update_seconds(NET, strategy(optimizer="adam"), exchange_plan(NET, strategy(), 1), place.device, IDEAL)
    assert memory == pytest.approx(whole / share)


def test_calibrated_costs_sum_to_what_was_measured_and_a_free_resource_takes_its_share() -> None:
    line = Line(1e-4, 1e-9)
    measured = Calibration(
        workload="toy",
        micro_batch_size=4,
        world_size=4,
        compression="dense",
        forward_s=0.01,
        backward_s=0.03,
        optimizer_s=0.002,
        allreduce=line,
        direct=line,
        encode=line,
        reduce=line,
        decode=line,
        overlap=True,
        spread=0.1,
        source="made up",
    )
    model, place = StepModel(workload=NET, constants=TYPICAL, calibration=measured), make_cluster(1, 4)
    costs = model.costs(place, strategy(recompute=True))
    assert (costs.forward.total.sum(), costs.backward.total.sum()) == pytest.approx((0.01, 0.03))
    assert sum(costs.optimizer) == pytest.approx(0.002) and costs.slowest == 1
    assert costs.again.sum() == pytest.approx(float((costs.forward.total * costs.again_share).sum()))
    free = replace(model, free=frozenset({"compute"})).costs(place, strategy(recompute=True))
    assert not free.forward.flops.any() and free.forward.bytes == pytest.approx(costs.forward.bytes)
    assert free.again.sum() == pytest.approx(float((free.forward.total * free.again_share).sum()))
    with pytest.raises(UserError, match="the calibration is of compression 'dense', not 'int8'"):
        model.costs(place, strategy(compression="int8"))
    assert math.isclose(model.feed_s(strategy()), 0.0)
