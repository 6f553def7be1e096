"""Sentences about how the work is divided."""

from __future__ import annotations

import pytest

from paceline import Strategy, Workload
from paceline.prediction.division_assumptions import division_assumptions
from prediction_toys import make_workload


def texts(workload: Workload | None = None, **choices: object) -> str:
    whole = {"world_size": 8, "global_batch_size": 32, "optimizer": "adam", **choices}
    found = workload or make_workload(layers=6, blocks=2)
    return " ".join(str(line) for line in division_assumptions(found, Strategy.of(**whole)))


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"sharding": "zero3", "shard_devices": 4}, "4 neighbours share out one copy (HSDP)."),
        ({"recompute": "full"}, "runs 3 blocks again. Only their inputs are kept."),
        ({"recompute": "full", "recompute_layers": 2}, "runs 2 blocks again."),
        ({"recompute": "selective"}, "Selective recomputation changes nothing: the network has no core_attn in its blocks."),
        ({"pipeline": 2, "grad_accum_steps": 4, "schedule": "zero_bubble"}, "schedule zero_bubble"),
    ],
)
def test_every_choice_is_said(choices: dict[str, object], words: str) -> None:
    assert words in texts(**choices)


def test_the_whole_group_is_no_hsdp() -> None:
    assert "HSDP" not in texts(sharding="zero3", shard_devices=8)
