"""Adapters as a user types them, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paceline.errors import UserError
from paceline.workload import LoRA, Workload
from paceline.workload.builders.adapters.lora import parse_lora

H, KV, F, LAYERS = 4096, 1024, 14336, 32
SIZES = {"q_proj": H + H, "k_proj": H + KV, "v_proj": H + KV, "o_proj": H + H, "gate_proj": H + F, "up_proj": H + F}


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


def test_text_is_read_back() -> None:
    lora = LoRA(8, ("q_proj", "v_proj"), dropout=0.05)
    assert parse_lora("16") == parse_lora("r=16") and parse_lora("16,targets=all-linear") == parse_lora(
        "r=16,targets=all-linear"
    )
    assert parse_lora(lora.text) == lora and parse_lora("r=4,targets=All_Linear").targets == ("all-linear",)


def test_kinds_stand_for_their_papers_options() -> None:
    qlora = parse_lora("qlora")
    assert qlora == LoRA(16, ("all-linear",), 4, double=True) == parse_lora("r=16,targets=all-linear,bits=4,double=yes")
    assert parse_lora("qdora") == replace(qlora, dora=True) and parse_lora("dora,r=8,targets=q_proj").dora
    assert parse_lora("qlora,r=64,targets=q_proj").targets == ("q_proj",) and parse_lora("lora").rank == 16
    assert parse_lora("r=8,int8").bits == 8 and parse_lora("r=8,LLM.int8").bits == 8
    assert [parse_lora(kind).kind for kind in ("lora", "qlora", "dora", "qdora")] == ["LoRA", "QLoRA", "DoRA", "QDoRA"]
    assert parse_lora("lora_r=8,lora_alpha=16,use_dora=true,lora_dropout=0.1") == LoRA(8, dora=True, alpha=16, dropout=0.1)


@pytest.mark.parametrize("text", ["qdora,others=32,save=lm_head+norm", "rslora,r=4,alpha=32", "r=8,int8,dropout=0.05"])
def test_every_option_is_read_back(text: str) -> None:
    assert parse_lora(parse_lora(text).text) == parse_lora(text)


def test_scales_of_results_change_nothing() -> None:
    plain, scaled = (Workload.named("gpt2", lora=f"r=8{more}") for more in ("", ",alpha=32,rslora=yes"))
    assert plain.layers == scaled.layers and plain.parameters == scaled.parameters
