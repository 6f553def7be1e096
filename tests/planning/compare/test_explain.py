"""What holds a step back: a resource less never makes it longer, what was hidden comes to light, and runs stand beside."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import samples
from command import answer
from paceline.chrome_trace import read_chrome_trace
from paceline.errors import UserError
from paceline.hardware import cluster
from paceline.planning import explain
from paceline.prediction import ORDINARY, predict
from paceline.prediction.bottleneck import resource_speedups
from paceline.rundir import RunDir
from paceline.strategy import Strategy
from paceline.workload import Workload

RESNET = Workload.named("resnet-50")
LINKS = ("1Gb/s", "100Gb/s")
WAYS = [
    Strategy.of(world_size=16, global_batch_size=1024),
    Strategy.of(world_size=16, global_batch_size=1024, compression="int8"),
    Strategy.of(world_size=16, global_batch_size=1024, sharding="zero3", recompute=True, grad_accum_steps=2),
    Strategy.of(world_size=16, global_batch_size=1024, compression="terngrad", exchange="hierarchical"),
]


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("way", WAYS, ids=lambda s: f"{s.gradient_exchange}-{s.parallelism.sharding.name}")
def test_resource_speedups(way: Strategy, link: str) -> None:
    machines = cluster("V100", 8, 2, link)
    p = predict(RESNET, machines, way)
    found = resource_speedups(ORDINARY, RESNET, machines, way)
    assert {r.resource for r in found} == {name for name, seconds in p.exposed.items() if seconds > 0}
    assert found[0].resource == p.bottleneck
    for r in found:
        assert r.before_s == pytest.approx(p.step_time_s)
        assert r.step_time_s <= r.before_s * (1 + 1e-9) and r.speedup >= 1 - 1e-9
        assert r.bottleneck != r.resource
        if (
            way.parallelism.sharding.name == "ddp" and way.gradient_exchange.compression.name == "dense"
        ):  # what was hidden comes to light, so no more is gained than was waited
            gone = p.exposed[r.resource] + p.exposed["stragglers"]  # less work, less of it that the slowest is behind
            assert r.before_s - r.step_time_s <= gone * (1 + 1e-6) + 1e-9


def test_without_the_network_a_step_is_that_of_an_endless_one() -> None:
    """The closed form: a link of no latency and no end of bandwidth."""
    way = WAYS[0]
    machines = cluster("V100", 8, 2, "1Gb/s")
    gone = next(r for r in resource_speedups(ORDINARY, RESNET, machines, way) if r.resource == "network")
    endless = replace(
        machines.network,
        bandwidth=replace(machines.network.bandwidth, value=1e30),
        latency=replace(machines.network.latency, value=0.0),
    )
    assert gone.step_time_s == pytest.approx(predict(RESNET, machines.changed(network=endless), way).step_time_s, rel=0.02)


def test_it_says_what_and_what_next() -> None:
    found = explain(RESNET, cluster("V100", 8, 2, "1Gb/s"), WAYS[0])
    assert found.sentence.startswith("network is the bottleneck") and "next bottleneck" in found.sentence
    assert sum(seconds for _, seconds in found.waits) == pytest.approx(found.prediction.step_time_s)
    data = json.loads(json.dumps(found.to_json()))
    assert data["if_gone"][0]["resource"] == data["bottleneck"] == "network"
    weak = data["scaling"]["weak"]
    assert [p["devices"] for p in weak] == sorted(p["devices"] for p in weak) and weak[0]["devices"] == 1
    assert 16 in [p["devices"] for p in weak]


def test_a_measured_run_stands_beside(tmp_path: Path) -> None:
    record = replace(samples.record("terngrad"), workload="resnet-50")
    RunDir(tmp_path).add_record("terngrad", record)
    found = explain(RESNET, cluster("V100", 8, 2, "1Gb/s"), WAYS[3], str(tmp_path))
    assert found.measured and found.measured.step_time_s == record.step_time_s
    timelines = read_chrome_trace(found.trace())
    assert set(timelines) == {"predicted", "measured"} and len(timelines["measured"]) == len(record.timeline)
    with pytest.raises(UserError, match="has no run of vgg-16; it has resnet-50"):
        explain(Workload.named("vgg-16"), cluster("V100", 8, 2, "1Gb/s"), WAYS[0], str(tmp_path))
    with pytest.raises(UserError, match="no run directory"):
        explain(RESNET, cluster("V100", 8, 2, "1Gb/s"), WAYS[0], str(tmp_path / "none"))


def test_the_critical_path_says_what_waits_within_and_behind_the_passes() -> None:
    machines = cluster("A100", 8, 4, "25Gb/s")
    way = Strategy.of(world_size=32, global_batch_size=1024, precision="bf16", sharding="zero3")
    shared = explain(RESNET, machines, way, scale=False)
    assert "of this time they wait for the exchange" in shared.path
    plain = explain(RESNET, machines, way.changed(sharding="ddp"), scale=False)
    assert "they wait" not in plain.path and "exposed" in plain.path


@pytest.mark.parametrize("more", ["", "--loader 900", "--software tuned"])
def test_step_and_speedups_are_of_one_model(capsys: pytest.CaptureFixture[str], tmp_path: Path, more: str) -> None:
    """Records say that steps take three times as long as the catalogue has it."""
    table = tmp_path / "jobs.csv"
    columns = "workload,device,devices_per_node,nodes,network,global_batch,step_s,sync_s"
    rows = [f"resnet-50,V100,8,2,1Gb/s,{64 * 16 * n},{1.5 * n + 2.0},{2.0}" for n in (1, 2)]
    table.write_text("\n".join([columns, *rows]) + "\n")
    job = "resnet-50 --device V100 --devices-per-node 8 --nodes 2 --network 1Gb/s --global-batch 1024"
    found = answer(capsys, f"explain {job} --records {table} {more}")
    waits = {name: seconds for name, seconds in found["exposed"].items() if seconds > 0}
    assert [one["resource"] for one in found["if_gone"]] == sorted(waits, key=lambda name: -waits[name])
    for one in found["if_gone"]:
        assert one["speedup"] == pytest.approx(found["step_time_s"] / one["step_time_s"], rel=1e-12)
        assert one["step_time_s"] <= found["step_time_s"] * (1 + 1e-9)
