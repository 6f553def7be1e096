"""Lower bounds on the time of very many pipelines, and the micro batches that their stages hold.

A stage computes all its passes after the first forward passes of the stages before it. Its last backward pass is followed by
those of the stages before it. Without virtual stages, 1F1B also lets ``p - s`` micro batches into stage ``s`` at once. Each of
them passes to the last stage and back (Narayanan et al. 2021, arXiv:2104.04473, section 2.2). ``pipeline`` simulates one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paceline.array_types import Array, Ints
from paceline.prediction.mesh.pipeline import schedule_pipeline
from paceline.strategy.pass_order import PassOrder

ROUNDING = 1e-9
"""Safety margin of a bound, as a share: sums of floats in another order differ."""


_MANY = 1 << 40
"""Passes of a stage without end."""


Cut = tuple[int, int, tuple[int, int]]
"""Stages, parts of each, blocks of the first and of the last stage."""


@dataclass(frozen=True, slots=True)
class PipelineShape:
    """Stages, parts of the network on each, the schedule, and blocks of the first and of the last stage (0: as many as the
    others)."""

    stages: int
    virtual: int
    schedule: PassOrder
    ends: tuple[int, int] = (0, 0)

    @property
    def cut(self) -> Cut:
        """How it cuts the network: stages, parts of each, and blocks of the ends."""
        return self.stages, self.virtual, self.ends


def pipelined_seconds(
    shape: PipelineShape,
    times: Ints,
    parts: tuple[Array, Array, Array],
    exposed: Array,
    micro: Array,
    last: Array,
    penalty: float,
) -> Array:
    """Return lower bounds on the step time, (slices, shardings, batches).

    Args:
        times: micro batches, (slices, batches).
        parts: seconds of each part's forward and backward pass, (slices, parts), and of the sends, (slices, parts - 1).
        exposed: wait of a stage for its exchange after its last pass, (slices, shardings, stages).
        micro: exchange of every micro batch, same shape. ``penalty``: the share of it that is lost during passes.
        last: time after the exchange of all stages, (slices, shardings, batches).
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
    if shape.schedule.in_turns and not shape.schedule.splits_backward and v == 1:
        # Stage s takes micro batch k + (p - s) only after k has returned, so at most p - s are in later stages at once.
        trip = (forward + backward)[:, None, :] + gathers
        trip[..., : p - 1] += 2 * sends[:, None, :]
        trip = np.cumsum(trip[..., ::-1], axis=-1)[..., ::-1]
        behind = np.arange(p, 0, -1)
        full, rest = np.divmod(np.maximum(times[:, None, :, None] - 1, 0), behind)
        ends = np.maximum(ends, head + rest * forward[:, None, None, :] + (full + 1) * trip[:, :, None, :])
    # The penalty also applies to the exchange of every micro batch during its passes.
    own = exposed[:, :, None, :] + penalty * count * np.maximum(0.0, micro - gathers)[:, :, None, :]
    step = (ends + own).max(axis=-1)
    if not shape.schedule.splits_backward:  # each stage ends with the backward pass of the last micro batch
        back = (backward[:, None, :p] + gathers / v).copy()
        back[..., : p - 1] += sends[:, None, : p - 1]
        tail = np.cumsum(back, axis=-1) - back
        step = np.maximum(step, (ends + tail[:, :, None, :]).max(axis=-1) + exposed[:, :, None, 0])
        if shape.schedule.in_turns and p > 1:
            turns = _turned_seconds(shape, times, forward, backward, sends)
            step = np.maximum(step, turns[:, None] + exposed[:, :, None, 0])
    bound: Array = (step + last) * (1 - ROUNDING)
    return bound


