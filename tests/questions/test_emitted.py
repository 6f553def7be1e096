"""Files of ``plan --emit`` are read again: the strategy that a target writes is the strategy that ``--from`` reads."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from paceline.errors import UserError
from paceline.hardware import Cluster
from paceline.planning.emit.targets import TARGETS, emit
from paceline.questions.facts import StatedFact, combined
from paceline.questions.from_files import read_files
from paceline.questions.joined import joined_facts
from paceline.strategy import Strategy
from paceline.strategy.parallelism import MODEL
from paceline.strategy.strategy import CHOICES
from paceline.workload import Workload

USUAL = {"grad_accum_steps": 2, "precision": "bf16", "optimizer": "adamw"}
CASES: tuple[dict[str, Any], ...] = (
    {"sharding": "zero3", "recompute": "full"},
    {"sharding": "zero3", "shard_devices": 8},
    {"sharding": "zero2"},
    {"sharding": "zero1"},
    {"sharding": "ddp", "recompute": "full"},
    {"sharding": "ddp", "compression": "powersgd"},
    {"sharding": "ddp", "optimizer": "sgd"},
    {"sharding": "zero3", "offload": "weights+optimizer"},
    {"sharding": "zero2", "offload": "optimizer"},
    {"sharding": "zero3", "tensor": 4, "sequence": True, "recompute": "selective:op"},
    {"sharding": "zero3", "context": 2},
    {"sharding": "zero3", "precision": "fp8-current", "tensor": 2, "sequence": True},
    {"sharding": "distributed_optimizer", "tensor": 2, "sequence": True, "pipeline": 4, "recompute": "selective"},
    {"sharding": "distributed_optimizer", "tensor": 2, "pipeline": 2, "virtual_stages": 2, "grad_accum_steps": 4},
)
MACHINES = "2x8 H100, 400Gb/s RoCE"
LEAST = {"deepspeed": 7, "torchtune": 3, "unsloth": 1}
"""Fewest of the cases that a target writes; six for others."""


@cache
def network() -> Workload:
    return Workload.named("llama-3-8b", 4096)


def read_again(text: str, place: Path) -> tuple[dict[str, Any], list[str]]:
    """The choices that a file states on the machines, and what is not understood."""
    place.write_text(text, encoding="utf-8")
    reading = read_files([str(place)])
    facts, _ = combined(reading.facts)
    kept = {name: fact for name, fact in facts.items() if name not in ("nodes", "devices_per_node", "world_size", "device")}
    found, _ = joined_facts({**kept, "cluster": StatedFact("cluster", MACHINES, "", "")})
    stated = {name: fact.value for name, fact in found.items() if name in CHOICES}
    model = 1
    for name in MODEL:
        model *= int(stated.get(name, 1))
    if "micro_batch_size" in found:
        each = int(found["micro_batch_size"].value) * 16 // model
        stated.setdefault("global_batch_size", each * int(stated.get("grad_accum_steps", 1)))
        stated.setdefault("grad_accum_steps", int(stated["global_batch_size"]) // each)
    return stated, reading.unknown


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_and_from_are_inverse(target: str, tmp_path: Path) -> None:
    written = 0
    for case in CASES:
        strategy = Strategy.of(world_size=16, global_batch_size=128, **{**USUAL, **case})
        try:
            text = emit(target, strategy, network(), Cluster.named(MACHINES))
        except UserError:
            continue  # the target has no such choice
        written += 1
        stated, unknown = read_again(text, tmp_path / "file")
        found = Strategy.of(world_size=16, **stated).to_json()
        wanted = strategy.to_json()
        open_choices = {name for name in found if name not in wanted}  # such as the optimizer's kernels
        if not strategy.parallelism.to_owners and target in ("megatron", "nemo"):  # their one option means both
            open_choices.add("sharding") if case["sharding"] == "zero1" else None
        assert {name: value for name, value in found.items() if name not in open_choices} == {
            name: value for name, value in wanted.items() if name not in open_choices
        }, case
        assert unknown == [], case
    assert written >= LEAST.get(target, 6)
