"""Collectives against closed forms, and against a sum over all pairs of ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.calibration.constants import TYPICAL, Efficiency
from paceline.hardware import Cluster
from paceline.hardware import cluster as named_cluster
from paceline.prediction.exchange.collective_time import (
    ALGORITHMS,
    collective_seconds,
    loads,
    phase_load,
    phase_seconds,
)
from paceline.strategy import COMPRESSIONS, BucketPlan
from paceline.strategy.phase import Pattern, Phase, busiest_sent
from prediction_toys import IDEAL, every_message, make_cluster
from strategy_toys import describe


class PhaseCost(NamedTuple):
    """Seconds of one collective and the level that sets them."""

    seconds: float
    level: str


def phase_cost(phase: Phase, cluster: Cluster, efficiency: Efficiency) -> PhaseCost:
    seconds, network = phase_seconds(loads([phase], cluster.devices_per_node), cluster, efficiency)
    return PhaseCost(float(seconds[0]), "network" if network[0] else "intra-node link")


def test_ring_of_two_is_two_messages_of_half(ideal):
    cost = phase_cost(Phase("allreduce", (10**8,), 2), make_cluster(1, 2), ideal)
    assert cost.seconds == pytest.approx(2 * 2e-5 + 10**8 / 1e9)
    assert cost.level == "network"


@given(st.integers(1, 4), st.integers(1, 8), st.integers(10**8, 10**9))
def test_big_allreduce_is_a_ring_at_the_slowest_level(per_node, nodes, size):
    n = per_node * nodes
    if n == 1:
        return
    cost = phase_cost(Phase("allreduce", (size,), n), make_cluster(per_node, nodes), IDEAL)
    bandwidth = 1e9 if nodes > 1 else 1e10
    latency = 2 * (n - nodes) * 5e-6 + 2 * (nodes - 1) * 2e-5
    assert cost.seconds == pytest.approx(2 * (n - 1) / n * size / bandwidth + latency)


def test_small_allreduce_takes_the_trees_on_a_gpu_and_the_ring_on_a_cpu(ideal):
    gpu = make_cluster(1, 64)
    cpu = replace(gpu, device=replace(gpu.device, kind="cpu"))
    phase = Phase("scales", (100,), 64)
    assert phase_cost(phase, gpu, ideal).seconds == pytest.approx(2 * 6 * 2e-5 + 200 / 1e9)
    assert phase_cost(phase, cpu, ideal).seconds == pytest.approx(2 * 63 * 2e-5 + 2 * 63 / 64 * 100 / 1e9)


def brute_force(phase: Phase, per_node: int) -> tuple[int, int]:
    """Busiest device inside nodes and busiest node, by adding up every message between two ranks."""
    n = phase.world_size
    egress, ingress = [0] * n, [0] * n
    out, into = [0] * (n // per_node), [0] * (n // per_node)
    for source, target, size in every_message(phase):
        if source // per_node == target // per_node:
            egress[source] += size
            ingress[target] += size
        else:
            out[source // per_node] += size
            into[target // per_node] += size
    return max(egress + ingress), max(out + into)


SHIFTS = st.sampled_from(["push", "pull", "shift"])


@given(st.integers(1, 4), st.integers(1, 4), SHIFTS, st.data())
def test_load_is_the_sum_over_pairs(per_node, nodes, pattern, data):
    n = per_node * nodes
    shards = tuple(data.draw(st.lists(st.integers(0, 1000), min_size=n, max_size=n)))
    kind = data.draw(st.sampled_from(["all", "node", "equal local ranks"]))
    members, stride = {"all": (n, 1), "node": (per_node, 1), "equal local ranks": (nodes, per_node)}[kind]
    phase = Phase("x", shards, n, pattern, members, stride)
    load = phase_load(phase, per_node)
    assert (load.intra, load.network) == brute_force(phase, per_node)
    pairs = [(a // per_node, b // per_node) for a, b, _ in every_message(phase)]
    assert bool(load.near) == any(a == b for a, b in pairs) or members == 1
    assert bool(load.far) == any(a != b for a, b in pairs)


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), SHIFTS, st.data())
def test_groups_need_not_be_nodes(per_group, groups, per_node, pattern, data):
    n = per_group * groups * per_node
    shards = tuple(data.draw(st.lists(st.integers(0, 1000), min_size=n, max_size=n)))
    phase = Phase("x", shards, n, pattern, per_group * per_node)
    load = phase_load(phase, per_node)
    assert (load.intra, load.network) == brute_force(phase, per_node)


def test_parameter_server_is_an_incast_at_its_node(ideal):
    # 6 of 8 ranks are on other nodes and each sends everything to rank 0's node.
    phase = Phase("push", (10**6, 0, 0, 0, 0, 0, 0, 0), 8, "push")
    assert phase_load(phase, 2).network == 6 * 10**6
    assert phase_cost(phase, make_cluster(2, 4), ideal).seconds == pytest.approx(6e6 / 1e9 + 6 * 2e-5)


@pytest.mark.parametrize("per_node", [1, 4])
def test_one_flow_of_a_ring_leaves_each_node(ideal, per_node):
    """Li et al. 2018: 2 (N-1) alpha + 2 (N-1)/N n beta, of which each of the two passes is half."""
    n, size = 4 * per_node, 10**8
    phase = Phase("reduce_scatter", ((n - 1) * size // n,), n, "shift", rounds=n - 1)
    alpha = (2e-5 + (per_node - 1) * 5e-6) / per_node
    assert phase_cost(phase, make_cluster(per_node, 4), ideal).seconds == pytest.approx(
        (n - 1) * alpha + (n - 1) / n * size / 1e9
    )


def test_a_flat_ring_of_messages_costs_what_the_engines_ring_does(ideal):
    cpu = make_cluster(2, 3)
    cpu = replace(cpu, device=replace(cpu.device, kind="cpu"))
    size = 6 * 10**6
    half = Phase("reduce_scatter", (5 * size // 6,), 6, "shift", rounds=5)
    engine = phase_cost(Phase("allreduce", (size,), 6), cpu, ideal).seconds
    latency = 2 * 5 * (2e-5 + 5e-6) / 2 - (2 * 2 * 2e-5 + 2 * 3 * 5e-6)  # 5 of 6 links, half of them network, against 2 and 3
    assert 2 * phase_cost(half, cpu, ideal).seconds == pytest.approx(engine + latency)


def test_inside_a_node_the_network_is_free(ideal):
    inner = Phase("inner_reduce", (10**6,) * 8, 8, "push", 4)
    cost = phase_cost(inner, make_cluster(4, 2, network=1.0), ideal)
    assert (cost.seconds, cost.level) == (pytest.approx(3e6 / 1e10 + 3 * 5e-6), "intra-node link")
    across = Phase("push", (10**6,) * 8, 8, "push", 2, 4)
    assert phase_cost(across, make_cluster(4, 2, intra=1.0), ideal).seconds == pytest.approx(4e6 / 1e9 + 2e-5)


def test_messages_in_flight_share_their_latency():
    phase = Phase("push", (0,) * 8, 8, "push")
    eight = replace(IDEAL, concurrent_messages=4)
    assert phase_cost(phase, make_cluster(1, 8), eight).seconds == pytest.approx(2 * 2e-5)


@pytest.mark.parametrize(("kind", "at_once"), [("gpu", 12), ("cpu", 3)])
def test_chunks_under_way_at_once_wait_for_a_long_distance_together(kind: str, at_once: int) -> None:
    phase = Phase("push", (0, 0), 2, "push", rounds=12)
    toy, seconds = make_cluster(1, 2), []
    for latency in (1e-3, 0.5):
        cluster = replace(toy, device=replace(toy.device, kind=kind))
        far = replace(cluster.network, latency=replace(cluster.network.latency, value=latency))
        seconds.append(phase_cost(phase, cluster.changed(network=far), IDEAL).seconds)
    assert seconds == pytest.approx([12 * 1e-3, 12 * 1e-3 + 12 / at_once * 0.499])


def test_one_rank_waits_for_nobody(ideal):
    for pattern in get_args(Pattern):
        assert phase_cost(Phase("x", (10**6,), 1, pattern), make_cluster(1, 1), ideal).seconds == 0


@given(st.sampled_from(get_args(Pattern)), st.integers(1, 4), st.integers(1, 5), st.floats(1, 100), st.data())
def test_a_faster_network_is_never_slower(pattern, per_node, nodes, factor, data):
    n = per_node * nodes
    count = n if pattern in ("push", "pull", "shift") else 1
    shards = tuple(data.draw(st.lists(st.integers(0, 10**8), min_size=count, max_size=count)))
    phase = Phase("x", shards, n, pattern)
    slow, fast = (phase_cost(phase, make_cluster(per_node, nodes, network=b), TYPICAL).seconds for b in (1e8, 1e8 * factor))
    assert fast <= slow


@given(st.integers(2, 6), st.data())
def test_sent_bytes_is_that_of_the_busiest_rank(n, data):
    sizes = st.lists(st.integers(0, 10**6), min_size=n, max_size=n)
    phases = [
        Phase("scales", (data.draw(st.integers(0, 100)),), n),
        Phase("push", tuple(data.draw(sizes)), n, "push"),
        Phase("pull", tuple(data.draw(sizes)), n, "pull"),
        Phase("ring", tuple(data.draw(sizes)), n, "shift"),
    ]
    assert busiest_sent(phases) == max(sum(p.sent(rank) for p in phases) for rank in range(n))
    assert busiest_sent([]) == 0


def one(size: float, place, efficiency=IDEAL, **how) -> float:
    return float(collective_seconds(np.array([size]), place, efficiency, **how)[0][0])


@pytest.mark.parametrize("pattern", ["gather", "scatter"])
def test_a_gather_or_a_scatter_is_half_of_a_ring(pattern):
    place = make_cluster(2, 4)
    whole = one(1e8, place, among=("ring",))
    assert phase_cost(Phase("x", (10**8,), 8, pattern), place, IDEAL).seconds == pytest.approx(whole / 2)


def test_hierarchical_reduces_inside_exchanges_between_gathers_inside():
    # Goyal et al. 2017, section 4: 2 (R-1)/R n inside, an all-reduce of n / R on each of R devices at once between nodes.
    place, size = make_cluster(4, 8), 1e9
    inside, between = 2 * 3 / 4 * size / 1e10, 2 * 7 / 8 * size / 1e9
    latency = 2 * 3 * 5e-6 + 2 * 7 * 2e-5
    assert one(size, place, among=("hierarchical",)) == pytest.approx(inside + between + latency)
    ring = 2 * 31 / 32 * size / 1e9
    assert one(size, place, among=("ring",)) == pytest.approx(ring + 2 * (24 + 0) * 5e-6 + 2 * 7 * 2e-5)


@pytest.mark.parametrize(("nodes", "depth"), [(1, 0), (2, 1), (5, 3), (8, 3), (9, 4)])
def test_trees_are_as_deep_as_the_nodes_are_many(nodes: int, depth: int) -> None:
    """A chain through each node, two trees between them: up and down, of the whole buffer (Sanders et al. 2009)."""
    place, size = make_cluster(4, nodes), 1e9
    latency = 2 * 3 * 5e-6 + 2 * depth * 2e-5
    assert one(size, place, among=("tree",)) == pytest.approx(2 * size / (1e9 if nodes > 1 else 1e10) + latency, rel=1e-12)


def test_a_switch_that_adds_saves_almost_half():
    place = make_cluster(8, 1)
    adds = place.changed(intra_link=replace(place.intra_link, reduces=True))
    assert one(1e9, place, among=("ring",)) == pytest.approx(1.75 * 1e9 / 1e10 + 14 * 5e-6)
    assert one(1e9, adds) == pytest.approx(9 / 8 * 1e9 / 1e10 + 2 * 5e-6)


@pytest.mark.parametrize("reduces", [False, True])
def test_a_network_that_adds_halves_what_a_node_sends(reduces: bool) -> None:
    """NCCL's CollNet: the devices of a node scatter and gather as a ring; the switches between nodes add."""
    place = make_cluster(8, 16)
    adds = place.changed(network=replace(place.network, reduces=True), intra_link=replace(place.intra_link, reduces=reduces))
    plain, sharp = (one(1e9, on, among=("ring", "tree", "switch")) for on in (place, adds))
    assert plain == pytest.approx(2 * 127 / 128 * 1e9 / 1e9, rel=0.01)
    assert sharp == pytest.approx(1e9 / 1e9, rel=0.01)


