"""Collectives against closed forms, and against a sum over all pairs of ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.prediction.efficiency import TYPICAL
from paceline.prediction.network import direct_load, phase_cost
from paceline.strategy.exchange import Phase, busiest_sent
from prediction_toys import IDEAL, make_cluster


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
    for source in range(n):
        for target in range(n):
            if source == target:
                continue
            size = phase.shards[target] if phase.name == "push" else phase.shards[source]
            if source // per_node == target // per_node:
                egress[source] += size
                ingress[target] += size
            else:
                out[source // per_node] += size
                into[target // per_node] += size
    return max(egress + ingress), max(out + into)


@given(st.integers(1, 4), st.integers(1, 4), st.sampled_from(["push", "pull"]), st.data())
def test_direct_load_is_the_sum_over_pairs(per_node, nodes, name, data):
    n = per_node * nodes
    shards = tuple(data.draw(st.lists(st.integers(0, 1000), min_size=n, max_size=n)))
    load = direct_load(shards, per_node)
    assert (load.intra, load.network) == brute_force(Phase(name, shards, n), per_node)


def test_parameter_server_is_an_incast_at_its_node(ideal):
    # 6 of 8 ranks are on other nodes and each sends everything to rank 0's node.
    phase = Phase("push", (10**6, 0, 0, 0, 0, 0, 0, 0), 8)
    assert direct_load(phase.shards, 2).network == 6 * 10**6
    assert phase_cost(phase, make_cluster(2, 4), ideal).seconds == pytest.approx(6e6 / 1e9 + 6 * 2e-5)


def test_messages_in_flight_share_their_latency():
    phase = Phase("push", (0,) * 8, 8)
    eight = replace(IDEAL, concurrent_messages=4)
    assert phase_cost(phase, make_cluster(1, 8), eight).seconds == pytest.approx(2 * 2e-5)


def test_one_rank_waits_for_nobody(ideal):
    for name in ("allreduce", "push"):
        assert phase_cost(Phase(name, (10**6,), 1), make_cluster(1, 1), ideal).seconds == 0


@given(st.sampled_from(["allreduce", "push", "pull"]), st.integers(1, 4), st.integers(1, 5), st.floats(1, 100), st.data())
def test_a_faster_network_is_never_slower(name, per_node, nodes, factor, data):
    n = per_node * nodes
    count = 1 if name == "allreduce" else n
    shards = tuple(data.draw(st.lists(st.integers(0, 10**8), min_size=count, max_size=count)))
    phase = Phase(name, shards, n)
    slow, fast = (phase_cost(phase, make_cluster(per_node, nodes, network=b), TYPICAL).seconds for b in (1e8, 1e8 * factor))
    assert fast <= slow


@given(st.integers(2, 6), st.data())
def test_sent_bytes_is_that_of_the_busiest_rank(n, data):
    sizes = st.lists(st.integers(0, 10**6), min_size=n, max_size=n)
    phases = [
        Phase("scales", (data.draw(st.integers(0, 100)),), n),
        Phase("push", tuple(data.draw(sizes)), n),
        Phase("pull", tuple(data.draw(sizes)), n),
    ]
    assert busiest_sent(phases) == max(sum(p.sent(rank) for p in phases) for rank in range(n))
    assert busiest_sent([]) == 0
