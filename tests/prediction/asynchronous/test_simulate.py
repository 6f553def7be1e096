"""Asynchronous SGD: closed forms, conservation, monotonicity and repeatability."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.errors import UserError
from paceline.prediction.asynchronous import AsyncResult, LayerProfile, Profile, simulate
from paceline.prediction.asynchronous.profile import assign_servers

GIGABIT = 125e6


def profile(
    layers: int = 8, size: float = 8e6, compute_s: float = 0.1, jitter: float = 0.1, drawn: int = 16, **given: Any
) -> Profile:
    """Equal layers, a third of the time forward, steps that differ as a whole."""
    factors = 1 + jitter * np.random.default_rng(1).uniform(-1, 1, drawn)
    forward, backward = (tuple((factors * share * compute_s / layers).tolist()) for share in (1 / 3, 2 / 3))
    each = (LayerProfile(name=f"l{i}", size=size / layers, forward_s=forward, backward_s=backward) for i in range(layers))
    return Profile(name="equal", batch_size=32, layers=tuple(each), **{"link_share": 1.0, **given})


def run(of: Profile, workers: int, servers: int = 1, bandwidth: float = GIGABIT, **options: Any) -> AsyncResult:
    return simulate(of, workers, servers, link_bandwidth=bandwidth, **options)


@pytest.mark.parametrize("workers", [1, 3, 8])
def test_where_compute_is_all_workers_add_up(workers: int) -> None:
    result = run(profile(size=80.0, jitter=0.0), workers, 2)
    assert result.updates_per_s == pytest.approx(workers / 0.1, rel=1e-3)
    assert result.samples_per_s == pytest.approx(32 * workers / 0.1, rel=1e-3)
    assert result.bottleneck == "workers" and result.utilisation["workers"] == pytest.approx(1.0, rel=0.01)


@pytest.mark.parametrize("servers", [1, 2, 4])
def test_where_server_links_are_full_their_bandwidth_is_all(servers: int) -> None:
    """Every update brings each server its share of the bytes once in and once out: M x bandwidth / bytes."""
    result = run(profile(compute_s=0.001), 6 * servers, servers, pull="tensor", steps=40)
    assert result.updates_per_s == pytest.approx(servers * GIGABIT / 8e6, rel=0.02)
    assert result.bottleneck.startswith("server")


def test_where_a_server_is_busy_updating_its_rate_is_all() -> None:
    result = run(profile(compute_s=0.01, update_s_per_byte=1e-7), 8, 1, bandwidth=100 * GIGABIT)
    assert result.updates_per_s == pytest.approx(1 / (8e6 * 1e-7), rel=0.02)
    assert result.bottleneck == "server 0 update"


def test_one_worker_by_hand() -> None:
    """One tensor: latency and transfer, both passes, transfer and latency, update."""
    one = profile(layers=1, size=GIGABIT / 10, compute_s=0.3, jitter=0.0, update_s=0.05)
    assert run(one, 1, latency=0.01).step_s == pytest.approx(0.1 + 0.01 + 0.3 + 0.1 + 0.01 + 0.05)
    assert run(one, 1, latency=0.01, pull="step").step_s == pytest.approx(0.59), "the answer and the next question as well"


def test_two_tensors_overlap_compute_and_transfer_by_hand() -> None:
    """Tensors of 0.1 s on the wire: the second arrives while the first is used, its gradient leaves in the other's backward."""
    layers = tuple(LayerProfile(name=name, size=GIGABIT / 10, forward_s=(0.1,), backward_s=(0.2,)) for name in "ab")
    two = Profile(name="two", batch_size=1, layers=layers, link_share=1.0)
    # a here at 0.1, b at 0.2; forward to 0.3; backward b to 0.5, a to 0.7; a's gradient applied at 0.8
    assert run(two, 1).step_s == pytest.approx(0.8)
    # b's gradient was applied at 0.6; its next reading can follow at once, so only a's transfer is waited for
    assert run(two, 1, pull="tensor").step_s == pytest.approx(0.8)


@pytest.mark.parametrize("pull", ["step", "server", "tensor"])
def test_one_worker_reads_what_it_wrote(pull: Any) -> None:
    assert run(profile(), 1, 2, pull=pull).staleness == (1.0,)


@pytest.mark.parametrize("compute_s", [0.01, 1.0])
@pytest.mark.parametrize("workers", [2, 5, 9])
def test_staleness_is_that_of_the_other_workers(workers: int, compute_s: float) -> None:
    """Read as soon as it is written, a parameter sees every update by others once: their mean is N - 1."""
    result = run(profile(compute_s=compute_s), workers, 2, pull="tensor", steps=60)
    assert result.mean_staleness == pytest.approx(workers - 1, rel=0.03)
    assert sum(result.staleness) == pytest.approx(1.0) and min(result.staleness) >= 0
    waits = run(profile(compute_s=compute_s), workers, 2, pull="step", steps=60)
    assert waits.mean_staleness < result.mean_staleness, "what is applied while nothing is read makes nothing stale"


@pytest.mark.parametrize("pull", ["step", "server", "tensor"])
def test_every_link_carries_what_the_updates_need(pull: Any) -> None:
    result = run(profile(update_s_per_byte=1e-9), 4, 2, pull=pull, steps=200)
    share = result.updates_per_s * 8e6 / GIGABIT
    for server in range(2):
        for way in ("in", "out"):
            assert result.utilisation[f"server {server} link {way}"] == pytest.approx(share / 2, rel=0.02)
        assert result.utilisation[f"server {server} update"] == pytest.approx(result.updates_per_s * 4e6 * 1e-9, rel=0.02)
    assert result.utilisation["worker links up"] == pytest.approx(share / 4, rel=0.02)
    assert all(0 <= used <= 1.0 + 1e-6 for used in result.utilisation.values())


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


@settings(max_examples=12, deadline=None, derandomize=True)
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


def test_sixty_four_workers_take_time_in_proportion() -> None:
    """To the transfers that are simulated, four times those of sixteen workers."""
    of, begin = profile(layers=20, size=20e6, compute_s=0.3), time.process_time()
    run(of, 16, 1, steps=50)
    quarter, begin = time.process_time() - begin, time.process_time()
    result = run(of, 64, 1, steps=50)
    assert time.process_time() - begin < 3 * 4 * quarter
    assert 0.85 < result.updates_per_s * 20e6 / GIGABIT <= 1.0


def test_tensors_go_where_the_fewest_bytes_are() -> None:
    assert assign_servers([5, 3, 1, 1, 4], 2) == (0, 1, 1, 1, 0)
    assert assign_servers([1, 1, 1], 1) == (0, 0, 0)


def test_timeline_shows_the_first_steps() -> None:
    result = run(profile(layers=2), 2, 1, drawn_steps=1)
    names = {event.name.split()[0] for event in result.timeline}
    assert names == {"pull", "forward", "backward", "push"} and {event.rank for event in result.timeline} == {0, 1}
    assert not run(profile(layers=2), 2, 1).timeline
    busy = run(profile(layers=2, update_s=1e-3), 2, 1, drawn_steps=1)
    assert {event.rank for event in busy.timeline if event.name.startswith("update")} == {2}


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


def test_a_profile_that_cannot_be_is_said() -> None:
    whole = profile()
    uneven = replace(whole.layers[0], forward_s=(1.0,))
    for change in ({"layers": ()}, {"layers": (uneven, *whole.layers[1:])}, {"update_s": -1.0}, {"batch_size": 0}):
        with pytest.raises(UserError):
            replace(whole, **change)  # type: ignore[arg-type]
