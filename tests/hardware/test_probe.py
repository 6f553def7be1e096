"""Measuring this machine: the numbers are plausible, the result survives JSON, and what a worker's end is called."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import paceline
import warm_python
from paceline import hardware
from paceline.hardware import probe
from paceline.hardware.cluster import Cluster
from paceline.workload import Workload

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(paceline.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
names = st.sampled_from([device.name for device in hardware.devices()])


@given(names, st.integers(1, 16), st.integers(1, 512), st.sampled_from(["10Gb/s", "8x InfiniBand HDR", "37Gb/s"]))
def test_a_cluster_survives_json(name: str, devices: int, nodes: int, network: str) -> None:
    inside = hardware.cluster(name, 1, 1, network).intra_link
    cluster = hardware.cluster(name, min(devices, inside.joins or devices), nodes, network)
    plain = cluster.changed(
        device=replace(cluster.device, aliases=()),
        intra_link=replace(cluster.intra_link, aliases=()),
        network=replace(cluster.network, aliases=()),
    )
    back = Cluster.from_json(json.loads(json.dumps(asdict(plain))))
    assert back.world_size == cluster.world_size
    assert back.device.peak_flops == cluster.device.peak_flops and back.device.matmul_flops == cluster.device.matmul_flops
    assert (back.device.memory, back.device.memory_bandwidth) == (cluster.device.memory, cluster.device.memory_bandwidth)
    assert (back.network.bandwidth, back.network.latency) == (cluster.network.bandwidth, cluster.network.latency)
    assert [(level.name, level.size, level.link) for level in back.levels] == [
        (level.name, level.size, level.link) for level in plain.levels
    ]
    before_levels = {
        "device": asdict(plain.device),
        "devices_per_node": plain.devices_per_node,
        "num_nodes": plain.num_nodes,
        "intra_link": asdict(plain.intra_link),
        "network": asdict(plain.network),
    }
    assert Cluster.from_json(json.loads(json.dumps(before_levels))) == back


@pytest.fixture(scope="module")
def probed() -> dict[str, Any]:
    """What ``paceline hardware probe --workers 2 --json`` prints, once for this file."""
    command = [warm_python.executable(), "-m", "paceline", "hardware", "probe", "--workers", "2", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=warm_python.ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1 and "Traceback" not in done.stderr
    data: dict[str, Any] = json.loads(done.stdout)
    return data


@pytest.mark.long
def test_the_probe_counts_its_ranks(probed: dict[str, Any]) -> None:
    cluster = Cluster.from_json(probed)
    assert (cluster.devices_per_node, cluster.num_nodes, cluster.world_size) == (2, 1, 2)
    assert "2 ranks" in cluster.device.name or cluster.device.kind == "gpu"
    assert cluster.intra_link == cluster.network and cluster.device.link == cluster.network.name


def test_the_probed_numbers_are_plausible(probed: dict[str, Any]) -> None:
    cluster = Cluster.from_json(probed)
    rate = cluster.device.matmul_flops["fp32"].value
    assert 1e8 < rate < 1e15, "FLOP/s of one rank"
    assert cluster.device.peak_flops["fp32"].value == rate
    assert 1e8 < cluster.device.memory_bandwidth.value < 2e13, "bytes/s"
    assert 1e8 < cluster.device.memory.value < 1e14, "bytes of one rank's share"
    assert 1e6 < cluster.network.bandwidth.value < 2e13, "bytes/s"
    assert 1e-7 < cluster.network.latency.value < 1, "seconds"


def test_every_probed_number_says_where_it_is_from(probed: dict[str, Any]) -> None:
    cluster = Cluster.from_json(probed)
    facts = [cluster.device.memory, cluster.device.memory_bandwidth, *cluster.device.matmul_flops.values()]
    for fact in (*facts, cluster.network.bandwidth, cluster.network.latency):
        assert "measured here with 2 ranks at once" in fact.source
        assert len(fact.date) == len("2026-01-02")


def test_machines_of_known_speed_are_measured_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four ranks on two nodes, by a clock that a product, a copy and an all-reduce by ring move on: a copy reads and writes."""
    import torch
    import torch.distributed as dist

    ranks, product_s, copy_s, latency, bandwidth = 4, 2e-3, 1e-2, 1e-4, 1e9
    now = [0.0]

    def pass_by(seconds: float) -> None:
        now[0] += seconds

    def reduce(buffer: torch.Tensor) -> None:
        pass_by(2 * (ranks - 1) * (latency + buffer.nbytes / ranks / bandwidth))
        buffer.mul_(ranks)

    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setattr(probe, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(torch, "mm", lambda *given, **out: pass_by(product_s))
    monkeypatch.setattr(torch.Tensor, "copy_", lambda *given: pass_by(copy_s))
    monkeypatch.setattr(dist, "get_world_size", lambda: ranks)
    monkeypatch.setattr(dist, "barrier", lambda: None)
    monkeypatch.setattr(dist, "all_reduce", reduce)
    cluster = probe.probe_cluster(torch.device("cpu"))
    monkeypatch.undo()
    assert (cluster.devices_per_node, cluster.num_nodes) == (2, 2)
    assert cluster.device.matmul_flops["fp32"].value == pytest.approx(2 * probe.MATMUL**3 / product_s)
    assert cluster.device.memory_bandwidth.value == pytest.approx(2 * probe.COPY_BYTES / copy_s)
    assert cluster.network.latency.value == pytest.approx(latency, rel=0.01)
    assert cluster.network.bandwidth.value == pytest.approx(bandwidth, rel=0.01)
    assert cluster.device.memory.value == pytest.approx(probe.memory_bytes() / 2)


def test_a_probe_is_good_enough_to_predict_with(probed: dict[str, Any]) -> None:
    cluster = Cluster.from_json(probed)
    strategy = paceline.Strategy.of(world_size=2, global_batch_size=64)
    prediction = paceline.predict(Workload.named("lenet5"), cluster, strategy)
    assert 0 < prediction.low_s <= prediction.step_time_s <= prediction.high_s
    assert any("measured" in line for line in prediction.assumptions)
