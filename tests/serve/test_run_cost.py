"""One figure for the time and the cost of a cluster."""

from __future__ import annotations

import math

import pytest

from paceline import planning, predict
from paceline.serve.configurations import Configurations
from paceline.serve.question import Question, question
from paceline.serve.run_cost import chances, usd_per_hour, whole_run

CHOSEN = {"workload": "gpt2", "device": "A100", "devices-per-node": "2", "global-batch": "16", "precision": "bf16"}


def asked(**changes: str) -> Question:
    return question({**CHOSEN, **changes}, Configurations())


def test_cost_is_rate_times_time_of_the_samples() -> None:
    own = asked(samples="100k", price="2")
    step = predict(own.workload, own.cluster, own.strategy)
    run = whole_run(own, step)
    assert run.time_s == pytest.approx(100_000 / step.samples_per_s)
    assert usd_per_hour(own) == 4 and run.usd == pytest.approx(4 * run.time_s / 3600)


def test_it_is_the_cost_that_ask_states_of_the_same_strategy() -> None:
    best = planning.ask(asked().workload, asked().cluster, prices=asked().prices).choice
    own = asked(**{"global-batch": str(best.strategy.global_batch_size), "sharding": best.strategy.parallelism.sharding.name})
    assert whole_run(own, predict(own.workload, own.cluster, own.strategy)).usd == pytest.approx(best.usd)


def test_limits_have_a_probability() -> None:
    own = asked(by="365d", budget="1")
    run = whole_run(own, predict(own.workload, own.cluster, own.strategy))
    in_time, in_budget = chances(own, run)
    assert in_time and in_time > 0.99 and in_budget is not None and in_budget < 0.01
    free = asked(device="GTX 1080", precision="fp32")
    assert math.isnan(usd_per_hour(free)) == (free.price is None)
