"""An upgrade: what it gains is the ratio of two predictions, in money that of their prices."""

from __future__ import annotations

import json
import math

import pytest

from paceline.errors import UserError
from paceline.hardware import Cluster, cluster
from paceline.planning import Change, parse_change, whatif
from paceline.planning.compare.changes import apply
from paceline.prediction import predict
from paceline.reporting.pages.answer_page import whatif_page
from paceline.reporting.text.planning_text import whatif_screen
from paceline.strategy import COMPRESSIONS, Strategy
from paceline.workload import Workload

RESNET = Workload.named("resnet-50")
TWO = cluster("V100", 8, 2, "10Gb/s")
PLAIN = Strategy.of(world_size=16, global_batch_size=1024, precision="fp16")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nodes-2", "keep at least 1"),
        ("nodes=few", "not a whole number"),
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
    found = whatif(RESNET, TWO, PLAIN, changes, prices={"": 3.0}, upgrade_price="$0/h")
    assert [one.title for one in found.outcomes] == ["as it is", "network=100Gb/s", "nodesx2", "all together"]
    for one in found.outcomes:
        p = predict(RESNET, one.cluster, one.strategy)
        assert one.prediction.step_time_s == p.step_time_s
        assert one.speedup == pytest.approx(p.samples_per_s / found.base.prediction.samples_per_s)
        assert one.speedup_low <= one.speedup <= one.speedup_high
        assert one.usd_per_hour == pytest.approx(3.0 * one.cluster.world_size)
        assert one.usd == pytest.approx(one.usd_per_hour / 3600 * found.priced_samples / p.samples_per_s)
        ends = (one.usd * t / p.step_time_s for t in (p.low_s, p.high_s))
        assert (one.usd_low, one.usd_high) == pytest.approx(tuple(ends)) and one.usd_low < one.usd < one.usd_high
    assert found.unit == "epoch" and found.priced_samples == 1_281_167
    assert found.base.speedup_low == found.base.speedup_high == 1
    assert found.together and found.together.cluster.num_nodes == 4
    assert json.loads(json.dumps(found.to_json()))["changes"][0]["title"] == "network=100Gb/s"


@pytest.mark.parametrize(("scaling", "batch"), [("strong", 1024), ("weak", 2048)])
def test_scaling_is_strong_or_weak_and_said(scaling: str, batch: int) -> None:
    found = whatif(RESNET, TWO, PLAIN, [parse_change("nodesx2"), parse_change("network=25Gb/s")], scaling=scaling)  # type: ignore[arg-type]
    nodes, network = found.changes
    assert (nodes.scaling, nodes.strategy.global_batch_size) == (scaling, batch)
    assert network.scaling == "" and network.strategy.global_batch_size == 1024


def test_a_batch_that_does_not_divide_becomes_the_nearest_that_does() -> None:
    found = whatif(RESNET, TWO, PLAIN, [parse_change(t) for t in ("nodes+1", "network=100Gb/s", "device=H100-SXM")])
    nodes, network, device = found.changes
    assert nodes.strategy.global_batch_size == 1032 and found.together and found.together.strategy.global_batch_size == 1032
    assert nodes.speedup == pytest.approx(
        1032 / nodes.prediction.step_time_s / (1024 / found.base.prediction.step_time_s)
    )  # of samples, not of steps
    for one in (nodes, found.together):
        assert one.batch_note == "global batch 1032 instead of 1024, which does not divide among 24 workers"
        assert any("1032 instead of 1024" in said for said in one.to_json()["assumptions"])
    assert not network.batch_note and not device.batch_note and not found.base.batch_note


def test_a_batch_that_is_given_must_divide() -> None:
    changes = [parse_change("nodes+1"), parse_change("global-batch=2048")]
    with pytest.raises(UserError, match="does not divide among 24 workers"):
        apply(changes, TWO, PLAIN, "strong")
    answer = whatif(RESNET, TWO, PLAIN, changes)
    assert answer.together is None and len(answer.changes) == 2
    assert "does not divide among 24 workers" in answer.impossible["all together"]


