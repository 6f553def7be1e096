"""Seconds that no pipeline of very many layouts undercuts, and the micro batches that its stages hold.

A stage computes all its passes, behind the first forward passes of the stages before it, and its last backward pass is followed
by those of the stages before it. Without virtual stages, 1F1B also lets ``p - s`` micro batches into stage ``s`` at once, each
of which travels to the last stage and back (Narayanan et al. 2021, arXiv:2104.04473, section 2.2). ``pipeline`` simulates one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paceline.array_types import Array, Ints

ROUNDING = 1e-9
"""Share by which a bound stays below what it bounds: sums of floats in another order differ."""
_IN_ORDER = ("1f1b", "gpipe")
"""Schedules whose last pass on each stage is the last micro batch's backward pass."""


@dataclass(frozen=True, slots=True)
class PipelineShape:
    """Stages, parts of the network on each, the order of the passes, and blocks of the first and of the last stage (0: as many
    as the others)."""

    stages: int
    virtual: int
    schedule: str
    ends: tuple[int, int] = (0, 0)


def pipelined_seconds(
    shape: PipelineShape,
    times: Ints,
    parts: tuple[Array, Array, Array],
    exposed: Array,
    micro: Array,
    last: Array,
    penalty: float,
) -> Array:
    """Seconds that no step undercuts, (slices, shardings, batches).

    Args:
        times: micro batches, (slices, batches).
        parts: seconds of each part's forward and backward pass, (slices, parts), and of the sends, (slices, parts - 1).
        exposed: what a stage waits for its exchange after its last pass, (slices, shardings, stages).
        micro: what every micro batch exchanges, likewise. ``penalty``: the share of it that is lost beside passes.
        last: what follows the exchange of all stages, (slices, shardings).
    """
    p, v = shape.stages, shape.virtual
    forward, backward, sends = parts
    rows = len(forward)
    whole_f, whole_b = (of.reshape(rows, v, p).sum(axis=1)[:, None, :] for of in (forward, backward))
    gathers = np.maximum(0.0, micro - (whole_f + whole_b))  # (rows, shardings, stages)
    work = whole_f + whole_b + gathers
    ahead = forward[:, :p].copy()
    ahead[:, : p - 1] += sends[:, : p - 1]
    head = (np.cumsum(ahead, axis=1) - ahead)[:, None, None, :]
    count = times[:, None, :, None].astype(np.float64)
    ends = head + count * work[:, :, None, :]
    if shape.schedule == "1f1b" and v == 1:
        # Stage s takes micro batch k + (p - s) only when k is back: at most p - s are behind it at once.
        trip = (forward + backward)[:, None, :] + gathers
        trip[..., : p - 1] += 2 * sends[:, None, :]
        trip = np.cumsum(trip[..., ::-1], axis=-1)[..., ::-1]
        behind = np.arange(p, 0, -1)
        full, rest = np.divmod(np.maximum(times[:, None, :, None] - 1, 0), behind)
        ends = np.maximum(ends, head + rest * forward[:, None, None, :] + (full + 1) * trip[:, :, None, :])
    # What is exchanged in every micro batch beside its passes costs the penalty too.
    own = exposed[:, :, None, :] + penalty * count * np.maximum(0.0, micro - gathers)[:, :, None, :]
    step = (ends + own).max(axis=-1)
    if shape.schedule in _IN_ORDER:
        back = (backward[:, None, :p] + gathers / v).copy()
        back[..., : p - 1] += sends[:, None, : p - 1]
        tail = np.cumsum(back, axis=-1) - back
        step = np.maximum(step, (ends + tail[:, :, None, :]).max(axis=-1) + exposed[:, :, None, 0])
    bound: Array = (step + last[:, :, None]) * (1 - ROUNDING)
    return bound


def in_flight(shape: PipelineShape, times: Ints) -> Array:
    """Micro batches, each of one part, that each stage holds at most: (..., stages) for ``times`` micro batches (...).

    The closed form of what ``pipeline`` counts; 1 for a schedule that it does not know.
    """
    p, v = shape.stages, shape.virtual
    count = np.asarray(times)[..., None] * v
    place = np.arange(p)
    if shape.schedule == "gpipe":
        return np.broadcast_to(count, (*np.shape(times), p)).astype(np.float64)
    if shape.schedule not in ("1f1b", "zero_bubble"):  # ZB-H1 holds what 1F1B does, and later gradients of weights
        return np.ones((*np.shape(times), p))
    warm = p - place - 1 if v == 1 else 2 * (p - place - 1) + (v - 1) * p
    return np.minimum(warm + 1, count).astype(np.float64)
