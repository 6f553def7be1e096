"""Simulated futures: known cases, and the compiled simulation against its specification."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from paceline.scheduling.starts import future
from paceline.scheduling.starts.backfill import Shape, ShapeOnNodes
from paceline.scheduling.starts.future import JobTable, starts_of, starts_of_many

NONE = (np.zeros(0), np.zeros(0, np.int64))


def table(free: list[int], jobs: list[tuple[Shape, float, tuple[tuple[int, int], ...]]], **more: object) -> JobTable:
    shapes = list(dict.fromkeys(shape for shape, _, _ in jobs))
    waiting = tuple(at for at, (_, _, held) in enumerate(jobs) if not held)
    given = {"priority": (0.0,) * len(jobs), "submit_s": tuple(at - 100.0 for at in range(len(jobs))), "waiting": waiting}
    return JobTable(
        free=np.array(free),
        shapes=tuple(map(ShapeOnNodes, shapes)),
        shape_of=tuple(shapes.index(shape) for shape, _, _ in jobs),
        limit_s=tuple(limit for _, limit, _ in jobs),
        ran_s=(0.0,) * len(jobs),
        held=tuple(held for _, _, held in jobs),
        **{**given, **more},  # type: ignore[arg-type]
    )


def test_starts_follow_priority_lengths_and_arrivals() -> None:
    eight, two = Shape((0,), 8), Shape((0,), 2)
    jobs = [(eight, 100.0, ((0, 8),)), (eight, 50.0, ()), (two, 20.0, ()), (eight, 10.0, ())]
    waiting = table([0], jobs, waiting=(1, 2))
    assert starts_of(waiting, [40.0, 30.0, 5.0, 9.0], NONE, [1, 2]).tolist() == [40.0, 70.0]
    urgent = table([0], jobs, waiting=(1, 2), priority=(0.0, 0.0, 5.0, 9.0))
    comes = (np.array([10.0]), np.array([3]))
    assert starts_of(urgent, [40.0, 30.0, 5.0, 9.0], comes, [1, 2]).tolist() == [54.0, 49.0]


def test_the_compiled_simulation_equals_its_specification() -> None:
    if future._native() is None:
        pytest.skip("needs the package compiled with csrc/queue_futures.cpp")
    rng = np.random.default_rng(3)
    jobs, free = [], [8] * 4
    for at in range(60):
        count = int(rng.choice([1, 2, 4, 8, 16]))
        shape = Shape((0, 1, 2, 3), count, max(1, count // 8)) if at % 3 else Shape((1, 2, 3), min(count, 8))
        held = ShapeOnNodes(shape).place(np.array(free)) if at < 9 and ShapeOnNodes(shape).fits(np.array(free)) else ()
        for node, part in held:
            free[node] -= part
        jobs.append((shape, float(rng.integers(1, 9) * 600), held))
    waiting = tuple(at for at, (_, _, held) in enumerate(jobs) if not held and at < 50)
    given = table(free, jobs, waiting=waiting, priority=tuple(rng.integers(0, 3, 60).astype(float)), depth=7)
    given = replace(given, array_of=tuple(rng.integers(-1, 3, 60).tolist()), throttle=(2, 5, 3))
    lengths = rng.uniform(1, 4000, (3, 60))
    coming = [(np.sort(rng.uniform(1, 5000, 10)), np.arange(50, 60)), NONE, (np.array([5.0]), np.array([55]))]
    expected = np.array([starts_of(given, row, part, waiting) for row, part in zip(lengths.tolist(), coming, strict=True)])
    assert np.array_equal(starts_of_many(given, lengths, coming, waiting), expected)
