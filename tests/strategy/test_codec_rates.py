"""How fast a codec runs on one core: each rate with its source."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from paceline.strategy import COMPRESSIONS
from paceline.strategy.compression.compression import ASSUMED, MEASURED


@pytest.mark.parametrize("name", COMPRESSIONS)
def test_a_rate_is_that_of_one_core_with_its_source(name):
    """Faster than a slow network, slower than a core reads memory."""
    for rate in (COMPRESSIONS[name].cpu_rate.encode, COMPRESSIONS[name].cpu_rate.decode):
        assert 1e9 <= rate.value <= 5e10 and date.fromisoformat(rate.date)
        assert rate.source == ASSUMED or "benchmarks/results/" in rate.source


def test_what_is_measured_names_the_benchmark_that_is_there():
    root = Path(__file__).parents[2]
    assert MEASURED.rpartition("; ")[2] == "benchmarks/results/codec_speed.csv"
    assert (root / "benchmarks/results/codec_speed.csv").is_file()
    assert [name for name, c in COMPRESSIONS.items() if c.cpu_rate.encode.source == ASSUMED] == ["powersgd"]