def scheduled_seconds(
    shape: PipelineShape,
    times: int,
    parts: tuple[Array, Array, Array],
    exposed: Array,
    micro: Array,
    last: float,
    weights: Array | None = None,
) -> float:
    """Return a lower bound on the step time of one pipeline from the schedule of all its passes.

    Arguments are those of ``pipelined_seconds`` without slices, shardings and batches. Waits for other stages may hide what
    an exchange loses during passes, so that does not count.

    Args:
        weights: for a zero-bubble pipeline the most and the least seconds of the gradients of each part's weights, (2, parts).
    """
    forward, backward, sends = parts
    of_stages = (forward + backward).reshape(shape.virtual, shape.stages).sum(axis=0)
    gathers = np.maximum(0.0, micro - of_stages)
    backward = backward + np.tile(gathers / shape.virtual, shape.virtual)
    least: Array = np.zeros(0) if weights is None else weights[1]
    if weights is not None:
        backward = np.maximum(0.0, backward - weights[0]) + least
    pipeline = schedule_pipeline(
        forward.tolist(), backward.tolist(), times, shape.stages, sends.tolist(), shape.schedule, least.tolist()
    )
    return float((np.array(pipeline.ends) + exposed).max() + last) * (1 - ROUNDING)


def _turned_seconds(shape: PipelineShape, times: Ints, forward: Array, backward: Array, sends: Array) -> Array:
    """Return lower bounds on the end of the last backward pass if forward and backward passes take turns, (slices, batches).

    A stage takes turns from its first backward pass, after ``W + 1`` forward passes, to its last forward pass, with ``W + 1``
    backward passes left. Both ends are bounded by its own passes there, and by the way of one micro batch through all parts.
    The passes before those of the last part are ``v - 1`` such ways, and so are those after it. The bound is the largest of all
    stages and both kinds at both ends.

    Args:
        forward, backward: seconds of each part, (slices, parts).
    """
    p, v = shape.stages, shape.virtual
    rows, parts = forward.shape
    waits = np.zeros((rows, parts))
    waits[:, :-1] = sends
    there = np.cumsum(forward + waits, axis=-1)  # to the start of the next part
    back = np.cumsum(backward + waits, axis=-1) - waits  # from the start of a part's backward pass to the end of the step
    both = (forward + backward).reshape(rows, v, p)
    last = slice(parts - p, parts)
    start = there[..., last] - (forward + waits)[..., last]
    returned = there[..., -1:] + back[..., -1:] - back[..., last]
    gone = there[..., -1:] - start - forward[..., last] + back[..., -1:]
    count = times[:, :, None]
    warm = np.array([shape.schedule.warm_up(stage, p, _MANY, v) for stage in range(p)])
    few = np.minimum(warm, count * v - 1) - (parts - p) + 1  # passes of the last part before the turns, then of the first
    early, late = (
        np.minimum(few, p) * of[:, None, last] + np.maximum(few - p, 0) * of[:, None, :p] for of in (forward, backward)
    )
    work = count * both.sum(axis=1)[:, None] - p * both[:, :-1].sum(axis=1)[:, None]
    start, returned, gone = (of[:, None] for of in (start, returned, gone))
    ended = (back - backward)[:, None, last]
    ends = np.maximum(start, returned - early) + np.maximum(ended, np.where(count * v > warm + 1, gone - late, -np.inf))
    ends = np.maximum(ends, start + gone - late)
    bound: Array = (work + ends).max(axis=-1)
    return bound


def in_flight(shape: PipelineShape, times: Ints) -> Array:
    """Return the most micro batches that each stage holds, each of one part: (..., stages) for ``times`` (...).

    This is the closed form of the count in ``pipeline``.
    """
    p, v = shape.stages, shape.virtual
    count = np.asarray(times)[..., None] * v
    warm = np.array([shape.schedule.warm_up(stage, p, _MANY, v) for stage in range(p)])
    held: Array = np.minimum(warm + 1, count).astype(np.float64)
    return held


def late_weights(shape: PipelineShape, times: Ints) -> Array:
    """Return the further micro batches of each stage that wait for the gradients of their weights: (..., stages).

    Stage ``s`` computes them ``s`` micro batches after those of the inputs (ZB-H1; Qi et al. 2024, arXiv:2401.10241).
    """
    p, count = shape.stages, np.asarray(times)[..., None]
    if not shape.schedule.splits_backward or shape.virtual > 1:
        return np.zeros((*count.shape[:-1], p))
    late: Array = (np.minimum(count, p) - np.minimum(count, p - np.arange(p))).astype(np.float64)
    return late
