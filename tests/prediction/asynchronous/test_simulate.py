"""Asynchronous SGD: closed forms, conservation, monotonicity and repeatability."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asynchronous_toys import GIGABIT, profile, run
from paceline.errors import UserError
from paceline.prediction.asynchronous import simulate


@pytest.mark.parametrize("workers", [1, 3, 8])
def test_where_compute_is_all_workers_add_up(workers: int) -> None:
    result = run(profile(size=80.0, jitter=0.0), workers, 2)
    assert result.updates_per_s == pytest.approx(workers / 0.1, rel=1e-3)
    assert result.samples_per_s == pytest.approx(32 * workers / 0.1, rel=1e-3)
    assert result.bottleneck == "workers" and result.utilisation["workers"] == pytest.approx(1.0, rel=0.01)


@pytest.mark.everyday("1")
@pytest.mark.parametrize("servers", [1, 2, 4])
def test_where_server_links_are_full_their_bandwidth_is_all(servers: int) -> None:
    """Every update brings each server its share of the bytes once in and once out: M x bandwidth / bytes."""
    result = run(profile(compute_s=0.001), 6 * servers, servers, pull="tensor", steps=20)
    assert result.updates_per_s == pytest.approx(servers * GIGABIT / 8e6, rel=0.02)
    assert result.bottleneck.startswith("server")


def test_where_a_server_is_busy_updating_its_rate_is_all() -> None:
    result = run(profile(compute_s=0.01, update_s_per_byte=1e-7), 8, 1, bandwidth=100 * GIGABIT)
    assert result.updates_per_s == pytest.approx(1 / (8e6 * 1e-7), rel=0.02)
    assert result.bottleneck == "server 0 update"


@pytest.mark.parametrize("pull", ["step", "server", "tensor"])
def test_one_worker_reads_what_it_wrote(pull: Any) -> None:
    assert run(profile(), 1, 2, pull=pull).staleness == (1.0,)


@pytest.mark.everyday("2-0.01", "5-1.0")
@pytest.mark.parametrize("compute_s", [0.01, 1.0])
@pytest.mark.parametrize("workers", [2, 5, 9])
def test_staleness_is_that_of_the_other_workers(workers: int, compute_s: float) -> None:
    """Read as soon as it is written, a parameter sees every update by others once: their mean is N - 1."""
    result = run(profile(compute_s=compute_s), workers, 2, pull="tensor", steps=40)
    assert result.mean_staleness == pytest.approx(workers - 1, rel=0.03)
    assert sum(result.staleness) == pytest.approx(1.0) and min(result.staleness) >= 0
    waits = run(profile(compute_s=compute_s), workers, 2, pull="step", steps=40)
    assert waits.mean_staleness < result.mean_staleness, "what is applied while nothing is read makes nothing stale"


@pytest.mark.long
def test_equal_seeds_are_equal_and_others_are_not() -> None:
    first, again, other = (run(profile(), 4, 2, seed=seed) for seed in (3, 3, 4))
    assert first == again and first.samples_per_s != other.samples_per_s
    assert other.samples_per_s == pytest.approx(first.samples_per_s, rel=0.05)


def test_the_range_holds_the_value_and_grows_with_the_spread() -> None:
    narrow = run(profile(compute_spread=0.01, network_spread=0.01, server_spread=0.01), 4)
    wide = run(profile(compute_spread=0.1, network_spread=0.1, server_spread=0.1), 4)
    for result in (narrow, wide):
        assert result.low_samples_per_s < result.samples_per_s < result.high_samples_per_s
    assert narrow.high_samples_per_s - narrow.low_samples_per_s < wide.high_samples_per_s - wide.low_samples_per_s
    nothing = {"compute_spread": 0.0, "network_spread": 0.0, "server_spread": 0.0}
    exact = run(profile(jitter=0.0, hosts_spread=0.0, **nothing), 1)
    assert exact.low_samples_per_s == pytest.approx(exact.high_samples_per_s), "one worker has no phase to differ in"
    hosts = run(profile(jitter=0.0, hosts_spread=0.1, **nothing), 1, 3)
    assert hosts.high_samples_per_s / hosts.samples_per_s == pytest.approx(math.exp(1.2816 * 0.1 * 2)), "two doublings"


def test_a_full_link_is_known_as_well_as_links_are() -> None:
    """By default 80 % of links give 0.6 to 0.94 of their line, whatever else is not known."""
    full = run(profile(compute_s=0.001), 6, pull="tensor", steps=40)
    assert full.high_samples_per_s / full.low_samples_per_s > 0.94 / 0.6


cases = st.tuples(
    st.integers(1, 6),
    st.integers(1, 3),
    st.floats(1e-3, 1.0),
    st.floats(1e6, 1e8),
    st.sampled_from(["step", "server", "tensor"]),
)


@pytest.mark.long
@settings(max_examples=settings.default.max_examples // 5, derandomize=True)
@given(cases)
def test_bounds_and_monotony(case: tuple[int, int, float, float, Any]) -> None:
    """Nothing is faster than its parts, time has no unit, and a better link or worker does not cost.

    A worker more, or a slower server, may change the order of things either way: only bounds hold there.
    """
    workers, servers, compute_s, size, pull = case

    def rate(workers: int = workers, times: float = 1.0, links: float = 1.0) -> float:
        exact = {"compute_spread": 0.0, "network_spread": 0.0}
        of = profile(layers=3, size=size, compute_s=compute_s * times, jitter=0.8, **exact)
        return run(of, workers, servers, links * GIGABIT, steps=60, pull=pull).updates_per_s

    base, alone = rate(), rate(workers=1)
    assert base <= min(workers / compute_s, servers * GIGABIT / size) * 1.15
    assert 0.85 * alone <= base <= 1.15 * workers * alone
    assert rate(times=0.5, links=2.0) == pytest.approx(2 * base)
    assert rate(links=4.0) >= 0.9 * base and rate(times=0.25) >= 0.9 * base


@pytest.mark.long
def test_sixty_four_workers_take_time_in_proportion() -> None:
    """To the transfers that are simulated, four times those of sixteen workers."""
    of, begin = profile(layers=20, size=20e6, compute_s=0.3), time.process_time()
    run(of, 16, 1, steps=50)
    quarter, begin = time.process_time() - begin, time.process_time()
    result = run(of, 64, 1, steps=50)
    assert time.process_time() - begin < 3 * 4 * quarter
    assert 0.85 < result.updates_per_s * 20e6 / GIGABIT <= 1.0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"workers": 0}, "0 workers"),
        ({"servers": 0}, "0 servers"),
        ({"servers": 9}, "9 servers for 8 tensors"),
        ({"steps": 0}, "0 steps"),
        ({"link_bandwidth": 0.0}, "link of 0.0"),
        ({"latency": -1.0}, "latency of -1.0"),
        ({"pull": "layer"}, "unknown pull 'layer'"),
    ],
)
def test_what_cannot_be_is_said(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        simulate(profile(), **{"workers": 2, "servers": 1, "link_bandwidth": GIGABIT, **wrong})
