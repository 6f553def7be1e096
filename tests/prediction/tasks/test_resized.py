"""Networks with another number of tokens, against the same networks built for it."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.errors import UserError
from paceline.hardware import Cluster
from paceline.prediction import Predictor
from paceline.prediction.tasks.resized import with_documents, with_sequences, with_tokens
from paceline.strategy import Strategy
from paceline.workload import Workload


@pytest.mark.parametrize("name", ["llama-3-8b", "gpt2", "mixtral-8x7b", "qwen2.5-7b"])
def test_a_resized_network_is_the_one_that_is_built(name: str) -> None:
    built, resized = Workload.named(name, 256), with_tokens(Workload.named(name, 1024), 256)
    assert resized.num_parameters == built.num_parameters
    assert resized.flops_per_sample == pytest.approx(built.flops_per_sample, rel=1e-3)
    assert resized.activation_bytes == pytest.approx(built.activation_bytes, rel=1e-3)
    for numbers in ("autocast", "narrow"):
        assert resized.kept_bytes(numbers) == pytest.approx(built.kept_bytes(numbers), rel=1e-3)


def test_scores_in_memory_grow_with_the_square() -> None:
    built, resized = (
        Workload.named("gpt2", 512, fused_attention=False),
        with_tokens(Workload.named("gpt2", 1024, fused_attention=False), 512),
    )
    assert resized.flops_per_sample == pytest.approx(built.flops_per_sample, rel=1e-3)
    assert resized.activation_bytes == pytest.approx(built.activation_bytes, rel=0.1)


def test_documents_leave_all_but_attention() -> None:
    whole = Workload.named("llama-3-8b", 8192)
    packed = with_documents(whole, 1 / 16)
    attention = {layer.name: sum(o.flops for o in layer.operations if o.kind == "attention") for layer in whole.layers}
    for before, after in zip(whole.layers, packed.layers, strict=True):
        own = attention[before.name]
        assert after.flops_forward + after.flops_backward == pytest.approx(
            before.flops_forward + before.flops_backward - own * 15 / 16
        )
    assert packed.activation_bytes == whole.activation_bytes


@pytest.mark.parametrize(
    "choices", [{"sharding": "zero3"}, {"sharding": "zero1", "tensor": 2, "pipeline": 2, "grad_accum_steps": 2}]
)
def test_a_pair_is_two_sequences_of_a_batch(choices: dict[str, Any]) -> None:
    network, cluster = Workload.named("llama-3-8b", 1024), Cluster.named("8 H100")
    pairs, sequences = (
        Predictor().step(own, cluster, Strategy.of(world_size=8, global_batch_size=batch, precision="bf16", **choices))
        for own, batch in ((with_sequences(network, 2), 16), (network, 32))
    )
    assert pairs.step_time_s == pytest.approx(sequences.step_time_s)
    assert pairs.memory_bytes == pytest.approx(sequences.memory_bytes)


def test_images_have_no_tokens() -> None:
    with pytest.raises(UserError, match="only sequences"):
        with_tokens(Workload.named("resnet-50"), 3)
