"""Expected time of a run that fails at random and restarts from its last checkpoint.

Source: Daly 2006, A higher order estimate of the optimum checkpoint interval for restart dumps, Future Generation Computer
Systems 22(3), equations 20 and 37. Failures follow a Poisson process and may also hit a restart.
"""

from __future__ import annotations

import math

MOST = 700.0
"""Exponent from which the factor is infinite, as numbers of 64 bits are."""


def slowdown(mean_s: float, interval_s: float, write_s: float, restart_s: float) -> float:
    """Return the expected time of a run over its time without failures and checkpoints; inf if it never ends.

    Args:
        mean_s: mean time between failures of the whole job; inf: it never fails.
        interval_s: seconds of work between checkpoints.
        write_s: seconds that a checkpoint stops the work.
        restart_s: seconds from a failure to the first step after it, without the work that is repeated.
    """
    segment = (interval_s + write_s) / mean_s
    if math.isinf(mean_s):
        return 1 + write_s / interval_s
    if segment > MOST or restart_s / mean_s > MOST:
        return math.inf
    return mean_s * math.exp(restart_s / mean_s) * math.expm1(segment) / interval_s


def best_interval(mean_s: float, write_s: float) -> float:
    """Return the seconds of work between checkpoints that make the run shortest."""
    if write_s >= 2 * mean_s:
        return mean_s
    ratio = write_s / (2 * mean_s)
    return math.sqrt(2 * write_s * mean_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - write_s
