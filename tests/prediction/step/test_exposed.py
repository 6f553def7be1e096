"""Seconds by resource: with and without what is exchanged."""

from __future__ import annotations

import pytest

from paceline import Strategy
from paceline.prediction import Predictor
from paceline.prediction.step.exposed import exposed_seconds, exposed_without_exchange, share_wait, without_rounding
from prediction_toys import make_cluster, make_workload


def test_the_exchange_adds_its_waits_and_nothing_else() -> None:
    cluster = make_cluster(2, 4)
    step = Predictor().model(make_workload()).step(cluster, Strategy.of(world_size=8, global_batch_size=32, optimizer="adam"))
    alone = exposed_without_exchange(step.costs, step.pieces)
    spent = exposed_seconds(step.costs, step.pieces, step.schedule)
    assert sum(spent.values()) == pytest.approx(step.seconds)
    more = {name: spent[name] - alone[name] for name in spent}
    assert {name for name, seconds in more.items() if seconds} <= {"network", "intra-node link"}
    assert sum(more.values()) == pytest.approx(step.waited_s)


def test_a_wait_is_divided_by_what_each_link_is_busy() -> None:
    cluster = make_cluster(2, 4)
    step = Predictor().model(make_workload()).step(cluster, Strategy.of(world_size=8, global_batch_size=16, optimizer="sgd"))
    exchange = step.costs.exchange
    far = float(exchange.pieces[exchange.network].sum()) / float(exchange.pieces.sum())
    spent = exposed_without_exchange(step.costs, step.pieces)
    share_wait(spent, step.costs, 0.5)
    assert spent["network"] == pytest.approx(0.5 * far) and spent["intra-node link"] == pytest.approx(0.5 * (1 - far))


def test_what_rounding_leaves_is_no_wait() -> None:
    assert without_rounding(-3e-17, 1.0) == without_rounding(2e-13, 1000.0) == 0.0 == without_rounding(0.0, 0.0)
    assert (without_rounding(2e-6, 1000.0), without_rounding(-0.5, 1.0)) == (2e-6, -0.5)  # a defect is not hidden


@pytest.mark.parametrize("sharding", ["ddp", "zero1", "zero2", "zero3"])
@pytest.mark.parametrize("micro_batches", [1, 2, 3])
def test_no_wait_is_negative_or_of_rounding_alone(sharding: str, micro_batches: int) -> None:
    for layers in range(1, 8):
        strategy = Strategy.of(world_size=8, global_batch_size=48, sharding=sharding, grad_accum_steps=micro_batches)
        p = Predictor().step(make_workload(layers=layers), make_cluster(2, 4), strategy)
        assert all(seconds == 0 or seconds > 1e-9 * p.step_time_s for seconds in p.exposed.values())
        assert p.exposed_comm_s >= 0
