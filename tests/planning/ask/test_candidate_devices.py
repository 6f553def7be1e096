"""The devices that are planned on are the cheapest by the sample and the fastest, and the answer is that of all."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.hardware.prices import VARIABLE
from paceline.planning.ask.candidate_devices import CHEAPEST, FASTEST, JOINED, compared, promising, samples_per_s
from paceline.planning.ask.rentals import rentals
from paceline.planning.ask.training_question import TrainingQuestion
from paceline.planning.search.goal import Goal
from paceline.planning.search.training_target import TrainingTarget
from paceline.prediction import ORDINARY
from paceline.workload import Workload

GPT2 = TrainingQuestion(Workload.named("gpt2"), TrainingTarget(total=1e6), None, ORDINARY)


def test_speed_is_that_of_one_busy_device() -> None:
    h100, l4 = (samples_per_s(GPT2, name) for name in ("H100 SXM", "L4"))
    assert h100 > 3 * l4 > 0
    assert (
        samples_per_s(TrainingQuestion(GPT2.workload, GPT2.target, None, ORDINARY, {"precision": "fp8"}), "V100 SXM2 16GB") == 0
    )


@pytest.mark.long
def test_few_devices_are_tried_and_the_cheapest_of_all_is_among_them() -> None:
    every = [x for x in rentals(nodes=(1,)) if x.cluster.devices_per_node in (1, 8)]
    few = promising(GPT2, every)
    names = {x.cluster.device.name for x in few}
    assert len(names) <= CHEAPEST + JOINED + FASTEST and len(names) < len({x.cluster.device.name for x in every}) / 3
    single = [x for x in every if x.cluster.world_size == 1]
    costs = {}
    for rental in single[::2]:
        if best := GPT2.rented([rental]).plain([rental.cluster], Goal("cheapest")):
            costs[rental.cluster.device.name] = best.best.usd
    kept = [usd for name, usd in costs.items() if name in names]
    assert min(kept, default=0.0) == min(costs.values())


def test_the_users_own_listings_are_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text('[[price]]\ndevice = "T4"\nprovider = "us"\nusd_per_device_hour = 9.0\ndate = "2026-11-21"\n')
    monkeypatch.setenv(VARIABLE, str(mine))
    assert "T4" in {x.cluster.device.name for x in promising(GPT2, rentals(nodes=(1,)))}


def test_several_nodes_are_compared_with_what_is_let_with_a_network() -> None:
    names = ["MI350X", "H200", "B200", "H100 SXM"]
    assert "MI350X" not in compared(GPT2, names, (8, 8)) and "MI350X" in compared(GPT2, names, (8,))
    assert "GH200" in compared(GPT2, ["GH200"], (1,)) and not compared(GPT2, ["GH200"], (2,))  # let one by one
