"""Schedule of the passes of a pipeline. Each stage runs its passes in order, each after the one that it depends on.

GPipe: Huang et al. 2019, arXiv:1811.06965. 1F1B and its interleaved form: Narayanan et al. 2021, arXiv:2104.04473, section
2.2. If every stage takes f forward and b backward, with p stages, m micro batches and v parts a stage, the bubble is
(p - 1)(f + b) / v (equation 2 there). The schedule here equals that plus the effect of uneven stages.

Zero bubble is ZB-H1 of Qi et al. 2024, arXiv:2401.10241, section 2.2: the backward pass has two parts, for the inputs (b) and
for the weights (w). A stage passes the gradient of its input on after the first, and fills its waits with the second. With
f = b = w the bubble is (p - 1)(f + b - w), and no stage holds more micro batches than the first stage of 1F1B.

Passes in turns soon repeat with a period (Baccelli et al. 1992, Synchronization and Linearity, section 3.7). A long pipeline is
therefore timed with few micro batches, and its middle is repeated (``_periodic``). The result equals that of all passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

import numpy as np

from paceline.array_types import Ints
from paceline.strategy.pass_order import ONE_FORWARD_ONE_BACKWARD, PassOrder

FORWARD, BACKWARD, WEIGHTS = range(3)
"""Kinds of passes. ``WEIGHTS`` is separate only in a zero-bubble pipeline; elsewhere it belongs to ``BACKWARD``."""
Order = list[tuple[int, int, int]]
"""(part, micro batch, kind) in the order of one stage."""
PROGRAMS = 64
"""Number of cached pipeline orders: a plan needs the same ones with other seconds."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass of one micro batch through one part of the network.

    Attributes:
        part: 0 is the part next to the input. Stage ``part % stages`` holds it.
        backward: whether it computes gradients. ``weights``: only those of the weights.
        start_s, end_s: seconds after the start of the step.
    """

    stage: int
    part: int
    micro_batch: int
    backward: bool
    start_s: float
    end_s: float
    weights: bool = False


@dataclass(frozen=True, eq=False)
class Program:
    """All passes, in an order in which each follows its dependencies. Arrays are (passes,).

    Attributes:
        stage, part, micro: indices of each pass.
        needs: number of the pass that it depends on, from 1; 0 for none.
        edge: part after which its result is sent on, from 1; 0 if nothing is sent.
        cost: position of its seconds among those of all forward, backward and weight passes, each by part.
        in_flight: for each stage, the most forward passes without their backward pass.
        late: for each stage, the most further micro batches that wait for the gradients of their weights.
    """

    stage: Ints
    part: Ints
    micro: Ints
    needs: Ints
    edge: Ints
    cost: Ints
    in_flight: tuple[int, ...]
    late: tuple[int, ...]

    @cached_property
    def rows(self) -> list[tuple[int, int, int, int]]:
        """Stage, needed pass, edge and cost of each pass."""
        return list(zip(*(of.tolist() for of in (self.stage, self.needs, self.edge, self.cost)), strict=True))

    @cached_property
    def by_micro(self) -> Ints:
        """Number of each pass by kind, part and micro batch: (kinds, parts, micro batches)."""
        parts = 1 + int(np.max(self.part))
        kinds = self.cost // parts
        numbers = np.empty((1 + int(np.max(kinds)), parts, 1 + int(np.max(self.micro))), dtype=np.int64)
        numbers[kinds, self.part, self.micro] = np.arange(len(self.part))
        return numbers

    @cached_property
    def of_stage(self) -> tuple[Ints, ...]:
        """Passes of each stage in its order."""
        return tuple(np.flatnonzero(self.stage == number) for number in range(len(self.in_flight)))

    @cached_property
    def first(self) -> tuple[int, ...]:
        """First forward pass of each part."""
        return self._of_parts(self.cost == self.part, last=False)

    @cached_property
    def last(self) -> tuple[int, ...]:
        """Pass of each part that completes its gradients."""
        return self._of_parts(self.cost >= (1 + np.max(self.part)) * (np.max(self.cost) // (1 + np.max(self.part))), last=True)

    def _of_parts(self, chosen: np.ndarray, *, last: bool) -> tuple[int, ...]:
        numbers = np.flatnonzero(chosen)
        parts = range(int(np.max(self.part)) + 1)
        return tuple(int(numbers[self.part[numbers] == part][-1 if last else 0]) for part in parts)


@dataclass(frozen=True, eq=False)
class PipelineSchedule:
    """The passes in each stage's order.

    Attributes:
        seconds: those of all forward, backward and weight passes, each by part. ``send_s``: seconds after each part, from 1.
        micro_batches: those of the step. ``program``: its passes, or those of fewer micro batches.
        starts, finishes: seconds of each pass of ``program``.
        later_s: seconds by which the last passes are later than in ``program``.
    """

    stages: int
    micro_batches: int
    order: PassOrder
    seconds: Sequence[float] = field(repr=False)
    send_s: Sequence[float] = field(repr=False)
    program: Program = field(repr=False)
    starts: Sequence[float] = field(repr=False)
    finishes: Sequence[float] = field(repr=False)
    later_s: float = 0.0

    @property
    def in_flight(self) -> tuple[int, ...]:
        """Largest number of micro batches whose activations each stage holds at once, counted for each of its parts."""
        return self.program.in_flight

    @property
    def late(self) -> tuple[int, ...]:
        """For each stage, micro batches beyond ``in_flight`` that wait for the gradients of their weights."""
        return self.program.late

    @property
    def ends(self) -> tuple[float, ...]:
        """End of each stage's last pass."""
        return tuple(self.finishes[int(own[-1])] + self.later_s for own in self.program.of_stage)

    @cached_property
    def passes(self) -> tuple[tuple[Pass, ...], ...]:
        """Passes of each stage."""
        parts = 1 + int(np.max(self.program.part))
        p = program(self.stages, self.micro_batches, parts // self.stages, self.order)
        short = self.program.by_micro.shape[-1] < self.micro_batches
        starts, finishes = _timed(p, self.seconds, self.send_s) if short else (self.starts, self.finishes)
        kinds = p.cost // parts
        return tuple(
            tuple(
                Pass(
                    stage,
                    int(p.part[i]),
                    int(p.micro[i]),
                    bool(kinds[i] != FORWARD),
                    starts[i],
                    finishes[i],
                    bool(kinds[i] == WEIGHTS),
                )
                for i in own.tolist()
            )
            for stage, own in enumerate(p.of_stage)
        )

    def first_start(self, part: int) -> float:
        """Return the start of the first forward pass of a part."""
        return self.starts[self.program.first[part]]

    def last_pass(self, part: int) -> tuple[float, float]:
        """Return start and end of the pass that completes a part's gradients."""
        number = self.program.last[part]
        return self.starts[number] + self.later_s, self.finishes[number] + self.later_s


def stage_order(
    stage: int, stages: int, micro_batches: int, virtual: int = 1, schedule: PassOrder = ONE_FORWARD_ONE_BACKWARD
) -> Order:
    """Return the passes of one stage in order.

    Args:
        virtual: parts of the network on each stage. More than 1 needs a multiple of ``stages`` micro batches.
    """
    count = micro_batches * virtual
    warm = schedule.warm_up(stage, stages, count, virtual)
    forward = [(*_visit(number, stage, stages, virtual, backward=False), FORWARD) for number in range(count)]
    backward = [(*_visit(number, stage, stages, virtual, backward=True), BACKWARD) for number in range(count)]
    order = forward[:warm]
    for number in range(count - warm):
        order += [forward[warm + number], backward[number]]
    order += backward[count - warm :]
    return _with_weights(order, stage) if schedule.splits_backward else order


def _with_weights(order: Order, late: int) -> Order:
    """Return the order with the gradients of weights ``late`` micro batches after those of the inputs.

    Each forward pass fewer before the first backward pass allows one more late pass.
    """
    full: Order = []
    for part, micro, kind in order:
        full.append((part, micro, kind))
        if kind == BACKWARD and micro >= late:
            full.append((part, micro - late, WEIGHTS))
    done = sum(kind == WEIGHTS for _, _, kind in full)
    return full + [(part, micro, WEIGHTS) for part, micro, kind in order if kind == BACKWARD and micro >= done]


def _visit(number: int, stage: int, stages: int, virtual: int, *, backward: bool) -> tuple[int, int]:
    """Return part and micro batch of pass ``number`` of a stage. Parts take turns after as many micro batches as stages."""
    if virtual == 1:
        return stage, number
    rounds, within = divmod(number, stages * virtual)
    own, place = divmod(within, stages)
    part = (virtual - 1 - own if backward else own) * stages + stage
    return part, rounds * stages + place


@lru_cache(maxsize=PROGRAMS)
def program(stages: int, micro_batches: int, virtual: int, schedule: PassOrder) -> Program:
    """Return the passes of a pipeline in an order in which they can be timed."""
    parts = stages * virtual
    orders = [stage_order(stage, stages, micro_batches, virtual, schedule) for stage in range(stages)]
    pending = [[_dependency(part, micro, kind, parts) for part, micro, kind in order] for order in orders]
    numbers: dict[tuple[int, int, int] | None, int] = {None: 0}
    places = [0] * stages
    rows: list[tuple[int, int, int, int, int, int]] = []
    waiting = list(range(stages))
    while waiting:
        moved = len(rows)
        for stage in waiting:
            order, needed_by, place = orders[stage], pending[stage], places[stage]
            while place < len(order):
                before, edge = needed_by[place]
                needs = numbers.get(before)
                if needs is None:
                    break
                own = part, micro, kind = order[place]
                rows.append((stage, part, micro, needs, edge, kind * parts + part))
                numbers[own] = len(rows)
                place += 1
            places[stage] = place
        waiting = [stage for stage in waiting if places[stage] < len(orders[stage])]
        assert moved < len(rows) or not waiting, "a stage waits for a pass that follows it"
    stage_of, part_of, micro_of, needed, edges, costs = np.array(rows, dtype=np.int64).T
    held = tuple(_largest_excess(order, FORWARD, BACKWARD) for order in orders)
    last = WEIGHTS if schedule.splits_backward else BACKWARD
    late = tuple(_largest_excess(order, FORWARD, last) - own for order, own in zip(orders, held, strict=True))
    return Program(stage_of, part_of, micro_of, needed, edges, costs, held, late)


def _dependency(part: int, micro: int, kind: int, parts: int) -> tuple[tuple[int, int, int] | None, int]:
    """Return the pass that a pass depends on, and the part after which its result is sent on, from 1."""
    if kind == FORWARD:
        return ((part - 1, micro, FORWARD), part) if part else (None, 0)
    if kind == WEIGHTS:
        return (part, micro, BACKWARD), 0
    if part == parts - 1:
        return (part, micro, FORWARD), 0
    return (part + 1, micro, BACKWARD), part + 1


def schedule_pipeline(
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    micro_batches: int,
    stages: int,
    send_s: Sequence[float],
    schedule: PassOrder = ONE_FORWARD_ONE_BACKWARD,
    weights_s: Sequence[float] = (),
) -> PipelineSchedule:
    """Return when each pass runs.

    Args:
        forward_s, backward_s: seconds of each part, in the order of the network; ``stages`` times as many as a stage has.
        send_s: seconds from each part to the next one (parts - 1).
        weights_s: for a zero-bubble pipeline, the seconds in ``backward_s`` that compute the gradients of weights.
    """
    passed = [b - w for b, w in zip(backward_s, weights_s, strict=True)] if weights_s else backward_s
    seconds, waits = [*forward_s, *passed, *weights_s], [0.0, *send_s]
    virtual = len(forward_s) // stages
    if schedule.in_turns and stages > 1:
        for rounds in _ROUNDS[virtual > 1]:
            few = rounds * stages + micro_batches % stages
            if few >= micro_batches:
                break
            plan = program(stages, few, virtual, schedule)
            starts, finishes = _timed(plan, seconds, waits)
            later = _periodic(plan, finishes, stages, virtual, micro_batches - few)
            if later is not None:
                return PipelineSchedule(stages, micro_batches, schedule, seconds, waits, plan, starts, finishes, later)
    plan = program(stages, micro_batches, virtual, schedule)
    return PipelineSchedule(stages, micro_batches, schedule, seconds, waits, plan, *_timed(plan, seconds, waits))


_ROUNDS = {False: (5, 10), True: (8,)}
"""Rounds of as many micro batches as stages that are timed in place of a long pipeline, without and with virtual stages."""
_PERIODIC = 1e-12
"""Largest deviation from a period, as a share of the time of all passes: rounding."""


def _timed(plan: Program, seconds: Sequence[float], waits: Sequence[float]) -> tuple[list[float], list[float]]:
    """Return start and end of each pass. ``waits``: seconds of the send after each part, from 1."""
    clocks, ends, starts = [0.0] * len(plan.in_flight), [0.0], list[float]()
    for stage, needs, edge, cost in plan.rows:
        start, clock = ends[needs] + waits[edge], clocks[stage]
        if start < clock:
            start = clock
        starts.append(start)
        clocks[stage] = end = start + seconds[cost]
        ends.append(end)
    return starts, ends[1:]


def _periodic(plan: Program, finishes: Sequence[float], stages: int, virtual: int, more: int) -> float | None:
    """Return how much later the last passes are with ``more`` micro batches; None if the passes do not repeat yet.

    A pass depends on passes of at most two rounds before it, a round being as many micro batches as stages. If all passes of
    that window are one period after those a round earlier, so are all passes after it.
    """
    window = (1 if virtual == 1 else 2) * stages + 1
    times = np.array(finishes)[plan.by_micro]
    stop = times.shape[-1] - window
    later = times[..., stop - window : stop] - times[..., stop - window - stages : stop - stages]
    period = float(later.mean())
    if np.abs(later - period).max() > _PERIODIC * times.max():
        return None
    return period * (more // stages)


def without_bubbles(passes: Sequence[Pass]) -> tuple[Pass, ...]:
    """Return the passes of a stage one after the other, as if it waited for no other stage."""
    clock, moved = 0.0, list[Pass]()
    for p in passes:
        moved.append(replace(p, start_s=clock, end_s=clock + p.end_s - p.start_s))
        clock = moved[-1].end_s
    return tuple(moved)


def _largest_excess(order: Order, first: int, second: int) -> int:
    """Return the largest excess of passes of the first kind over passes of the second kind so far."""
    held = most = 0
    for _, _, kind in order:
        held += (kind == first) - (kind == second)
        most = max(most, held)
    return most
