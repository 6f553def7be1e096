"""Pictures of schedules hold what the schedule holds."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from paceline.reporting.figures import schedule_figures as figures
from paceline.scheduling.fleet import Fleet, NodeGroup
from paceline.scheduling.simulate.compare import compare
from schedule_toys import job, simulated


def test_the_gantt_has_a_bar_for_each_node_of_each_span() -> None:
    svg, left_out = figures.gantt(simulated().schedule)
    tips = re.findall(r"<title>(.*?)</title>", svg)
    assert [tip.split(":")[0] for tip in tips] == ["a", "a", "b", "c"] and left_out == ""
    assert "n0 T4" in svg and "n1 T4" in svg and tips[2] == "b: 2 T4 from 100 s to 2.5 min"


def test_what_is_left_out_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "BARS", 2)
    wide = Fleet((NodeGroup.of("T4", 60, 1),))
    svg, left_out = figures.gantt(simulated(*(job(f"j{n}", 0, 1, 9) for n in range(5)), fleet=wide).schedule)
    assert left_out == "48 of 60 nodes are drawn; the first 2 of 5 bars are drawn" and svg.count("<title>") == 2


def test_means_over_time_keep_the_area() -> None:
    edges = np.linspace(0, 10, 8)
    begun, ended, counts = np.array([0.5, 3.0]), np.array([2.5, 10.0]), np.array([2.0, 5.0])
    line = figures.mean_of(edges, begun, ended, counts)
    assert (line * np.diff(edges)).sum() == pytest.approx(2 * 2 + 5 * 7)
    assert line[-1] == pytest.approx(5) and line[0] == pytest.approx(2 * (10 / 7 - 0.5) / (10 / 7))


def test_queue_and_devices_say_their_peaks() -> None:
    schedule = simulated().schedule
    assert "waiting: at most 2" in figures.queue(schedule) and "running: at most 2" in figures.queue(schedule)
    assert "T4, of 4: at most 4" in figures.held_by_type(schedule)


def test_completion_times_and_comparison() -> None:
    both = {"fifo": simulated(), "las": simulated(policy="las")}
    assert "fifo: median 2.3 min" in figures.completion_times(both) or "fifo: median 140 s" in figures.completion_times(both)
    assert "Mean completion time against fifo: las 1" in figures.comparison(compare(both))
    for one in both.values():
        for outcome in one.schedule.outcomes:
            outcome.end_s = math.nan
    assert figures.completion_times(both) == "" == figures.comparison(compare(both))
