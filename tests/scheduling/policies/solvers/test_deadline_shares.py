"""Least shares keep a deadline with no more devices than it takes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.scheduling.policies.solvers.deadline_shares import FreeDevices, SharePlan, SpeedTable, least_share, steady_share

LINEAR = SpeedTable(np.arange(9.0))
CONCAVE = SpeedTable(np.array([0, 1.0, 1.7, 0, 2.8, 0, 0, 0, 4.0]))
FREE = st.lists(st.tuples(st.integers(1, 50), st.integers(0, 8)), min_size=1, max_size=6)


def free(rows: list[tuple[int, int]]) -> FreeDevices:
    moments = np.cumsum([0, *[length for length, _ in rows]]).astype(float).tolist()
    return FreeDevices(moments, [*[devices for _, devices in rows], 8])


def work_of(plan: SharePlan, speeds: SpeedTable) -> float:
    return sum((end - start) * float(speeds.table[size]) for start, end, size in plan.stretches)


@given(FREE, st.floats(1, 500), st.floats(1, 300), st.sampled_from([LINEAR, CONCAVE]), st.sampled_from([0, 1, 2, 4, 8]))
def test_a_plan_does_all_work_and_takes_only_what_is_free(
    rows: list[tuple[int, int]], work: float, deadline: float, speeds: SpeedTable, held: int
) -> None:
    for plan in (
        least_share(free(rows), speeds, work, deadline),
        least_share(free(rows), speeds, work, deadline, held),
        steady_share(free(rows), speeds, work, deadline, 10.0, held),
    ):
        if not plan.stretches:
            assert not plan.in_time
            continue
        assert work_of(plan, speeds) == pytest.approx(work)
        assert not plan.in_time or plan.stretches[-1][1] <= deadline * (1 + 1e-9)
        rest = free(rows)
        rest.take(plan)
        assert min(rest.devices) >= 0


@given(FREE, st.floats(1, 500), st.floats(1, 300))
def test_it_is_late_only_where_all_devices_would_be(rows: list[tuple[int, int]], work: float, deadline: float) -> None:
    there = free(rows)
    all_of_it = sum(
        max(min(end, deadline) - start, 0) * devices
        for start, end, devices in zip(there.moments, [*there.moments[1:], np.inf], there.devices, strict=True)
    )
    assert least_share(there, LINEAR, work, deadline).in_time == (all_of_it >= work * (1 - 1e-9))


def test_the_smallest_quota_and_no_more_of_it_than_needed() -> None:
    plan = least_share(FreeDevices([0.0], [8]), CONCAVE, 150.0, 100.0)  # 2 devices do 170, 1 does 100
    assert [size for _, _, size in plan.stretches] == [2, 1] and plan.stretches[0][1] == pytest.approx(50 / 0.7)
    assert plan.at(0) == 2 and plan.at(99) == 1 and plan.at(100) == 0
    assert plan.device_s == pytest.approx(100 + 50 / 0.7)
    held = least_share(FreeDevices([0.0], [8]), CONCAVE, 150.0, 100.0, held=2)
    assert held.stretches == [(0.0, pytest.approx(150 / 1.7), 2)]


def test_a_steady_share_keeps_what_is_held() -> None:
    assert steady_share(FreeDevices([0.0], [8]), CONCAVE, 100.0, 100.0, 10.0, held=4).at(0) == 4
    assert steady_share(FreeDevices([0.0], [8]), CONCAVE, 160.0, 100.0, 10.0, held=1).at(0) == 4  # 2 do 153 in 90 s
    assert not steady_share(FreeDevices([0.0], [2]), CONCAVE, 500.0, 100.0, 10.0, held=2).in_time


def test_tables_of_many_jobs_are_those_of_each() -> None:
    rng = np.random.default_rng(3)
    tables = [np.append(0.0, rng.integers(0, 5, count).astype(float)) for count in (1, 4, 9, 9, 1, 9)] + [np.zeros(5)]
    for table, found in zip(tables, SpeedTable.of_all(tables), strict=True):
        alone = SpeedTable(table)
        for name in ("table", "sizes", "speeds", "fits"):
            assert getattr(found, name).tolist() == getattr(alone, name).tolist(), name
    assert SpeedTable.of_all([]) == []
