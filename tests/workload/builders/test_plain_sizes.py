"""Plain dense transformers of a stated size."""

from __future__ import annotations

import pytest

from paceline.errors import UserError
from paceline.workload import Workload
from paceline.workload.builders.plain_sizes import is_plain_size, published_of


@pytest.mark.parametrize(
    ("name", "billions"), [("10m", 0.01), ("350M", 0.35), ("1.5B", 1.5), ("7b", 7), ("llama-20b", 20), ("1t", 1000)]
)
def test_parameters_are_within_two_per_cent_of_the_size(name: str, billions: float) -> None:
    table = Workload.named(name)
    assert table.num_parameters == pytest.approx(billions * 1e9, rel=0.02)
    assert len(table.notes) == 1 and f"{name} names no model" in table.notes[0]


@pytest.mark.parametrize(("name", "same"), [("8b", "llama-3-8b"), ("13 B", "llama-2-13b"), ("70b", "llama-3-70b")])
def test_a_published_size_is_the_published_shape(name: str, same: str) -> None:
    table, own = Workload.named(name), Workload.named(same)
    assert table.layers == own.layers and f"the shape of {same}" in table.notes[0] and not own.notes


def test_a_llama_of_a_size_is_the_newest_and_says_so() -> None:
    table = Workload.named("llama-70b")
    assert table.name == "llama-3-70b" and table.tokens == 8192
    assert table.notes == ("llama-70b: llama-3-70b was taken, the newest Llama of that size; llama-2-70b has that size too.",)
    assert published_of("3b") == ["llama-3.2-3b"]
    assert Workload.named("llama-7b").name == "llama-2-7b" and Workload.named("llama-65b").notes == ()


def test_lengths_and_attention_are_chosen_as_for_other_names() -> None:
    assert Workload.named("7b", 512).tokens == 512
    assert not Workload.named("125m", 128, fused_attention=False).fuses_attention


def test_other_names_are_no_sizes() -> None:
    assert not any(map(is_plain_size, ("qwen-7b", "7", "b", "7bx", "resnet-50", "llama-2-7b", "7b-lora")))
    with pytest.raises(UserError, match=r"3m.*from 10m to 20t"):
        Workload.named("3m")
