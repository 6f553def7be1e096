"""An asynchronous job from the catalogue: bounds by hand, the range, and what it does not know."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from facts import facts
from paceline.calibration.constants import TYPICAL
from paceline.errors import UserError
from paceline.hardware import Cluster, device
from paceline.planning.compare.asynchronous import LAB, MOST_PARTS, AsyncPrediction, parts, predict_asynchronous
from paceline.prediction import ORDINARY, Observation, fit, predict
from paceline.prediction.asynchronous.profile import Profile
from paceline.prediction.asynchronous.result import AsyncResult
from paceline.prediction.asynchronous.simulate import simulate
from paceline.prediction.passes.compute import optimizer_seconds
from paceline.strategy import OPTIMIZERS, Strategy
from paceline.workload import Workload
from prediction_toys import make_cluster, make_workload

TOY = make_workload(flops=1e10)  # 16 MB in four layers


def job(nodes: int = 4, **choice: Any) -> Strategy:
    return Strategy.of(**{"world_size": nodes, "global_batch_size": 8 * nodes, "optimizer": "sgd", **choice})


def run(nodes: int = 4, servers: int = 1, place: Cluster | None = None, **more: Any) -> AsyncPrediction:
    return predict_asynchronous(TOY, place or make_cluster(1, nodes), job(nodes), servers, **more)


def test_on_a_fast_network_the_workers_add_up_and_their_spread_is_that_of_a_step() -> None:
    found = run(place=make_cluster(1, 4, network=1e13))
    alone = found.worker
    assert found.result.limit == "worker compute"
    assert found.result.samples_per_s == pytest.approx(4 * alone.samples_per_s, rel=0.1)
    wide = found.result.high_samples_per_s / found.result.low_samples_per_s
    assert wide >= 0.99 * alone.high_s / alone.low_s, "a job is not known better than one of its workers"


def test_a_server_s_updates_of_all_parts_take_what_the_optimizer_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes and launches of the whole network, however many parts it is simulated as."""
    profiles: list[Profile] = []

    def kept(profile: Profile, *given: Any, **more: Any) -> AsyncResult:
        profiles.append(profile)
        return simulate(profile, *given, **more)

    monkeypatch.setattr("paceline.planning.compare.asynchronous.simulate", kept)
    place = make_cluster(1, 2)
    run(2, place=place)
    sized = [part for part in profiles[0].layers if part.size]
    memory, launches = optimizer_seconds(OPTIMIZERS["sgd"], TOY.num_parameters, len(TOY.parameters), place.device, TYPICAL)
    assert launches > 0 and len(sized) == 4
    assert sum(profiles[0].update_s_per_byte * part.size for part in sized) == pytest.approx(memory)
    assert len(sized) * profiles[0].update_s == pytest.approx(launches)


@pytest.mark.long
def test_on_a_slow_network_the_servers_links_are_all() -> None:
    one, two = run(8, 1, make_cluster(1, 8, network=1e7)), run(8, 2, make_cluster(1, 8, network=1e7))
    assert one.result.limit == two.result.limit == "server network"
    bound = 1e7 * TYPICAL.link_share["ethernet"] / 16e6
    assert 0.75 * bound < one.result.updates_per_s < 1.05 * bound
    assert two.result.updates_per_s == pytest.approx(2 * one.result.updates_per_s, rel=0.15)
    assert one.result.high_samples_per_s / one.result.samples_per_s > math.exp(TYPICAL.sigmas.network)


def test_staleness_is_a_distribution_and_its_cost_is_unknown() -> None:
    found = run(8)
    data = json.loads(json.dumps(found.to_json()))
    assert sum(data["staleness"]) == pytest.approx(1) and 0 < data["mean_staleness"] <= 7.5
    assert 0 <= data["median_staleness"] <= data["p90_staleness"] <= data["max_staleness"] == len(data["staleness"]) - 1
    assert data["staleness_effect"] is None and any("staleness" in a and "unknown" in a for a in data["assumptions"])
    for name in ("median", "p90"):
        share = {"median": 0.5, "p90": 0.9}[name]
        k = data[f"{name}_staleness"]
        assert sum(data["staleness"][:k]) < share <= sum(data["staleness"][: k + 1]) + 1e-9


def test_beside_it_stands_the_same_job_in_step() -> None:
    place = make_cluster(1, 4)
    found = run(place=place)
    beside = predict(TOY, place, job())
    assert found.synchronous.step_time_s == beside.step_time_s and found.synchronous.strategy == beside.strategy
    assert found.strategy == {**beside.strategy, "exchange": "parameter_server", "servers": found.result.servers}
    assert found.speedup == pytest.approx(found.result.samples_per_s / beside.samples_per_s)


