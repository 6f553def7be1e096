"""What the devices of a group wait for within the passes."""

from __future__ import annotations

from paceline import Cluster, Strategy, Workload
from paceline.prediction import Predictor
from paceline.workload import TransformerShape

GPT = Workload.from_shape(TransformerShape(layers=8, hidden=2048, heads=16, vocabulary=1024), 1024)
ON = Cluster.named("8 A100")


def test_a_zero_bubble_pipeline_hides_no_collective_beside_the_gradients_of_weights() -> None:
    waits = []
    for schedule in ("1f1b", "zero_bubble"):
        strategy = Strategy.of(
            world_size=8,
            tensor=2,
            pipeline=4,
            grad_accum_steps=8,
            global_batch_size=16,
            precision="bf16",
            schedule=schedule,
        )
        waits.append(Predictor().step(GPT, ON, strategy).exposed["intra-node link"])
    assert waits[1] > waits[0] > 0
