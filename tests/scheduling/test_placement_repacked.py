"""``scheduling.placement.repacked``, and the simulator that moves jobs by it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster_states import ELASTIC
from paceline.array_types import Ints
from paceline.scheduling import placement as placements
from paceline.scheduling.fleet import Fleet
from paceline.scheduling.job import Job
from paceline.scheduling.placement import Placement, in_order, racks_of, repacked
from paceline.scheduling.policies.paceline import paceline
from paceline.scheduling.simulate import active_jobs
from paceline.scheduling.simulate.run import DurationRun
from paceline.scheduling.simulate.schedule import ClusterSchedule, ClusterSettings, JobOutcome
from paceline.scheduling.simulate.simulator import simulate
from paceline.scheduling.state import Decision, State


def test_jobs_that_are_well_placed_stay() -> None:
    held = [((1, 4),), ((0, 2),), ()]
    assert repacked(np.array([4, 4]), held, np.array([4, 2, 1])) == [((1, 4),), ((0, 2),), ((0, 1),)]


def test_small_jobs_move_so_that_large_ones_are_whole() -> None:
    held = [((0, 1),), ((1, 1),), ()]
    assert repacked(np.array([4, 4]), held, np.array([1, 1, 4])) == [((1, 1),), ((1, 1),), ((0, 4),)]


def test_sizes_that_divide_one_another_are_never_split() -> None:
    rng = np.random.default_rng(0)
    after: list[Placement] = []
    for _ in range(200):
        held = [placement for placement in after if rng.random() < 0.7]  # the others end
        devices = np.array([sum(part for _, part in placement) for placement in held], np.int64)
        while devices.sum() < 32:
            devices = np.append(devices, rng.choice([1, 2, 4, 8, 16]))
        devices = rng.permutation(devices[: np.searchsorted(devices.cumsum(), 32, "right")])
        after = repacked(np.full(4, 8), (held + [()] * 32)[: len(devices)], devices)
        assert [len(placement) for placement in after] == np.maximum(devices // 8, 1).tolist()


def test_a_new_job_leaves_those_that_stay_where_they_are() -> None:
    """It comes first in order, and both nodes hold it."""
    assert repacked(np.array([4, 4]), [(), ((0, 2),)], np.array([2, 2])) in ([((0, 2),), ((0, 2),)], [((1, 2),), ((0, 2),)])
    assert repacked(np.array([4, 4]), [(), ((0, 4),)], np.array([4, 4])) == [((1, 4),), ((0, 4),)]
    assert repacked(np.array([4, 4, 4]), [(), ((0, 1),)], np.array([8, 1])) == [((1, 4), (2, 4)), ((0, 1),)]
    in_racks = repacked(np.full(4, 2), [(), ((0, 1),)], np.array([4, 1]), leaf_nodes=2)
    assert in_racks == [((2, 2), (3, 2)), ((0, 1),)]


def test_no_job_moves_for_one_that_is_no_larger() -> None:
    """A whole node is free in two halves; the job that has one keeps it."""
    held = [(), ((0, 4),), ((1, 2),), ((2, 2),)]
    assert repacked(np.full(3, 4), held, np.array([4, 4, 2, 2]))[1:2] == [((0, 4),)]
    assert repacked(np.array([4, 2, 2]), held[:2], np.array([4, 4])) == [((1, 2), (2, 2)), ((0, 4),)]


def test_a_scattered_job_gathers_where_nodes_are_free() -> None:
    held = [((0, 2), (1, 2)), ((0, 1),), ((1, 1),)]
    assert repacked(np.full(3, 4), held, np.array([4, 1, 1])) == [((2, 4),), ((0, 1),), ((1, 1),)]


@st.composite
def changes(draw: st.DrawFn) -> tuple[Ints, list[Placement], Ints, int]:
    """Nodes, where jobs are, and how many devices each gets next, which fit."""
    per_node, nodes = draw(st.sampled_from([2, 4, 8])), draw(st.integers(1, 6))
    sizes = np.full(nodes, per_node)
    legal = st.sampled_from([count for count in (1, 2, 3, 4, 8, 16) if count <= sizes.sum()])
    free, held = sizes.copy(), list[Placement]()
    for count in draw(st.lists(st.integers(0, 8), max_size=8)):
        order = draw(st.permutations(range(nodes)))
        now = tuple((node, take) for node, take in zip(order, _filled(free[order], count), strict=True) if take)
        held.append(now)
        for node, take in now:
            free[node] -= take
    devices, left = [], int(sizes.sum())
    for now in held:
        count = draw(st.one_of(st.just(sum(take for _, take in now)), legal))
        devices.append(count if count <= left else 0)
        left -= devices[-1]
    return sizes, held, np.array(devices, np.int64), draw(st.sampled_from([0, 2]))


def _filled(free: Ints, count: int) -> list[int]:
    return np.diff(np.minimum(free.cumsum(), count), prepend=0).tolist()  # type: ignore[no-any-return]


@given(changes())
def test_nobody_moves_unless_it_gains_or_another_needs_its_place(change: tuple[Ints, list[Placement], Ints, int]) -> None:
    sizes, held, devices, leaf_nodes = change
    after = repacked(sizes, held, devices, leaf_nodes)
    left = sizes.copy()
    for count, placement in zip(devices.tolist(), after, strict=True):
        assert sum(part for _, part in placement) == count
        for node, part in placement:
            left[node] -= part
    assert (left >= 0).all()
    for index, (now, then) in enumerate(zip(held, after, strict=True)):
        if set(now) == set(then) or sum(part for _, part in now) != devices[index]:
            continue
        gains = (racks_of(then, leaf_nodes), len(then)) < (racks_of(now, leaf_nodes), len(now))
        before = [sum(part for _, part in place) * (place != after[other]) for other, place in enumerate(held)]  # who moves too
        first = [
            other for other, count in enumerate(devices) if count > devices[index] or count == devices[index] == before[other]
        ]
        back = sizes.copy()
        for place in (*(after[other] for other in first if other != index), now):
            for node, part in place:
                back[node] -= part
        assert gains or (back < 0).any(), "it could have stayed"


@given(changes())
def test_jobs_that_cannot_gain_are_not_placed_again(change: tuple[Ints, list[Placement], Ints, int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(placements, "is_tight", lambda *_: False)
        every = repacked(*change)
    assert repacked(*change) == every


@pytest.mark.parametrize("racks", ["", ", 10Gb/s, leaf-nodes=2, oversubscription=2:1"])
def test_a_simulation_is_the_same_whether_or_not_all_jobs_are_placed_again(monkeypatch: pytest.MonkeyPatch, racks: str) -> None:
    rng = np.random.default_rng(1)
    fleet = Fleet.named(f"6x4xT4{racks}")
    jobs = [
        Job(name=f"{index}", duration_s=float(rng.exponential(900)), arrival_s=float(rng.integers(900)), devices=devices)
        for index, devices in enumerate(rng.choice([1, 1, 2, 3, 4, 6, 8], 40).tolist())
    ]

    def outcomes() -> tuple[JobOutcome, ...]:
        return simulate(jobs, fleet, paceline, DurationRun, ClusterSettings()).outcomes

    quick, calls = outcomes(), []
    monkeypatch.setattr(active_jobs, "repacked", lambda *given: calls.append(given) or repacked(*given))
    outcomes()
    few = len(calls)
    for module in (placements, active_jobs):
        monkeypatch.setattr(module, "is_tight", lambda *_: False)
    assert outcomes() == quick
    assert few < 2 / 3 * (len(calls) - few)


def test_in_order_takes_what_is_free_node_by_node() -> None:
    assert in_order(np.array([1, 0, 4, 4]), 6) == ((0, 1), (2, 4), (3, 1))
    assert in_order(np.array([1, 0]), 2) == ()
    assert in_order(np.array([1, 2]), 0) == ()


def test_what_does_not_fit_has_no_place() -> None:
    assert repacked(np.array([4]), [(), ()], np.array([4, 1])) == [((0, 4),), ()]


def moved(settings: ClusterSettings) -> ClusterSchedule:
    """``a`` and ``c`` hold a device of different nodes when ``d`` comes for a whole one."""
    asked = (("a", 0.0, 1), ("b", 0.0, 3), ("c", 0.0, 1), ("d", 60.0, 4))
    jobs = [Job(name=name, duration_s=1000.0, arrival_s=at, devices=devices) for name, at, devices in asked]
    stays = {"a": 1, "c": 1, "d": 4}

    def policy(state: State) -> Decision:
        late = state.time_s >= 60
        devices = np.array([job.devices if not late else stays.get(job.name, 0) for job in state.jobs])
        return Decision(devices=devices, type_index=np.where(devices > 0, 0, -1), repack=True)

    return simulate(jobs, Fleet.named("2x4xT4"), policy, DurationRun, settings)


@pytest.mark.parametrize(("free", "restarts", "end_s"), [(False, 1, 1060.0), (True, 0, 1030.0)])
def test_a_job_that_moves_pays_a_restart_unless_moves_are_free(free: bool, restarts: int, end_s: float) -> None:
    outcomes = {outcome.job.name: outcome for outcome in moved(ClusterSettings(moves_free=free, longest_s=2000.0)).outcomes}
    movers = [outcome for outcome in (outcomes["a"], outcomes["c"]) if len(outcome.spans) > 1]
    assert len(movers) == 1
    assert movers[0].restarts == restarts
    assert movers[0].end_s == pytest.approx(end_s)
    assert outcomes["d"].spans[0].placement in (((0, 4),), ((1, 4),))


def test_a_restart_takes_the_time_of_its_model_and_policies_may_be_told_another() -> None:
    told: list[tuple[float, float]] = []

    def policy(state: State) -> Decision:
        told.append((float(np.ravel(state.restart_s)[0]), float(np.ravel(state.restarting_s)[0])))
        return Decision(devices=np.ones(len(state.jobs), np.int64), type_index=np.zeros(len(state.jobs), np.int64), note="said")

    settings = ClusterSettings(restart_by_model={"bert": 100.0}, believed_restart={"bert": 90.0})
    job = Job(name="one", model="bert", duration_s=50.0, adapts=ELASTIC.adapts)
    schedule = simulate([job], Fleet.named("1x4xT4"), policy, DurationRun, settings)
    assert schedule.outcomes[0].jct_s == pytest.approx(150.0)
    assert told == [(90.0, 0.0), (90.0, 40.0), (90.0, 0.0)]
    assert schedule.notes == ((0.0, "said"), (60.0, "said"), (120.0, "said"))


RACKS = Fleet.named("4x2xT4, 25Gb/s, leaf-nodes=2, oversubscription=4:1")


class Slowed(DurationRun):
    """Half as fast over more racks than it needs."""

    def place(self, device: str, shape: tuple[int, ...], crossed: int = 0) -> None:
        super().place(device, shape)
        self.speed /= 2 if crossed else 1


def test_a_job_over_racks_is_slow_until_it_is_repacked_and_pays_for_the_move() -> None:
    asked = (("a", 0, 2, 100), ("c", 0, 2, 60), ("d", 0, 2, 60), ("e", 0, 2, 100), ("wide", 70, 4, 200), ("late", 200, 2, 10))
    jobs = [Job(name=n, arrival_s=float(at), devices=size, duration_s=float(s)) for n, at, size, s in asked]

    def policy(state: State) -> Decision:
        return Decision(devices=state.requested, type_index=0 * state.requested, repack=state.time_s >= 200)

    settings = ClusterSettings(round_s=10.0, restart_s=0.0, moves_free=True)
    wide = simulate(jobs, RACKS, policy, Slowed, settings).outcomes[4]
    assert [span.placement for span in wide.spans] == [((1, 2), (2, 2)), ((0, 2), (1, 2))]
    assert wide.end_s == 200 + (200 - 130 / 2) and wide.restarts == 1


def test_all_are_repacked_within_racks() -> None:
    def policy(state: State) -> Decision:
        return Decision(devices=state.requested, type_index=0 * state.requested, order=[1, 0], repack=True)

    jobs = [Job(name="b", devices=3, duration_s=10), Job(name="a", devices=4, duration_s=10)]
    schedule = simulate(jobs, RACKS, policy, Slowed, ClusterSettings(round_s=0.0, restart_s=0.0))
    assert [outcome.spans[0].placement for outcome in schedule.outcomes] == [((2, 2), (3, 1)), ((0, 2), (1, 2))]
    jobs = [Job(name=name, devices=devices, duration_s=10) for name, devices in (("a", 3), ("b", 3))]
    schedule = simulate(jobs, RACKS, policy, Slowed, ClusterSettings(round_s=0.0, restart_s=0.0))
    assert [outcome.jct_s for outcome in schedule.outcomes] == [10, 10]
