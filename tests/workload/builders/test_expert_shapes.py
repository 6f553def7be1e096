"""Published mixtures of experts: their parameters, all of them and those that a token meets."""

from __future__ import annotations

import pytest

from paceline.workload import Workload
from paceline.workload.builders.shapes import SHAPES

RELEASED = {
    "mixtral-8x7b": 46_702_792_704,
    "qwen-3-30b-a3b": 30_532_122_624,
    "qwen-3-235b-a22b": 235_093_634_560,
    "qwen-3-0.6b": 596_049_920,
    "qwen-3-32b": 32_762_123_264,
}
"""Parameters of the released weights (Hugging Face)."""
PUBLISHED = {
    # name: all parameters, and those that a token meets; None where no count is published
    "mixtral-8x7b": (46.7e9, 12.9e9),
    "mixtral-8x22b": (141e9, 39e9),
    "deepseek-v2": (236e9, None),
    "deepseek-v2-lite": (15.7e9, None),
    "deepseek-v3": (671e9, 37e9),
    "kimi-k2": (1026e9, 32.6e9),
    "qwen-3-30b-a3b": (30.5e9, 3.3e9),
    "qwen-3-235b-a22b": (235e9, 22e9),
    "llama-4-scout": (107.8e9, 17e9),  # 109 with the vision encoder
    "llama-4-maverick": (400e9, 17e9),
    "grok-1": (314e9, None),
    "gpt-oss-20b": (20.91e9, None),
    "gpt-oss-120b": (116.83e9, None),
}
MODULE = 11.5e9
"""Parameters of DeepSeek-V3's module for a further token, without the shared embedding and output (its README_WEIGHTS.md)."""
WITHOUT_TABLE = {"deepseek-v2": 21e9, "deepseek-v2-lite": 2.4e9, "gpt-oss-20b": 3.61e9, "gpt-oss-120b": 5.13e9}
"""Active parameters as the papers count them: without the table of tokens."""


def active(name: str) -> float:
    """Parameters that one token meets."""
    experts = SHAPES[name].shape.experts
    assert experts is not None
    share = experts.active / experts.count
    return sum(p.size * (share if ".experts." in p.name else 1.0) for p in Workload.named(name).parameters)


@pytest.mark.parametrize("name", RELEASED)
def test_parameters_are_those_of_the_released_weights(name: str) -> None:
    assert Workload.named(name).num_parameters == RELEASED[name]


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_those_that_are_published(name: str) -> None:
    whole, met = PUBLISHED[name]
    assert Workload.named(name).num_parameters == pytest.approx(whole, rel=0.01)
    if met is not None:
        assert active(name) == pytest.approx(met, rel=0.02)  # published in whole billions


def test_the_module_for_a_further_token_has_the_published_parameters() -> None:
    without, with_module = (Workload.named(name).num_parameters for name in ("deepseek-v3", "deepseek-v3-mtp"))
    assert with_module - without == pytest.approx(MODULE, rel=0.015)


@pytest.mark.parametrize("name", WITHOUT_TABLE)
def test_active_parameters_are_those_of_the_papers(name: str) -> None:
    shape = SHAPES[name].shape
    assert active(name) - shape.vocabulary * shape.hidden == pytest.approx(WITHOUT_TABLE[name], rel=0.025)
