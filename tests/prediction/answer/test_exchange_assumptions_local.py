"""What a prediction of local steps says it rests on."""

from __future__ import annotations

from typing import Any

from paceline.hardware import cluster
from paceline.prediction import Predictor
from paceline.strategy import Strategy
from paceline.workload import Workload


def assumptions(**choices: Any) -> dict[str, list[str]]:
    strategy = Strategy.of(world_size=4, global_batch_size=64, **choices)
    prediction = Predictor().step(Workload.named("lenet5"), cluster("A100", 1, 4, "100Mb/s"), strategy)
    found: dict[str, list[str]] = {}
    for assumption in prediction.assumptions:
        found.setdefault(assumption.kind, []).append(str(assumption))
    return found


def test_the_samples_that_local_steps_need_are_unknown_and_what_is_published_is_named() -> None:
    said = assumptions(sync_every=32, compression="int8")["accuracy"]
    assert "unknown, not zero" in said[0] and "8 workers" in said[0] and "C4" in said[0]
    assert said[1] == "The effect of int8 on pseudo-gradients is unknown, not zero."
    assert not any("points (standard error" in text for text in said), "measured on gradients, not on pseudo-gradients"
    assert not any("local steps" in text for text in assumptions(compression="int8")["accuracy"])


def test_how_often_and_beside_what_is_said() -> None:
    said = assumptions(sync_every=32, fragments=2, sync_delay=4)
    assert any("an exchange every 32 steps, 2 fragments in turn, overlapping 4 steps" in text for text in said["exchange"])
    assert said["overlap"] == ["The exchange of a fragment overlaps 4 steps; the next one waits for the rest."]
    assert assumptions(sync_every=32)["overlap"] == [
        "The exchange begins after the last local step, and the next one waits for it."
    ]
