"""Integer programs, solved by HiGHS."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from paceline.array_types import Array, Ints

if TYPE_CHECKING:
    from scipy.sparse import csr_array

GAP = 1e-4
"""Relative gap to the best sum at which the solver stops."""
MOST_NODES = 500
"""Most nodes of the solver's search tree; then the best solution so far is used.

A count gives every machine the same result.
"""


def integers(
    cost: Array, table: csr_array, least: Array, most: Array, highest: Ints | float, time_s: float, rest: float = 0.0
) -> Ints | None:
    """Return integers from 0 to ``highest`` of the least ``cost @ x``, with ``least <= table @ x <= most``.

    Args:
        rest: cost of all that is already decided, to which the gap is relative too.

    Returns:
        None if there are none, or none were found in time.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import hstack

    count = len(cost)
    whole, lowest, highs = np.ones(count), np.zeros(count), np.broadcast_to(np.asarray(highest, float), count)
    if rest:
        cost, whole, lowest, highs = (
            np.append(part, last) for part, last in ((cost, rest), (whole, 0), (lowest, 1), (highs, 1))
        )
        table = hstack([table, np.zeros((table.shape[0], 1))], format="csr")
    with _quiet():
        result = milp(
            cost,
            integrality=whole,
            bounds=Bounds(lowest, highs),
            constraints=LinearConstraint(table, least, most),
            options={"time_limit": max(time_s, 0.01), "node_limit": MOST_NODES, "mip_rel_gap": GAP},
        )
    return None if result.x is None else np.round(result.x[:count]).astype(np.int64)


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide the output of HiGHS, which prints a debug line when it repairs a solution, whatever its options."""
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)
