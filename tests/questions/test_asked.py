"""Statements and their names: each tool's name means one thing, and keys are found by the ending of their path."""

from __future__ import annotations

from collections import Counter

from paceline.questions.asked import QUESTIONS, STATED, is_flag, looked_up, names_in, options_of, typed_names
from paceline.strategy.choices.synonyms import TOOLS


def test_a_name_of_a_tool_means_one_thing() -> None:
    names = Counter((tool, each.name) for item in STATED.values() for each in item.synonyms for tool in each.tools)
    assert [name for name, times in names.items() if times > 1] == []
    assert {tool for tool, _ in names} == TOOLS.keys()


def test_a_typed_name_is_of_its_statement() -> None:
    typed = typed_names()
    for name, item in STATED.items():
        for each in item.synonyms:
            if not each.tools:
                assert typed[each.name.replace("-", "_")][0] == name
    assert {"per_device_train_batch_size", "tp", "gradient_checkpointing", "sequence_len"} <= typed.keys()


def test_keys_are_found_by_their_longest_ending() -> None:
    found = looked_up("deepspeed", ["zero_optimization", "offload_param", "device"])
    assert found is not None and found[0] == "offload"
    assert looked_up("deepspeed", ["zero_optimization", "offload_param", "buffer_count"]) is None
    nested = looked_up("nemo", ["model", "tensor_model_parallel_size"])
    assert nested is not None and nested[0] == "tensor"
    assert names_in("axolotl")["micro_batch_size"][0] == "micro_batch_size"


def test_options() -> None:
    assert options_of("micro_batch_size") == ("micro-batch-size",) and options_of("steps") == ()
    assert options_of("grad_accum_steps") == ("grad-accum", "micro-batches")
    assert is_flag("compile") and is_flag("sequence") and not is_flag("tensor")
    assert all(question.title for question in QUESTIONS.values())
