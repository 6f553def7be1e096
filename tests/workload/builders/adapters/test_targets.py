"""Adapters of small models: trained parameters equal those that PEFT makes."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import nn

from paceline.errors import UserError
from paceline.workload import Workload

needs_peft = pytest.mark.skipif(find_spec("peft") is None or find_spec("transformers") is None, reason="needs peft")
LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 200,
}
TIED = {**LLAMA, "tie_word_embeddings": True}
MIXTRAL = {**LLAMA, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
QWEN = {
    **LLAMA,
    "model_type": "qwen3_moe",
    "head_dim": 16,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
}
GPT2 = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 200, "n_positions": 64}


def trained_by_peft(settings: dict[str, Any], **options: Any) -> int:
    """Return the trained parameters of a model of transformers with PEFT's adapters."""
    import peft
    import transformers

    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**settings))
    return count(peft.get_peft_model(model, peft.LoraConfig(r=4, **options)))


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


CASES: list[tuple[dict[str, Any], str, dict[str, Any]]] = [
    (LLAMA, "targets=q_proj+v_proj", {"target_modules": ["q_proj", "v_proj"]}),
    (LLAMA, "targets=all-linear", {"target_modules": "all-linear"}),
    (LLAMA, "targets=all-linear,dora=yes", {"target_modules": "all-linear", "use_dora": True}),
    (LLAMA, "targets=embed_tokens+lm_head+o_proj", {"target_modules": ["embed_tokens", "lm_head", "o_proj"]}),
    (LLAMA, "targets=embed_tokens,dora=yes", {"target_modules": ["embed_tokens"], "use_dora": True}),
    (LLAMA, "targets=q_proj,save=lm_head", {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}),
    (
        LLAMA,
        "targets=q_proj,save=embed_tokens+norm",
        {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens", "norm"]},
    ),
    (LLAMA, r"targets=.*self_attn\.(q|v)_proj", {"target_modules": r".*self_attn\.(q|v)_proj"}),
    (LLAMA, r"targets=model\.layers\.1\.mlp\..*_proj", {"target_modules": r"model\.layers\.1\.mlp\..*_proj"}),
    (LLAMA, "targets=self_attn.k_proj+mlp.up_proj", {"target_modules": ["self_attn.k_proj", "mlp.up_proj"]}),
    (TIED, "targets=lm_head+q_proj", {"target_modules": ["lm_head", "q_proj"]}),
    (GPT2, "targets=c_attn", {"target_modules": ["c_attn"], "fan_in_fan_out": True}),
    (GPT2, "targets=all-linear", {"target_modules": "all-linear", "fan_in_fan_out": True}),
    (QWEN, "targets=all-linear", {"target_modules": "all-linear"}),
    (MIXTRAL, "targets=all-linear", {"target_modules": "all-linear"}),
    (
        QWEN,
        "targets=k_proj+gate_proj+up_proj+down_proj",
        {"target_modules": ["k_proj", "gate_proj", "up_proj", "down_proj"]},
    ),
    (MIXTRAL, "targets=experts", {"target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]}),
    (
        MIXTRAL,
        "targets=q_proj+mlp.experts.down_proj",
        {"target_modules": ["q_proj"], "target_parameters": ["mlp.experts.down_proj"]},
    ),
]


@needs_peft
@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("settings", "text", "options"), CASES, ids=[f"{c[0]['model_type']} {c[1]}" for c in CASES])
def test_trained_parameters_are_those_of_peft(settings: dict[str, Any], text: str, options: dict[str, Any]) -> None:
    adapted = Workload.from_config(settings, 16).with_lora(f"r=4,{text}")
    assert adapted.num_parameters == trained_by_peft(settings, **options)


class Picture(nn.Module):
    """Convolutions, one of them of groups."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, stride=2, padding=1)
        self.second = nn.Conv2d(16, 32, 5, groups=2)
        self.head = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(self.second(self.first(x)).mean((2, 3)))
        return result


@needs_peft
@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dora", [False, True])
def test_convolutions_have_the_adapters_of_peft(dora: bool) -> None:
    mine = Workload.trace(Picture, torch.empty(2, 3, 32, 32)).with_lora(f"r=4,targets=first+second{',dora=yes' * dora}")
    window, outputs = 4 * (3 * 9 + 16), 4 * (16 * 25 + 32 // 2)
    assert mine.num_parameters == window + outputs + dora * (16 + 32)
    import peft

    theirs = peft.get_peft_model(Picture(), peft.LoraConfig(r=4, target_modules=["first", "second"], use_dora=dora))
    assert mine.num_parameters == count(theirs)


def test_convolutions_of_groups_need_a_rank_that_they_divide() -> None:
    table = Workload.trace(Picture, torch.empty(2, 3, 32, 32))
    with pytest.raises(UserError, match="rank 3 next to second, a convolution of 2 groups"):
        table.with_lora("r=3,targets=second")


def test_what_is_there_is_named() -> None:
    table = Workload.named("mixtral-8x7b", 64)
    with pytest.raises(UserError, match="experts, embed_tokens, lm_head; did you mean experts"):
        table.with_lora("r=4,targets=expert")
    with pytest.raises(UserError, match="experts with dora, which PEFT does not have"):
        table.with_lora("r=4,targets=experts,dora=yes")
    with pytest.raises(UserError, match="experts of 4 bits"):
        table.with_lora("r=4,targets=experts,bits=4")


def test_gates_alone_have_both_matrices() -> None:
    both = Workload.from_config(MIXTRAL, 16)
    assert both.with_lora("r=4,targets=experts.gate_proj").num_parameters == 2 * 4 * 4 * (64 + 96)
