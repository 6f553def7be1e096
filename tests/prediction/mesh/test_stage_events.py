"""The bars of a pipeline's critical stage: its exchange, its loss and its bubble each where they are."""

from __future__ import annotations

import pytest

from paceline import Cluster, Prediction, Predictor, Strategy, Workload
from paceline.prediction.step.waits import BUBBLE, OVERLAP_LOSS
from paceline.workload import TransformerShape

NET = Workload.from_shape(TransformerShape(layers=8, hidden=1024, heads=16, vocabulary=8192), 256)


def step(software: str = "ordinary", **choices: object) -> Prediction:
    whole = {"world_size": 16, "global_batch_size": 256, "precision": "bf16", "pipeline": 4, "grad_accum_steps": 8, **choices}
    return Predictor(framework=software).step(NET, Cluster.named("2x8 A100", "100Gb/s RoCE"), Strategy.of(**whole))


def seconds(p: Prediction, name: str) -> float:
    return sum(event.duration_s for event in p.timeline if event.name == name)


@pytest.mark.parametrize("software", ["ordinary", "tuned"])
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zero_bubble"])
def test_the_bubble_is_what_the_step_waits_for_other_stages(software: str, schedule: str) -> None:
    p = step(software, schedule=schedule)
    assert seconds(p, BUBBLE) == pytest.approx(p.exposed["pipeline bubble"] + p.exposed["pipeline send"]) and p.step_time_s > 0
    computed = sum(event.duration_s for event in p.timeline if event.lane == "compute")
    assert computed == pytest.approx(p.compute_s - p.exposed["pipeline bubble"])


@pytest.mark.parametrize("sharding", ["ddp", "zero1", "zero3"])
def test_exchange_and_loss_are_what_the_step_waits_for_links(sharding: str) -> None:
    p = step(sharding=sharding)
    links = p.exposed["network"] + p.exposed["intra-node link"]
    waited = sum(event.duration_s for event in p.timeline if event.name.startswith("wait for") or event.name == OVERLAP_LOSS)
    assert waited == pytest.approx(links)
    assert 0 < seconds(p, OVERLAP_LOSS) == p.overlap_loss_s < links


def test_a_stage_without_bubbles_runs_its_passes_one_after_the_other() -> None:
    strategy = Strategy.of(
        world_size=16, global_batch_size=256, precision="bf16", pipeline=4, grad_accum_steps=8, optimizer="adam"
    )
    p = Predictor().without("pipeline bubble").step(NET, Cluster.named("2x8 A100", "100Gb/s RoCE"), strategy)
    passes = [e for e in p.timeline if e.name.startswith(("forward", "backward"))]
    ends = [event.end_s for event in passes[:-1]]
    assert [event.start_s for event in passes[1:]] == pytest.approx(ends)
