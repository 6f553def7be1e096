"""The 80 % interval of a speedup. Errors that both steps share cancel in their ratio; those of the change remain."""

from __future__ import annotations

import math

from paceline.calibration.uncertainty import WORK, Z80, log_spread
from paceline.hardware import Cluster
from paceline.prediction import Prediction

SHARED = {"same": 0.6, "other": 0.25}
"""Assumed correlation of the errors of two predictions of one network: on the same device, and on two different ones.

After a change the model repeats its earlier error. Five sets of measurements give 0.6 to 0.9 on the same device and 0.0 to
0.9 on different ones (``benchmarks/speedup_error.py``). These values are near the lower end, where ranges are wider. They
hold for pairs that differ in all their seconds. Seconds that a change does not move have the same errors before and after."""
_SENDS = frozenset({"network", "pipeline send"})


def speedup_factor(p: Prediction, base: Prediction, cluster: Cluster, before: Cluster) -> float:
    """Return the factor, at least 1, by which the speedup of ``p`` on ``cluster`` over ``base`` on ``before`` may be off."""
    if _unchanged(p, base):
        return 1.0
    shared = SHARED["same" if cluster.device == before.device else "other"]
    spreads = log_spread(base.low_s, base.high_s), log_spread(p.low_s, p.high_s)
    return math.exp(Z80 * ratio_spread(*spreads, shared, moved_share(p, base, cluster, before)))


def ratio_spread(before: float, after: float, shared: float, moved: float = 1.0) -> float:
    """Return the standard deviation of log(speedup) from those of both steps.

    Args:
        shared: correlation of the errors of the seconds that move.
        moved: share of the step that moves (``moved_share``). Other errors are common and cancel, except that one range may
            be wider than the other.
    """
    return math.hypot(before - after, moved * math.sqrt(2 * (1 - shared) * before * after))


def moved_share(p: Prediction, base: Prediction, cluster: Cluster, before: Cluster) -> float:
    """Return the seconds that a change moves as a share of the shorter step, at most 1.

    They are the differences of the waits for each resource. Another device, precision or kernel of attention moves all work.
    Another link moves all waits for a link. Another number of devices or level of software moves everything.
    """
    sizes = {(x.num_nodes, x.world_size) for x in (cluster, before)}
    if len(sizes) > 1 or p.framework != base.framework:
        return 1.0
    shorter = min(p.step_time_s, base.step_time_s)
    numbers = {(x.strategy["precision"], x.attention) for x in (p, base)}
    other_work = cluster.device != before.device or len(numbers) > 1
    switches = {(x.network, x.leaf_nodes, x.oversubscription) for x in (cluster, before)}
    other_network, other_inside = len(switches) > 1, cluster.intra_link != before.intra_link

    def moved(resource: str) -> float:
        seconds = [x.exposed.get(resource, 0.0) for x in (p, base)]
        anew = (
            (resource in WORK and other_work)
            or (resource in _SENDS and other_network)
            or (resource in ("intra-node link", "pipeline send") and other_inside)
        )
        return max(seconds) if anew else abs(seconds[0] - seconds[1])

    whole = sum(map(moved, {**p.exposed, **base.exposed}))
    return min(1.0, whole / shorter) if shorter else 1.0


def _unchanged(p: Prediction, base: Prediction) -> bool:
    """Return whether every predicted time equals that of the base."""
    here, there = ((x.step_time_s, x.low_s, x.high_s, x.samples_per_s, x.exposed) for x in (p, base))
    return here == there
