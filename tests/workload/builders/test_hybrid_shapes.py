"""Published hybrids and state-space networks: their parameters, all of them and those that a token meets."""

from __future__ import annotations

import pytest

from paceline.workload import Workload
from paceline.workload.builders.hybrid_shapes import HYBRID_SHAPES

PUBLISHED: dict[str, tuple[float, float | None]] = {
    # name: all parameters, and those that a token meets if published (with embeddings)
    "nemotron-h-8b": (8.1e9, None),
    "nemotron-h-47b": (46.8e9, None),
    "nemotron-h-56b": (56.3e9, None),
    "nemotron-nano-9b-v2": (8.89e9, None),
    "nemotron-nano-12b-v2": (12.31e9, None),
    "nemotron-3-nano-30b-a3b": (31.6e9, 3.6e9),
    "qwen-3-next-80b-a3b": (79.7e9, 3.9e9),
    "falcon-h1-0.5b": (521e6, None),
    "falcon-h1-7b": (7.59e9, None),
    "falcon-h1-34b": (33.6e9, None),
    "jamba-52b-a12b": (51.6e9, 12.1e9),
    "bamba-9b": (9.78e9, None),
    "granite-4.0-h-tiny": (6.94e9, 1.47e9),
    "granite-4.0-h-small": (32.2e9, 8.8e9),
    "mamba-130m": (129.1e6, None),
    "mamba-2.8b": (2.768e9, None),
    "mamba2-130m": (129e6, None),
    "mamba2-2.7b": (2.70e9, None),
    "rwkv-4-14b": (14.15e9, None),
}
"""Model cards and papers of ``HYBRID_SHAPES``."""
WITH_FURTHER_TOKENS = {"nemotron-3-super-120b-a12b": 120.6e9, "nemotron-3-ultra-550b-a55b": 550e9}
"""Parameters without the modules for further tokens."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_those_that_are_published(name: str) -> None:
    whole, met = PUBLISHED[name]
    workload, experts = Workload.named(name), HYBRID_SHAPES[name][0].experts
    assert workload.num_parameters == pytest.approx(whole, rel=0.003)
    share = experts.active / experts.count if experts else 1.0
    active = sum(p.size * (share if ".experts." in p.name else 1.0) for p in workload.parameters)
    assert met is None or active == pytest.approx(met, rel=0.01)


@pytest.mark.parametrize("name", WITH_FURTHER_TOKENS)
def test_modules_for_further_tokens_come_on_top(name: str) -> None:
    workload = Workload.named(name)
    extra = sum(p.size for p in workload.parameters if p.name.startswith("further"))
    assert workload.num_parameters - extra == pytest.approx(WITH_FURTHER_TOKENS[name], rel=0.003)
    assert extra > 1e9
