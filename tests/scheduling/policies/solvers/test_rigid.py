"""Filling a cluster in an order: both ways of doing it agree, and nothing is given twice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.scheduling.fleet import Fleet
from paceline.scheduling.policies.solvers.rigid import all_served, filled
from scheduling_toys import rigid, state

ASKED = st.lists(st.integers(1, 10), min_size=1, max_size=12)


@given(ASKED, st.booleans(), st.randoms())
def test_each_gets_what_it_asks_for_or_nothing(asked: list[int], blocking: bool, chance: Any) -> None:
    order = list(range(len(asked)))
    chance.shuffle(order)
    left, taken = 8, set()
    for index in order:
        if asked[index] <= left:
            left -= asked[index]
            taken.add(index)
        elif blocking:
            break
    expected = [devices if index in taken else 0 for index, devices in enumerate(asked)]
    for picky in ((), ("T4",)):  # both ways of doing it
        jobs = [rigid(f"{i}", 1, devices, device_types=picky) for i, devices in enumerate(asked)]
        assert filled(state(jobs), np.array(order), blocking).devices.tolist() == expected


def test_a_job_stays_on_its_type_and_goes_only_where_it_may() -> None:
    fleet = Fleet.named("1x4xT4 + 1x4xA100")
    t4, a100 = fleet.types
    jobs = [rigid("a", 1, 2), rigid("b", 1, 2, device_types=(a100,)), rigid("c", 1, 4), rigid("d", 1, 2)]
    held = {"devices": np.array([2, 0, 0, 0]), "type_index": np.array([1, -1, -1, -1])}
    decision = filled(state(jobs, fleet, **held), np.arange(4))
    assert decision.devices.tolist() == [2, 2, 4, 0] and decision.type_index[:3].tolist() == [1, 1, 0]
    assert t4 == "T4"


@pytest.mark.parametrize("capacity", [0, 3])
def test_a_cluster_that_shrank_gives_no_more_than_it_has(capacity: int) -> None:
    decision = filled(state([rigid("a", 1, 2), rigid("b", 1, 2)], capacity=np.array([capacity])), np.arange(2))
    assert decision.devices.sum() <= capacity


def test_all_are_served_where_each_holds_what_it_asks_for() -> None:
    held = {"devices": np.array([3, 2]), "type_index": np.array([0, 0])}
    assert all_served(state([rigid("a", 9, 3), rigid("b", 9, 2)], **held))
    assert not all_served(state([rigid("a", 9, 3), rigid("b", 9, 4)], **held))
    assert not all_served(state([rigid("a", 9, 3), rigid("b", 9, 2, adapts=frozenset({"devices"}))], **held))