def test_an_impossible_change_is_said_and_the_others_are_answered() -> None:
    answer = whatif(RESNET, TWO, PLAIN, [parse_change(t) for t in ("nodesx2", "servers=17", "global-batch=1000")])
    assert [outcome.title for outcome in answer.outcomes] == ["as it is", "nodesx2"]
    assert list(answer.impossible) == ["servers=17", "global-batch=1000", "all together"]
    assert answer.to_json()["impossible"]["servers=17"].startswith("17 servers among 16 workers")
    assert "servers=17: impossible: 17 servers among 16" in " ".join(whatif_screen(answer).text().split())
    assert whatif_page(answer).findings[1].startswith("servers=17: impossible: ")
    with pytest.raises(UserError, match="17 servers among 16 workers"):
        whatif(RESNET, TWO, PLAIN, [parse_change("servers=17")])


def test_a_batch_that_other_replicas_need_is_said() -> None:
    before = Strategy.of(world_size=16, global_batch_size=24, tensor=4, pipeline=2, grad_accum_steps=4, precision="fp16")
    gpt = Workload.named("gpt2")
    pipeline, network = whatif(gpt, TWO, before, [parse_change("pipeline=1"), parse_change("network=100Gb/s")]).changes
    assert pipeline.batch_note == "global batch 16 instead of 24, which does not divide among 4 replicas in 4 micro steps"
    assert pipeline.scaling == network.batch_note == ""
    given = whatif(gpt, TWO, before, [parse_change("global-batch=48")]).changes[0]
    assert not given.batch_note


@pytest.mark.parametrize("compression", [name for name in COMPRESSIONS if name != "dense"])
def test_every_compression_says_what_is_known_of_its_accuracy(compression: str) -> None:
    found = whatif(RESNET, TWO, PLAIN, [parse_change(f"compression={compression}")])
    assert any("accuracy" in said.lower() and "unknown" in said for said in found.changes[0].assumptions)
    assert not any("ccuracy" in said for said in found.base.assumptions)


def test_servers_come_with_their_exchange_and_go_with_another() -> None:
    served = Strategy.of(world_size=16, global_batch_size=1024, exchange="parameter_server", servers=2)
    for before, text, after in (
        (PLAIN, "servers=4", ("parameter_server", 4)),
        (served, "serversx2", ("parameter_server", 4)),
        (served, "exchange=ring", ("ring", 1)),
        (served, "exchange=parameter_server", ("parameter_server", 2)),
        (served, "compression=terngrad", ("sharded", 1)),
        (served, "global-batch=2048", ("parameter_server", 2)),
    ):
        if text == "exchange=ring":
            before = before.changed(compression="int8", exchange="parameter_server")
        _, strategy, _ = apply([parse_change(text)], TWO, before, "strong")
        assert (strategy.gradient_exchange.exchange.name, strategy.gradient_exchange.servers) == after
    found = whatif(RESNET, TWO, served, [parse_change("servers=4")])
    assert found.changes[0].speedup > 1, "less comes through each server's link"
    with pytest.raises(UserError, match="17 servers among 16 workers"):
        whatif(RESNET, TWO, served, [parse_change("servers=17")])


def test_on_fewer_workers_than_servers_every_worker_serves() -> None:
    """Each number of devices has its point, with as many of the servers as there are workers."""
    base = PLAIN.changed(exchange="parameter_server", servers=12)
    for line in whatif(RESNET, TWO, base, [Change("nodes", "+", "1")]).scaling.values():
        workers = [p.strategy["world_size"] for p in line]
        assert workers[:5] == [1, 2, 4, 8, 16]
        assert [p.strategy["servers"] for p in line] == [min(12, n) for n in workers]


