"""A mixture of experts and its steps, for tests of what divides experts."""

from __future__ import annotations

from dataclasses import replace

from paceline import Cluster, Strategy, Workload
from paceline.prediction import Prediction, Predictor
from paceline.prediction.mesh.mesh_step import MeshStep, mesh_step
from paceline.workload import Experts, TransformerShape
from prediction_toys import FAST_HOST

EXPERTS = Experts(count=16, active=2, ffn=512)
SHAPE = TransformerShape(
    layers=4,
    hidden=1024,
    heads=16,
    vocabulary=32000,
    gated=True,
    norm="rms",
    bias=False,
    tied=False,
    positions="rotary",
    dropout=False,
    experts=EXPERTS,
)
TOKENS = 512
MIXED = Workload.from_shape(SHAPE, TOKENS, name="mixed")
DENSE = Workload.from_shape(replace(SHAPE, experts=None), TOKENS, name="dense")
A100 = Cluster.named("8 A100")
TWO_NODES = Cluster.named("2x8 A100", network="8x InfiniBand HDR")


def strategy(cluster: Cluster = A100, **choices: object) -> Strategy:
    usual = {"world_size": cluster.world_size, "global_batch_size": 32, "precision": "bf16", "optimizer": "adam"}
    return Strategy.of(**{**usual, **choices})


def step(
    cluster: Cluster = A100, workload: Workload = MIXED, predictor: Predictor | None = None, **choices: object
) -> Prediction:
    return (predictor or FAST_HOST).step(workload, cluster, strategy(cluster, **choices))


def parts(cluster: Cluster = A100, **choices: object) -> MeshStep:
    return mesh_step(FAST_HOST.model(MIXED), cluster, strategy(cluster, **choices))