SHAPES = st.sampled_from([(8, 1), (8, 4), (1, 16)])


@given(st.floats(1, 1e9), st.floats(1, 100), SHAPES, st.sampled_from(["H100", "V100", "T4"]))
def test_more_bytes_take_longer_at_a_better_rate(size, factor, shape, device):
    place = named_cluster(device, *shape, "InfiniBand HDR")
    small, large = one(size, place, TYPICAL), one(size * factor, place, TYPICAL)
    assert small <= large * (1 + 1e-12) and large / (size * factor) <= small / size * (1 + 1e-12)
    assert one(size, place, TYPICAL) <= min(one(size, place, TYPICAL, among=(a,)) for a in ALGORITHMS[:2]) * (1 + 1e-12)


def test_small_messages_take_the_protocol_of_low_latency():
    place = named_cluster("A100", 8, 1)
    simple = replace(TYPICAL, protocols=TYPICAL.protocols[-1:])
    assert one(8, place, TYPICAL) < 0.5 * one(8, place, simple)
    assert one(1e9, place, TYPICAL) == one(1e9, place, simple)


def test_all_to_all_shares_the_card_of_the_node():
    # 4 ranks a node send to 4 others elsewhere: 16 messages leave through one card.
    cost = phase_cost(Phase("all_to_all", (10**6,), 8, "push"), make_cluster(4, 2), IDEAL)
    assert (cost.seconds, cost.level) == (pytest.approx(16e6 / 1e9 + 4 * 2e-5), "network")


