"""What an answer holds, as JSON and as rows."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from paceline.hardware import Cluster
from paceline.planning import Asked, ask
from paceline.planning.ask.answer import cluster_name, cluster_text
from paceline.planning.search.training_target import TrainingTarget
from paceline.workload import Workload


@pytest.fixture(scope="module")
def asked() -> Asked:
    return ask(Workload.named("resnet-50"), Cluster.named("2x4 A100, 100Gb/s"), TrainingTarget(total=1e6))


def test_rows_are_the_choice_and_its_upgrades(asked: Asked) -> None:
    first, *others = asked.rows()
    assert (first["cluster"], first["speedup"], first["time_s"]) == ("2 x 4 A100 SXM 80GB", 1.0, asked.choice.time_s)
    assert [row["speedup"] for row in others] == [upgrade.speedup for upgrade in asked.upgrades]


def test_json_has_every_figure(asked: Asked) -> None:
    data = json.loads(json.dumps(asked.to_json()))
    assert data["choice"]["time_s"] == asked.choice.time_s
    assert [upgrade["change"] for upgrade in data["upgrades"]] == [upgrade.change for upgrade in asked.upgrades]
    assert data["fits"] is True and data["divided"] is False


def test_it_fits_where_it_was_asked_for(asked: Asked) -> None:
    assert not replace(asked, named=Cluster.named("4 A100")).fits
    assert replace(asked, named=None).fits


@pytest.mark.parametrize(("name", "text"), [("8 A100", "8 A100 SXM 80GB"), ("1+7 A100", "1+7 A100 SXM 80GB")])
def test_a_cluster_in_words(name: str, text: str) -> None:
    assert cluster_text(Cluster.named(name, None if "+" not in name else "100Gb/s")) == text


@pytest.mark.parametrize(
    "name",
    [
        "8 A100",
        "A100",
        "2x8 A100, 100Gb/s",
        "4x p5.48xlarge",
        "2x4 A100, 8x InfiniBand HDR",
        "1+7 A100, 25Gb/s RoCE",
        "1x12 T4",
    ],
)
def test_the_name_of_a_cluster_names_it(name: str) -> None:
    cluster = Cluster.named(name)
    again = Cluster.named(cluster_name(cluster))
    assert (again.node_sizes, again.device) == (cluster.node_sizes, cluster.device)
    assert again.num_nodes == 1 or (again.network.name, again.network.bandwidth.value) == (
        cluster.network.name,
        cluster.network.bandwidth.value,
    )
