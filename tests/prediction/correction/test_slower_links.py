"""Links as slow as the waits on them: a byte and an empty message each take longer by a factor of their own."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.calibration.observation import Observation
from paceline.hardware.cluster import Cluster
from paceline.prediction.correction.link_fit import ObservedLinks, slower
from paceline.strategy import Strategy
from paceline.workload.table import Workload
from prediction_toys import make_cluster, make_link, make_workload

NET = make_workload()
FACTORS = st.floats(0, 4)


@dataclass(frozen=True)
class Wait:
    exposed_comm_s: float


def alpha_beta(workload: Workload, cluster: Cluster, strategy: Strategy) -> Wait:
    """A hundred messages of a kilobyte for each sample of a micro batch; nothing hides them."""
    link = cluster.network
    return Wait(100 * (link.latency.value + 1e3 * strategy.micro_batch_size / link.bandwidth.value))


@given(FACTORS, FACTORS, st.floats(0, 1e9))
def test_no_message_is_faster_on_a_slower_link(byte: float, message: float, size: float) -> None:
    link = make_link()
    slow = slower(link, (byte, message))
    assert slow.latency.value == pytest.approx(link.latency.value * math.exp(message))
    assert size / slow.bandwidth.value == pytest.approx(size / link.bandwidth.value * math.exp(byte))


@pytest.mark.parametrize("factors", [(0.0, 2.0), (2.0, 0.0), (1.0, 1.0), (0.0, -1.0)])
def test_waits_of_small_and_large_messages_give_both_factors(factors: tuple[float, float]) -> None:
    given = make_cluster(1, 4)
    slow = given.changed(network=make_link(1e9 * math.exp(-factors[0]), 2e-5 * math.exp(factors[1])))
    seen = []
    for micro in (1, 4, 16, 64, 256, 1024):
        strategy = Strategy.of(world_size=4, global_batch_size=4 * micro)
        wait = alpha_beta(NET, slow, strategy).exposed_comm_s
        seen.append(Observation(workload=NET, cluster=given, strategy=strategy, step_s=2 * wait, sync_s=wait))
    fitted = ObservedLinks(seen, alpha_beta).of(given).network
    assert fitted.latency.value == pytest.approx(slow.network.latency.value, rel=0.3)
    assert fitted.bandwidth.value == pytest.approx(slow.network.bandwidth.value, rel=0.3)
