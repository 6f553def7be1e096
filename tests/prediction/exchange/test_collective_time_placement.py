"""Uneven nodes and blocking switches: loads are those of the ranks' own links, one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline import Workload, predict
from paceline.calibration.constants import TYPICAL
from paceline.errors import UserError
from paceline.hardware import Cluster
from paceline.hardware.placement import Placement
from paceline.prediction.exchange.collective_time import (
    alltoall_seconds,
    collective_seconds,
    loads,
    phase_load,
    phase_seconds,
    spine_load,
)
from paceline.prediction.exchange.group_view import group_view, pairs_between
from paceline.strategy import Strategy
from paceline.strategy.phase import Phase
from prediction_toys import every_message

SIZES = st.lists(st.integers(1, 6), min_size=2, max_size=5).map(tuple)
PATTERNS = st.sampled_from(["push", "pull", "shift"])


def cluster(sizes: int | tuple[int, ...], nodes: int = 0, **leaves: float) -> Cluster:
    even = Cluster.named("2x2 T4", "50Gb/s")
    nodes = nodes or len(sizes)  # type: ignore[arg-type]
    return Cluster.of_nodes(even.device, sizes, nodes, even.intra_link, even.network, **leaves)  # type: ignore[arg-type]


def busiest(phase: Phase, domain: list[int]) -> tuple[int, int]:
    """Bytes of the busiest rank within domains, and of the busiest domain, in its busier direction."""
    inside = np.zeros((2, phase.world_size), dtype=int)
    between = np.zeros((2, max(domain) + 1), dtype=int)
    for source, target, size in every_message(phase):
        if domain[source] == domain[target]:
            inside[0, source] += size
            inside[1, target] += size
        else:
            between[0, domain[source]] += size
            between[1, domain[target]] += size
    return int(inside.max()), int(between.max())


@given(SIZES, PATTERNS, st.data())
def test_loads_of_uneven_nodes_are_sums_over_ranks(sizes: tuple[int, ...], pattern: str, data: st.DataObject) -> None:
    n = sum(sizes)
    shards = tuple(data.draw(st.lists(st.integers(0, 1000), min_size=n, max_size=n)))
    members = data.draw(st.sampled_from([d for d in range(1, n + 1) if n % d == 0]))
    phase = Phase("x", shards, n, pattern, members)  # type: ignore[arg-type]
    node = [number for number, size in enumerate(sizes) for _ in range(size)]
    load = phase_load(phase, Placement(sizes))
    assert (load.intra, load.network) == busiest(phase, node)


@given(st.integers(1, 3), st.integers(1, 3), st.integers(2, 3), PATTERNS, st.data())
def test_loads_of_leaves_are_sums_over_ranks(local: int, leaf: int, leaves: int, pattern: str, data: st.DataObject) -> None:
    n = local * leaf * leaves
    shards = tuple(data.draw(st.lists(st.integers(0, 1000), min_size=n, max_size=n)))
    phase = Phase("x", shards, n, pattern)  # type: ignore[arg-type]
    carried = busiest(phase, [rank // (local * leaf) for rank in range(n)])[1]
    assert spine_load(phase, Placement(local, leaf, 3.0)) == pytest.approx(carried * 3.0 / leaf)


def ring_steps(sizes: tuple[int, ...]) -> tuple[set[int], dict[int, int]]:
    """Of a ring in the order of the ranks: messages that each rank sends in its node, and each node to others, in a round."""
    node = [number for number, size in enumerate(sizes) for _ in range(size)]
    out = dict.fromkeys(range(len(sizes)), 0)
    inside = [0] * len(node)
    for rank, here in enumerate(node):
        if node[(rank + 1) % len(node)] == here:
            inside[rank] += 1
        else:
            out[here] += 1
    return set(inside), out


@given(SIZES, st.integers(10**8, 10**9))
def test_a_big_ring_on_uneven_nodes_is_its_messages_one_by_one(sizes: tuple[int, ...], size: int) -> None:
    """Each message is 1/N of the buffer, in 2 (N-1) rounds; the slowest link sets the bandwidth."""
    place, n = cluster(sizes), sum(sizes)
    inside, out = ring_steps(sizes)
    beta = [1 / (TYPICAL.bandwidth(x)) for x in (place.intra_link, place.network)]
    share = 2 * (n - 1) / n * size
    slowest = min(
        max(
            share * max(inside) * beta[0] / p.share[place.intra_link.kind],
            share * max(out.values()) * beta[1] / p.share[place.network.kind],
        )
        for p in TYPICAL.protocols
        if place.intra_link.kind in p.share and place.network.kind in p.share
    )
    seconds, _ = collective_seconds(np.array([float(size)]), place, TYPICAL, among=("ring",))
    assert seconds[0] == pytest.approx(slowest, rel=0.05)


@given(st.integers(1, 6), st.integers(2, 5), st.integers(1, 10**8))
def test_equal_parts_are_the_even_cluster(local: int, nodes: int, size: int) -> None:
    sizes = np.array([float(size)])
    for seconds in (collective_seconds, alltoall_seconds):
        assert seconds(sizes, cluster((local,) * nodes), TYPICAL) == seconds(sizes, cluster(local, nodes), TYPICAL)
    shards = Phase("x", tuple(range(local * nodes)), local * nodes, "push")
    assert phase_load(shards, Placement((local,) * nodes)) == phase_load(shards, local)


@given(SIZES, st.data(), st.integers(1, 10**8))
def test_more_uneven_nodes_never_wait_less_in_a_ring(sizes: tuple[int, ...], data: st.DataObject, size: int) -> None:
    """A device moves from a node to one that holds as many or more."""
    source = data.draw(st.sampled_from([i for i, own in enumerate(sizes) if own > 1] or [0]))
    target = data.draw(st.sampled_from([i for i, own in enumerate(sizes) if i != source and own >= sizes[source]] or [source]))
    moved = list(sizes)
    if source != target and sizes[source] > 1:
        moved[source] -= 1
        moved[target] += 1
    before, after = (collective_seconds(np.array([float(size)]), cluster(own), TYPICAL)[0][0] for own in (sizes, tuple(moved)))
    assert after >= before * (1 - 1e-12)


@given(st.integers(1, 4), st.integers(1, 4), st.integers(2, 4), st.floats(1, 8), st.floats(1, 8), st.integers(1, 10**9))
def test_more_oversubscription_never_helps(local: int, leaf: int, leaves: int, x: float, y: float, size: int) -> None:
    low, high = sorted((x, y))
    plain = cluster(local, leaf * leaves)
    milder, worse = (cluster(local, leaf * leaves, leaf_nodes=leaf, oversubscription=f) for f in (low, high))
    n, sizes = plain.world_size, np.array([float(size)])
    phases = [Phase("x", (size,), n, pattern) for pattern in ("allreduce", "gather", "push", "pull", "shift")]
    for group, stride in ((n, 1), (leaf * leaves, local)):
        own = [group_view(place, group, stride) for place in (plain, milder, worse)]
        times = [collective_seconds(sizes, view, TYPICAL)[0][0] for view in own]
        assert times == sorted(times)
    spread = [alltoall_seconds(sizes, place, TYPICAL)[0][0] for place in (plain, milder, worse)]
    assert spread == sorted(spread)
    table = np.stack([phase_seconds(loads(phases, p.places), p, TYPICAL)[0] for p in (plain, milder, worse)])
    assert (np.diff(table, axis=0) >= -1e-15).all()


def test_a_ring_crosses_a_leaf_once_and_an_all_to_all_all_the_time() -> None:
    plain, blocked = cluster(4, 8), cluster(4, 8, leaf_nodes=4, oversubscription=4.0)
    size = np.array([1e9])
    assert collective_seconds(size, plain, TYPICAL)[0] == collective_seconds(size, blocked, TYPICAL)[0]
    # Of a leaf's 16 devices half of all bytes leave it, with a quarter of the bandwidth: 16 * 16 * 4 against 4 * 28.
    ratio = alltoall_seconds(size, blocked, TYPICAL)[0] / alltoall_seconds(size, plain, TYPICAL)[0]
    assert ratio[0] == pytest.approx(4 * 16 * 4 / (4 * 28), rel=0.02)


def test_neighbouring_stages_on_two_leaves_share_the_links_up() -> None:
    blocked = cluster(4, 8, leaf_nodes=4, oversubscription=4.0)
    assert pairs_between(cluster(4, 8), 16, 0, 1)[1:] == (4, True)
    assert pairs_between(blocked, 16, 0, 1)[1:] == (16, True)
    assert pairs_between(blocked, 8, 0, 1)[1:] == (4, True), "both stages lie below one leaf switch"


def test_pairs_of_uneven_nodes() -> None:
    assert pairs_between(cluster((1, 7)), 4, 0, 1)[1:] == (1, True)
    assert pairs_between(cluster((4, 8)), 4, 1, 2)[2] is False


def test_groups_within_uneven_nodes_are_seen_and_others_refused() -> None:
    place = cluster((4, 8))
    assert group_view(place, 12, 1) == place
    assert (group_view(place, 4, 1).world_size, group_view(place, 4, 1).num_nodes) == (4, 1)
    with pytest.raises(UserError, match=r"nodes of 4\+8"):
        group_view(place, 3, 4)


@given(SIZES)
def test_a_step_on_uneven_nodes_lies_between_the_even_ones(sizes: tuple[int, ...]) -> None:
    """Of the same number of nodes, with as many devices in each as the emptiest and the fullest have."""
    net = Workload.named("resnet-18-cifar")

    def waited(place: Cluster) -> float:
        strategy = Strategy.of(world_size=place.world_size, global_batch_size=32 * place.world_size)
        return predict(net, place, strategy).exposed_comm_s

    low, own, high = (waited(cluster(s)) for s in ((min(sizes),) * len(sizes), sizes, (max(sizes),) * len(sizes)))
    assert low <= own * (1 + 1e-9) and own <= high * (1 + 1e-9)


def test_a_hierarchical_exchange_needs_equal_nodes() -> None:
    strategy = Strategy.of(world_size=8, global_batch_size=64, exchange="hierarchical", compression="int8")
    with pytest.raises(UserError, match=r"nodes of 1\+7 devices"):
        predict(Workload.named("lenet5"), cluster((1, 7)), strategy)


@pytest.mark.parametrize(
    ("place", "text"),
    [
        (cluster((1, 7)), "Nodes of 1+7 devices"),
        (cluster(2, 4, leaf_nodes=2, oversubscription=2.0), "Leaf switches have 2 nodes, oversubscribed 2 times"),
    ],
)
def test_the_answer_says_it(place: Cluster, text: str) -> None:
    strategy = Strategy.of(world_size=8, global_batch_size=64)
    assert any(text in str(a) for a in predict(Workload.named("lenet5"), place, strategy).assumptions)
