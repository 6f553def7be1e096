"""What observations teach: nothing without any, themselves where they are, the model far away; and the range narrows."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from observed_steps import observed, predicted, setting
from paceline.hardware import cluster
from paceline.prediction import Observation, Predictor, fit, predict
from paceline.prediction.correction.correction import MOST
from paceline.strategy import Strategy
from paceline.workload import Workload


def test_without_observations_the_time_stays() -> None:
    plain, corrected = predicted(*setting()), fit([]).step(*setting())
    assert corrected.step_time_s == pytest.approx(plain.step_time_s)
    assert (corrected.low_s, corrected.high_s) == pytest.approx((plain.low_s, plain.high_s))


@pytest.mark.parametrize(
    ("change", "lacking"),
    [
        ({}, None),
        ({"network": "resnet-101"}, "resnet-101 was not"),
        ({"device": "A100"}, "A100 SXM 80GB was not"),
        ({"network": "bert-large", "device": "H100"}, "bert-large and H100 SXM was not"),
    ],
)
def test_what_was_not_observed_is_said_and_no_observation_widens_a_range(change: dict[str, str], lacking: str | None) -> None:
    where = {"network": "resnet-50", "device": "V100", **change}
    place = cluster(where["device"], 8, 1)
    plan = Strategy.of(world_size=8, global_batch_size=512, precision="fp16")
    net = Workload.named(where["network"])
    plain, corrected = predict(net, place, plan), fit([observed(1.0)]).step(net, place, plan)
    assert corrected.high_s / corrected.step_time_s <= plain.high_s / plain.step_time_s * (1 + 1e-9)
    assert corrected.step_time_s / corrected.low_s <= plain.step_time_s / plain.low_s * (1 + 1e-9)
    text = corrected.assumptions[0]
    assert f"{lacking} observed" in text if lacking else "was not observed" not in text
    assert (corrected.held_out_error == plain.held_out_error) == (lacking is not None)


@settings(max_examples=settings.default.max_examples // 2)
@given(st.floats(0.5, 2), st.integers(1, 30))
def test_many_equal_steps_are_believed(factor: float, count: int) -> None:
    corrected = fit([observed(factor)] * count).step(*setting())
    plain = predicted(*setting()).step_time_s
    assert corrected.step_time_s == pytest.approx(factor * plain, rel=0.05)
    once = fit([observed(factor)]).step(*setting())
    assert corrected.high_s / corrected.low_s <= once.high_s / once.low_s + 1e-9
    assert corrected.low_s < corrected.step_time_s < corrected.high_s


def test_what_was_learnt_fades_with_distance() -> None:
    corrected = fit([observed(2.0, micro=64)] * 3)

    def gain(**where: object) -> float:
        given = setting(**where)  # type: ignore[arg-type]
        return corrected.step(*given).step_time_s / predicted(*given).step_time_s

    near, far, other = gain(micro=64), gain(micro=4), gain(micro=64, device="T4")
    assert near > 1.9 and 1.0 < other < far < near


def test_work_and_wait_are_learnt_apart() -> None:
    where = {"nodes": 4, "micro": 4}
    given = setting(**where)  # type: ignore[arg-type]
    plain = predicted(*given)
    corrected = fit([observed(1.0, sync=3.0, **where)] * 5).step(*given)
    assert corrected.exposed_comm_s == pytest.approx(3 * plain.exposed_comm_s, rel=0.15)
    assert corrected.step_time_s - corrected.exposed_comm_s == pytest.approx(plain.step_time_s - plain.exposed_comm_s, rel=0.02)
    assert sum(corrected.exposed.values()) == pytest.approx(corrected.step_time_s)
    assert corrected.samples_per_s * corrected.step_time_s == pytest.approx(plain.samples_per_s * plain.step_time_s)
    assert corrected.timeline[-1].end_s == pytest.approx(plain.timeline[-1].end_s * corrected.step_time_s / plain.step_time_s)


def _step(nodes: int, step_s: float) -> Observation:
    """ResNet-50 on nodes of four V100, of which nobody measured the wait."""
    plan = Strategy.of(world_size=4 * nodes, global_batch_size=128 * nodes, precision="fp16")
    return Observation(
        workload=Workload.named("resnet-50"), cluster=cluster("V100", 4, nodes, "10Gb/s"), strategy=plan, step_s=step_s
    )


def test_a_step_that_is_slow_on_two_nodes_alone_waits_for_the_network() -> None:
    """One node takes 0.10 s and two take 0.60 s: their devices work as long, so the rest is the network's."""
    one, two = _step(1, 0.10), _step(2, 0.60)
    told = predict(two.workload, two.cluster, two.strategy, predictor=fit([one, two]))
    assert told.step_time_s == pytest.approx(0.60, rel=0.1)
    assert told.bottleneck == "network" and told.compute_s == pytest.approx(0.10, rel=0.1)
    assert "may be slow" not in told.assumptions[0]
    alone = predict(two.workload, two.cluster, two.strategy, predictor=fit([two]))
    assert "none ran on fewer nodes: work or waiting may be slow" in alone.assumptions[0]


def test_the_wait_is_told_with_the_host_that_was_observed() -> None:
    """Small steps wait for a host of 300 us a kernel; two nodes wait 0.2 s more for the network."""
    usual = Predictor()
    slow = Predictor(constants=replace(usual.typical, host_s=3e-4))

    def at(nodes: int, micro: int, more: float = 0.0) -> Observation:
        plan = Strategy.of(world_size=4 * nodes, global_batch_size=4 * nodes * micro, precision="fp16")
        on = Workload.named("resnet-50"), cluster("V100", 4, nodes, "100Gb/s"), plan
        step_s = slow.step(*on).step_time_s + more
        return Observation(workload=on[0], cluster=on[1], strategy=plan, step_s=step_s)

    seen = [at(1, micro) for micro in (1, 2, 4, 64, 128)] + [at(2, 1, 0.2)]
    two = seen[-1]
    told = fit(seen, usual).step(two.workload, two.cluster, two.strategy)
    worked = slow.step(two.workload, two.cluster, two.strategy).compute_s
    assert told.compute_s == pytest.approx(worked, rel=0.1) and told.exposed_comm_s == pytest.approx(0.2, rel=0.1)


def test_a_step_that_is_slow_everywhere_works_slowly() -> None:
    one = _step(1, 0.30)
    usual = predict(one.workload, one.cluster, one.strategy).step_time_s
    two = _step(2, 0.30 + _step_s(2) - usual)
    told = predict(two.workload, two.cluster, two.strategy, predictor=fit([one, two]))
    assert told.compute_s == pytest.approx(0.30, rel=0.1)


def _step_s(nodes: int) -> float:
    step = _step(nodes, 1.0)
    return predict(step.workload, step.cluster, step.strategy).step_time_s


def test_it_says_when_it_goes_beyond_what_was_observed() -> None:
    corrected = fit([observed(1.1, per_node=n) for n in (1, 2, 4)])
    assert "beyond" not in corrected.step(*setting(per_node=4)).assumptions[0]
    sentence = corrected.step(*setting(nodes=2)).assumptions[0]
    assert sentence == "Corrected by 3 observed steps on up to 4 devices; 16 devices are beyond what was observed."


def test_of_many_observations_those_of_the_same_workload_and_device_are_taken() -> None:
    other = [observed(3.0, per_node=1, device="T4")] * (MOST + 50)
    own = [observed(1.3)] * 5
    corrected = fit([*other, *own]).step(*setting())
    assert corrected.step_time_s == pytest.approx(1.3 * predicted(*setting()).step_time_s, rel=0.05)