@pytest.mark.parametrize(
    ("nodes", "text"),
    [
        (2, "nodes+0"),
        (2, "network=10Gb/s"),
        (2, "exchange=allreduce"),
        (1, "network=100Gb/s"),  # which nothing uses
        (1, "exchange=hierarchical"),
    ],
)
def test_what_changes_nothing_gains_exactly_nothing(nodes: int, text: str) -> None:
    before = cluster("V100", 8, nodes, "10Gb/s"), PLAIN.changed(world_size=8 * nodes)
    (one,) = whatif(RESNET, *before, [parse_change(text)]).changes
    assert (one.speedup_low, one.speedup, one.speedup_high) == (1, 1, 1)


@pytest.mark.parametrize("before", ["1Gb/s", "10Gb/s", "25Gb/s"])
def test_a_link_that_is_nowhere_worse_cannot_lose(before: str) -> None:
    slow, fast = cluster("V100", 8, 2, before), cluster("V100", 8, 2, "100Gb/s")
    (up,) = whatif(RESNET, slow, PLAIN, [parse_change("network=100Gb/s")]).changes
    assert 1 <= up.speedup_low <= up.speedup < up.speedup_high
    (down,) = whatif(RESNET, fast, PLAIN, [parse_change(f"network={before}")]).changes
    assert down.speedup_low < down.speedup <= down.speedup_high <= 1
    both = whatif(RESNET, slow, PLAIN, [parse_change(t) for t in ("network=100Gb/s", "global-batch=2048")]).together
    assert both and both.speedup_low == pytest.approx(both.speedup**2 / both.speedup_high)  # not of the link alone


def test_what_two_predictions_share_does_not_blur_their_ratio() -> None:
    changes = [parse_change("network=InfiniBand EDR"), parse_change("device=A100")]
    for speed, where_the_step_waits in (("10Gb/s", "network"), ("100Gb/s", "compute")):
        found = whatif(RESNET, cluster("V100", 8, 2, speed), PLAIN, changes)
        network, device = found.changes
        base = found.base.prediction
        wide = {"network": network.speedup_high / network.speedup_low, "compute": device.speedup_high / device.speedup_low}
        assert wide["network"] < (base.high_s / base.low_s) ** 2
        assert max(wide, key=lambda name: wide[name]) == where_the_step_waits


LLAMA = Workload.named("llama-3-8b")
SHARED = Strategy.of(world_size=16, global_batch_size=16, precision="bf16", sharding="zero3")


def on(network: str) -> Cluster:
    return cluster("A100", 8, 2, network)


@pytest.mark.parametrize(("before", "after"), [("100Gb/s RoCE", "400Gb/s RoCE"), ("TCP 100G", "TCP 400G"), ("EFA 100G", "EFA")])
def test_a_faster_network_keeps_its_transport(before: str, after: str) -> None:
    (change,) = whatif(LLAMA, on(before), SHARED, [parse_change("network=400Gb/s")]).changes
    assert change.prediction.step_time_s == predict(LLAMA, on(after), SHARED).step_time_s


def test_the_gain_of_a_speed_is_given_over_both_transports() -> None:
    """Llama-3 8B on two nodes of A100: what a step from TCP to RDMA gains is no part of what 400 Gb/s gains."""
    answer = whatif(LLAMA, on("100Gb/s"), SHARED, [parse_change("network=400Gb/s")])
    assert list(answer.by_transport) == ["RDMA", "TCP"]
    for name, transport in (("RDMA", "RoCE"), ("TCP", "TCP")):
        named = whatif(LLAMA, on(f"100Gb/s {transport}"), SHARED, [parse_change("network=400Gb/s")])
        assert named.by_transport == {}
        gain = answer.by_transport[name].changes[0].speedup
        assert gain == pytest.approx(named.changes[0].speedup)
        assert 1 < gain < 2 < on("400Gb/s").network.bandwidth.value / on("100Gb/s").network.bandwidth.value
    assert answer.changes[0].speedup == answer.by_transport["TCP"].changes[0].speedup
    data = answer.to_json()["by_transport"]
    assert data["RDMA"][1]["speedup"] == answer.by_transport["RDMA"].changes[0].speedup
    assert data["RDMA"][1]["network"] == "RoCE 400 Gb/s"


