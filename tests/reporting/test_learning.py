"""What text and page say of rate, batch and skipped steps; of layers see ``test_trust_history``."""

from __future__ import annotations

from typing import Any

import samples
from paceline.record import RunRecord
from paceline.reporting import render_report
from paceline.reporting.learning import noise_curve, sentences
from paceline.rundir import RunDirContents
from paceline.strategy.recipe import Recipe


def record(scales: tuple[float | None, ...], **change: Any) -> RunRecord:
    curve = tuple({**entry, "noise_scale": s} for entry, s in zip(samples.record("dense").curve, scales, strict=False))
    recipe = Recipe(optimizer="lars", lr=4.0, total_steps=300, warmup_steps=20, source="linear scaling from 1 at batch 64")
    return samples.record("dense", **{"curve": curve, "recipe": recipe.to_json(), **change})


def test_a_noise_scale_says_what_the_batch_cost() -> None:
    found = {"low": 100.0, "high": 900.0, "batch": 256.0, "critical_batch": 256.0, "steps_factor": 2.0}
    run = record((100.0, None, 900.0), batch_efficiency={**found, "samples_factor": 2.0, "wasted_share": 0.5}, skipped_steps=2)
    text = " ".join(sentences(run, None))
    for part in (
        "lars, rate 4 after 20 of 300 steps, decay of power 2 to 0 (linear scaling from 1 at batch 64)",
        "100 to 900 samples in 2 of 3 epochs",
        "about 256 (a rough estimate: McCandlish et al. 2018",
        "At a batch of 256 the run took 2.00 times the least steps",
        "saved 50.0 % of the work",
        "2 steps changed nothing",
    ):
        assert part in text
    page = render_report(RunDirContents(records={"dense": run}))
    assert "from 100 to 900 at a batch of 256" in page and "saved 50.0 % of the work" in page


def test_what_is_not_known_is_said_or_left_out() -> None:
    assert sentences(samples.record("dense"), None) == [] and noise_curve({"dense": samples.record("dense")}) == ""
    unknown = record((None, None), recipe={"lr": "no recipe"})
    assert [line.partition(".")[0] for line in sentences(unknown, None)] == [
        "Learning rate: the record's recipe cannot be read",
        "Noise scale: unknown",
    ]
