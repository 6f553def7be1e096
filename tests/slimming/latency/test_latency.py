"""Latency of files, measured in alternation."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from paceline.slimming.export.onnx_export import to_onnx
from paceline.slimming.latency.latency import alternating, latencies, own_clock, pinned


@pytest.mark.long
def test_more_work_takes_longer_and_quartiles_are_in_order(tmp_path: Path) -> None:
    inputs = (torch.randn(64, 256),)
    files = {}
    for name, width in (("large", 1024), ("small", 32)):
        model = nn.Sequential(nn.Linear(256, width), nn.ReLU(), nn.Linear(width, 256))
        files[name] = to_onnx(model, inputs, tmp_path / f"{name}.onnx"), inputs
    found = latencies(files, turns=5)
    assert found["large"].median_s > 2 * found["small"].median_s > 0
    assert all(each.low_s <= each.median_s <= each.high_s and each.turns == 5 for each in found.values())


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs a system that pins threads, as Linux does")
@pytest.mark.parametrize("threads", [1, 2, 1000])
def test_threads_are_pinned_while_they_are_timed_and_then_free(threads: int) -> None:
    allowed = os.sched_getaffinity(0)
    with pytest.raises(KeyError), pinned(threads):
        assert len(os.sched_getaffinity(0)) == min(threads, len(allowed)) and os.sched_getaffinity(0) <= allowed
        raise KeyError
    assert os.sched_getaffinity(0) == allowed


@pytest.mark.parametrize("drift", [-0.45, 0.0, 1.0])
def test_a_clock_that_drifts_changes_no_ratio(drift: float) -> None:
    """In the time of the measurement the machine becomes twice as slow, or nearly twice as fast, as on a shared host."""
    now = 0.0

    def takes(seconds: float) -> None:
        nonlocal now
        now += seconds * (1 + drift * min(now / 2.0, 1.0))

    calls = {"whole": lambda: takes(240e-6), "small": lambda: takes(80e-6), "slower": lambda: takes(300e-6)}
    found = alternating(calls, clock=lambda: now)
    assert now > 0.3 and {each.turns for each in found.values()} < set(range(80, 101)), "0.2 s of 2.2 ms each, about"
    for name, ratio in (("small", 1 / 3), ("slower", 1.25)):
        each = found[name]
        assert each.median_s / found["whole"].median_s == pytest.approx(ratio, rel=0.003)
        assert each.high_s - each.low_s < 0.01 * each.median_s
    alone = alternating({"small": calls["small"]}, turns=5, clock=lambda: now)["small"]
    assert alone.turns == 5 and alone.median_s == pytest.approx(80e-6 * (1 + drift * min(now / 2, 1)), rel=0.02)


def test_a_call_that_finds_the_caches_cold_after_the_others_does_not_count() -> None:
    now, last = 0.0, ""

    def call(name: str) -> None:
        nonlocal now, last
        now, last = now + (1e-4 if name == last else 3e-4), name

    found = alternating({name: partial(call, name) for name in "abcd"}, turns=5, clock=lambda: now)
    assert [each.median_s for each in found.values()] == pytest.approx([1e-4] * 4)


def test_other_programs_do_not_count_on_one_thread() -> None:
    assert own_clock(1) is time.process_time and own_clock(2) is time.perf_counter
