"""Peak memory that can restart."""

from __future__ import annotations

import sys

import pytest

from paceline.training.runs.compute.peak_memory import peak_rss_bytes, reset_peak_rss


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux, which resets peaks")
def test_the_peak_restarts_from_the_memory_in_use() -> None:
    reset_peak_rss()
    before = peak_rss_bytes()
    held = bytearray(b"1" * (64 << 20))
    grown = peak_rss_bytes()
    del held
    reset_peak_rss()
    assert grown - before >= 60 << 20 and peak_rss_bytes() < grown - (50 << 20)
