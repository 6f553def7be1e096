"""Memory formats have the names that people type, and a default by the level of software."""

from __future__ import annotations

import pytest

from paceline.strategy.memory_format import CHANNELS_LAST, CONTIGUOUS, usual_memory_format
from paceline.strategy.strategy import Strategy


@pytest.mark.parametrize(
    ("text", "meant"),
    [("channels-last", CHANNELS_LAST), ("NHWC", CHANNELS_LAST), ("nchw", CONTIGUOUS), ("contiguous", CONTIGUOUS), ("", "")],
)
def test_names_that_people_type(text: str, meant: str) -> None:
    strategy = Strategy.of(world_size=1, global_batch_size=8, memory_format=text)
    assert strategy.memory_format == meant
    assert strategy.to_json().get("memory_format", "") == meant


def test_the_usual_format_follows_the_software() -> None:
    assert usual_memory_format("tuned") == CHANNELS_LAST and usual_memory_format("ordinary") == CONTIGUOUS
