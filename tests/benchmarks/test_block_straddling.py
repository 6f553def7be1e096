"""Counts of blocks that straddle tensors, and the noise between two tensors, of the benchmark and of its kept rows."""

from __future__ import annotations

import sys
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from block_straddling import RATIOS, counts, of_pair  # noqa: E402
from rows import read  # noqa: E402


@given(st.lists(st.integers(1, 40), min_size=1, max_size=12))
def test_a_block_with_several_tensors_is_counted_once(sizes: list[int]) -> None:
    owners = [tensor for tensor, size in enumerate(sizes) for _ in range(size)]
    blocks = [set(owners[start : start + 8]) for start in range(0, len(owners), 8)]
    padded = sum(len(range(0, size, 8)) * 8 for size in sizes)
    assert counts(sizes, 8) == (len(blocks), sum(len(block) > 1 for block in blocks), padded)


def test_the_kept_rows_are_those_of_the_code() -> None:
    kept = [row for row in read(BENCHMARKS / "results" / "block_straddling.csv") if row["network"] == "two tensors"]
    assert {row["ratio"] for row in kept} == set(RATIOS)
    for row in kept:
        again = of_pair(row["compression"], row["ratio"])
        assert abs(again["error"] - row["error"]) <= 1e-6 * row["error"]
        assert again["padded_error"] <= row["padded_error"] * (1 + 1e-6) and again["padded_error"] <= again["error"] * 1.001
