"""Jobs that are preempted, with a search over all sets of them as the oracle."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from paceline.scheduling.fleet import Fleet
from paceline.scheduling.placement import Placement
from paceline.scheduling.policies.backfill.plan import BackfillPlan
from paceline.scheduling.policies.backfill.preemption import Preemption, Room, fewest, first_that_suffice
from scheduling_toys import rigid, state

NODES = Fleet.named("3x4xT4")


def held(placements: list[Placement], asked: int, topology: str = "node") -> BackfillPlan:
    """A plan in which the last job waits, and the others run on their placements."""
    counts = [sum(count for _, count in placement) for placement in placements]
    jobs = [rigid(f"{n}", 1000.0, count) for n, count in enumerate(counts)]
    free = NODES.node_devices.copy()
    for placement in placements:
        for node, count in placement:
            free[node] -= count
    return BackfillPlan(
        state(
            [*jobs, rigid("new", 100.0, asked, topology=topology)],
            NODES,
            devices=np.array([*counts, 0]),
            type_index=np.array([*(0 for _ in jobs), -1]),
            placements=[*placements, ()],
            free=free,
            restart_s=np.array(0.0),
        ),
        by_node=True,
    )


@pytest.mark.parametrize("asked", [3, 4])
def test_the_first_that_suffice_and_the_fewest_of_them(asked: int) -> None:
    placements: list[Placement] = [((0, 2),), ((1, 3),), ((0, 1), (1, 1)), ((0, 1),), ((2, 4),)]
    plan = held(placements, asked)
    room, candidates = Room(plan, 5, 0, 100.0), [0, 1, 2, 3]
    suffices = [chosen for n in range(5) for chosen in combinations(candidates, n) if room.nodes(chosen)]
    by_hand = [
        chosen
        for n in range(5)
        for chosen in combinations(candidates, n)
        if any(sum(dict(placements[other]).get(node, 0) for other in chosen) >= asked for node in (0, 1))
    ]
    assert suffices == by_hand
    count = next(n for n in range(1, 5) if tuple(candidates[:n]) in suffices)
    assert first_that_suffice(candidates, room) == count
    chosen = tuple(fewest(candidates, room))
    assert chosen in suffices and not any(set(other) < set(chosen) for other in suffices)


def test_nothing_is_taken_in_vain_and_a_job_in_its_grace_counts_as_gone() -> None:
    plan = held([((0, 4),), ((1, 4),), ((2, 4),)], 4)
    preemption = Preemption(plan, fewest)
    assert not preemption.make_room(3, []) and preemption.make_room(3, [1]) and preemption.victims == {1: 3}
    assert plan.start(3) and plan.placements[3] == ((1, 4),)
    assert not Preemption(held([((0, 3),), ((1, 4),)], 9), fewest).make_room(2, [0]), "8 of 12 would be free"
