"""One device's part of every layer: groups of one change nothing, and the waits are those of the collectives."""

from __future__ import annotations

import numpy as np
import pytest

from paceline import Cluster, Strategy, Workload
from paceline.errors import UserError
from paceline.prediction import Predictor
from paceline.prediction.mesh.divided_layers import divide, shared_layers
from paceline.prediction.mesh.group_collectives import group_work
from paceline.strategy import Parallelism
from paceline.workload import TransformerShape

GPT = Workload.from_shape(TransformerShape(layers=4, hidden=1024, heads=16, vocabulary=51200), 512)
CLUSTER = Cluster.named("2x8 A100", network="8x InfiniBand HDR")


def strategy(**choices: object) -> Strategy:
    return Strategy.of(**{"world_size": 16, "global_batch_size": 64, "precision": "bf16", "optimizer": "adam", **choices})


def test_a_device_alone_has_the_layers_whole() -> None:
    assert shared_layers(GPT, Parallelism()) == (GPT, (), frozenset())
    model = Predictor().model(GPT)
    own = divide(model, CLUSTER, strategy(pipeline=2))
    alone = model.passes(CLUSTER.device, strategy(pipeline=2))
    assert own.workload is GPT and not own.collectives
    assert all(np.array_equal(a.total, b.total) for a, b in zip(own.passes, alone, strict=True))


@pytest.mark.parametrize(
    "choices", [{"tensor": 4}, {"tensor": 8, "sequence": True}, {"context": 4}, {"tensor": 2, "context": 2}]
)
def test_passes_wait_for_their_collectives_and_no_longer(choices: dict[str, object]) -> None:
    chosen = strategy(**choices)
    own = divide(Predictor().model(GPT), CLUSTER, chosen)
    seconds, far = own.waits
    waited = sum(float(np.sum(part.near) + np.sum(part.far)) for part in own.passes)
    assert len(seconds) == len(own.collectives) == len(far)
    assert 0 < waited <= seconds.sum() + 1e-12
    work = group_work(own.collectives, seconds, chosen)
    times = chosen.parallelism.micro_batches
    assert sum(s for s, _ in work.values()) == pytest.approx(times * seconds.sum())
    assert all(moved > 0 for _, moved in work.values())


def test_heads_that_do_not_divide_are_refused() -> None:
    with pytest.raises(UserError, match="heads"):
        shared_layers(Workload.named("gpt2"), Parallelism(tensor=8))
