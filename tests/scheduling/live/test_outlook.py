"""What is believed of a live job: its reports, or a prediction."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from live_jobs import script, training
from paceline.array_types import Array, Ints
from paceline.scheduling.fleet import Fleet
from paceline.scheduling.live.journal import LiveRow, Report
from paceline.scheduling.live.outlook import PredictedOutlook, ReportedOutlook
from paceline.scheduling.speeds.goodput import StepSeconds

BASE = Path("/data")


def row(**more: object) -> LiveRow:
    return LiveRow(launch=training(BASE, "a"), arrival_s=100.0, **more)  # type: ignore[arg-type]


class Steps(StepSeconds):
    """A sample takes 10 ms, an exchange 100 ms a node beyond the first."""

    def step_s(self, nodes: Ints, devices: Ints, local: Ints) -> tuple[Array, Array]:
        return 0.01 * local + 0.1 * (nodes - 1), 0.01 * local


def test_what_a_job_has_reported_is_believed_and_the_rest_in_proportion() -> None:
    fresh = ReportedOutlook(row())
    assert fresh.goodput(0, 5).tolist() == [0, 1, 2, 2, 4, 4] and fresh.relative_spread() == math.inf
    assert np.isnan(fresh.seconds_left(0, 2)[1:]).all() and fresh.seconds_left(0, 2)[0] == math.inf
    seen = ReportedOutlook(row(reports=(Report({"h0": 2}, 60.0),), progress={"epoch": 2.0, "step": 20.0}))
    assert seen.goodput(0, 4).tolist() == [0, 30, 60, 60, 120] and seen.relative_spread() == 0 and seen.max_devices() == 4
    assert seen.seconds_left(0, 2)[2] == 4 * 10 * 64 / 60.0  # four of six epochs, ten steps each


def test_a_stated_duration_is_what_is_left_of_it() -> None:
    job = script(BASE, "sleep 60", duration_s=60.0, min_devices=2, max_devices=2)
    outlook = ReportedOutlook(LiveRow(launch=job, arrival_s=0.0, run_s=25.0))
    assert outlook.seconds_left(0, 3).tolist() == [math.inf, math.inf, 35.0, 35.0] and outlook.relative_spread() == 0
    late = ReportedOutlook(LiveRow(launch=job, arrival_s=0.0, run_s=99.0))
    assert late.seconds_left(0, 2)[2] == 0.0


def test_a_prediction_says_each_legal_size_where_it_fits() -> None:
    fleet = Fleet.named("2x2xT4, 10Gb/s")
    outlook = PredictedOutlook(row(), fleet, {"T4": Steps()}, {"T4": 32}, 640.0, 0.3)
    # 64 samples: one device of at most 32 cannot; two take 0.32 s; four on two nodes 0.16 + 0.1 s
    assert np.allclose(outlook.goodput(0, 5), [0, 0, 64 / 0.32, 64 / 0.32, 64 / 0.26, 64 / 0.26])
    assert np.allclose(outlook.seconds_left(0, 4)[2:], [3.2, 3.2, 2.6]) and outlook.seconds_left(0, 1)[1] == math.inf
    assert outlook.relative_spread() == 0.3 and outlook.max_devices() == 4
    other = PredictedOutlook(row(), Fleet.named("1x4xV100"), {"T4": Steps()}, {"T4": 64}, 640.0, 0.3)
    assert not other.goodput(0, 4).any()
    small = PredictedOutlook(row(), Fleet.named("1x2xT4"), {"T4": Steps()}, {"T4": 64}, 640.0, 0.3)
    assert small.goodput(0, 2)[2] and not small.goodput(0, 4)[4], "there are no four"
