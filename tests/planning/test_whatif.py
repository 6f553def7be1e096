"""An upgrade: what it gains is the ratio of two predictions, in money that of their prices."""

from __future__ import annotations

import json

import pytest

from paceline.errors import UserError
from paceline.hardware import cluster
from paceline.planning import Change, parse_change, whatif
from paceline.planning.whatif import apply
from paceline.prediction import predict
from paceline.strategy import Strategy
from paceline.workload import workload

RESNET = workload("resnet-50")
TWO = cluster("V100", 8, 2, "10Gb/s")
PLAIN = Strategy(world_size=16, global_batch_size=1024, precision="fp16")


@pytest.mark.parametrize(
    ("text", "change"),
    [
        ("nodes+1", Change("nodes", "+", "1")),
        ("nodesx2", Change("nodes", "x", "2")),
        ("devices-per-node=4", Change("devices-per-node", "=", "4")),
        ("network=8x InfiniBand HDR", Change("network", "=", "8x InfiniBand HDR")),
        ("device=H100-SXM", Change("device", "=", "H100-SXM")),
        ("global-batch=2048", Change("global-batch", "=", "2048")),
    ],
)
def test_changes(text: str, change: Change) -> None:
    assert parse_change(text) == change and parse_change(str(change)) == change


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("notes+1", "unknown change 'notes'; nearest: nodes"),
        ("network", "unknown change 'network'"),
        ("network+1", "not a number"),
        ("nodes=", "unknown change"),
    ],
)
def test_a_change_that_is_none(text: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        parse_change(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nodes-2", "at least 1 must stay"),
        ("nodes=few", "not a whole number"),
        ("nodes+1", "does not divide among 24 workers"),
        ("device=H1000", "H100"),
        ("compression=terngrat", "terngrad"),
        ("recompute=maybe", "yes"),
    ],
)
def test_a_change_that_cannot_be(text: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        whatif(RESNET, TWO, PLAIN, [parse_change(text)])


def test_each_by_itself_and_all_together() -> None:
    changes = [parse_change(t) for t in ("network=100Gb/s", "nodesx2")]
    found = whatif(RESNET, TWO, PLAIN, changes, prices={"": 3.0})
    assert [one.title for one in found.outcomes] == ["as it is", "network=100Gb/s", "nodesx2", "all together"]
    for one in found.outcomes:
        p = predict(RESNET, one.cluster, one.strategy)
        assert one.prediction.step_time_s == p.step_time_s
        assert one.speedup == pytest.approx(p.samples_per_s / found.base.prediction.samples_per_s)
        assert one.speedup_low <= one.speedup <= one.speedup_high
        assert one.usd_per_hour == pytest.approx(3.0 * one.cluster.world_size)
        assert one.usd == pytest.approx(one.usd_per_hour / 3600 * found.amount / p.samples_per_s)
    assert found.unit == "epoch" and found.amount == 1_281_167
    assert found.base.speedup_low == found.base.speedup_high == 1
    assert found.together and found.together.cluster.num_nodes == 4
    assert json.loads(json.dumps(found.to_json()))["changes"][0]["title"] == "network=100Gb/s"


@pytest.mark.parametrize(("scaling", "batch"), [("strong", 1024), ("weak", 2048)])
def test_scaling_is_strong_or_weak_and_said(scaling: str, batch: int) -> None:
    found = whatif(RESNET, TWO, PLAIN, [parse_change("nodesx2"), parse_change("network=25Gb/s")], scaling=scaling)  # type: ignore[arg-type]
    nodes, network = found.changes
    assert (nodes.scaling, nodes.strategy.global_batch_size) == (scaling, batch)
    assert network.scaling == "" and network.strategy.global_batch_size == 1024


def test_another_compression_comes_with_its_own_exchange() -> None:
    _, strategy, _ = apply([parse_change("compression=terngrad")], TWO, PLAIN, "strong")
    assert (strategy.compression, strategy.exchange) == ("terngrad", "sharded")


def test_what_two_predictions_share_does_not_blur_their_ratio() -> None:
    found = whatif(RESNET, TWO, PLAIN, [parse_change("network=25Gb/s"), parse_change("device=A100")])
    network, device = found.changes
    base = found.base.prediction
    assert network.speedup_high / network.speedup_low < (base.high_s / base.low_s) ** 2
    assert device.speedup_high / device.speedup_low > network.speedup_high / network.speedup_low
