"""Workloads by name and by ``module:function``, and what the errors say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from each_row import each_row
from paceline.errors import UserError
from paceline.names import fold
from paceline.workload import Workload, load_factory, names
from paceline.workload.catalogue import ALIASES, canonical


@pytest.mark.parametrize("function", ["with_batch", "with_attribute"])
def test_a_users_function_is_traced(networks: str, function: str) -> None:
    table = Workload.named(f"{networks}:{function}")
    assert table.num_parameters == 10 and table.flops_forward == 16
    assert table.name == table.source == f"{networks}:{function}"


def test_a_module_without_an_input_says_what_to_provide(networks: str) -> None:
    with pytest.raises(UserError, match=r"no example input for .*:bare; return .*example_input"):
        Workload.named(f"{networks}:bare")


def test_other_things_than_modules_are_errors(networks: str) -> None:
    with pytest.raises(UserError, match=f"{networks}:text returned str, not an nn.Module"):
        Workload.named(f"{networks}:text")
    with pytest.raises(UserError, match="is a int, not a function"):
        load_factory(f"{networks}:answer")


def test_a_file_without_its_class_is_answered_with_its_classes(tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text("1/0\nclass Base(nn.Module): pass\nclass Net(Base): pass\nclass Config: pass\ndef build(): pass\n")
    with pytest.raises(UserError, match=rf"{file} names no class; write {file}:Base or {file}:Net$"):
        Workload.named(str(file))
    for text, words in (
        ("def build(): pass", f"write {file}:build$"),
        ("", "defines no class"),
        ("class", "cannot read .*SyntaxError"),
    ):
        file.write_text(text)
        with pytest.raises(UserError, match=words):
            Workload.named(str(file))
    with pytest.raises(UserError, match=r"cannot read .*none\.py: No such file"):
        Workload.named(str(tmp_path / "none.py"))


def test_an_unknown_name_shows_the_nearest() -> None:
    with pytest.raises(UserError, match=r"unknown workload 'whisper'.*its config.json \(Hugging Face\)"):
        Workload.named("whisper")
    with pytest.raises(UserError, match="unknown workload 'resnet51'; nearest: resnet-50"):
        Workload.named("resnet51")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("resnet50", "resnet-50"),
        ("ResNet 50", "resnet-50"),
        ("llama3-8b", "llama-3-8b"),
        ("Llama-3.1-8B", "llama-3-8b"),
        ("meta-llama/Llama-3.1-8B", "llama-3-8b"),
        ("meta-llama/Meta-Llama-3-70B-Instruct", "llama-3-70b"),
        ("llama3.2_1b", "llama-3.2-1b"),
        ("qwen2.5-7b", "qwen-2.5-7b"),
        ("Qwen/Qwen2.5-7B-Instruct", "qwen-2.5-7b"),
        ("gpt2_xl", "gpt2-xl"),
        ("GPT-2 XL", "gpt2-xl"),
        ("openai-community/gpt2", "gpt2"),
        ("google-bert/bert-base-uncased", "bert-base"),
        ("mistralai/Mixtral-8x7B-v0.1", "mixtral-8x7b"),
        ("deepseek-ai/DeepSeek-R1", "deepseek-v3"),
        ("vgg16", "vgg-16"),
        ("Tacotron 2", "tacotron2"),
        ("DLRM", "dlrm"),
        ("DLRM_DCNv2", "dlrm-dcnv2"),
        ("DLRM-v2", "dlrm-dcnv2"),
        ("RNN-T", "rnnt"),
        ("R-GAT", "rgat"),
        ("black-forest-labs/FLUX.1-schnell", "flux1"),
        ("openai/gpt-oss-20b", "gpt-oss-20b"),
    ],
)
def test_a_name_as_people_write_it(text: str, name: str) -> None:
    assert canonical(text) == name
    assert Workload.named(text).name == name


@pytest.mark.parametrize(
    ("text", "family"),
    [("bert", "bert-base, .*bert-large"), ("mixtral", "mixtral-8x22b, mixtral-8x7b"), ("llama3", "llama-3-")],
)
def test_a_name_of_several_says_which_there_are(text: str, family: str) -> None:
    with pytest.raises(UserError, match=f"workload '{text}' is one of several: {family}.*; say which"):
        Workload.named(text)


@pytest.mark.parametrize(
    "text", ["", "instruct", "v0.1", "meta-llama/", "/", "foo/bar", "gpt3-1b", "llama-3-9b", "distil-bart-base"]
)
def test_no_default_network(text: str) -> None:
    with pytest.raises(UserError):
        Workload.named(text)


@given(st.sampled_from([*names(), *ALIASES]), st.data())
def test_every_name_finds_its_own_network(text: str, data: st.DataObject) -> None:
    letters = [letter for letter in text if letter not in " -_"]
    gaps = data.draw(st.lists(st.sampled_from(["", " ", "-", "_"]), min_size=len(letters), max_size=len(letters)))
    respelt = "".join(letter.upper() + gap for letter, gap in zip(letters, gaps, strict=True))
    assert canonical(respelt) == ALIASES.get(text, text)


def test_no_alias_means_two_networks() -> None:
    assert {fold(alias) for alias in ALIASES}.isdisjoint(fold(name) for name in names())
    assert len({fold(name) for name in (*names(), *ALIASES)}) == len(names()) + len(ALIASES)
    assert set(ALIASES.values()) <= set(names())


@pytest.mark.long
def test_tables_need_no_torch() -> None:
    code = (
        "import sys, paceline.workload as w\n"
        "assert [w.Workload.named(n).num_parameters for n in w.names()]\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("text", ["Llama-2-7B", "llama_2_7b", " LLAMA 2 7B ", "llama-2_7b"])
def test_case_and_separators_do_not_matter(text: str) -> None:
    assert Workload.named(text, seq_len=1024) is Workload.named("llama-2-7b", seq_len=1024)


def test_no_two_names_are_spelt_alike() -> None:
    assert {Workload.named(name.upper().replace("-", "_")).name for name in names()} == {
        Workload.named(name).name for name in names()
    }


@each_row(
    ("given", "message"),
    [
        ({"name": "regnety_032", "seq_len": 512}, "no sequence length"),
        ({"name": "timm/"}, "names no network"),
        ({"name": "timm/llama-3-8b"}, "llama-3-8b, without timm/, is a network"),
        ({"name": "resnet-50", "inputs": "3x384x384"}, "timm/resnet50 takes other sizes"),
        ({"name": "resnet-50", "lora": "r=16,bits=4"}, "targets=all-linear"),
    ],
)
def test_next_step_of_a_network_that_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Workload.named(**given)


@each_row(
    ("text", "name"),
    [
        ("nvidia/Nemotron-H-8B-Base-8K", "nemotron-h-8b"),
        ("RWKV/rwkv-4-3b-pile", "rwkv-4-3b"),
        ("granite-4-h-small", "granite-4.0-h-small"),
        ("jamba", "jamba-52b-a12b"),
        ("timm/ResNet-50", "timm/resnet50"),
    ],
)
def test_names_of_model_cards(text: str, name: str) -> None:
    assert canonical(text) == name
