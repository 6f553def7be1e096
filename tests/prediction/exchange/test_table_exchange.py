"""Embedding tables divided among all devices: what a step waits for, and what each device holds."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from paceline.errors import UserError
from paceline.hardware import Cluster
from paceline.prediction import Predictor
from paceline.strategy import Strategy
from paceline.workload import Workload

DLRM = Workload.named("dlrm")
WITHOUT = replace(DLRM, tables=None)
PREDICTOR = Predictor()


def strategy(devices: int, **choices: object) -> Strategy:
    return Strategy.of(world_size=devices, global_batch_size=8192 * devices, precision="fp16", optimizer="sgd", **choices)


def test_one_device_exchanges_nothing() -> None:
    cluster = Cluster.named("1 A100")
    own, none = (PREDICTOR.step(w, cluster, strategy(1)).step_time_s for w in (DLRM, WITHOUT))
    assert own == pytest.approx(none)


def test_vectors_travel_all_to_all_twice() -> None:
    cluster = Cluster.named("8 A100")
    own, none = (PREDICTOR.step(w, cluster, strategy(8)) for w in (DLRM, WITHOUT))
    sent = 8192 * 26 * 128 * 2 * 7 / 8  # at 16 bits; a device keeps an eighth
    least = 2 * sent / cluster.intra_link.bandwidth.value
    wait = own.step_time_s - none.step_time_s
    assert least < wait < 3 * least
    assert own.exposed["intra-node link"] - none.exposed["intra-node link"] == pytest.approx(wait, rel=0.2)
    free = PREDICTOR.without("intra-node link")
    assert free.step(DLRM, cluster, strategy(8)).step_time_s == pytest.approx(
        free.step(WITHOUT, cluster, strategy(8)).step_time_s
    )


def test_vectors_count_as_bytes_on_the_wire_and_follow_the_links() -> None:
    cluster = Cluster.named("8 A100")
    own, none = (PREDICTOR.step(w, cluster, strategy(8)) for w in (DLRM, WITHOUT))
    assert any("all-to-alls" in str(note) for note in own.assumptions)
    assert not any("all-to-alls" in str(note) for note in none.assumptions)
    model = PREDICTOR.model(DLRM)
    step, rest = model.step(cluster, strategy(8)), PREDICTOR.model(WITHOUT).step(cluster, strategy(8))
    assert step.wire_bytes - rest.wire_bytes == 2 * 8192 * 26 * 128 * 2 * 7 // 8
    wait = own.step_time_s - none.step_time_s
    assert step.seconds_with_links(1, 3) - step.seconds == pytest.approx(2 * wait, rel=0.3)


def test_a_slow_network_is_waited_for() -> None:
    near, far = Cluster.named("8 A100"), Cluster.named("2x4 A100", network="10Gb/s")
    waits = [
        PREDICTOR.step(DLRM, c, strategy(8)).step_time_s - PREDICTOR.step(WITHOUT, c, strategy(8)).step_time_s
        for c in (near, far)
    ]
    assert waits[1] > 10 * waits[0]
    assert PREDICTOR.step(DLRM, far, strategy(8)).bottleneck == "network"


def test_each_device_holds_its_part() -> None:
    held = {n: PREDICTOR.step(DLRM, Cluster.named(f"{n} A100"), strategy(n)).memory["embedding tables"] for n in (1, 8)}
    assert DLRM.tables is not None and held[1] == 4 * DLRM.tables.elements == 8 * held[8]
    second = Workload.named("dlrm-dcnv2")
    assert second.tables is not None
    adagrad = PREDICTOR.step(second, Cluster.named("8 A100"), strategy(8)).memory["embedding tables"]
    assert adagrad == pytest.approx(4 * second.tables.elements * (1 + 1 / 128) / 8)
    assert not any(key == "embedding tables" for key in PREDICTOR.step(WITHOUT, Cluster.named("8 A100"), strategy(8)).memory)


def test_many_are_as_each() -> None:
    clusters = [Cluster.named("8 A100"), Cluster.named("2x4 A100", network="10Gb/s"), Cluster.named("4 A100")]
    candidates = [(c, strategy(c.world_size)) for c in clusters]
    steps = PREDICTOR.many(DLRM, candidates)
    for (cluster, choice), seconds, size in zip(candidates, steps.step_s, steps.memory_bytes, strict=True):
        step = PREDICTOR.step(DLRM, cluster, choice)
        assert (seconds, size) == (pytest.approx(step.step_time_s), pytest.approx(step.memory_bytes))


def test_groups_of_devices_are_refused_in_one_line() -> None:
    with pytest.raises(UserError, match="tables are divided among all devices already; give tensor=1"):
        PREDICTOR.step(DLRM, Cluster.named("8 A100"), strategy(8, tensor=2))


@pytest.mark.parametrize("text", ["8 A100", "2x4 A100"])
@pytest.mark.parametrize("steps", [1, 2])
def test_what_is_waited_for_vectors_is_exposed_communication_everywhere(text: str, steps: int) -> None:
    cluster = Cluster.named(text, network="10Gb/s" if "x" in text else None)
    own, none = (PREDICTOR.step(w, cluster, strategy(8, grad_accum_steps=steps)) for w in (DLRM, WITHOUT))
    links = sum(own.exposed[name] for name in ("network", "intra-node link", "codec"))
    assert own.exposed_comm_s == pytest.approx(links)
    assert own.compute_s == pytest.approx(own.step_time_s - links)
    alone = [p.compute_s - p.exposed["stragglers"] for p in (own, none)]
    assert alone[0] == pytest.approx(alone[1], rel=1e-3)
    bars = sum(event.duration_s for event in own.timeline if event.name.startswith("alltoall "))
    assert own.comm_s - none.comm_s == pytest.approx(bars)
    for p in (own, none):
        assert p.comm_s == pytest.approx(sum(e.duration_s for e in p.timeline if e.lane == "network"))
    computed = [sum(e.duration_s for e in p.timeline if e.lane == "compute") - p.exposed["stragglers"] for p in (own, none)]
    assert computed[0] == pytest.approx(computed[1], rel=1e-3)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize(
    ("name", "rows"), [("dlrm", "by SGD, .* keeps no state"), ("dlrm-dcnv2", "by row-wise Adagrad, .* numbers of state")]
)
def test_an_assumption_says_what_updates_the_rows(name: str, rows: str, optimizer: str) -> None:
    choice = strategy(8).changed(optimizer=optimizer)
    p = PREDICTOR.step(Workload.named(name), Cluster.named("8 A100"), choice)
    assert any(re.search(rows, note) and "--optimizer is that of the other" in note for note in p.assumptions)
    tables = Workload.named(name).tables
    assert tables is not None and p.memory["embedding tables"] == 4 * tables.elements * (1 + tables.state) / 8
