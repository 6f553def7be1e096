"""The next bottleneck: what a step would be if one of its resources cost no time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import UserError
from paceline.prediction import Predictor
from paceline.prediction.bottleneck import ResourceSpeedup, resource_speedups
from paceline.strategy import Strategy
from prediction_toys import IDEAL, make_cluster, make_workload

NET, CLOSED = make_workload(), Predictor(constants=IDEAL, overlap=False)


def strategy(workers: int = 4, **choices: object) -> Strategy:
    return Strategy.of(world_size=workers, global_batch_size=8 * workers, **choices)


def test_where_nothing_overlaps_each_resource_gains_what_it_takes() -> None:
    place = make_cluster(2, 2)
    p = CLOSED.step(NET, place, strategy())
    found = resource_speedups(CLOSED, NET, place, strategy())
    assert {r.resource for r in found} == {name for name, seconds in p.exposed.items() if seconds > 0}
    assert [r.resource for r in found] == sorted((r.resource for r in found), key=lambda name: -p.exposed[name])
    for r in found:
        assert r.before_s == p.step_time_s
        assert r.before_s - r.step_time_s == pytest.approx(p.exposed[r.resource])
        assert r.speedup == p.step_time_s / r.step_time_s
    rest = {name: seconds for name, seconds in p.exposed.items() if name != found[0].resource}
    assert found[0].bottleneck == max(rest, key=lambda name: rest[name])


def test_a_hidden_exchange_comes_to_light_without_compute() -> None:
    """The network works as long as the device: without compute the step is the exchange, not nothing."""
    place = make_cluster(1, 4, network=2e8)
    predictor = Predictor(constants=IDEAL)
    p = predictor.step(NET, place, strategy())
    speedup = next(r for r in resource_speedups(predictor, NET, place, strategy()) if r.resource == "compute")
    assert speedup.step_time_s > p.step_time_s - p.exposed["compute"] * (1 + 1e-9)
    assert speedup.bottleneck == "network" and speedup.step_time_s >= p.comm_s


def test_the_loader_is_a_resource() -> None:
    place, fed = make_cluster(1, 1), Predictor(constants=IDEAL, loader=8.0)
    first, *_ = resource_speedups(fed, NET, place, strategy(1))
    assert (first.resource, first.before_s) == ("input pipeline", 1.0)
    assert first.step_time_s == Predictor(constants=IDEAL).step(NET, place, strategy(1)).step_time_s


@given(
    st.floats(1e7, 1e11),
    st.sampled_from(["ddp", "zero1", "zero3"]),
    st.integers(1, 3),
    st.booleans(),
    st.sampled_from([0.0, 50.0]),
)
def test_no_resource_gone_makes_a_step_longer(network: float, sharding: str, times: int, overlap: bool, loader: float) -> None:
    place, chosen = (
        make_cluster(2, 2, network=network),
        Strategy.of(world_size=4, global_batch_size=24, sharding=sharding, grad_accum_steps=times),
    )
    predictor = Predictor(overlap=overlap, loader=loader)
    known = predictor.step(NET, place, chosen)
    found = resource_speedups(predictor, NET, place, chosen, known)
    assert found == resource_speedups(predictor, NET, place, chosen)
    assert all(r.speedup >= 1 - 1e-12 and r.resource != r.bottleneck for r in found)


def test_what_takes_no_time_at_all_is_endlessly_faster() -> None:
    assert ResourceSpeedup("compute", 0.0, 1.0, "network").speedup == float("inf")


def test_it_refuses_what_the_predictor_refuses() -> None:
    with pytest.raises(UserError, match="4 workers and the cluster 2 devices"):
        resource_speedups(CLOSED, NET, make_cluster(1, 2), strategy())