def test_a_worker_keeps_no_state_of_the_optimizer() -> None:
    place = make_cluster(1, 2)
    momentum = predict_asynchronous(TOY, place, job(2, optimizer="momentum"))
    assert momentum.worker.memory["optimizer state"] == 0
    assert momentum.synchronous.memory["optimizer state"] == 16e6
    small = predict_asynchronous(TOY, make_cluster(1, 2, memory=1e7), job(2))
    assert small.headline.startswith("DOES NOT FIT") and not small.to_json()["fits"]


def test_a_slow_server_holds_all_back() -> None:
    slow = replace(device("Xeon"), memory_bandwidth=replace(device("Xeon").memory_bandwidth, value=1e9))
    found = run(8, place=make_cluster(1, 8, network=1e13), server_device=slow)
    assert found.result.limit == "server update" and found.cluster["server_device"] == slow.name


def test_observed_steps_correct_the_worker() -> None:
    one, place = make_cluster(1, 1, network=1e13), make_cluster(1, 4, network=1e13)
    alone = job(1)
    seen = Observation(workload=TOY, cluster=one, strategy=alone, step_s=2 * predict(TOY, one, alone).step_time_s)
    plain, learnt = run(place=place), run(place=place, predictor=fit([seen]))
    assert learnt.result.samples_per_s == pytest.approx(plain.result.samples_per_s / 2, rel=0.15)
    width = [x.result.high_samples_per_s / x.result.low_samples_per_s for x in (plain, learnt)]
    assert width[1] < width[0]


@pytest.mark.parametrize("name", ["lenet5", "resnet-50", "bert-base"])
def test_parts_keep_the_bytes_and_the_seconds(name: str) -> None:
    net = Workload.named(name)
    alone = Strategy.of(world_size=1, global_batch_size=8, recompute=True)
    made = parts(ORDINARY.model(net), alone, device("V100"), 2.0)
    assert len(made) <= max(MOST_PARTS, 1) or len(net.layers) <= MOST_PARTS
    assert sum(part.size for part in made) == pytest.approx(4 * net.num_parameters)
    plain = parts(ORDINARY.model(net), alone.changed(recompute=False), device("V100"), 1.0)
    forward, doubled = (sum(sum(p.forward_s) for p in some) for some in (plain, made))
    assert doubled == pytest.approx(2 * forward)
    if name == "bert-base":
        assert sum(sum(p.backward_s) for p in made) > 2 * sum(sum(p.backward_s) for p in plain)


@pytest.mark.parametrize(
    ("choice", "shape", "servers", "said"),
    [
        ({"compression": "bf16"}, (1, 4), 1, "asynchronous training with compression bf16 cannot be predicted"),
        ({"exchange": "ring"}, (1, 4), 1, "with exchange ring"),
        ({"sharding": "zero2"}, (1, 4), 1, "with sharding zero2"),
        ({"grad_accum_steps": 2}, (1, 4), 1, "with 2 micro steps"),
        ({}, (2, 2), 1, "2 asynchronous workers on one network link"),
        ({}, (1, 4), 0, "0 servers"),
        ({}, (1, 4), 5, facts("5 servers", "4 parts", "toy", "at most 4")),
    ],
)
def test_what_it_does_not_know_is_said(choice: dict[str, Any], shape: tuple[int, int], servers: int, said: str) -> None:
    with pytest.raises(UserError, match=said):
        predict_asynchronous(TOY, make_cluster(*shape), job(4, **choice), servers)


def test_a_network_is_needed_and_workers_have_an_end() -> None:
    place = make_cluster(1, 1)
    with pytest.raises(UserError, match="no network to their servers"):
        predict_asynchronous(TOY, place.changed(network=place.intra_link), job(1))
    with pytest.raises(UserError, match="129 asynchronous workers"):
        predict_asynchronous(TOY, make_cluster(1, 129), job(129))


def test_the_error_that_it_states_is_that_of_the_lab() -> None:
    with (Path(__file__).parents[3] / "benchmarks/results/async_lab.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    missed = [abs(float(row["error"])) for row in rows]
    several = [row for row in rows if float(row["staleness"])]
    stale = [abs(float(row["predicted_staleness"]) / float(row["staleness"]) - 1) for row in several]
    throughput, staleness = sum(missed) / len(missed), sum(stale) / len(stale)
    assert (
        f"missed the throughput of {len(rows)} emulated jobs by {throughput:.1%} and their mean staleness by {staleness:.1%} ("
        in LAB
    )
    assert LAB in run(2).assumptions


def test_workers_that_exchange_vectors_in_step_are_refused() -> None:
    cluster = Cluster.named("2x1 A100", network="10Gb/s")
    strategy = Strategy.of(world_size=2, global_batch_size=512)
    with pytest.raises(UserError, match=facts("dlrm", "in step")):
        predict_asynchronous(Workload.named("dlrm"), cluster, strategy)
