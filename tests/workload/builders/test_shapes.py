"""Published transformers by name: the parameters of the released weights and of the papers, at any length."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from each_row import each_row
from paceline.errors import UserError
from paceline.workload import Workload
from paceline.workload.builders.shapes import SHAPES

# Parameters of the released weights (Hugging Face), where no other source is said.
PUBLISHED = {
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "opt-125m": 125_239_296,
    "opt-1.3b": 1_315_758_080,
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "mistral-7b": 7_241_732_096,
    "bert-base-mlm": 110_106_428,  # BertForPreTraining
    "bert-large-mlm": 336_226_108,
    "bert-base-squad": 108_893_186,  # BertForQuestionAnswering, which has no pooler
    "bert-large-squad": 334_094_338,
}


ROUNDED = {
    "gpt3-125m": 125e6,
    "gpt3-350m": 356e6,
    "gpt3-760m": 760e6,
    "gpt3-1.3b": 1.3e9,
    "gpt3-2.7b": 2.65e9,
    "gpt3-6.7b": 6.7e9,
    "gpt3-5b": 5e9,
    "gpt3-13b": 13e9,
    "gpt3-20b": 20e9,
    "gpt3-175b": 175e9,
    "nemotron-3-8b": 8.5e9,
    "nemotron-3-22b": 21.3e9,
    "nemotron-4-15b": 15.6e9,  # 3.2 of embeddings and 12.5 of the rest
    "nemotron-4-340b": 341e9,
    "qwen-2.5-7b": 7.61e9,
    "qwen-2.5-14b": 14.7e9,
    "qwen-2.5-32b": 32.5e9,
    "qwen-2.5-72b": 72.7e9,
    "qwen-3-8b": 8.19e9,
    "qwen-3-14b": 14.8e9,
    "opt-13b": 13e9,
    "transformer": 213e6,
}


@each_row("name", PUBLISHED)
def test_parameters_are_those_of_the_released_weights(name: str) -> None:
    assert Workload.named(name).num_parameters == PUBLISHED[name]


def test_adapters_alone_are_trained() -> None:
    """MLPerf Training v4.0, llama2_70b_lora: 44,564,480 trained beside 68,976,648,192 frozen parameters."""
    whole, adapted = Workload.named("llama-2-70b", 8192), Workload.named("llama-2-70b-lora", 8192)
    assert adapted.num_parameters == 80 * 16 * (8192 + 10240 + 2 * 8192) == 44_564_480
    # The gradients of inputs only: a pass of products forward and one backward, and the adapters, under 1 %.
    products = [
        [sum(o.flops for x in t.layers for o in x.operations if o.kind == "matmul" and o.backward == back) for back in (0, 1)]
        for t in (whole, adapted)
    ]
    assert products[1][0] == pytest.approx(products[0][0], rel=0.01)
    assert products[1][1] == pytest.approx(products[0][1] / 2, rel=0.01)
    assert adapted.activation_bytes < whole.activation_bytes


@each_row("name", ROUNDED)
def test_parameters_are_those_of_the_papers(name: str) -> None:
    assert Workload.named(name).num_parameters == pytest.approx(ROUNDED[name], rel=0.02)


SHARED = Path(os.environ.get("PACELINE_SHARED", Path(__file__).parents[4] / "shared"))


MEASURED = SHARED / "data/measured/llmfoundry_mpt_fsdp.csv"


@pytest.mark.skipif(not MEASURED.exists(), reason="needs the measurements of llm-foundry: PACELINE_SHARED names them")
def test_parameters_are_those_that_llm_foundry_prints() -> None:
    with MEASURED.open() as file:
        printed = {(row["model"].lower(), int(row["seq_len"])): int(row["params"]) for row in csv.DictReader(file)}
    assert len(printed) > 50
    for (name, length), parameters in printed.items():
        assert Workload.named(name, seq_len=length).num_parameters == parameters, (name, length)


@pytest.mark.long
@given(st.sampled_from(sorted(SHAPES)), st.integers(1, 512), st.booleans())
def test_a_length_changes_the_sample_and_not_the_weights(name: str, length: int, fused: bool) -> None:
    table = Workload.named(name, length, fused_attention=fused)
    assert table.name == name and str(length) in table.sample
    assert table.input_bytes == 8 * length * (2 if SHAPES[name].pairs else 1)
    if not name.startswith("mpt"):  # whose places are as many as the sequence has
        assert table.num_parameters == Workload.named(name).num_parameters
    assert sorted(p.ready for p in table.parameters) == list(range(len(table.parameters)))
    assert all(p.layer < len(table.layers) for p in table.parameters)
    assert Workload.from_json(table.to_json()) == table


@pytest.mark.parametrize(
    ("name", "length", "message"),
    [
        ("gpt2", 2000, "gpt2 has no sequences of 2000 tokens; give 1 to 1024"),
        ("llama-2-7b", 0, "no sequences of 0 tokens; give at least 1"),
        ("resnet-50", 128, "resnet-50 has no sequence length to choose"),
        ("lama-2-7b", 128, "unknown workload 'lama-2-7b'; nearest: llama-2-7b"),
    ],
)
def test_lengths_that_cannot_be_are_errors(name: str, length: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Workload.named(name, length)


@each_row("name", SHAPES)
def test_a_shape_divides_and_fits_its_length(name: str) -> None:
    entry = SHAPES[name]
    assert entry.shape.hidden % entry.shape.heads == 0 and len(entry.source) > 10
    assert not entry.shape.context or entry.seq_len <= entry.shape.context
    assert name == name.lower() and "_" not in name


def test_without_fused_attention_the_scores_are_kept() -> None:
    entry = SHAPES["gpt2"]
    fused, written = (entry.table("gpt2", 64, fused) for fused in (True, False))
    assert fused.num_parameters == written.num_parameters and fused.activation_bytes < written.activation_bytes
    assert entry.table("gpt2", None, True).sample != fused.sample
