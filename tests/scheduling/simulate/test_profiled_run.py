"""A job of a profile: its true speed, its epochs, and what it learns of itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from paceline.errors import UserError
from paceline.scheduling.fleet import Fleet
from paceline.scheduling.job import Job
from paceline.scheduling.simulate.profiled_run import ProfiledRun
from paceline.scheduling.simulate.run import Reports
from paceline.scheduling.speeds.expected_speed import EstimatePool, MeasuredEstimate, OnlineEstimate
from scheduling_toys import SMALL, predicted, profile


def run(folder: Path, adapts: set[str], batch: int = 32, **how: object) -> ProfiledRun:
    job = Job(name="a", model="toy", devices=2, batch=batch, epochs=3, adapts=frozenset(adapts))  # type: ignore[arg-type]
    toy = profile(folder)
    settings = {"adapts_batch": "batch" in adapts, "beliefs": MeasuredEstimate(toy), **how}
    return ProfiledRun(job, toy, SMALL, **settings)  # type: ignore[arg-type]


def test_the_true_speed_is_the_gain_of_a_step_over_its_time(tmp_path: Path) -> None:
    job = run(tmp_path, set(), batch=64)
    job.place("T4", (2,))
    gain = (15 + 1) / (15 / 2 + 1)  # twice the first batch
    assert job.batch == 64 and job.speed == pytest.approx(gain / (0.02 + 0.032 + 0.002))
    job.place("", ())
    assert (job.speed, job.batch) == (0, 0)


def test_epochs_follow_one_another_to_the_end(tmp_path: Path) -> None:
    job = run(tmp_path, set())
    job.place("T4", (2,))
    curves = []
    for left in (200, 100, 0):
        curves.append(job.curve().tolist())
        job.goes_to(0.0)
        job.cross()
        assert job.finished == (left == 0)
        if left:
            assert job.to_next == 100 and job.seconds_left(0, 2)[2] == pytest.approx(left / job.goodput(0, 2)[2])
    assert curves == [[], [0.5], [0.5, 0.6]] and isinstance(job, Reports)


def test_a_rigid_job_runs_on_the_devices_asked_for_and_on_no_fewer(tmp_path: Path) -> None:
    job = run(tmp_path, set())
    assert job.max_devices() == 2 and (job.goodput(0, 4) > 0).tolist() == [False, False, True, True, True]
    assert run(tmp_path, {"devices"}).goodput(0, 1)[1] > 0


def test_over_more_racks_it_is_slower_and_nothing_is_learned(tmp_path: Path) -> None:
    surface = predicted(16)
    wide = replace(profile(tmp_path), speeds={"T4": replace(surface, crossed=surface.steps + 1.0)})
    beliefs = OnlineEstimate()
    stated = Job(name="a", model="toy", devices=8, batch=64, epochs=3)
    job = ProfiledRun(stated, wide, SMALL, adapts_batch=False, beliefs=beliefs)
    speeds = []
    for crossed in (2, 0):
        job.place("T4", (4, 4), crossed)
        job.refresh()
        assert (beliefs.times("T4") is None) == (crossed > 0)
        speeds.append(job.speed)
    step = surface.measured((4, 4), 8)[0]
    assert speeds[1] / speeds[0] == pytest.approx((step + 1) / step)


def test_it_is_tried_on_at_most_twice_the_devices_it_has_seen(tmp_path: Path) -> None:
    job = run(tmp_path, {"devices", "batch"}, beliefs=OnlineEstimate())
    assert job.max_devices() == 1 and job.goodput(0, 3).tolist() == [0, 1, 2, 3]
    job.place("T4", (2,))
    job.refresh()
    assert job.max_devices() == 4 and job.beliefs.times("T4") is not None
    assert run(tmp_path, {"devices", "batch"}).max_devices() == 8


def test_it_takes_a_larger_batch_as_the_noise_grows(tmp_path: Path) -> None:
    job = run(tmp_path, {"devices", "batch"}, beliefs=OnlineEstimate())
    job.place("T4", (4,))
    first = job.batch
    job.refresh()
    learned = job.batch
    job.goes_to(0.0)
    job.cross()
    assert first == 32 < learned <= job.batch <= 512
    assert job.relative_spread() == 0


def test_work_that_nobody_stated_is_known_from_jobs_that_ended(tmp_path: Path) -> None:
    beliefs = EstimatePool(lambda model, device: predicted(8)).of("toy")
    job = run(tmp_path, {"devices", "batch"}, beliefs=beliefs, work_stated=False)
    assert np.isnan(job.seconds_left(0, 1)[1])
    beliefs.end(500.0)
    assert job.seconds_left(0, 1)[1] == pytest.approx(500 / job.goodput(0, 1)[1])
    stated = run(tmp_path, {"devices", "batch"}, beliefs=beliefs, work_error=1.5)
    assert stated.seconds_left(0, 1)[1] == pytest.approx(1.5 * 300 / stated.goodput(0, 1)[1])


def test_a_batch_that_was_not_measured_is_refused_with_the_ones_that_were(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no step was measured on 2 T4 with 1 samples a device.*choose a batch of \d+ to \d+"):
        run(tmp_path, set(), batch=2).place("T4", (2,))


def test_an_outlook_follows_its_noise_and_what_others_report(tmp_path: Path) -> None:
    pool = EstimatePool(lambda model, device: predicted(8))
    job = run(tmp_path, {"devices", "batch"}, beliefs=pool.of("toy"))
    first = job.goodput(0, 4)
    assert (job.goodput(0, 2) == first[:3]).all() and len(job.goodput(0, 8)) == 9
    pool.see("toy", "T4", (1, 1, 64), (1.28, 0.0))
    assert (job.goodput(0, 4)[1:] < first[1:]).all()
    measured = run(tmp_path, {"devices", "batch"})
    measured.place("T4", (4,))
    tables = []
    for _ in range(2):
        measured.refresh()
        tables.append(measured.goodput(0, 4))
        measured.cross()
    assert (tables[1][1:] != tables[0][1:]).all(), "the noise grew"


def test_its_range_is_that_of_the_type_it_holds_or_the_widest(tmp_path: Path) -> None:
    surfaces = {"T4": predicted(8), "RTX 2080 Ti": replace(predicted(8), relative_spread=0.7)}
    pool = EstimatePool(lambda model, device: surfaces[device])
    toy = profile(tmp_path)
    both = replace(toy, speeds=dict.fromkeys(surfaces, toy.speeds["T4"]))
    stated = Job(name="a", model="toy", batch=32, epochs=3)
    job = ProfiledRun(stated, both, Fleet.named("2x4xT4 + 2x4x2080Ti"), adapts_batch=False, beliefs=pool.of("toy"))
    assert job.relative_spread() == 0.7
    job.place("T4", (1,))
    assert job.relative_spread() == 0.4
    job.job = replace(stated, device_types=("T4",))
    job.place("", ())
    assert job.relative_spread() == 0.4
