"""Hybrids from configurations: their parameters are those that transformers counts, and blocks follow their lists."""

from __future__ import annotations

from typing import Any

import pytest

from config_cases import DEEPSEEK, HYBRIDS, LLAMA, NEMOTRON_H
from paceline.errors import UserError
from paceline.workload import Workload


@pytest.mark.parametrize(("kind", "given", "parameters"), HYBRIDS, ids=[f"{i}-{kind}" for i, (kind, *_) in enumerate(HYBRIDS)])
def test_parameters_are_those_of_the_module(kind: str, given: dict[str, Any], parameters: int) -> None:
    assert Workload.from_config({"model_type": kind, **given}, 48).num_parameters == parameters


def test_a_pattern_of_letters_is_the_list_of_types() -> None:
    listed = Workload.from_config({"model_type": "nemotron_h", **NEMOTRON_H}, 48, name="a")
    given = {name: value for name, value in NEMOTRON_H.items() if name != "layers_block_type"}
    letters = Workload.from_config({"model_type": "nemotron_h", **given, "hybrid_override_pattern": "ME*-M"}, 48, name="a")
    assert listed == letters
    with pytest.raises(UserError, match="hybrid_override_pattern"):
        Workload.from_config({"model_type": "nemotron_h", **given}, 48)
    with pytest.raises(UserError, match="'Z'"):
        Workload.from_config({"model_type": "nemotron_h", **given, "hybrid_override_pattern": "MZ"}, 48)


def test_modules_for_further_tokens_are_read() -> None:
    config = {**LLAMA, **DEEPSEEK, "num_key_value_heads": 6, "model_type": "deepseek_v3"}
    plain, further = (
        Workload.from_config({**config, "num_nextn_predict_layers": count}, 48).num_parameters for count in (0, 1)
    )
    one_more = Workload.from_config({**config, "num_hidden_layers": 4}, 48).num_parameters
    hidden = LLAMA["hidden_size"]
    assert further - plain == one_more - plain + 2 * hidden * hidden + 3 * hidden
