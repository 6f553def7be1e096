"""Free devices of nodes and racks over time, against a search over every domain."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.scheduling.fleet import Fleet
from paceline.scheduling.policies.backfill.node_plan import NodePlan
from scheduling_toys import state

RACKS = Fleet.named("4x4xA100, 100Gb/s, leaf-nodes=2, oversubscription=2:1")
HOLDS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4), st.sampled_from([5.0, 9.0, 20.0, math.inf])), max_size=8)


@given(HOLDS, st.integers(1, 8), st.sampled_from(["node", "rack"]), st.integers(0, 6))
@settings(max_examples=30, deadline=None)
def test_the_first_domain_is_that_of_a_search(
    holds: list[tuple[int, int, float]], devices: int, domain: str, keep: int
) -> None:
    free, running = RACKS.node_devices.copy(), []
    for node, count, end_s in holds:
        if free[node] >= count:
            free[node] -= count
            running.append((((node, count),), end_s))
    plan = NodePlan(state([], RACKS, free=free), running)
    for node in range(keep % 4):
        plan.earliest(0, devices, 10.0, domain, 0.0)  # type: ignore[arg-type]  # what it remembers must not outlive a change
        plan.keep(slice(node, node + 1), 2, 6.0, 7.0)
    if place := plan.place(0, 1, 4.0, ""):
        plan.hold(place, 4.0)
    domains = plan.domains(0, devices, domain)  # type: ignore[arg-type]
    start_s, nodes = plan.earliest(0, devices, 10.0, domain, 0.0)  # type: ignore[arg-type]
    each = [plan._made_within(nodes).earliest(devices, 10.0, 0.0) for nodes in domains]
    assert start_s == min(each, default=math.inf) and (nodes is None) == (start_s == math.inf)


def test_devices_that_are_kept_are_left_to_their_job() -> None:
    plan = NodePlan(state([], RACKS, free=np.array([2, 4, 0, 0])), [(((2, 4),), 50.0), (((3, 4),), 90.0), (((0, 2),), 30.0)])
    assert plan.earliest(0, 8, 100.0, "rack", 0.0) == (30.0, slice(0, 2))
    plan.keep(slice(0, 2), 8, 30.0, 100.0)
    assert plan.place(0, 2, 30.0, "") == ((0, 2),) and plan.place(0, 2, 31.0, "") == ()
    assert plan.earliest(0, 4, 10.0, "node", 0.0) == (0.0, slice(1, 2)), "before the kept time"
    plan.hold(((1, 4),), 10.0)
    assert plan.earliest(0, 4, 30.0, "node", 0.0) == (50.0, slice(2, 3))
    plan.give_back(((3, 4),), 0.0, 90.0)
    assert plan.place(0, 4, 30.0, "node") == ((3, 4),)
