"""Options that no tool spells so, by their words, their values and their negations."""

from __future__ import annotations

import pytest

from paceline.questions.asked import typed_names
from paceline.questions.typed_words import typed_entry


@pytest.mark.parametrize(
    ("typed", "statement", "value"),
    [
        ("--use-gradient-checkpointing", "recompute", "full"),
        ("--no_gradient_checkpointing", "recompute", "none"),
        ("--disable-flash-attn", "attention", None),
        ("--nvfp4", "precision", "nvfp4"),
        ("--use_bf16", "precision", "bf16"),
        ("--adamw_bnb_8bit", "optimizer", "adamw_8bit"),
        ("--cpu-offload-optimizer", "offload", "optimizer"),
        ("--megatron", "framework", "megatron"),
    ],
)
def test_a_flag(typed: str, statement: str, value: str | None) -> None:
    entry = typed_entry(typed)
    assert entry is not None and (entry[0], entry[2].read("true")) == (statement, value)


@pytest.mark.parametrize(
    ("typed", "statement"),
    [
        ("--pipe-parallel-size", "pipeline"),
        ("--gradient-accumulation", "grad_accum_steps"),
        ("--global_bs", "global_batch_size"),
    ],
)
def test_other_forms_of_words(typed: str, statement: str) -> None:
    entry = typed_entry(typed)
    assert entry is not None and entry[0] == statement


def test_declared_names_hold_and_others_mean_nothing() -> None:
    for name, entry in typed_names().items():
        assert typed_entry(name) == entry
    for name in ("--nonsense", "--data", "--steps-of", "--no-nonsense", "--8"):
        assert typed_entry(name) is None
