"""Free devices over time, against a table of every second."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.scheduling.policies.backfill.availability import Availability

HORIZON = 180
"""Seconds of the table. Five jobs of at most 20 s, none asked for after 20 s, start within 120 s."""
TAKEN = st.tuples(st.integers(1, 5), st.integers(0, 20), st.one_of(st.integers(1, 20), st.just(math.inf)))


@given(
    st.lists(st.tuples(st.integers(1, 4), st.one_of(st.integers(0, 20), st.just(math.inf))), max_size=6),
    st.lists(TAKEN, max_size=5),
    st.integers(0, 4),
)
@settings(max_examples=25, deadline=None)
def test_it_is_the_table_of_every_second(
    running: list[tuple[int, float]], wanted: list[tuple[int, int, float]], spare: int
) -> None:
    counts, ends = np.array([n for n, _ in running], np.int64), np.array([end for _, end in running], float)
    available = Availability(0.0, spare, ends, counts)
    table = np.array([spare + counts[ends <= second].sum() for second in range(HORIZON)])

    def least(start: int, seconds: float) -> int:
        return int(table[start : min(int(min(seconds, HORIZON)) + start, HORIZON)].min())

    for devices, after, seconds in wanted:
        fits = [start for start in range(after, HORIZON - 20) if least(start, seconds) >= devices]
        start = available.earliest(devices, seconds, after)
        assert start == (fits[0] if fits else math.inf)
        if fits:
            assert available.least(start, seconds) == least(fits[0], seconds)
            available.reserve(devices, start, seconds)
            table[fits[0] : min(int(min(seconds, HORIZON)) + fits[0], HORIZON)] -= devices