def test_one_node_that_gets_a_network_is_answered_over_both() -> None:
    alone = Strategy.of(world_size=8, global_batch_size=512, precision="fp16")
    changes = [parse_change("nodesx2"), parse_change("network=25Gb/s")]
    answer = whatif(RESNET, cluster("V100", 8, 2, "10Gb/s").changed(num_nodes=2), PLAIN, changes)
    assert answer.by_transport
    single = whatif(RESNET, cluster("V100", 8, 1), alone, [parse_change("global-batch=256")])
    assert single.by_transport == {}


def test_an_upgrade_of_unknown_price_saves_nothing() -> None:
    changes = [parse_change(t) for t in ("network=400Gb/s", "nodesx2", "precision=fp16")]
    answer = whatif(LLAMA, on("100Gb/s"), SHARED, changes, prices={"": 3.0})
    network, nodes, precision = answer.changes
    for upgraded in (network, answer.together):
        assert upgraded is not None
        assert math.isnan(upgraded.usd) and math.isnan(upgraded.usd_per_hour) and "price" in upgraded.price
    assert nodes.usd_per_hour == 96.0 and precision.usd_per_hour == 48.0, "listings price devices; a choice is free"
    assert math.isnan(nodes.pays_below) and math.isnan(precision.pays_below)
    assert network.pays_below == pytest.approx(48.0 * (network.speedup - 1))
    text = " ".join(whatif_screen(answer).text().split())
    assert f"it saves money if it adds less than ${network.pays_below:.2f} an hour" in text
    assert "less money" not in text.partition("network=400Gb/s: ")[2].partition("nodesx2: ")[0]


@pytest.mark.parametrize(
    ("given", "hourly"), [("$2/h", 2.0), ("$0.5/device-hour", 8.0), ("$26,298 over 1 year", 3.0), ("$0/h", 0.0)]
)
def test_an_upgrade_costs_its_price_beside_the_devices(given: str, hourly: float) -> None:
    (network,) = whatif(
        LLAMA, on("100Gb/s"), SHARED, [parse_change("network=400Gb/s")], prices={"": 3.0}, upgrade_price=given
    ).changes
    assert network.usd_per_hour == pytest.approx(48.0 + hourly) and given in network.price
    at_its_worth = whatif(LLAMA, on("100Gb/s"), SHARED, [parse_change("network=400Gb/s")], prices={"": 3.0})
    worth = f"${at_its_worth.changes[0].pays_below!r}/h"
    (even,) = whatif(
        LLAMA, on("100Gb/s"), SHARED, [parse_change("network=400Gb/s")], prices={"": 3.0}, upgrade_price=worth
    ).changes
    assert even.usd == pytest.approx(at_its_worth.base.usd)


@pytest.mark.parametrize("texts", [("nodesx2",), ("network=200Gb/s", "network=400Gb/s")])
def test_a_price_of_no_upgrade_or_of_several_is_refused(texts: tuple[str, ...]) -> None:
    with pytest.raises(UserError, match=r"a price of one upgrade for [02].*; give it with one change of the network"):
        whatif(LLAMA, on("100Gb/s"), SHARED, [parse_change(text) for text in texts], upgrade_price="$2/h")


def test_the_same_network_again_keeps_its_price() -> None:
    (same,) = whatif(LLAMA, on("100Gb/s"), SHARED, [parse_change("network=100G")], prices={"": 3.0}).changes
    assert same.usd == whatif(LLAMA, on("100Gb/s"), SHARED, [parse_change("nodes+0")], prices={"": 3.0}).base.usd
