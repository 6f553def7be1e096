"""Networks with adapters: their parameters by the closed form, embeddings and experts."""

from __future__ import annotations

from typing import Any

import pytest

from paceline import predict
from paceline.errors import UserError
from paceline.workload import Workload
from paceline.workload.builders.adapters.lora import parse_lora

H, KV, F, LAYERS = 4096, 1024, 14336, 32
SIZES = {"q_proj": H + H, "k_proj": H + KV, "v_proj": H + KV, "o_proj": H + H, "gate_proj": H + F, "up_proj": H + F}


@pytest.mark.parametrize(
    ("text", "sums"),
    [
        ("r=16", [*SIZES][:4]),
        ("r=16,targets=attention", [*SIZES][:4]),
        ("rank=16, target_modules=q_proj+v_proj", ["q_proj", "v_proj"]),
        ("r=16,targets=query+value", ["q_proj", "v_proj"]),
        ("r=16,targets=gate_proj", ["gate_proj"]),
        ("r=16,targets=all-linear", [*SIZES, "up_proj"]),  # the last as wide as down_proj
    ],
)
def test_parameters_are_rank_times_both_widths(text: str, sums: list[str]) -> None:
    base, adapted = Workload.named("llama-3-8b"), Workload.named("llama-3-8b", lora=text)
    assert adapted.num_parameters == LAYERS * 16 * sum(SIZES[name] for name in sums)
    assert adapted.frozen == base.num_parameters and adapted.name == "llama-3-8b-lora-r16"


def test_the_optimizer_holds_state_of_adapters_alone() -> None:

    choices: dict[str, Any] = {"precision": "bf16", "sharding": "zero3", "global_batch_size": 16}
    whole, adapted = (predict("llama-3-8b", "8 H100", lora=lora, **choices) for lora in ("", "r=16"))
    assert adapted.memory["optimizer state"] < whole.memory["optimizer state"] / 400
    assert adapted.step_time_s < whole.step_time_s


def test_networks_without_such_layers_are_refused() -> None:
    for name, words in (("dlrm-dcnv2", "embedding tables"), ("alexnet", "unknown layer of alexnet 'attention'")):
        with pytest.raises(UserError, match=words):
            Workload.named(name, lora="r=8")


def test_experts_and_routers_have_adapters_where_peft_gives_them() -> None:
    plain, packed = (Workload.named("mixtral-8x7b", lora=f"r=8,targets=all-linear{bits}") for bits in ("", ",bits=4"))
    ends = {p.name.split(".", 2)[2].rpartition(".")[0].rpartition(".")[0] for p in plain.parameters}
    products = {f"attention.{n}" for n in ("query", "key", "value", "project")} | {"router"}
    assert ends == products | {f"experts.{n}" for n in ("expand", "gate", "contract")}
    assert {p.name.split(".", 2)[2].rpartition(".")[0].rpartition(".")[0] for p in packed.parameters} == products


def test_blocks_that_share_weights_share_adapters() -> None:
    config = {"hidden_size": 96, "num_hidden_layers": 3, "num_attention_heads": 6, "intermediate_size": 136, "vocab_size": 50}
    adapted = Workload.from_config({"model_type": "albert", "embedding_size": 40, **config}, 16).with_lora("r=2")
    assert adapted.num_parameters == 4 * 2 * (96 + 96)


def test_embeddings_may_be_trained_whole() -> None:
    plain, whole = (Workload.named("llama-3-8b", 512, lora=f"r=8{text}") for text in ("", ",embeddings=whole"))
    tables = 2 * 128256 * 4096
    assert whole.num_parameters - plain.num_parameters == tables == whole.unwidened
    assert whole.frozen == plain.frozen  # the copied ones stay
    assert Workload.from_json(whole.to_json()).unwidened == tables
    assert sorted(p.ready for p in whole.parameters) == list(range(len(whole.parameters)))
    assert [p.layer for p in whole.parameters] == sorted(p.layer for p in whole.parameters)
    assert whole.flops_per_sample > plain.flops_per_sample
    assert parse_lora("r=8,embeddings=whole").text == "r=8,targets=attention,embeddings=whole"
    with pytest.raises(UserError, match="embeddings 'half'"):
        parse_lora("r=8,embeddings=half")


@pytest.mark.parametrize(
    ("name", "products", "outside"),
    [
        ("flux1", 2 * 19 * 2 + 38, "mlp"),  # a fused product of queries, keys and values, and one behind attention
        ("stable-diffusion", 2 * 16 * 4, "contract"),  # self-attention and attention to the text in 16 blocks
        ("diffusers/UNet2DModel", 16 * 4, "resnets"),
        ("diffusers/FluxTransformer2DModel", 19 * 8 + 38 * 3, "ff"),  # image and text have their own; single blocks share
    ],
)
def test_attention_of_denoisers_is_found(name: str, products: int, outside: str) -> None:
    table = Workload.named(name).with_lora("r=4")
    ends = {p.name.removesuffix(".down.weight") for p in table.parameters if p.name.endswith(".down.weight")}
    assert len(ends) == products and not any(outside in end.split(".") for end in ends)


@pytest.mark.parametrize(
    ("name", "targets", "products"),
    [
        ("flux.1-dev", "to_q+to_k+to_v+to_out.0", 19 * 4 + 38 * 3),
        ("flux.1-dev", "attn.to_q+attn.add_q_proj+ff.net.2", 19 * 2 + 38 + 19 * (12288 + 3072) / 6144),
        ("flux.1-dev", "qkv", 19 * 6 + 38 * 3),  # the three of image and of text, and those of both
    ],
)
def test_targets_of_diffusers_scripts(name: str, targets: str, products: float) -> None:
    assert Workload.named(name, lora=f"r=4,targets={targets}").num_parameters == 4 * 2 * 3072 * products


def test_adapters_of_sdxl_are_those_of_its_script() -> None:
    """diffusers, train_dreambooth_lora_sdxl.py, rank 4: 5,806,080 trained numbers."""
    assert Workload.named("sdxl", lora="r=4,targets=to_q+to_k+to_v+to_out.0").num_parameters == 5_806_080
