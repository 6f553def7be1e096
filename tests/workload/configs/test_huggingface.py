"""Workloads from Hugging Face configurations: those of published models give the tables of their names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from config_cases import CASES, HYBRIDS
from paceline.errors import UserError
from paceline.workload import Workload
from paceline.workload.catalogue import traced
from paceline.workload.configs.huggingface import KINDS

# From the config.json that was released with each model.
LLAMA_3 = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
    "attention_bias": False,
}
GPT2_XL = {"model_type": "gpt2", "n_embd": 1600, "n_layer": 48, "n_head": 25, "n_positions": 1024, "vocab_size": 50257}
OPT = {
    "model_type": "opt",
    "hidden_size": 2048,
    "num_hidden_layers": 24,
    "num_attention_heads": 32,
    "ffn_dim": 8192,
    "vocab_size": 50272,
    "max_position_embeddings": 2048,
    "word_embed_proj_dim": 2048,
    "do_layer_norm_before": True,
}
BERT = {
    "model_type": "bert",
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
    "vocab_size": 30522,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
}


QWEN3 = {
    **LLAMA_3,
    "model_type": "qwen3",
    "num_hidden_layers": 36,
    "intermediate_size": 12288,
    "head_dim": 128,
    "vocab_size": 151936,
}
QWEN3_30B = {
    **QWEN3,
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
MIXTRAL = {**LLAMA_3, "model_type": "mixtral", "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2}
GPT_OSS = {
    **LLAMA_3,
    "model_type": "gpt_oss",
    "hidden_size": 2880,
    "num_hidden_layers": 24,
    "num_attention_heads": 64,
    "head_dim": 64,
    "intermediate_size": 2880,
    "vocab_size": 201088,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "attention_bias": True,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
}
MISTRAL = {**LLAMA_3, "model_type": "mistral", "vocab_size": 32000, "sliding_window": 4096}
DEEPSEEK = {
    **LLAMA_3,
    "model_type": "deepseek_v2",
    "hidden_size": 2048,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "intermediate_size": 10944,
    "vocab_size": 102400,
    "n_routed_experts": 64,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 1408,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "q_lora_rank": None,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}


@pytest.mark.parametrize(
    ("config", "name", "seq_len"),
    [
        (LLAMA_3, "llama-3-8b", None),
        (GPT2_XL, "gpt2-xl", None),
        (OPT, "opt-1.3b", None),
        (BERT, "bert-large", 128),
        (QWEN3, "qwen-3-8b", 4096),
        (QWEN3_30B, "qwen-3-30b-a3b", 4096),
        (MIXTRAL, "mixtral-8x7b", 4096),
        (GPT_OSS, "gpt-oss-20b", 4096),
        ({k: v for k, v in GPT_OSS.items() if k != "layer_types"}, "gpt-oss-20b", 4096),
        (MISTRAL, "mistral-7b", 8192),
        (DEEPSEEK, "deepseek-v2-lite", 4096),
    ],
)
def test_a_published_configuration_is_the_named_workload(config: dict[str, Any], name: str, seq_len: int | None) -> None:
    table, named = Workload.from_config(config, seq_len, name=name), Workload.named(name)
    assert table.num_parameters == named.num_parameters and table.flops_per_sample == named.flops_per_sample
    if name not in traced():  # a traced module joins some layers
        assert table.layers == named.layers and table.parameters == named.parameters


def test_parameters_are_those_of_the_released_weights() -> None:
    """Trained parameters of the released models, as their pages and transformers 5.23 count them."""
    entries = json.loads((Path(__file__).parents[2] / "data/public_configs.json").read_text())
    assert len(entries) > 30
    for entry in entries:
        length = None if entry["config"]["model_type"] == "vit" else 128
        assert Workload.from_config(entry["config"], length).num_parameters == entry["parameters"], entry["name"]


def test_small_configurations_have_the_parameters_of_transformers() -> None:
    for kind, given, parameters in CASES:
        length = None if kind in ("vit", "deit") else 16
        assert Workload.from_config({"model_type": kind, **given}, length).num_parameters == parameters, kind
    assert {kind for kind, *_ in (*CASES, *HYBRIDS)} | {"kimi_k2"} == KINDS.keys()


def test_a_length_that_no_one_trains_at_is_not_the_default() -> None:
    config = {**LLAMA_3, "max_position_embeddings": 131072}
    assert "8192 tokens" in Workload.from_config(config).sample and "16384" in Workload.from_config(config, 16384).sample


def test_a_path_is_a_workload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "gpt2"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**GPT2_XL, "n_layer": 2}))
    own = Workload.named("./gpt2", 64)
    assert own.name == "gpt2" and own.source == "gpt2/config.json"
    assert Workload.named("gpt2/config.json", 64).num_parameters == own.num_parameters
    assert Workload.named("gpt2").num_parameters == 124_439_808  # a name of the package is no folder without a separator
    with pytest.raises(UserError, match=r"cannot read nowhere\.json"):
        Workload.named("nowhere.json")


def test_a_file_a_folder_and_an_object(tmp_path: Path) -> None:
    class Config:
        def to_dict(self) -> dict[str, Any]:
            return GPT2_XL

    (tmp_path / "config.json").write_text(json.dumps(GPT2_XL))
    tables = [Workload.from_config(given) for given in (tmp_path, str(tmp_path / "config.json"), Config())]
    assert len({table.num_parameters for table in tables}) == 1 and tables[0].name == "gpt2"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "lama"}, "unknown model_type 'lama'.*llama"),
        ({**LLAMA_3, "head_dim": "wide"}, "head_dim 'wide'"),
        ({**QWEN3_30B, "mlp_only_layers": [3]}, r"mlp_only_layers \[3\]"),
        ({**DEEPSEEK, "moe_layer_freq": 2}, "moe_layer_freq 2"),
        ({k: v for k, v in MIXTRAL.items() if k != "num_local_experts"}, "no num_local_experts"),
        ({**LLAMA_3, "attention_bias": "yes"}, "attention_bias 'yes'"),
        (
            {"model_type": "llava", "text_config": LLAMA_3},
            "'llava' has more than one tower; .*text_config as a separate config",
        ),
        ({**MISTRAL, "sliding_window": -1}, "sliding_window -1"),
        ({**GPT_OSS, "layer_types": ["full_attention", "sliding_attention"] * 12}, "follow no period in layer_types"),
        ({**LLAMA_3, "hidden_size": "big"}, "hidden_size 'big'"),
        ({k: v for k, v in LLAMA_3.items() if k != "vocab_size"}, "no vocab_size"),
        ([1, 2], "a configuration that is a list"),
        ("nowhere.json", "cannot read nowhere.json"),
    ],
)
def test_what_is_not_known_is_refused(config: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Workload.from_config(config)


def test_the_repr_is_one_line() -> None:
    text = repr(Workload.named("llama-3-8b"))
    assert (
        text == "Workload('llama-3-8b', 484 layers, 8,030,261,248 parameters, 4.92e+14 FLOPs a sample, sequence of 8192 tokens)"
    )


def test_one_name_is_one_object() -> None:
    assert Workload.named("Llama_3_8B") is not None and Workload.named("llama-3-8b") is Workload.named("llama-3-8b")


def test_a_window_that_no_block_uses_is_none() -> None:
    plain = Workload.from_config({**MISTRAL, "sliding_window": None}, 8192)
    for unused in ({"use_sliding_window": False}, {"layer_types": ["full_attention"] * 32}):
        assert Workload.from_config({**MISTRAL, **unused}, 8192).layers == plain.layers
    assert plain.flops_per_sample > Workload.from_config(MISTRAL, 8192).flops_per_sample


def test_heads_may_have_a_width_of_their_own() -> None:
    table = Workload.from_config({**LLAMA_3, "head_dim": 64}, 128)
    assert {p.shape for p in table.parameters if p.name.endswith("attention.query.weight")} == {(32 * 64, 4096)}
