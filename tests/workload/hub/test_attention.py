"""Attention of transformers as a fused kernel."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest

from config_cases import LLAMA
from paceline.workload import Workload

pytestmark = pytest.mark.skipif(find_spec("transformers") is None, reason="needs transformers")


def attends(**changes: Any) -> list[Any]:
    table = Workload.from_config({"model_type": "smollm3", **LLAMA, **changes}, 40)
    return [o for layer in table.layers for o in layer.operations if o.kind == "attention" and not o.backward]


def test_a_window_is_known_and_nothing_else_is_lost() -> None:
    whole, near = attends(), attends(use_sliding_window=True, sliding_window=10, layer_types=["sliding_attention"] * 3)
    assert [o.sliding for o in whole] == [0.0] * 3 and [o.sliding for o in near] == [10.0] * 3
    assert all(o.causal for o in (*whole, *near)) and near[0].flops == whole[0].flops / 4
    assert whole[0].flops == 4 * 40 * 40 * 96
