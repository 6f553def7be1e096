"""The events of an asynchronous job: steps by hand, what each link carries, and the timeline."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from asynchronous_toys import GIGABIT, profile, run
from paceline.prediction.asynchronous import Profile, WorkerLayer
from paceline.prediction.asynchronous.engine import Simulation


def test_one_worker_by_hand() -> None:
    """One tensor: latency and transfer, both passes, transfer and latency, update."""
    job = profile(layers=1, size=GIGABIT / 10, compute_s=0.3, jitter=0.0, update_s=0.05)
    assert run(job, 1, latency=0.01).step_s == pytest.approx(0.1 + 0.01 + 0.3 + 0.1 + 0.01 + 0.05)
    assert run(job, 1, latency=0.01, pull="step").step_s == pytest.approx(0.59), "the answer and the next question as well"


def test_two_tensors_overlap_compute_and_transfer_by_hand() -> None:
    """Tensors of 0.1 s on the wire: the second arrives while the first is used, its gradient leaves in the other's backward."""
    layers = tuple(WorkerLayer(name=name, size=GIGABIT / 10, forward_s=(0.1,), backward_s=(0.2,)) for name in "ab")
    job = Profile(name="job", batch_size=1, layers=layers, link_share=1.0)
    # a here at 0.1, b at 0.2; forward to 0.3; backward b to 0.5, a to 0.7; a's gradient applied at 0.8
    assert run(job, 1).step_s == pytest.approx(0.8)
    # b's gradient was applied at 0.6; its next reading can follow at once, so only a's transfer is waited for
    assert run(job, 1, pull="tensor").step_s == pytest.approx(0.8)


@pytest.mark.long
@pytest.mark.everyday("server")
@pytest.mark.parametrize("pull", ["step", "server", "tensor"])
def test_every_link_carries_what_the_updates_need(pull: Any) -> None:
    result = run(profile(update_s_per_byte=1e-9), 4, 2, pull=pull, steps=200)
    share = result.updates_per_s * 8e6 / GIGABIT
    for server in range(2):
        for way in ("in", "out"):
            assert result.utilisation[f"server {server} link {way}"] == pytest.approx(share / 2, rel=0.02)
        assert result.utilisation[f"server {server} update"] == pytest.approx(result.updates_per_s * 4e6 * 1e-9, rel=0.02)
    assert result.utilisation["worker links up"] == pytest.approx(share / 4, rel=0.02)
    assert all(0 <= used <= 1.0 + 1e-6 for used in result.utilisation.values())


def test_timeline_shows_the_first_steps() -> None:
    result = run(profile(layers=2), 2, 1, drawn_steps=1)
    names = {event.name.split()[0] for event in result.timeline}
    assert names == {"pull", "forward", "backward", "push"} and {event.rank for event in result.timeline} == {0, 1}
    assert not run(profile(layers=2), 2, 1).timeline
    busy = run(profile(layers=2, update_s=1e-3), 2, 1, drawn_steps=1)
    assert {event.rank for event in busy.timeline if event.name.startswith("update")} == {2}


@pytest.mark.parametrize(("pull", "groups"), [("step", 1), ("server", 2), ("tensor", 5)])
def test_a_reading_waits_for_its_group(pull: Any, groups: int) -> None:
    layers = profile(layers=5).layers
    of = replace(profile(), layers=(*layers, replace(layers[0], name="relu", size=0.0)))
    simulation = Simulation(of, 2, 2, GIGABIT, 0.0, pull, [0, 0], 0)
    assert simulation.tensors == [0, 1, 2, 3, 4], "a layer without parameters has no tensor"
    assert len(simulation.in_group) == groups and sorted(itertools.chain(*simulation.in_group)) == simulation.tensors


@pytest.mark.parametrize("workers", [1, 3])
def test_every_worker_does_its_steps_and_every_update_is_counted_once(workers: int) -> None:
    of = profile(layers=2)
    counted = Simulation(of, workers, 2, GIGABIT, 1e-4, "tensor", [7, 0], 1).run(steps=12, warm=4)
    begin, end = counted.begin, counted.end
    assert min(begin.steps) == 4 and min(end.steps) == 12 and begin.seconds < end.seconds
    assert all(after > before for before, after in zip(begin.last, end.last, strict=True))
    updates = counted.stale.total()
    assert abs(updates - 2 * (sum(end.steps) - sum(begin.steps))) <= 2 * 2 * workers, "but for what is under way at both ends"
    assert {event.rank for event in counted.events} <= set(range(workers + 2))
    assert all(event.end_s >= event.start_s >= 0 for event in counted.events)
