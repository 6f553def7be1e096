"""Very many strategies at once: the numbers of one at a time, and quickly."""

from __future__ import annotations

import gc
import math
import time
from contextlib import suppress
from statistics import median

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import UserError
from paceline.hardware import cluster as named_cluster
from paceline.prediction import Observation, Predictor, fit, predict
from paceline.prediction.passes.offload import check_paged, offloads
from paceline.strategy import COMPRESSIONS, OPTIMIZERS, SHARDINGS, Strategy
from paceline.strategy.sharding import TORCH_SHARDINGS
from paceline.workload import Workload
from strategy_toys import exchanges_of

PAIRS = [(c.name, exchange) for c in COMPRESSIONS.values() for exchange in exchanges_of(c)]
TO_OWNERS = [("dense", "allreduce"), ("bf16", "allreduce"), ("terngrad", "sharded"), ("int8", "ring")]
PLACES = [named_cluster(device, *shape, "25Gb/s") for device in ("V100", "H100", "Xeon") for shape in ((1, 1), (4, 1), (4, 3))]

UPDATES = {
    "optimizer": list(OPTIMIZERS),
    "stored_weights": ["", "bf16", "bf16_kahan"],
    "update": ["", "looped", "foreach", "in_backward"],
    "state_bits": [0, 16],
    "ema": [False, True],
}


@st.composite
def candidates(draw):
    place = draw(st.sampled_from(PLACES))
    sharding = draw(st.sampled_from(["ddp", *SHARDINGS]))
    pairs = {"ddp": PAIRS, "zero2": TO_OWNERS, "zero3": TO_OWNERS}.get(sharding, TO_OWNERS[:1])
    compression, exchange = draw(st.sampled_from(pairs))
    servers = draw(st.integers(1, place.world_size)) if exchange == "parameter_server" else 1
    times, micro = draw(st.sampled_from([1, 2, 5])), draw(st.integers(1, 40))
    strategy = Strategy.of(
        world_size=place.world_size,
        global_batch_size=place.world_size * times * micro,
        grad_accum_steps=times,
        precision=draw(st.sampled_from(place.device.precisions)),
        offload=draw(st.sampled_from(["none", "optimizer"])) if offloads(place.device) else "none",
        compression=compression,
        exchange=exchange,
        servers=servers,
        sharding=sharding,
        recompute=draw(st.booleans()),
        optimizer="adam",
        bucket_bytes=draw(st.sampled_from([1 << 20, 25 << 20])),
    )
    for name, values in UPDATES.items():
        with suppress(UserError):  # those that do not go with the others
            changed = strategy.changed(**{name: draw(st.sampled_from(values))})
            check_paged(changed, place.device)
            strategy = changed
    return place, strategy


@given(
    st.lists(candidates(), min_size=1, max_size=6),
    st.sampled_from(["resnet-50", "bert-base", "lenet5"]),
    st.booleans(),
    st.sampled_from([0.0, 1000.0]),
)
def test_the_numbers_are_those_of_predict(some, name, overlap, loader):
    net = Workload.named(name)
    found = Predictor(overlap=overlap, loader=loader).many(net, some)
    for index, (place, strategy) in enumerate(some):
        p = Predictor(overlap=overlap, loader=loader).step(net, place, strategy)
        assert found.step_s[index] == pytest.approx(p.step_time_s, rel=1e-9)
        assert found.memory_bytes[index] == pytest.approx(p.memory_bytes, rel=1e-12)
        assert found.fits[index] == p.fits
    assert not found.refused


@pytest.mark.parametrize(
    ("sharding", "offload"), [("ddp", "none"), ("ddp", "optimizer"), ("zero3", "none"), ("zero3", "weights+optimizer")]
)
def test_strategies_that_share_an_exchange_have_numbers_of_their_own(sharding: str, offload: str) -> None:
    """What differs in micro steps, precision or optimizer is in one group where one exchange moves the same."""
    net, place = Workload.named("resnet-50"), named_cluster("H100", 4, 2, "25Gb/s")
    usual = Strategy.of(world_size=8, global_batch_size=256, sharding=sharding, offload=offload)
    some = [
        (place, usual.changed(grad_accum_steps=times, precision=precision, optimizer=optimizer))
        for times in (1, 4)
        for precision in ("fp32", "tf32", "bf16", "fp16", "fp8")
        for optimizer in ("sgd", "adam")
    ]
    found = Predictor().many(net, some)
    for (_, strategy), step_s, memory in zip(some, found.step_s, found.memory_bytes, strict=True):
        one = predict(net, place, strategy)
        assert step_s == pytest.approx(one.step_time_s, rel=1e-12) and memory == pytest.approx(one.memory_bytes, rel=1e-12)