@given(st.integers(2, 16), st.integers(1, 16))
def test_servers_share_what_the_workers_send(workers, servers):
    """M of N hosts serve: into each come N-1 parts of n/M, and a worker that serves no more sends n."""
    servers = min(workers, servers)
    plan, dense = BucketPlan(64 * servers * 1000, 1, 0), COMPRESSIONS["dense"]
    phases = describe(plan, dense, "parameter_server", workers, servers=servers).chunked
    n = plan.elements * 4
    busiest = max((workers - 1) / servers, 1 if servers < workers else (workers - 1) / workers) * n / 1e9
    for phase in phases:
        cost = phase_cost(phase, make_cluster(1, workers), IDEAL).seconds
        assert cost == pytest.approx(busiest + (workers - 1) * 2e-5, rel=1e-3)


def test_a_table_of_phases_costs_what_each_costs():
    place = make_cluster(2, 2)
    phases = [
        Phase("a", (10**6,), 4),
        Phase("b", (10**5, 0, 5, 10**7), 4, "push"),
        Phase("c", (10**6,) * 4, 4, "shift", rounds=3),
        Phase("d", (10**4,) * 4, 4, "pull", 2, 2),
        Phase("e", (10**8,), 4, "gather"),
        Phase("f", (7,), 4, "scatter"),
        Phase("g", (10**4,) * 4, 4, "pull", 1),
    ]
    seconds, network = phase_seconds(loads(phases, 2), place, TYPICAL)
    each = [phase_cost(phase, place, TYPICAL) for phase in phases]
    assert seconds.tolist() == [cost.seconds for cost in each]
    assert network.tolist() == [cost.level == "network" for cost in each]


def test_gloo_between_four_hosts_of_a_gigabit():
    """Four hosts of the emulated cluster at 1 Gb/s all-reduced 100 MB in 1.28 s."""
    place = named_cluster("Xeon", 1, 4, "1Gb/s")
    assert one(1e8, place, TYPICAL) == pytest.approx(1.28, rel=0.01)


def test_one_node_of_h100_as_measured():
    """NVIDIA dgxc-benchmarking, nccl/README.md @841f546: 64 KiB in 19.5 us, 16 MiB in 124 us, 1 GiB in 4.03 ms."""
    place = named_cluster("H100 SXM", 8, 1)
    for size, seconds, within in ((65536, 19.54e-6, 0.25), (1 << 24, 123.8e-6, 0.05), (1 << 30, 4.0294e-3, 0.03)):
        assert one(size, place, TYPICAL) == pytest.approx(seconds, rel=within)
