"""Pollux's setting: what each policy is given, and, where its data is at hand, its published completions."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from pollux_setting import CLUSTER, Distorted, OptimusOracle, jobs_for, predictions, runs_for

from paceline.scheduling.fleet import Fleet
from paceline.scheduling.job import Job
from paceline.scheduling.policies.registry import policy_named
from paceline.scheduling.simulate.profiled_run import ProfiledRun
from paceline.scheduling.simulate.schedule import ClusterSettings
from paceline.scheduling.simulate.simulator import simulate
from paceline.scheduling.speeds.expected_speed import EstimatePool, MeasuredEstimate
from paceline.scheduling.speeds.predicted_jobs import profiled_networks
from paceline.scheduling.speeds.profiles import DEVICES, read_profiles
from paceline.scheduling.traces.reader import read_trace
from scheduling_toys import SMALL, predicted, profile

SHARED = Path(os.environ.get("PACELINE_SHARED", Path(__file__).parents[3] / "shared")) / "data"
BOTH = frozenset({"devices", "batch"})


def test_each_policy_is_given_what_its_simulator_gave_it() -> None:
    jobs = (
        Job(name="a", model="cifar10", devices=6, batch=2048, duration_s=1, adapts=BOTH),  # type: ignore[arg-type]
        Job(name="b", model="ncf", devices=4, batch=1024, duration_s=1),
    )
    given = {
        name: [(j.devices, j.batch, len(j.adapts)) for j in jobs_for(name, jobs)] for name in ("las", "optimus", "goodput")
    }
    assert given["las"] == [(6, 2048, 0), (4, 1024, 0)]
    assert given["optimus"] == [(6, 2048, 1), (1, 1024, 0)]
    assert given["goodput"] == [(6, 2048, 2), (1, 32768, 0)]


def test_its_models_are_networks_and_the_constants_have_not_seen_its_devices() -> None:
    assert (
        set(profiled_networks()) == {"cifar10", "imagenet", "bert", "yolov3", "deepspeech2", "ncf"} and "T4" in DEVICES.values()
    )
    surface = predictions(Fleet.named(CLUSTER)).surface("cifar10", Fleet.named(CLUSTER).groups[0], 32, 1024)
    assert surface.local_range == (32, 1024) and len(surface.sizes) < 16


def test_errors_are_drawn_by_the_seed(tmp_path: Path) -> None:
    toy = {"toy": profile(tmp_path)}
    job = Job(name="a", model="toy", epochs=1, adapts=BOTH)  # type: ignore[arg-type]

    def left(seed: int) -> float:
        run = runs_for("goodput", SMALL, toy, "measured", error=0.2, work_error=0.3, seed=seed)(job)
        assert isinstance(run, ProfiledRun) and isinstance(run.beliefs, Distorted)
        return float(run.seconds_left(0, 4)[4])

    assert left(1) == left(1) != left(2)


@pytest.mark.everyday("las-tiresias-0.05")
@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the published traces and profiles (PACELINE_SHARED)")
@pytest.mark.parametrize(("policy", "published", "within"), [("las", "tiresias", 0.05), ("optimus", "optimus", 0.05)])
def test_completions_are_the_published_ones(policy: str, published: str, within: float) -> None:
    import csv

    where = {"set": "0.5x", "workload": "1"}
    jobs = read_trace(SHARED / "traces" / "pollux_workloads.csv", where).jobs
    fleet = Fleet.named(CLUSTER)
    runs = runs_for(policy, fleet, read_profiles(SHARED / "profiles", {"aws": "T4"}))
    schedule = simulate(jobs_for(policy, jobs), fleet, policy_named(policy).decide, runs, ClusterSettings())
    with (SHARED / "traces" / "reference_pollux_jct.csv").open(newline="") as file:
        rows = [
            row for row in csv.DictReader(file) if (row["policy"], row["load"], row["workload"]) == (published, "0.5x", "1")
        ]
    reference = {row["job_id"]: float(row["jct_s"]) for row in rows}
    jcts = {outcome.job.name: outcome.jct_s for outcome in schedule.outcomes}
    assert np.mean([jcts[name] for name in reference]) == pytest.approx(np.mean(list(reference.values())), rel=within)


def step(times: object, devices: int, local: int) -> float:
    one = np.array([1])
    return float(times.step_s(one * -(-devices // 4), one * devices, one * local)[0][0])  # type: ignore[attr-defined]


def test_errors_stay_for_a_life_and_differ_between_sizes() -> None:
    exact = EstimatePool(lambda model, device: predicted(16)).of("a")
    wrong, again = (Distorted(exact, 0.2, seed=3) for _ in range(2))
    ratios = [step(wrong.times("T4"), n, 8) / step(exact.times("T4"), n, 8) for n in (1, 2, 4, 8, 16)]
    assert len(set(ratios)) == 5 and all(0.3 < ratio < 3 for ratio in ratios)
    assert step(again.times("T4"), 8, 8) == step(wrong.times("T4"), 8, 8)
    assert wrong.times("T4") is wrong.times("T4")
    without = Distorted(exact, 0.0, seed=3)
    assert without.scales and step(without.times("T4"), 4, 8) == step(exact.times("T4"), 4, 8)


def test_seconds_left_do_not_see_the_current_epoch(tmp_path: Path) -> None:
    job = Job(name="a", model="toy", batch=32, epochs=3, adapts=frozenset({"devices"}))
    toy = profile(tmp_path)
    run = OptimusOracle(job, toy, SMALL, adapts_batch=False, beliefs=MeasuredEstimate(toy))
    run.place("T4", (2,))
    two = 0.02 + 0.016 + 0.002
    one = 2 * (0.02 + 0.016)  # one device takes two passes
    assert run.seconds_left(0, 2) == pytest.approx([np.inf, 200 * one, 200 * two])
    run.goes_to(50.0)
    assert run.seconds_left(0, 2)[2] == pytest.approx(200 * two)
    run.cross()
    run.cross()
    assert run.seconds_left(0, 2)[2] == pytest.approx(two)  # in its last epoch it counts as one step
