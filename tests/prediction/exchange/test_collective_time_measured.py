"""Collectives inside a node against NVIDIA's measurements (ai-dynamo/aiconfigurator at 095f58a51, Apache-2.0)."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from paceline import Cluster
from paceline.calibration.constants import TYPICAL
from paceline.hardware import Level, device, link
from paceline.prediction.exchange.collective_time import alltoall_seconds, collective_seconds
from paceline.prediction.exchange.group_view import group_view
from prediction_toys import IDEAL, make_cluster

ROOT = Path(__file__).parents[3]
MIB = 1 << 20


@pytest.mark.parametrize(
    ("cluster", "operation", "size", "microseconds"),
    [
        ("8 A100", "all_gather", 512 * MIB, 2290.2),
        ("8 A100", "alltoall", 512 * MIB, 2313.8),
        ("4 H100", "reduce_scatter", 2 * MIB, 17.3),
        ("8 H100", "all_reduce", 512 * MIB, 2111.4),
        ("2 B200", "all_gather", 512, 8.4),
        ("8 B200", "all_reduce", 512 * MIB, 1340.3),
        ("4 GB200", "all_gather", 32 * MIB, 71.4),
        ("2 L40S", "all_reduce", 512 * MIB, 26700.0),
    ],
)
def test_published_times(cluster: str, operation: str, size: int, microseconds: float) -> None:
    place, sizes = Cluster.named(cluster), np.array([float(size)])
    if operation == "alltoall":
        seconds = alltoall_seconds(sizes, place, TYPICAL)[0]
    else:
        seconds = collective_seconds(sizes, place, TYPICAL, halves=operation != "all_reduce", in_place=False)[0]
    assert seconds[0] == pytest.approx(1e-6 * microseconds, rel=0.2)


def test_every_operation_and_count_on_nvlink_is_predicted_within_12_percent(monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path(os.environ.get("PACELINE_SHARED", ROOT.parent / "shared")) / "data/measured/nccl_aiconfigurator.csv.gz"
    if not path.is_file():
        pytest.skip("needs the published measurements: PACELINE_SHARED names the folder with data/measured")
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    from fit_collectives import FITTED, as_used, curves, table

    rows = [curve for curve in curves(path) if curve.link.name in FITTED]
    scores = table("seen", rows, as_used)
    assert sum(score[4] for score in scores if score[2] == "all") == 9183
    assert max(score[5] for score in scores) <= 0.12
    assert max(score[5] for score in scores if score[2] == "all") <= 0.07


def test_boards_without_peers_share_the_path_through_the_host() -> None:
    """The rate of each of N devices is at most the shared one over N; a group gets the part of its members."""
    place = make_cluster(8, 1)
    host = replace(place.intra_link, shared=replace(place.intra_link.bandwidth, value=1e10))
    slow = place.changed(intra_link=host, network=host)
    size = np.array([1e9])
    free, shared = (collective_seconds(size, on, IDEAL, halves=True)[0][0] for on in (place, slow))
    assert free == pytest.approx(7 / 8 * 1e9 / 1e10 + 7 * 5e-6)
    assert shared == pytest.approx(7 / 8 * 1e9 / (1e10 / 8) + 7 * 5e-6)
    pair = collective_seconds(size, group_view(slow, 2, 1), IDEAL, halves=True)[0][0]
    assert pair == pytest.approx(1 / 2 * 1e9 / (1e10 / 8) + 5e-6)
    (spread,), _ = alltoall_seconds(size, slow, IDEAL)
    assert spread == pytest.approx(7 / 8 * 1e9 / (1e10 / 8) + 7 * 5e-6)


@pytest.mark.parametrize("name", ["RTX 2080 Ti", "RTX 3090", "RTX 4090", "RTX 5090"])
def test_geforce_boards_pass_through_the_host_and_copy_from_it_at_full_rate(name: str) -> None:
    card = device(name)
    inside, host = link(card.link), link(card.host_link)
    assert inside.shared is not None and host.shared is None
    assert inside.bandwidth.value == host.bandwidth.value / 2 and inside.shared.value == host.bandwidth.value
    assert link(device("RTX A5000").link).shared is None


def test_bridged_pairs_share_the_path_through_the_host() -> None:
    card, size = device("RTX 3090"), np.array([1e9])
    bridge, host = link("NVLink bridge GA102"), link(card.link)
    pairs = Cluster(device=card, levels=(Level("package", 2, bridge), Level("node", 4, host)))
    seconds, between = collective_seconds(size, pairs, TYPICAL)
    assert between.all()
    assert seconds[0] == pytest.approx(2 * 7 / 8 * 1e9 / (host.shared.value / 4), rel=0.01)
    assert seconds < collective_seconds(size, Cluster.named("1x8 RTX 3090"), TYPICAL)[0]
    one, without = (Cluster.named(f"2 {name}") for name in ("RTX 3090 NVLink", "RTX 3090"))
    assert collective_seconds(size, one, TYPICAL)[0] < collective_seconds(size, without, TYPICAL)[0] / 3


def test_collectives_of_trainium_instances_take_what_aws_publishes() -> None:
    """All-gather of 32 cores of a Trn1 instance, from which the link is, and all-reduce of two instances, which no number is
    from (Neuron documentation, NCCOM-TEST user guide). Small messages between instances take longer than predicted."""
    small, large = np.array([1024.0, 65536.0]), np.array([2.0**28, 2.0**30])
    inside, _ = collective_seconds(small, Cluster.named("1x16 Trainium"), TYPICAL, halves=True)
    assert inside.tolist() == pytest.approx([151e-6, 150e-6], rel=0.05)
    between, _ = collective_seconds(large, Cluster.named("2x16 Trainium", network="EFA 800Gb/s"), TYPICAL)
    assert between.tolist() == pytest.approx([11.954e-3, 41.806e-3], rel=0.15)


def test_a_part_in_place_is_not_copied() -> None:
    place, size = Cluster.named("2 H100"), np.array([1e9])
    copied, placed = (collective_seconds(size, place, TYPICAL, halves=True, in_place=there)[0][0] for there in (False, True))
    simple = TYPICAL.protocols[-1]
    assert copied - placed == pytest.approx(simple.copy["nvlink"] * 5e8 / TYPICAL.bandwidth(place.intra_link))
