"""Paceline's policy: short jobs first, devices where they pay, no move that does not."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from paceline.array_types import Array
from paceline.scheduling.fleet import Fleet
from paceline.scheduling.policies.paceline import UNKNOWN_S, WIDE, paceline, size_values, work_left_s
from paceline.scheduling.simulate.active_jobs import ActiveJobs
from paceline.scheduling.simulate.run import DurationRun
from paceline.scheduling.simulate.schedule import ClusterSettings
from paceline.scheduling.simulate.simulator import simulate
from paceline.scheduling.state import Decision, State
from scheduling_toys import FREE, SMALL, audit, elastic, rigid, simulated, state

TWO = Fleet.named("1x4xT4 + 1x4xV100")


def test_one_job_gets_all_and_two_equal_ones_a_half() -> None:
    assert paceline(state([elastic("a", 1000)])).devices.tolist() == [8]
    assert paceline(state([elastic("a", 1000), elastic("b", 1000)])).devices.tolist() == [4, 4]


def test_the_shorter_job_gets_more_and_alone_the_weight_decides() -> None:
    short, long = paceline(state([elastic("a", 2000), elastic("b", 20000)])).devices
    assert short > long > 0
    light, heavy = paceline(state([elastic("a", 2000), elastic("b", 2000, weight=4)])).devices
    assert light < heavy


def test_a_move_must_pay_for_its_restart() -> None:
    jobs = [elastic("a", 40)]
    held = {"devices": np.array([4]), "type_index": np.array([0])}
    assert paceline(state(jobs, **held, restart_s=1000.0)).devices.tolist() == [4]
    assert paceline(state(jobs, **held, restart_s=0.0)).devices.tolist() == [8]


def test_a_job_that_was_often_resized_pays_its_restart_in_less_time() -> None:
    """Twice the devices for a restart of 300 s: it pays where devices are kept for 900 s, not where they were for 300 s."""
    held = {"devices": np.array([4]), "type_index": np.array([0]), "run_s": np.array([[3000.0]]), "restart_s": 300.0}
    assert paceline(state([elastic("a", 1e6)], **held, restarts=np.array([2]))).devices.tolist() == [8]
    assert paceline(state([elastic("a", 1e6)], **held, restarts=np.array([9]))).devices.tolist() == [4]


def test_rigid_jobs_get_what_they_ask_for_or_nothing() -> None:
    jobs = [rigid("a", 500, 5), rigid("b", 100, 5), elastic("c", 1000)]
    decision = paceline(state(jobs))
    assert decision.devices.tolist() == [0, 5, 3]
    over_types = paceline(state([rigid("a", 500, 3), rigid("b", 100, 3, device_types=("T4",))], TWO))
    assert over_types.devices.tolist() == [3, 3] and over_types.type_index.tolist() == [1, 0]


def test_what_is_unknown_counts_as_long_as_it_has_run() -> None:
    unknown = DurationRun(rigid("a", 900))
    assert work_left_s(unknown.outlook, 0, 1, 0.0) == UNKNOWN_S
    assert [work_left_s(unknown.outlook, 0, 1, held) for held in (300.0, 301.0)] == [UNKNOWN_S, 4 * UNKNOWN_S]
    assert 5000 <= work_left_s(unknown.outlook, 0, 1, 5000.0) <= 20000
    assert work_left_s(DurationRun(rigid("a", 900, 2), durations_known=True).outlook, 0, 2, 5000.0) == 1800


def test_a_wide_range_is_not_believed() -> None:
    run = DurationRun(rigid("a", 900), durations_known=True)
    assert work_left_s(run.outlook, 0, 1, 0.0) == 900
    run.relative_spread = lambda: WIDE  # type: ignore[method-assign]
    assert work_left_s(run.outlook, 0, 1, 0.0) == UNKNOWN_S


def test_a_smaller_job_makes_room_for_one_that_would_be_scattered() -> None:
    jobs = [rigid("a", 1000, 2), rigid("b", 100, 2), rigid("c", 100, 2), rigid("d", 1000, 2), rigid("whole", 500, 4, 200)]
    a, *_, d, whole = simulated(jobs, paceline).outcomes
    assert len(whole.spans[0].placement) == 1 and whole.start_s == 200
    assert len(a.spans) + len(d.spans) == 3, "one of them moved"


@pytest.mark.parametrize("fleet", [SMALL, TWO])
def test_every_job_ends(fleet: Fleet) -> None:
    jobs = [elastic(f"e{index}", 300.0 * (index + 1), 40.0 * index) for index in range(6)]
    jobs += [rigid(f"r{index}", 200.0, 3, 50.0 * index) for index in range(4)]
    schedule = simulated(jobs, paceline, fleet)
    audit(schedule, jobs)
    assert all(outcome.end_s > 0 for outcome in schedule.outcomes)


def reference_values(now: State, index: int) -> dict[tuple[int, int], float]:
    """Addition to the sum by (type, devices), written job by job."""
    job, outlook, held = now.jobs[index], now.outlooks[index], int(now.devices[index])
    rates = {}
    for group, there in enumerate(now.capacity.tolist()):
        per_node = now.fleet.groups[group].devices_per_node
        if "devices" not in job.adapts:
            legal = [job.devices]
        else:
            legal = [
                size
                for size in range(job.min_devices, outlook.max_devices() + 1)
                if size <= 4 * per_node or not size % per_node
            ]
        if job.may_use(now.fleet.types[group]):
            rates |= {(group, size): outlook.goodput(group, size)[size] for size in legal if size <= there}
    rates = {key: float(rate) for key, rate in rates.items() if rate > 0}
    if not rates:
        return {}
    least = {group: min(size for other, size in rates if other == group) for group, _ in rates}
    best = max(least, key=lambda group: rates[group, least[group]] / least[group])
    left_s = work_left_s(outlook, best, least[best], float(now.attained_s[index]))
    kept_s = min(900.0, max(float(now.ran_s[index]) / (int(now.restarts[index]) + 1), 300.0)) if held else math.inf
    values = {}
    for (group, size), rate in rates.items():
        speedup, restart_s = rate / (rates[best, least[best]] / least[best]), float(now.restart_s[index])
        stays = size == held and group == now.type_index[index]
        works = 1.0 if stays else max(1 - restart_s / min(left_s / speedup + restart_s, kept_s), 0.0)
        values[group, size] = job.weight * left_s**-0.3 * (works * speedup) ** 0.75 / 0.75
    return values


@pytest.mark.parametrize("fleet", [SMALL, TWO])
def test_values_in_bulk_are_those_of_each_job(fleet: Fleet) -> None:
    """Rigid and elastic jobs of known and unknown length, some of which hold devices, with speeds in bulk and without."""
    jobs = [elastic("a", 900), rigid("b", 500, 2, weight=3.0), elastic("c", 5000, min_devices=2, device_types=("T4",))]
    jobs += [rigid("d", 70, 3), rigid("e", 900, 4, device_types=("T4",)), rigid("too large", 900, 99)]
    held = {"devices": np.array([3, 2, 0, 0, 0, 0]), "type_index": np.array([0, 0, -1, -1, -1, -1])}
    attained = {"attained_s": np.array([900.0, 1200, 0, 0, 5000, 0]), "run_s": np.full((6, len(fleet.groups)), 400.0)}
    usual = state(jobs, fleet, **held, **attained, restarts=np.array([0, 1, 0, 0, 3, 0]))
    outlooks = [*usual.outlooks[:4], DurationRun(jobs[4]), DurationRun(jobs[5])]
    active = ActiveJobs(fleet, FREE, {}, lambda job: outlooks[jobs.index(job)])
    active.come(jobs)
    for fixed in (None, active.fixed):
        now = replace(usual, outlooks=outlooks, fixed=fixed)
        found = size_values(now)
        for index in range(len(jobs)):
            own = found.job == index
            keys = zip(found.type_index[own].tolist(), found.devices[own].tolist(), strict=True)
            values, every = dict(zip(keys, found.value[own].tolist(), strict=True)), reference_values(now, index)
            assert values == pytest.approx({key: every[key] for key in values})
            left_out = {size for _, size in every.keys() - values.keys()}
            assert left_out <= ({3} if len(fleet.groups) > 1 else set()), "it fills no node of four"


@pytest.mark.parametrize("seed", range(3))
def test_rounds_are_passed_until_a_job_reaches_the_next_level(seed: int) -> None:
    """Rigid jobs of unknown length on a crowded cluster, with the promise and without."""
    rng = np.random.default_rng(seed)
    jobs = [
        rigid(f"{index}", float(rng.exponential(2000)), int(rng.choice([1, 2, 4, 8])), float(rng.integers(2000)))
        for index in range(12)
    ]
    asked: list[float] = []

    def anew(state: State) -> Decision:
        asked.append(state.time_s)
        return replace(paceline(state), holds_until_s=-math.inf)

    passed, every = (simulate(jobs, SMALL, policy, DurationRun, ClusterSettings()) for policy in (paceline, anew))
    assert (passed.outcomes, passed.active) == (every.outcomes, every.active)
    assert len(passed.decision_s) < len(asked) / 2
    assert sum(outcome.restarts for outcome in passed.outcomes) > 3, "levels changed"


def test_a_job_of_fixed_speed_is_asked_once() -> None:
    """Work is counted, not seconds: decisions must not cost a call for each job."""
    asked: list[str] = []

    class Counted(DurationRun):
        def goodput(self, device_type: int, most: int) -> Array:
            asked.append(self.job.name)
            return super().goodput(device_type, most)

    jobs = [rigid(f"{index}", 500.0, 1 + index % 8, 40.0 * index) for index in range(20)]
    schedule = simulate(jobs, SMALL, paceline, Counted, ClusterSettings())
    assert len(schedule.decision_s) > 40
    assert len(asked) <= 2 * len(jobs)