def test_a_correction_is_that_of_the_fastest_of_those_that_it_cannot_tell_apart() -> None:
    net, place = Workload.named("resnet-50"), named_cluster("V100", 2, 4, "10Gb/s")
    usual = Strategy.of(world_size=8, global_batch_size=8 * 16, precision="fp16")
    step = predict(net, place, usual)
    work = step.step_time_s - step.exposed_comm_s
    slow = Observation(
        workload=net, cluster=place, strategy=usual, step_s=work + 3 * step.exposed_comm_s, sync_s=3 * step.exposed_comm_s
    )
    candidates = [(place, usual.changed(bucket_bytes=size)) for size in (1 << 30, 25 << 20, 5 << 20)]
    corrected = fit([slow] * 5)
    plain_s, corrected_s = (predictor.many(net, candidates).step_s for predictor in (Predictor(), corrected))
    fastest = int(plain_s.argmin())
    assert plain_s.max() > 1.01 * plain_s.min()
    assert corrected_s[fastest] == pytest.approx(corrected.step(net, *candidates[fastest]).step_time_s)
    assert corrected_s / plain_s == pytest.approx(corrected_s[fastest] / plain_s[fastest])


def test_what_cannot_be_predicted_says_why_and_spoils_nothing():
    net, place = Workload.named("lenet5"), named_cluster("V100", 2, 1)
    good = Strategy.of(world_size=2, global_batch_size=8)
    wrong = [Strategy.of(world_size=2, global_batch_size=8, precision="bf16"), Strategy.of(world_size=4, global_batch_size=8)]
    found = Predictor().many(net, [(place, s) for s in (good, *wrong)])
    assert found.step_s[0] == pytest.approx(predict(net, place, good).step_time_s)
    assert [math.isnan(x) for x in found.step_s] == [False, True, True]
    assert "precision for V100" in found.refused[1] and "4 workers and the cluster 2" in found.refused[2]
    assert len(Predictor().many(net, []).step_s) == 0


@pytest.mark.long
def test_ten_thousand_take_a_fraction_of_as_many_calls():
    net, place = Workload.named("resnet-50"), named_cluster("A100", 8, 4, "100Gb/s")
    some = [
        (place, Strategy.of(world_size=32, global_batch_size=32 * a * b, grad_accum_steps=a, precision=p, sharding=z))
        for a in range(1, 26)
        for b in range(1, 51)
        for p in ("fp32", "bf16")
        for z in TORCH_SHARDINGS
    ]
    gc.freeze()  # a collection walks what all tests before have left, and falls on the longer of the two
    try:
        at_once, alone = [], []
        for _ in range(3):
            start = time.process_time()
            found = Predictor().many(net, some)
            at_once.append((time.process_time() - start) / len(some))
            start = time.process_time()
            for _, one in some[::200]:
                predict(net, place, one)
            alone.append((time.process_time() - start) / 50)
    finally:
        gc.unfreeze()
    assert median(at_once) < 0.2 * median(alone)
    assert len(some) == 10_000 and np.isfinite(found.step_s).all()


def test_divided_and_whole_networks_are_predicted_together_as_one_by_one() -> None:
    cluster, predictor = named_cluster("A100", 8, 1), Predictor()
    strategies = [
        Strategy.of(world_size=8, global_batch_size=64, precision="bf16", grad_accum_steps=4, **choices)
        for choices in ({}, {"tensor": 2, "sequence": True}, {"sharding": "zero3"}, {"pipeline": 4}, {"context": 2})
    ]
    workload = Workload.named("gpt2")
    steps = predictor.many(workload, [(cluster, strategy) for strategy in strategies])
    for index, strategy in enumerate(strategies):
        alone = predictor.step(workload, cluster, strategy)
        assert steps.step_s[index] == pytest.approx(alone.step_time_s, rel=1e-9)
        assert steps.memory_bytes[index] == pytest.approx(alone.memory_bytes, rel=1e-9)
    heads = Strategy.of(world_size=8, global_batch_size=64, precision="bf16", tensor=8)  # 12 heads
    refused = predictor.many(workload, [(cluster, strategies[0]), (cluster, heads)])
    assert refused.refused.keys() == {1} and "12 heads" in refused.refused[1]
    assert np.isfinite(refused.step_s[0]) and np.isnan(refused.step_s[1])
