"""A policy with another rule of placement decides the same."""

from __future__ import annotations

import numpy as np

from paceline.scheduling.policies.serving_order import fifo
from paceline.scheduling.policies.solvers.placement_rule import placing
from scheduling_toys import rigid, state


def test_only_the_rule_differs() -> None:
    given = state([rigid("a", 10, 2), rigid("b", 10, 4)])
    decided, usual = placing(fifo, "most_free")(given), fifo(given)
    assert decided.rule == "most_free" and usual.rule == "fewest_nodes"
    assert np.array_equal(decided.devices, usual.devices)
