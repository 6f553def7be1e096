"""Sentences about how the work is divided."""

from __future__ import annotations

import pytest

from paceline import Strategy, Workload
from paceline.prediction.answer.division_assumptions import division_assumptions, uneven_stages
from prediction_toys import make_workload


def texts(workload: Workload | None = None, **choices: object) -> str:
    whole = {"world_size": 16, "global_batch_size": 64, "optimizer": "adam", **choices}
    network = workload or make_workload(layers=6, blocks=2)
    return " ".join(str(line) for line in division_assumptions(network, Strategy.of(**whole)))


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"sharding": "zero3", "shard_devices": 4}, "4 neighbours share out one copy (HSDP)."),
        ({"sharding": "zero1"}, "zero1 as ZeroRedundancyOptimizer"),
        (
            {"sharding": "zero1", "tensor": 2},
            "as Megatron-Core's distributed optimizer: gradients are reduce-scattered in fp32",
        ),
        ({"sharding": "distributed_optimizer", "gradient_bits": 16}, "reduce-scattered in 16 bits"),
        ({"recompute": "full"}, "runs 3 blocks again. Only their inputs are kept."),
        ({"recompute": "full", "recompute_layers": 2}, "runs 2 blocks again."),
        ({"recompute": "selective"}, "Selective recomputation changes nothing: the network has no core_attn in its blocks."),
        ({"pipeline": 2, "grad_accum_steps": 4, "schedule": "zero_bubble"}, "schedule zero_bubble"),
        ({"tensor": 2}, "Tensor parallelism of 2"),
        ({"context": 2}, "Context parallelism of 2"),
        ({"pipeline": 2, "grad_accum_steps": 8}, "A pipeline of 2 stages"),
        ({"pipeline": 2, "grad_accum_steps": 8}, "Stages have blocks in numbers as equal as can be"),
        (
            {"pipeline": 2, "grad_accum_steps": 8, "first_stage_layers": 2},
            "The first stage has 2 blocks, the others have blocks in numbers as equal as can be.",
        ),
        ({"expert": 8}, "Expert parallelism of 8: neighbours in a stage share the experts. Nothing hides"),
        ({"expert": 4, "expert_tensor": 2}, "share the experts, and 2 devices divide each by its width"),
        ({"expert": 8}, "among the 2 devices that have the same ones"),
        ({"expert": 8}, "A token crosses the network once for each expert"),
        ({"expert": 8, "expert_exchange": "once_per_node"}, "A token crosses the network once to each node"),
        (
            {"expert": 8, "grad_accum_steps": 2, "expert_overlap": True},
            "Another micro batch's kernels hide the two all-to-alls",
        ),
        ({"expert": 8}, "All devices get equally many tokens"),
        ({"expert": 8, "expert_imbalance": 1.25}, "fullest device get 1.25 times as many tokens as the mean"),
    ],
)
def test_every_choice_is_said(choices: dict[str, object], words: str) -> None:
    assert words in texts(**choices)


def test_the_whole_group_is_no_hsdp() -> None:
    assert "HSDP" not in texts(sharding="zero3", shard_devices=16)


def test_experts_that_no_other_device_has_are_not_exchanged() -> None:
    assert "have the same ones" in texts(expert=8) and "have the same ones" not in texts(expert=16)


def test_stages_that_work_unequally_long_are_said_with_what_even_ones_could_save() -> None:
    assert uneven_stages([1.0, 1.0, 1.1, 1.0], 2.0) == () == uneven_stages([3.0], 3.0)
    (line,) = uneven_stages([1.0, 5.0, 1.0, 1.0], 6.0)
    assert line.startswith("Stage 1 works 2.5 times as long as the mean of the 4 stages, and the others idle meanwhile")
    assert "save up to 50% of the step" in line


@pytest.mark.parametrize(
    ("network", "heads"), [("llama-3-8b", 8), ("qwen-3-30b-a3b", 4), ("gpt2", 0), ("deepseek-v3", 0), ("llama-2-7b", 32)]
)
def test_heads_of_keys_that_a_tensor_group_copies_are_said(network: str, heads: int) -> None:
    for tensor in (1, 2, 4, 8, 16):
        words = texts(Workload.named(network, 64), tensor=tensor)
        assert ("heads of keys and values do not divide" in words) == (0 < heads < tensor)
        assert (
            heads >= tensor
            or not heads
            or f"The {heads} heads of keys and values do not divide among {tensor} devices" in words
        )
