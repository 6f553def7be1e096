"""Links are as slow as the waits on them say."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from observed_steps import predicted, setting
from paceline.hardware import Cluster
from paceline.prediction import Observation, fit, predict
from paceline.prediction.correction.link_fit import ObservedLinks, slower
from paceline.strategy import Strategy
from paceline.workload import Workload
from prediction_toys import make_cluster, make_link, make_workload


@pytest.mark.long
@pytest.mark.everyday("10.0")
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
            prediction = predicted(*on(nodes, micro, slow))
            network, machines, strategy = on(nodes, micro, 1.0)
            seen.append(
                Observation(
                    workload=network,
                    cluster=machines,
                    strategy=strategy,  # type: ignore[arg-type]
                    step_s=prediction.step_time_s,
                    sync_s=prediction.exposed_comm_s,
                )
            )
    place = ObservedLinks(seen, predict).of(seen[-1].cluster)
    assert place.network.bandwidth.value == pytest.approx(seen[-1].cluster.network.bandwidth.value / slow, rel=0.25)
    assert place.intra_link == seen[-1].cluster.intra_link
    big = predicted(*on(16, 2, slow))
    assert fit(seen).step(*on(16, 2, 1.0)).step_time_s == pytest.approx(big.step_time_s, rel=0.1)


@given(st.floats(-3, 3), st.floats(-3, 3))
def test_a_slower_link_has_its_byte_and_its_latency_stretched(per_byte: float, latency: float) -> None:
    link = make_link(1e9, 1e-5)
    there = slower(link, (per_byte, latency))
    assert there.bandwidth.value == pytest.approx(1e9 * math.exp(-per_byte))
    assert there.latency.value == pytest.approx(1e-5 * math.exp(latency))
    back = slower(there, (-per_byte, -latency))
    assert (back.bandwidth.value, back.latency.value) == (pytest.approx(1e9), pytest.approx(1e-5))
    assert slower(link, (0.0, 0.0)) is link


@dataclass
class Wait:
    exposed_comm_s: float


def bytes_over_network(workload: Workload, place: Cluster, strategy: Strategy) -> Wait:
    """One message of the parameters, all of it waited for."""
    return Wait(place.network.latency.value + 4 * workload.num_parameters / place.network.bandwidth.value)


def waited(place: Cluster, factor: float, sync: bool = True) -> Observation:
    """A step that waits ``factor`` times as long as it should."""
    strategy = Strategy.of(world_size=place.world_size, global_batch_size=place.world_size)
    wait = factor * bytes_over_network(make_workload(), place, strategy).exposed_comm_s
    return Observation(
        workload=make_workload(), cluster=place, strategy=strategy, step_s=2 * wait, sync_s=wait if sync else None
    )


@pytest.mark.parametrize("factor", [1.0, 3.0, 20.0])
def test_a_wait_of_bytes_alone_gives_the_bandwidth(factor: float) -> None:
    place = make_cluster(1, 4)
    fitted = ObservedLinks([waited(place, factor)] * 40, bytes_over_network).of(place)
    assert place.network.bandwidth.value / fitted.network.bandwidth.value == pytest.approx(factor, rel=0.3)


def test_what_waited_elsewhere_or_was_not_measured_says_nothing_of_a_link() -> None:
    place, other = make_cluster(1, 4), make_cluster(1, 4, network=2e9)
    for seen in ([], [waited(other, 9.0)], [waited(place, 9.0, sync=False)], [waited(make_cluster(2, 1), 9.0)]):
        assert ObservedLinks(seen, bytes_over_network).of(place) == place


@pytest.mark.parametrize("disturbed", [0.2, 5.0])
def test_a_few_disturbed_waits_move_no_link(disturbed: float) -> None:
    """A quarter of the waits is off by five times: the link is as fast as the others say."""
    place = make_cluster(2, 2)
    told = [
        ObservedLinks([waited(place, 2.0)] * 9 + [waited(place, off)] * 3, bytes_over_network).of(place)
        for off in (2.0, disturbed)
    ]
    speeds = [cluster.network.bandwidth.value for cluster in told]
    assert speeds[0] == pytest.approx(speeds[1], rel=0.3)
    assert speeds[0] < 0.8 * place.network.bandwidth.value
