"""Open transformers: their parameters are those of the models' cards."""

from __future__ import annotations

import pytest

from each_row import each_row
from paceline.workload import Workload
from paceline.workload.builders.open_shapes import OPEN_SHAPES

PUBLISHED = {
    "qwen-7b": 7.721e9,
    "qwen-14b": 14.17e9,
    "internlm-7b": 7.32e9,
    "bloom-7b1": 7.069e9,
    "bloom-176b": 176.2e9,
    "falcon-40b": 41.3e9,
    "gpt-neox-20b": 20.55e9,
    "phi-1.5": 1.418e9,
    "yi-34b": 34.39e9,
    "baichuan2-13b": 13.9e9,
    "gemma-2b": 2.506e9,
    "chatglm3-6b": 6.243e9,
    "opt-350m": 0.331e9,
    "roberta-large": 0.355e9,
}
"""Parameters of the released weights (the models' cards on Hugging Face)."""


@each_row(("name", "parameters"), [*PUBLISHED.items()])
def test_parameters(name: str, parameters: float) -> None:
    assert Workload.named(name).num_parameters == pytest.approx(parameters, rel=0.005)


@each_row("name", [*OPEN_SHAPES])
def test_sources(name: str) -> None:
    assert len(OPEN_SHAPES[name][2]) > 20
