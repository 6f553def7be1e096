"""Sentences on the host, and the bytes in its memory."""

from __future__ import annotations

import pytest

from paceline import Cluster, Strategy, Workload
from paceline.calibration.constants import TYPICAL
from paceline.prediction.answer.offload_assumptions import host_bytes, offload_assumptions
from paceline.strategy.frameworks import FRAMEWORKS

NET, ON = Workload.named("gpt3-1.3b"), Cluster.named("8 A100")


def strategy(offload: str) -> Strategy:
    choices = {"precision": "bf16", "optimizer": "adam", "sharding": "zero3", "recompute": "full", "offload": offload}
    return Strategy.of(world_size=8, global_batch_size=16, **choices)  # type: ignore[arg-type]


def test_the_host_holds_18_bytes_a_parameter_and_the_activations_of_a_micro_batch() -> None:
    state = host_bytes(NET, strategy("optimizer"))
    assert state == pytest.approx(18 * NET.num_parameters / 8)  # as DeepSpeed's estimate for one copy of the weights
    inputs = 24 * 2 * 2048 * 2048 * 2
    assert host_bytes(NET, strategy("optimizer+checkpoints")) - state == pytest.approx(inputs, rel=0.01)
    assert host_bytes(NET, strategy("none")) == 0


def test_what_is_said() -> None:
    assert not [*offload_assumptions(NET, ON, strategy("none"), TYPICAL)]
    said = [*offload_assumptions(NET, ON, strategy("weights+optimizer"), TYPICAL)]
    assert said[0].startswith("Weights+optimizer in the host's memory, 22.") and "DGX A100, 51.2 GB/s" in said[1]
    assert "CPU-Adam" in said[2]
    loop = TYPICAL.under(FRAMEWORKS["accelerate"])
    fsdp = [*offload_assumptions(NET, ON, strategy("weights+optimizer"), loop)]
    assert "loop of PyTorch's operations" in fsdp[2]
    assert len([*offload_assumptions(NET, ON, strategy("activations"), TYPICAL)]) == 2
    desktop, large = Cluster.named("8 RTX 4090"), Workload.named("llama-2-70b")
    said = [*offload_assumptions(large, desktop, strategy("weights+optimizer"), TYPICAL)]
    assert said[0].endswith("which are taken to be there. Such a host usually has 1020 GiB.")
