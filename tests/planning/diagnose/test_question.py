"""Values of a question that causes use, and conditions."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.hardware import Cluster
from paceline.planning.compare.changes import parse_change
from paceline.planning.diagnose.question import CONDITIONS, VALUES, RunQuestion
from paceline.prediction import ORDINARY
from paceline.verbs import strategy_of
from paceline.workload import Workload


def question(name: str, machines: str, **choices: Any) -> RunQuestion:
    workload, cluster = Workload.named(name), Cluster.named(machines)
    return RunQuestion(workload, cluster, strategy_of(workload, cluster, choices, ORDINARY), ORDINARY)


TWO = question("gpt2", "2x8 A100, 8x200Gb/s InfiniBand", global_batch_size=128, grad_accum_steps=4)


@pytest.mark.parametrize(
    ("word", "first"),
    [
        ("tcp", "400Gb/s TCP"),
        ("one", "InfiniBand HDR"),
        ("pcie", "PCIe 4.0 x16"),
        ("host_path", "PCIe 4.0 x16 via host"),
        ("micro_batch", "32"),
        ("most_micro", "8"),
    ],
)
def test_values_of_two_nodes(word: str, first: str) -> None:
    assert VALUES[word](TWO)[0] == first


def test_values_that_do_not_apply() -> None:
    assert not VALUES["slower"](TWO)
    assert not VALUES["looped"](TWO)
    one = TWO.changed([parse_change("nodes=1")])
    assert not VALUES["tcp"](one) and not VALUES["one"](one)
    over_tcp = TWO.changed([parse_change("network=100Gb/s TCP")])
    assert VALUES["slower"](over_tcp)[0] == "50Gb/s TCP" and not VALUES["tcp"](over_tcp)


def test_a_link_in_the_node_is_a_change() -> None:
    slow = TWO.changed([parse_change("link=PCIe 4.0 x16 via host")])
    assert slow.cluster.intra_link.name == "PCIe 4.0 x16 via host"
    assert slow.step.step_time_s > TWO.step.step_time_s


def test_conditions() -> None:
    assert CONDITIONS["tokens"](TWO) and CONDITIONS["several"](TWO) and CONDITIONS["replicated"](TWO)
    assert not CONDITIONS["slow 16 bits"](TWO) and not CONDITIONS["compiled"](TWO)
    old = question("gpt2", "2 TITAN Xp", global_batch_size=16)
    assert CONDITIONS["slow 16 bits"](old)
