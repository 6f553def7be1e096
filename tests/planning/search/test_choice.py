"""What a plan holds: ranges around the middle, and plain numbers."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from paceline.planning import Goal, Space, TrainingTarget, plan
from paceline.workload import Workload
from prediction_toys import PRICES


def test_ranges_hold_the_middle_and_json_is_plain(toy: Workload, space: Space) -> None:
    answer = plan(toy, space, Goal("fastest"), prices=PRICES)
    for choice in (*answer.ranking, *answer.front):
        assert choice.time_low_s <= choice.time_s <= choice.time_high_s and choice.usd_low <= choice.usd <= choice.usd_high
    assert json.loads(json.dumps(answer.to_json()))["best"]["cluster"]["device"] == "fast"


def test_a_choice_adds_up(toy: Workload, space: Space) -> None:
    answer = plan(toy, space, Goal("cheapest"), TrainingTarget(total=1e7), prices=PRICES)
    assert answer.best is answer.ranking[0] and answer.best.difference == ""
    for choice in answer.ranking:
        assert sum(choice.exposed.values()) == pytest.approx(choice.time_s)
        assert choice.usd == pytest.approx(
            choice.time_s / 3600 * PRICES[choice.cluster.device.name] * choice.cluster.world_size
        )
        assert choice.to_json()["title"] == choice.title and choice.strategy.precision in choice.title


def test_the_reason_has_what_it_gives_up(toy: Workload, space: Space) -> None:
    best = plan(toy, space, Goal("fastest"), prices=PRICES).ranking[0]
    plain = replace(best, difference="", preference="")
    assert plain.reason == f"waits for {best.prediction.bottleneck} most"
    assert replace(plain, difference="10% slower").reason == "10% slower"
    assert replace(plain, preference="preferred").reason == f"{plain.reason}; preferred"
    assert plain.to_json()["recipe"] is None and plain.to_json()["meets"] is None
