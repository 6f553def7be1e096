"""A job with a strategy of each size goes at its speed, on what it holds."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.scheduling.fleet import Fleet, NodeGroup
from paceline.scheduling.job import Job
from paceline.scheduling.simulate.planned_run import PlannedRun
from paceline.scheduling.speeds.best_strategy import BestStrategy
from paceline.strategy import Strategy

FLEET = Fleet((NodeGroup.of("T4", 2, 4, "25Gb/s"), NodeGroup.of("K80", 1, 4)))
STEPS = {2: 1.0, 4: 0.6, 8: 0.4}
"""Seconds of a step, packed; nothing fits one device."""


class Strategies:
    """As ``BestStrategies``: a wider placement takes twice as long, one over more racks three times."""

    sizes = (1, 2, 4, 8)

    def on(self, devices: int, nodes: int = 0, racks: int = 0) -> BestStrategy | None:
        if devices not in STEPS:
            return None
        strategy = Strategy.of(world_size=devices, global_batch_size=64, sharding="zero3")
        times = 3 if racks > 1 else 2 if nodes > -(-devices // 4) else 1
        return BestStrategy(FLEET.groups[0].part((1,)), strategy, STEPS[devices] * times)


def run(**also: object) -> PlannedRun:
    given = {"name": "a", "steps": 100, "devices": 4, "batch": 64, "adapts": frozenset({"devices"}), **also}
    return PlannedRun(Job(**given), 100.0, {"T4": Strategies()}, FLEET, 0.2)  # type: ignore[arg-type]


def test_sizes_between_take_the_next_smaller_and_what_does_not_fit_has_no_rate() -> None:
    assert np.allclose(run().goodput(0, 8), [0, 0, 1, 1, *[1 / 0.6] * 4, 1 / 0.4])
    assert run().goodput(1, 4).tolist() == [0] * 5  # a type without strategies
    assert run(min_devices=4).goodput(0, 8)[2] == 0
    assert run().seconds_left(0, 2)[2] == 100 and run().seconds_left(0, 2)[1] == np.inf
    assert run().max_devices() == 8 and run(max_devices=4).max_devices() == 4 and run().relative_spread() == 0.2


def test_a_rigid_job_has_one_size() -> None:
    rigid = run(adapts=frozenset())
    assert np.flatnonzero(rigid.goodput(0, 4)).tolist() == [4] and rigid.max_devices() == 4


@pytest.mark.parametrize(
    ("shape", "seconds"), [((4,), 0.6), ((2, 2), 1.2), ((3, 2), 1.2), ((4, 1), 0.6), ((4, 4), 0.4), ((1, 1), 2.0)]
)
def test_it_goes_as_fast_as_its_place_lets_it(shape: tuple[int, ...], seconds: float) -> None:
    job = run()
    job.place("T4", shape)
    assert job.speed == pytest.approx(1 / seconds) and job.strategy == "zero3"
    job.place("", ())
    assert (job.speed, job.strategy) == (0.0, "")


def test_racks_and_what_lies_idle() -> None:
    job = run()
    job.place("T4", (4, 4), 2)
    assert job.speed == pytest.approx(1 / 1.2)
    job.place("T4", (4, 1), 2)  # the four of one node work
    assert job.speed == pytest.approx(1 / 0.6)


def test_it_ends_with_its_steps() -> None:
    job = run()
    job.goes_to(40.0)
    assert job.seconds_left(0, 2)[2] == 40
    job.refresh()
    job.cross()
    assert job.finished
