"""Adapters: their parameters by the closed form, their work as that of a module with adapters, and what is refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from paceline import Predictor, predict
from paceline.errors import UserError
from paceline.workload import LoRA, Workload
from paceline.workload.builders.adapters.lora import parse_lora
from paceline.workload.builders.adapters.packed import SLOW
from paceline.workload.builders.transformer import llama

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


class Adapted(nn.Module):
    """A frozen product and its adapter, as PEFT computes it (``tuners/lora/layer.py``)."""

    def __init__(self, inputs: int, outputs: int, rank: int) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.1)
        self.base = nn.Linear(inputs, outputs, bias=False).requires_grad_(False)
        self.down, self.up = nn.Linear(inputs, rank, bias=False), nn.Linear(rank, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.base(x) + self.up(self.down(self.drop(x))) * 2.0
        return result


class Block(nn.Module):
    """A feed-forward network behind a trained layer, so that all gradients of inputs are needed."""

    def __init__(self, adapted: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(24).requires_grad_(not adapted)
        self.expand: nn.Module = Adapted(24, 40, 4) if adapted else nn.Linear(24, 40, bias=False)
        self.contract: nn.Module = Adapted(40, 24, 4) if adapted else nn.Linear(40, 24, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x + self.contract(nn.functional.gelu(self.expand(self.norm(x))))
        return result


def network(adapted: bool) -> nn.Module:
    return nn.Sequential(Block(adapted), Block(adapted), Block(adapted))


def test_work_is_that_of_a_module_with_adapters() -> None:
    mine = Workload.trace(lambda: network(False), torch.empty(2, 6, 24)).with_lora(LoRA(4, ("all-linear",), dropout=0.1))
    its = Workload.trace(lambda: network(True), torch.empty(2, 6, 24))
    assert mine.num_parameters == its.num_parameters == 3 * 4 * 2 * (24 + 40)
    assert mine.frozen == its.frozen and mine.flops_forward == its.flops_forward

    def backward(table: Workload, block: int) -> float:
        return sum(layer.flops_backward for layer in table.layers if layer.name.startswith(f"{block}."))

    assert backward(mine, 2) == backward(its, 2) and backward(mine, 1) == backward(its, 1)
    # In the first block nothing in front of the first adapter needs a gradient; the table computes it: a share of 1/layers.
    assert backward(mine, 0) - backward(its, 0) == 2 * 6 * 24 * (40 + 4)
    # There its norm keeps nothing, and dropout no mask.
    assert mine.activation_bytes - its.activation_bytes == 4 * 6 * (24 + 2) + 6 * 24

    def kernels(table: Workload, backward: bool) -> tuple[int, float]:
        own = [o for layer in table.layers if layer.name.startswith("2.") for o in layer.operations]
        found = [(o.calls, o.bytes) for o in own if o.kind == "memory" and o.backward is backward]
        return sum(calls for calls, _ in found), sum(moved for _, moved in found)

    assert kernels(mine, False) == kernels(its, False) and kernels(mine, True) == kernels(its, True)
    assert [p.name for p in mine.ready_order[:2]] == ["2.contract.up.weight", "2.contract.down.weight"]


def test_what_adapters_read_is_kept_once() -> None:
    shape = llama(2, 64, 4, 4, 96, 100)
    base = Workload.from_shape(shape, 32)
    alone, both = (base.with_lora(f"r=4,targets={names}") for names in ("v_proj", "q_proj+v_proj"))
    kept = {layer.name: layer.activation_bytes for layer in both.layers}
    x, inner = 4 * 32 * 64, 4 * 32 * 4
    assert kept["blocks.0.attention.query"] == x + inner and kept["blocks.0.attention.value"] == inner
    assert both.activation_bytes - alone.activation_bytes == 2 * inner
    assert both.kept_bytes("autocast") - alone.kept_bytes("autocast") == 2 * (x + inner) / 2  # a 16-bit copy for each
    assert both.activation_bytes < base.activation_bytes


def test_packed_products_keep_their_inputs() -> None:
    base = Workload.from_shape(llama(2, 64, 4, 4, 96, 100), 32)
    plain, packed = (base.with_lora(f"r=4,targets=v_proj{bits}") for bits in ("", ",bits=4"))
    attention, gate, down = 2 * 32 * 64, 2 * 32 * 64, 2 * 32 * 96  # what enters the products of a block, in 16 bits
    assert packed.kept_bytes("autocast") - plain.kept_bytes("autocast") == 2 * (attention + gate + down)


def test_tuned_software_fuses_the_kernels_around_adapters() -> None:
    plain, dropped = (Workload.named("llama-3-8b", 512, lora=f"r=8{more}") for more in ("", ",dropout=0.05"))
    choices = {"precision": "bf16", "global_batch_size": 2}
    ordinary, tuned = (
        [predict(net, "1 A100", predictor=Predictor(framework=level), **choices).step_time_s for net in (plain, dropped)]
        for level in ("ordinary", "tuned")
    )
    assert ordinary[1] > ordinary[0] and tuned[1] == tuned[0]


def test_the_optimizer_holds_state_of_adapters_alone() -> None:
    from paceline import predict

    choices = {"precision": "bf16", "sharding": "zero3", "global_batch_size": 16}
    whole, adapted = (predict("llama-3-8b", "8 H100", lora=lora, **choices) for lora in ("", "r=16"))
    assert adapted.memory["optimizer state"] < whole.memory["optimizer state"] / 400
    assert adapted.step_time_s < whole.step_time_s


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("16x", "LoRA '16x'; write it as r=16"),
        ("r=0", "0 as the rank"),
        ("targets=attention", "has no rank"),
        ("r=8,bias=all", "unknown option of LoRA 'bias'"),
        ("r=8,alpha=some", "alpha 'some'; give alpha=32"),
        ("r=8,r=9", "write it as r=16"),
        ("8,r=9", "write it as r=16"),
        ("bits=4", "has no rank"),
        ("r=8,double=yes", "double quantisation of weights that have no 4 bits"),
        ("r=8,others=32", "next to products that are not quantised"),
        ("r=8,bits=4,others=8", "other frozen weights of 8 bits"),
        ("r=8,dora=maybe", "dora 'maybe'; give dora=yes"),
        ("r=8,bits=3", "frozen weights of 3 bits"),
        ("r=8,bits=few", "bits 'few'"),
        ("r=8,dropout=1", "dropout 1.0; give dropout=0.05"),
        ("r=8,dropout=some", "dropout 'some'; give dropout=0.05"),
        ("r=8,targets=q_prj", r"unknown layer of llama-3-8b 'q_prj'.*query"),
        ("r=8,targets=qkv", "unknown layer of llama-3-8b 'qkv'"),
        ("r=8,save=lm_heads", "unknown layer of llama-3-8b 'lm_heads'.*lm_head"),
    ],
)
def test_what_is_no_lora_is_refused(text: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        Workload.named("llama-3-8b", lora=text)


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


def test_text_is_read_back() -> None:
    lora = LoRA(8, ("q_proj", "v_proj"), dropout=0.05)
    assert parse_lora("16") == parse_lora("r=16") and parse_lora("16,targets=all-linear") == parse_lora(
        "r=16,targets=all-linear"
    )
    assert parse_lora(lora.text) == lora and parse_lora("r=4,targets=All_Linear").targets == ("all-linear",)


def test_frozen_products_in_four_bits() -> None:
    plain, packed, nf4 = (Workload.named("llama-3-8b", 512, lora=f"r=8{bits}") for bits in ("", ",bits=4", ",nf4"))
    assert packed == nf4 and not plain.frozen_bits and packed.frozen == plain.frozen
    embeddings = 2 * 128256 * 4096
    products = packed.frozen - embeddings
    expected = (4.5 * products + 16 * embeddings) / packed.frozen
    assert packed.frozen_bits == pytest.approx(expected, rel=1e-3)
    added = [
        sum(o.fixed_bytes for layer in network.layers for o in layer.operations if o.kind == "memory")
        for network in (plain, packed)
    ]
    assert added[1] - added[0] == pytest.approx(
        SLOW * 2 * 2 * products * 20.5 / 8, rel=1e-3
    )  # each pass, as bytes of fp32 tensors
    assert Workload.from_json(packed.to_json()) == packed
    steps = [predict(network, "A100", precision="bf16", global_batch_size=1) for network in (plain, packed)]
    assert steps[1].memory["frozen weights"] == pytest.approx(steps[0].memory["frozen weights"] * packed.frozen_bits / 16)
    assert steps[1].step_time_s > steps[0].step_time_s


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
