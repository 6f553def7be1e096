"""The plans of one answer: plain, divided, at the prices of rentals."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from paceline.hardware import Cluster
from paceline.hardware.prices import price
from paceline.planning.ask.rentals import rentals
from paceline.planning.ask.training_question import FEW, TrainingQuestion
from paceline.planning.search.training_target import TrainingTarget
from paceline.prediction import ORDINARY
from paceline.workload import Workload
from paceline.workload.builders.transformer import llama

QUESTION = TrainingQuestion(Workload.named("bert-large"), TrainingTarget(total=1e6), None, ORDINARY)


def test_a_rental_brings_its_price_and_its_seller() -> None:
    rental = next(x for x in rentals() if x.cluster.device.name == "B200")
    own = QUESTION.rented([rental])
    listing = price("B200", own.prices)
    assert listing is not None and listing == rental.listing
    best = own.plain([rental.cluster])
    assert best is not None
    assert best.best.usd == pytest.approx(rental.cluster.world_size * rental.usd_per_device_hour * best.best.time_s / 3600)


def test_what_cannot_be_is_none() -> None:
    huge = TrainingQuestion(Workload.named("llama-3-405b"), TrainingTarget(), None, ORDINARY)
    assert huge.plain([Cluster.named("8 H100")]) is None
    assert huge.divided([Cluster.named("8 H100")], more=FEW) is None


def test_what_cannot_hold_the_weights_is_not_searched() -> None:
    huge = TrainingQuestion(Workload.named("llama-3-405b"), TrainingTarget(), None, ORDINARY)
    assert not huge.may_hold(Cluster.named("8 H100")) and huge.may_hold(Cluster.named("16x p5.48xlarge"))
    adapters = TrainingQuestion(Workload.named("llama-3-8b", lora="r=16"), TrainingTarget(), None, ORDINARY)
    assert adapters.may_hold(Cluster.named("RTX 4090"))


@pytest.mark.long
def test_a_division_among_many_nodes() -> None:
    large = TrainingQuestion(Workload.named("llama-3-405b", 1024), TrainingTarget(), None, ORDINARY)
    best = large.divided([Cluster.named("16x p5.48xlarge")], more=FEW)
    assert best is not None and best.best.strategy.parallelism.model_devices > 1


def test_ddp_where_sharding_gains_no_more_than_a_tie() -> None:
    """Nobody shards a small network for a percent."""
    shape = llama(layers=6, hidden=384, heads=6, kv_heads=6, ffn=1024, vocabulary=1000)
    small = replace(QUESTION, workload=Workload.from_shape(shape, 256))
    best = small.plain([Cluster.named("4 RTX 4090")])
    assert best is not None and best.best.strategy.parallelism.sharding.name == "ddp"
    large = replace(QUESTION, workload=Workload.named("gpt2-xl")).plain([Cluster.named("8 A100")])
    assert large is not None
    whole = min((c.time_s for c in large.ranking if c.strategy.parallelism.sharding.name == "ddp"), default=math.inf)
    assert large.best.strategy.parallelism.sharding.name == "ddp" or whole > min(c.time_s for c in large.ranking)


def test_stated_micro_steps_hold_in_divided_layouts() -> None:
    said = {"tensor": 8, "pipeline": 2, "grad_accum_steps": 4, "recompute": "full"}
    question = replace(QUESTION, workload=Workload.named("llama-3-70b"), choices=said, micro_batch_sizes=(2,))
    found = question.quick(Cluster.named("8x8 H100, InfiniBand NDR"))
    assert found is not None
    strategy = found.best.strategy
    assert (strategy.micro_batch_size, strategy.parallelism.micro_batches) == (2, 4)
    assert strategy.global_batch_size == 2 * 4 * strategy.parallelism.data
