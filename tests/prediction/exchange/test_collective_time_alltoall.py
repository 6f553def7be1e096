"""All-to-alls against closed forms."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from expert_toys import A100, TWO_NODES
from paceline import Cluster
from paceline.calibration.constants import efficiency
from paceline.prediction.exchange.collective_time import alltoall_seconds


def test_an_all_to_all_inside_a_node_takes_what_its_link_needs() -> None:
    e = efficiency("ordinary")
    (seconds,), (far,) = alltoall_seconds(np.array([8e8]), A100, e)
    simple = e.protocols[-1]
    moved = (7 + simple.copy["nvlink"]) * 1e8 / simple.alltoall_share["nvlink"]
    assert not far and seconds == pytest.approx(moved / e.bandwidth(A100.intra_link), rel=0.02)
    assert alltoall_seconds(np.array([8e8]), Cluster.named("1 A100"), e)[0] == 0.0


def test_an_all_to_all_between_nodes_shares_their_network() -> None:
    e = efficiency("ordinary")
    (flat,), (far,) = alltoall_seconds(np.array([8e8]), TWO_NODES, e)
    assert far and flat == pytest.approx(8 * 4e8 / e.bandwidth(TWO_NODES.network), rel=0.02)
    # Four copies of a token reach both nodes nearly always: 2 (1 - 1/2^4) of 4 cross or stay
    (once,), _ = alltoall_seconds(np.array([8e8]), TWO_NODES, e, copies=4, once_per_node=True)
    assert once == pytest.approx(flat * 2 * (1 - 1 / 16) / 4, rel=0.02)
    (single,), _ = alltoall_seconds(np.array([8e8]), TWO_NODES, e, copies=1, once_per_node=True)
    assert single == pytest.approx(flat, rel=0.02)


def test_a_token_that_goes_to_few_nodes_crosses_the_network_less_often() -> None:
    e, cluster, sizes = efficiency("tuned"), Cluster.named("8x8 H100", network="8x InfiniBand NDR"), np.array([4e9])
    free, limited, one = (
        float(alltoall_seconds(sizes, cluster, e, copies=8, once_per_node=True, within=share)[0][0])
        for share in (1, 1 / 2, 1 / 8)
    )
    assert limited / free == pytest.approx(4 * (1 - (3 / 4) ** 8) / (8 * (1 - (7 / 8) ** 8)), rel=0.02)
    assert one < limited  # one node: NVLink sets the time


@given(st.floats(0, 1e10), st.floats(1.0, 2.0), st.booleans(), st.floats(1, 16))
def test_more_bytes_never_take_less(size: float, more: float, once: bool, copies: float) -> None:
    e = efficiency("tuned")
    least, most = alltoall_seconds(np.array([size, size * more]), TWO_NODES, e, copies=copies, once_per_node=once)[0]
    assert 0 < least <= most


def test_latency_of_an_all_to_all_grows_with_its_messages() -> None:
    e = efficiency("ordinary")
    seconds = [
        alltoall_seconds(np.zeros(1), Cluster.named(f"{nodes}x8 A100", network="InfiniBand HDR"), e)[0][0]
        for nodes in (2, 4, 16)
    ]
    assert seconds == sorted(seconds) and seconds[2] > 4 * seconds[0]


@pytest.mark.parametrize(("nodes", "rate"), [(2, 43e9), (4, 58e9)])
def test_a_token_once_to_each_node_takes_what_deepep_measured(nodes: int, rate: float) -> None:
    """DeepEP, docs/legacy.md: H800 with 400 Gb/s each, 4,096 tokens of 7,168 numbers in fp8 with their scales, 8 experts each.

    Its rate counts the nodes that a token reaches, its own too (tests/test_internode.py). Two nodes are held up by NVLink: it
    also passes on what came from the other node.
    """
    h800 = Cluster.named(f"{nodes}x8 H100", network="8x InfiniBand NDR")
    nvlink = replace(h800.intra_link, bandwidth=replace(h800.intra_link.bandwidth, value=200e9))
    h800 = h800.changed(intra_link=nvlink)
    token = 7168 * (1 + 4 / 128)
    measured = 4096 * nodes * (1 - (1 - 1 / nodes) ** 8) * token / rate
    sizes = np.array([4096 * 8 * token])
    (seconds,), (far,) = alltoall_seconds(sizes, h800, efficiency("tuned"), copies=8, once_per_node=True)
    assert seconds == pytest.approx(measured, rel=0.15) and far == (nodes == 4)


def test_a_token_once_to_each_device_of_a_node_takes_what_deepep_measured() -> None:
    """The same source: 153 GB/s inside a node of H800, of what devices receive, their own too (tests/test_intranode.py)."""
    h800 = Cluster.named("8 H100")
    nvlink = replace(h800.intra_link, bandwidth=replace(h800.intra_link.bandwidth, value=200e9))
    h800 = h800.changed(intra_link=nvlink)
    received = 4096 * 8 * (1 - (1 - 1 / 8) ** 8) * 7168 * (1 + 4 / 128)
    sizes = np.array([4096.0 * 8 * 7168 * (1 + 4 / 128)])
    (seconds,), _ = alltoall_seconds(sizes, h800, efficiency("tuned"), copies=8, once_per_node=True)
    (plain,), _ = alltoall_seconds(sizes, h800, efficiency("tuned"), copies=8)
    assert seconds == pytest.approx(received / 153e9, rel=0.1) and seconds < plain
