"""When the passes of a pipeline run: each stage in its order, each pass behind the one that it needs.

GPipe: Huang et al. 2019, arXiv:1811.06965. 1F1B and its interleaved form: Narayanan et al. 2021, arXiv:2104.04473, section
2.2. Where every stage takes f forward and b backward, with p stages, m micro batches and v parts a stage, the bubble is
(p - 1)(f + b) / v (equation 2 there); the schedule here has that and what uneven stages add.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass of one micro batch through one part of the network.

    Attributes:
        part: 0 is the part next to the input; stage ``part % stages`` has it.
        start_s, end_s: seconds after the step began.
    """

    stage: int
    part: int
    micro_batch: int
    backward: bool
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class PipelineSchedule:
    """The passes in each stage's order.

    Attributes:
        passes: of each stage.
        in_flight: of each stage, micro batches whose activations it holds at most, each of one of its parts.
    """

    passes: tuple[tuple[Pass, ...], ...]
    in_flight: tuple[int, ...]

    @property
    def ends(self) -> tuple[float, ...]:
        """When each stage's last pass ends."""
        return tuple(own[-1].end_s for own in self.passes)


Order = list[tuple[int, int, bool]]
"""(part, micro batch, backward) in the order of one stage."""


def stage_order(stage: int, stages: int, micro_batches: int, virtual: int = 1, schedule: str = "1f1b") -> Order:
    """The passes of one stage in order.

    Args:
        virtual: parts of the network on each stage; more than 1 needs a multiple of ``stages`` micro batches.
    """
    count = micro_batches * virtual
    if schedule == "gpipe":
        warm = count
    elif virtual == 1:
        warm = min(stages - stage - 1, count)
    else:
        warm = min(2 * (stages - stage - 1) + (virtual - 1) * stages, count)
    forward = [(*_visit(number, stage, stages, virtual, backward=False), False) for number in range(count)]
    backward = [(*_visit(number, stage, stages, virtual, backward=True), True) for number in range(count)]
    order = forward[:warm]
    for number in range(count - warm):
        order += [forward[warm + number], backward[number]]
    return order + backward[count - warm :]


def _visit(number: int, stage: int, stages: int, virtual: int, *, backward: bool) -> tuple[int, int]:
    """Part and micro batch of a stage's pass ``number``: as many micro batches as stages go through each part in turn."""
    if virtual == 1:
        return stage, number
    rounds, within = divmod(number, stages * virtual)
    own, place = divmod(within, stages)
    part = (virtual - 1 - own if backward else own) * stages + stage
    return part, rounds * stages + place


def schedule_pipeline(
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    micro_batches: int,
    stages: int,
    send_s: Sequence[float],
    schedule: str = "1f1b",
) -> PipelineSchedule:
    """When each pass runs.

    Args:
        forward_s, backward_s: seconds of each part, in the order of the network; ``stages`` times as many as a stage has.
        send_s: seconds from each part to the next one (parts - 1).
    """
    parts = len(forward_s)
    virtual = parts // stages
    orders = [stage_order(stage, stages, micro_batches, virtual, schedule) for stage in range(stages)]
    ends: dict[tuple[int, int, bool], float] = {}
    clocks, places = [0.0] * stages, [0] * stages
    passes: list[list[Pass]] = [[] for _ in range(stages)]
    waiting = list(range(stages))
    while waiting:
        moved = False
        for stage in waiting:
            order, place, clock = orders[stage], places[stage], clocks[stage]
            while place < len(order):
                part, micro, backward = order[place]
                there = _ready(ends, part, micro, backward, parts, send_s)
                if there is None:
                    break
                start = max(clock, there)
                clock = start + (backward_s if backward else forward_s)[part]
                ends[part, micro, backward] = clock
                passes[stage].append(Pass(stage, part, micro, backward, start, clock))
                place, moved = place + 1, True
            places[stage], clocks[stage] = place, clock
        waiting = [stage for stage in waiting if places[stage] < len(orders[stage])]
        assert moved or not waiting, "a stage waits for a pass that is behind it"
    return PipelineSchedule(tuple(map(tuple, passes)), tuple(map(_held, orders)))


def _ready(
    ends: dict[tuple[int, int, bool], float], part: int, micro: int, backward: bool, parts: int, send_s: Sequence[float]
) -> float | None:
    """When what a pass needs is there; None where it has not run yet."""
    if not backward:
        if part == 0:
            return 0.0
        end = ends.get((part - 1, micro, False))
        return None if end is None else end + send_s[part - 1]
    if part == parts - 1:
        return ends.get((part, micro, False))
    end = ends.get((part + 1, micro, True))
    return None if end is None else end + send_s[part]


def _held(order: Order) -> int:
    """Forward passes whose backward pass has not run, at most."""
    held = most = 0
    for _, _, backward in order:
        held += -1 if backward else 1
        most = max(most, held)
    return most
