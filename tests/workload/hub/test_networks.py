"""Models that transformers builds: as the hand-written tables of the same kind, and as its own modules without shortcuts."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest

import paceline
from config_cases import CASES
from hub_cases import BASE, CONFIGS
from paceline.errors import UserError
from paceline.workload import Workload
from paceline.workload.configs.huggingface import table_of
from paceline.workload.hub.networks import hub_table

pytestmark = pytest.mark.skipif(find_spec("transformers") is None, reason="needs transformers: pip install transformers")
# a kind of no library, images, a bias of the scores that HF code writes to memory
UNLIKE = ("kimi_k2", "vit", "deit", "bloom", "mpt")
SAVED_ELSEWHERE = {
    "opt": "ReLU saves its result, which the next product saves too",
}
DIVIDED = (
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma",
    "gemma3_text",
    "phi",
    "gpt_neox",
    "mixtral",
    "qwen3_moe",
    "deepseek_v3",
)
TOKENS = 48


def traced(settings: dict[str, Any], tokens: int | None = TOKENS) -> Any:
    return hub_table(settings, "transformers", tokens, name="net", source="test")


@pytest.mark.everyday("llama", "qwen3_moe", "qwen3_next", others="full")
@pytest.mark.parametrize("kind", sorted({kind for kind, *_ in CASES} - set(UNLIKE)))
def test_parameters_and_flops_are_those_of_the_tables_by_hand(kind: str) -> None:
    given = next({"model_type": kind, **given} for name, given, _ in CASES if name == kind)
    theirs, own = traced(given), table_of(given, TOKENS, name="net")
    assert theirs.num_parameters == own.num_parameters
    assert theirs.flops_forward == pytest.approx(own.flops_forward, rel=1e-9)
    assert theirs.flops_per_sample == pytest.approx(own.flops_per_sample, rel=1e-9)
    assert theirs.coverage.share == 1
    if kind not in SAVED_ELSEWHERE:
        for numbers in ("fp32", "autocast"):
            assert theirs.kept_bytes(numbers) == pytest.approx(own.kept_bytes(numbers), rel=0.06)
        if kind in DIVIDED:
            assert theirs.kept_bytes("fused") == pytest.approx(own.kept_bytes("fused"), rel=0.01)


@pytest.mark.everyday("ernie4_5_moe", others="full")
@pytest.mark.parametrize("kind", CONFIGS)
def test_other_kinds_have_the_parameters_of_their_module(kind: str) -> None:
    from paceline.workload.hub.library import built

    given = {"model_type": kind, **CONFIGS[kind]}
    module, _ = built(given, "transformers")
    long = "vocab_size" in given or kind in ("llava", "gemma3", "mllama")
    images = 6000 if kind in ("mistral3", "qwen2_5_vl") else None  # tokens, with those of an image of the usual size
    table = Workload.from_config(given, TOKENS if long else images)
    assert table.num_parameters == sum(p.numel() for p in module.parameters() if p.requires_grad)
    assert table.coverage.share > 0.98 and table.counts_half


def test_roles_divide_a_model_that_no_table_describes() -> None:
    given = {"model_type": "ernie4_5_moe", **CONFIGS["ernie4_5_moe"]}
    table = Workload.from_config(given, TOKENS)
    assert table.with_lora("r=4,targets=q_proj").num_parameters == 4 * 4 * (96 + 96)
    names = {layer.name for layer in table.layers}
    assert {"model.layers.3.router", "model.layers.3.dispatch", "model.layers.3.experts.gate", "head.logits"} <= names


def test_a_division_takes_as_long_as_that_of_the_table_by_hand() -> None:
    given = {"model_type": "qwen3", **BASE, "hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 8}
    pair = [Workload.of(traced(given, 1024)), Workload.of(table_of(given, 1024, name="net"))]
    for choices in ({"recompute": "full"}, {"tensor": 2, "sequence": True, "pipeline": 2, "grad_accum_steps": 4}):
        steps = [
            paceline.predict(w, "8 A100", precision="bf16", global_batch_size=32, **choices).step_time_s  # type: ignore[arg-type]
            for w in pair
        ]
        assert steps[0] == pytest.approx(steps[1], rel=0.02)


def test_a_length_of_a_model_without_sequences_is_refused() -> None:
    with pytest.raises(UserError, match="no sequence length to choose"):
        traced({"model_type": "dinov2", **CONFIGS["dinov2"]}, 64)
