"""What observations teach: nothing without any, themselves where they are, the model far away; and the range narrows."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import samples
from paceline.calibration.link_fit import ObservedLinks, slower
from paceline.errors import UserError
from paceline.hardware import Cluster, cluster
from paceline.prediction import Observation, Prediction, Predictor, fit, predict
from paceline.prediction.correction import MOST
from paceline.strategy import Strategy
from paceline.workload import Workload

WORKLOAD = "resnet-50"


def setting(nodes: int = 1, per_node: int = 8, micro: int = 64, device: str = "V100") -> tuple[object, ...]:
    machines = cluster(device, per_node, nodes, "InfiniBand EDR")
    n = machines.world_size
    return Workload.named(WORKLOAD), machines, Strategy.of(world_size=n, global_batch_size=micro * n, precision="fp16")


def predicted(*given: object, **changes: object) -> Prediction:
    return Predictor(**changes).step(*given)  # type: ignore[arg-type]


def observed(factor: float, sync: float | None = None, **where: object) -> Observation:
    """A step ``factor`` times as long as predicted, its wait ``sync`` times as long."""
    network, machines, strategy = setting(**where)  # type: ignore[arg-type]
    made = predicted(network, machines, strategy)
    if sync is None:
        return Observation(workload=network, cluster=machines, strategy=strategy, step_s=factor * made.step_time_s)
    work = factor * (made.step_time_s - made.exposed_comm_s)
    wait = sync * made.exposed_comm_s
    return Observation(workload=network, cluster=machines, strategy=strategy, step_s=work + wait, sync_s=wait)


def test_without_observations_the_time_stays() -> None:
    plain, corrected = predicted(*setting()), predicted(*setting(), correction=fit([]))
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
    plain, said = predict(net, place, plan), Predictor(correction=fit([observed(1.0)])).step(net, place, plan)
    assert said.high_s / said.step_time_s <= plain.high_s / plain.step_time_s * (1 + 1e-9)
    assert said.step_time_s / said.low_s <= plain.step_time_s / plain.low_s * (1 + 1e-9)
    text = said.assumptions[0]
    assert f"{lacking} observed" in text if lacking else "was not observed" not in text
    assert (said.held_out_error == plain.held_out_error) == (lacking is not None)


@settings(max_examples=20, deadline=None)
@given(st.floats(0.5, 2), st.integers(1, 30))
def test_many_equal_steps_are_believed(factor: float, count: int) -> None:
    said = predicted(*setting(), correction=fit([observed(factor)] * count))
    plain = predicted(*setting()).step_time_s
    assert said.step_time_s == pytest.approx(factor * plain, rel=0.05)
    once = predicted(*setting(), correction=fit([observed(factor)]))
    assert said.high_s / said.low_s <= once.high_s / once.low_s + 1e-9
    assert said.low_s < said.step_time_s < said.high_s


def test_what_was_learnt_fades_with_distance() -> None:
    correction = fit([observed(2.0, micro=64)] * 3)

    def gain(**where: object) -> float:
        given = setting(**where)  # type: ignore[arg-type]
        return predicted(*given, correction=correction).step_time_s / predicted(*given).step_time_s

    near, far, other = gain(micro=64), gain(micro=4), gain(micro=64, device="T4")
    assert near > 1.9 and 1.0 < other < far < near


def test_work_and_wait_are_learnt_apart() -> None:
    where = {"nodes": 4, "micro": 4}
    given = setting(**where)  # type: ignore[arg-type]
    plain = predicted(*given)
    said = predicted(*given, correction=fit([observed(1.0, sync=3.0, **where)] * 5))
    assert said.exposed_comm_s == pytest.approx(3 * plain.exposed_comm_s, rel=0.15)
    assert said.step_time_s - said.exposed_comm_s == pytest.approx(plain.step_time_s - plain.exposed_comm_s, rel=0.02)
    assert sum(said.exposed.values()) == pytest.approx(said.step_time_s)
    assert said.samples_per_s * said.step_time_s == pytest.approx(plain.samples_per_s * plain.step_time_s)
    assert said.timeline[-1].end_s == pytest.approx(plain.timeline[-1].end_s * said.step_time_s / plain.step_time_s)


def test_it_says_when_it_goes_beyond_what_was_observed() -> None:
    correction = fit([observed(1.1, per_node=n) for n in (1, 2, 4)])
    assert "beyond" not in predicted(*setting(per_node=4), correction=correction).assumptions[0]
    said = predicted(*setting(nodes=2), correction=correction).assumptions[0]
    assert said == "Corrected by 3 observed steps on up to 4 devices; 16 devices are beyond what was observed."


def test_of_many_observations_those_of_the_same_workload_and_device_are_taken() -> None:
    other = [observed(3.0, per_node=1, device="T4")] * (MOST + 50)
    own = [observed(1.3)] * 5
    said = predicted(*setting(), correction=fit([*other, *own]))
    assert said.step_time_s == pytest.approx(1.3 * predicted(*setting()).step_time_s, rel=0.05)


def test_a_record_is_an_observation() -> None:
    _, machines, strategy = setting()
    record = replace(samples.record("dense"), strategy=strategy.to_json())  # type: ignore[attr-defined]
    one = Observation.of_record(record, Workload.named(WORKLOAD), machines)  # type: ignore[arg-type]
    assert (one.step_s, one.sync_s) == (record.step_time_s, record.exposed_comm_s)
    assert one.strategy == strategy


@pytest.mark.parametrize("times", [{"step_s": 0.0}, {"step_s": math.nan}, {"step_s": 1.0, "sync_s": 2.0}])
def test_impossible_times_are_refused(times: dict[str, float]) -> None:
    network, machines, strategy = setting()
    with pytest.raises(UserError):
        Observation(workload=network, cluster=machines, strategy=strategy, **times)  # type: ignore[arg-type]


@pytest.mark.parametrize("slow", [4.0, 10.0])
def test_slow_links_are_found_from_the_waits_on_them(slow: float) -> None:
    """Waits that were made with a slower network give that network back, and with it waits at another scale."""

    def on(nodes: int, micro: int, factor: float) -> tuple[object, ...]:
        network, machines, strategy = setting(nodes=nodes, micro=micro, per_node=2)
        assert isinstance(machines, Cluster)
        link = slower(machines.network, (math.log(factor), 0.0))
        return network, machines.changed(network=link), strategy

    seen = []
    for nodes in (2, 3, 4):
        for micro in (2, 4, 16):
            made = predicted(*on(nodes, micro, slow))
            network, machines, strategy = on(nodes, micro, 1.0)
            seen.append(
                Observation(
                    workload=network,
                    cluster=machines,
                    strategy=strategy,  # type: ignore[arg-type]
                    step_s=made.step_time_s,
                    sync_s=made.exposed_comm_s,
                )
            )
    found = ObservedLinks(seen, predict).of(seen[-1].cluster)
    assert found.network.bandwidth.value == pytest.approx(seen[-1].cluster.network.bandwidth.value / slow, rel=0.25)
    assert found.intra_link == seen[-1].cluster.intra_link
    big = predicted(*on(16, 2, slow))
    assert predicted(*on(16, 2, 1.0), correction=fit(seen)).step_time_s == pytest.approx(big.step_time_s, rel=0.1)
