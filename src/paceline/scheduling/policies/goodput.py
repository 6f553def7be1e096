"""Policy of goodput (Pollux, OSDI 2021, section 4.2): power mean of speedups with p = -1, with a charge for restarts.

``speedup = goodput / goodput on a fair share``. For a job that would restart it is multiplied by ``(age - restarts * delay) /
(age + delay)``. Pollux searches placements by a genetic algorithm. Here a knapsack finds the best numbers of devices.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from paceline.array_types import Ints
from paceline.errors import UserError
from paceline.scheduling.policies.solvers.knapsack import Sizes, least_total
from paceline.scheduling.state import Decision, State

LEAST = 1e-3
"""Added to each speedup, so that a job without devices counts as 1/1000 (Pollux's simulator)."""


def goodput(state: State) -> Decision:
    """Choose numbers of devices with the largest power mean.

    Raises:
        UserError: several device types; ``sia`` compares their goodputs.
    """
    if len(state.fleet.groups) > 1:
        raise UserError("the policy goodput shares out devices of one type only", "use sia, gavel or paceline")
    capacity, per_node = int(state.capacity[0]), state.fleet.groups[0].devices_per_node
    fair = -(-capacity // len(state.jobs))
    stays = np.maximum(state.age_s - state.restarts * state.restart_s, 0) / np.maximum(state.age_s + state.restart_s, 1e-9)
    share = per_node / max(capacity, 1)
    options = [
        sizes_of(min(outlook.max_devices(), capacity), per_node, int(held))
        for outlook, held in zip(state.outlooks, state.devices, strict=True)
    ]
    costs = []
    for index, (outlook, sizes) in enumerate(zip(state.outlooks, options, strict=True)):
        table = outlook.goodput(0, max(int(sizes[-1]), fair))
        speedup = table[sizes] / max(table[fair], 1e-30)
        speedup = speedup * np.where(sizes == state.devices[index], 1.0, stays[index])
        costs.append(1.0 / (speedup * share * len(state.fleet.node_types) / state.fleet.groups[0].nodes + LEAST))
    devices = least_total(Sizes.of(options, costs), capacity)
    order = np.argsort(-devices, kind="stable").tolist()
    # A new job counts as restarted too often, so decide again after it has waited.
    wake_s = state.time_s + 2 * max(float(state.restart_s.max()), 1.0)
    return Decision(
        devices=devices, type_index=np.zeros(len(devices), np.int64), order=order, rule="fewest_nodes", wake_s=wake_s
    )


@lru_cache(4096)
def sizes_of(most: int, per_node: int, held: int) -> Ints:
    """Return the numbers of devices to try: all up to four nodes, then whole nodes."""
    dense = np.arange(min(most, 4 * per_node) + 1)
    whole = np.arange(5 * per_node, most + 1, per_node)
    return np.unique(np.concatenate([dense, whole, [held] if held <= most else []]).astype(np.int64))
