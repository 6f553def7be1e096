"""Networks of which only the speed is said: both answers, each that of the network by its full name; steps follow the speed."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline import Cluster, Predictor, Strategy, Workload
from paceline.prediction.transports import figures_by_transport, steps_by_transport
from paceline.strategy.usual_precision import usual_precision

LLAMA, RESNET = Workload.named("llama-3-8b"), Workload.named("resnet-50")
SHARED = Strategy.of(world_size=16, global_batch_size=16, precision="bf16", sharding="zero3")
COPIES = Strategy.of(world_size=16, global_batch_size=1024, precision="bf16")
TRANSPORTS = ("RoCE", "EFA", "TCP", "GPUDirect-TCPX", "InfiniBand", "")


def on(network: str, machines: str = "2x8 A100") -> Cluster:
    return Cluster.named(machines, network)


@pytest.mark.parametrize("speed", ["10Gb/s", "100Gb/s", "400Gb/s", "8x 200Gb/s"])
def test_both_answers_are_those_of_the_network_by_its_full_name(speed: str) -> None:
    both = steps_by_transport(Predictor(), LLAMA, on(speed), SHARED)
    alone = Predictor().step(LLAMA, on(speed), SHARED)
    assert list(both) == ["RDMA", "TCP"]
    assert both["RDMA"].step_time_s == pytest.approx(Predictor().step(LLAMA, on(f"{speed} RoCE"), SHARED).step_time_s)
    assert both["TCP"].step_time_s == alone.step_time_s, "TCP is taken"
    assert both["RDMA"].step_time_s < both["TCP"].step_time_s
    assert figures_by_transport(both)["TCP"]["step_time_s"] == alone.step_time_s


@pytest.mark.parametrize(
    ("network", "machines"),
    [
        ("100Gb/s RoCE", "2x8 A100"),
        ("TCP 100G", "2x8 A100"),
        ("InfiniBand HDR", "2x8 A100"),
        ("100Gb/s", "1x16 A100"),
        ("100Gb/s", "2x8 Xeon Platinum 8380"),
        ("100Gb/s", "2x8 TPU v4"),
    ],
)
def test_one_answer_where_there_is_one_transport(network: str, machines: str) -> None:
    place = on(network, machines)
    precision = usual_precision(RESNET, place.device).name
    assert steps_by_transport(Predictor(), RESNET, place, COPIES.changed(precision=precision)) == {}


def test_an_instance_whose_provider_names_no_transport_has_tcp() -> None:
    place = Cluster.named("2x g5.48xlarge")
    assert place.network.transport == "TCP"
    assert Cluster.named("2x p5.48xlarge").network.transport == "EFA"


def check(speed: float, more: float, transport: str, predictor: Predictor) -> None:
    for workload, strategy in ((RESNET, COPIES), (LLAMA, SHARED)):
        slow, fast = (
            predictor.step(workload, on(f"{rate:.12f}Gb/s {transport}"), strategy).step_time_s
            for rate in (speed, speed * (1 + more))
        )
        assert -1e-9 <= math.log(slow / fast) <= math.log(1 + more) + 1e-9


@settings(max_examples=settings.default.max_examples // 2)
@given(st.floats(0.5, 3200.0), st.floats(1e-6, 1.0), st.sampled_from(TRANSPORTS), st.sampled_from(["ordinary", "tuned"]))
def test_a_faster_link_is_never_slower_and_gains_no_more_than_its_speed(
    speed: float, more: float, transport: str, software: str
) -> None:
    """No jump: over one transport a link that is ``x`` times as fast makes the step at most ``x`` times as fast."""
    check(speed, more, transport, Predictor(framework=software))


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_no_step_jumps_at_a_speed_that_is_sold(transport: str) -> None:
    for speed in (1, 10, 25, 40, 50, 100, 200, 400):
        check(speed / 1.0005, 0.001, transport, Predictor())
