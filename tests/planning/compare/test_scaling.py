"""Speed against the number of devices: with the micro batch kept, and with the global batch kept where it divides."""

from __future__ import annotations

import pytest

from paceline.planning import Goal, Space, TrainingTarget, plan
from paceline.planning.compare.scaling import curves, scaling
from paceline.prediction import Predictor
from paceline.strategy import Strategy
from paceline.workload import Workload
from prediction_toys import make_cluster

WEAK, STRONG = "weak: the batch grows", "strong: the batch stays"


def test_weak_scaling_keeps_the_micro_batch_and_strong_the_global_one(toy: Workload) -> None:
    strategy = Strategy.of(world_size=8, global_batch_size=256)
    lines = scaling(toy, make_cluster(4, 2), strategy, Predictor())
    devices = [1, 2, 4, 8, 12, 16]
    assert [p.strategy["world_size"] for p in lines[WEAK]] == devices
    assert [p.strategy["global_batch_size"] for p in lines[WEAK]] == [32 * n for n in devices]
    assert [p.strategy["world_size"] for p in lines[STRONG]] == [n for n in devices if 256 % n == 0]
    assert {p.strategy["global_batch_size"] for p in lines[STRONG]} == {256}
    data = curves(lines)
    assert set(data) == {"weak", "strong"}
    assert all(p["low_s"] <= p["step_time_s"] <= p["high_s"] for line in data.values() for p in line)
    speeds = [p["samples_per_s"] for p in data["weak"]]
    assert speeds[0] == pytest.approx(32 / data["weak"][0]["step_time_s"])
    assert max(speed / n for speed, n in zip(speeds, devices, strict=True)) == pytest.approx(speeds[0]), "never above linear"


def test_a_line_of_one_point_is_left_out(toy: Workload) -> None:
    machine, strategy = make_cluster(1, 1), Strategy.of(world_size=1, global_batch_size=1)
    lines = scaling(toy, machine, strategy, Predictor())
    assert [[p.strategy["world_size"] for p in line] for line in lines.values()] == [[1, 2]] and WEAK in lines
    assert scaling(toy, machine.changed(network=machine.intra_link), strategy, Predictor()) == {}, "no network to grow over"


def test_a_hierarchical_exchange_is_plain_inside_a_node(toy: Workload) -> None:
    strategy = Strategy.of(world_size=4, global_batch_size=64, exchange="hierarchical", ranks_per_node=2)
    line = scaling(toy, make_cluster(2, 2), strategy, Predictor())[WEAK]
    assert [p.strategy["exchange"] for p in line] == ["allreduce", "allreduce", *["hierarchical"] * (len(line) - 2)]


def test_servers_are_never_more_than_workers(toy: Workload) -> None:
    strategy = Strategy.of(world_size=4, global_batch_size=64, exchange="parameter_server", servers=3)
    line = scaling(toy, make_cluster(1, 4), strategy, Predictor())[WEAK]
    assert [p.strategy["servers"] for p in line] == [min(3, p.strategy["world_size"]) for p in line]


def test_a_plan_s_scaling_is_on_the_clusters_of_its_ranking(toy: Workload) -> None:
    """The cheapest is one device: two of them share its node, as in the ranking, and no network."""
    clusters = tuple(make_cluster(local, n, network=1e7) for local, n in ((1, 1), (2, 1), (4, 1), (4, 2)))
    space = Space(clusters=clusters, batches=(64,), compressions=("dense",), shardings=("ddp",), accumulations=(1,))
    answer = plan(toy, space, Goal("fastest"), TrainingTarget(total=1e6))
    line = {p.strategy["world_size"]: p for p in answer.scaling[STRONG]}
    assert sorted(line) == [1, 2, 4, 8]
    for choice in answer.by_devices:
        same = Predictor().step(toy, choice.cluster, answer.best.strategy.changed(world_size=choice.cluster.world_size))
        assert line[choice.cluster.world_size].samples_per_s == pytest.approx(same.samples_per_s)
    assert line[2].exposed.get("network", 0.0) == 0.0
    alone = plan(toy, Space(clusters=clusters[:1], batches=(64,)), Goal("fastest"), TrainingTarget(total=1e6))
    assert alone.scaling == {}, "one number of devices is no line"
