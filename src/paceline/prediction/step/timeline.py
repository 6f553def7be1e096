"""Schedule of one step: when each piece runs, given its dependencies. ``costs`` gives the seconds.

The backward pass runs the layers in reverse. A bucket's exchange starts when its last gradient is ready and the exchange
of the bucket before it has ended (DDP issues them in order; Li et al. 2020, PyTorch Distributed, VLDB, section 3.2). Its
chunks are pipelined (``costs.ExchangeCost``). Micro steps follow each other; gradients are exchanged in the last one.

With sharded weights (FSDP; Zhao et al. 2023, VLDB 16(12), section 3.3) each pass prefetches one unit: the network gathers a
unit while the unit before it computes. In every micro step the same network scatters the gradients of a unit after its backward
pass. The optimizer waits for everything. Every start is a maximum of sums of costs, so a lower cost never makes a step slower.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from paceline.array_types import Array, Ints
from paceline.prediction.exchange.exchange_plan import ExchangePlan
from paceline.prediction.exchange.exchange_seconds import ExchangeCost, ExchangeSeconds, ExchangeStage
from paceline.prediction.step.costs import StepCosts
from paceline.record import Event

Number = Any
"""A float, or an array of them with one entry for each candidate."""

Maximum = Callable[[Number, Number], Number]
Starts = tuple[tuple[Number, ...], tuple[Number, ...], tuple[Number, ...], tuple[Number, ...], tuple[Number, ...]]
"""Starts of the forward and backward units, of their all-gathers, and of the exchanges (see ``Schedule``)."""


@dataclass(frozen=True, slots=True)
class StepDurations:
    """Durations in one micro step, in seconds; each is a number, or an array with one entry per candidate.

    Attributes:
        micro_steps: number of micro steps in a step.
        forward, backward: the whole pass; backward includes recomputation.
        forward_units, backward_units: each FSDP unit in model order; only with sharded weights.
        ready: time from the start of the backward pass until each bucket's gradients are ready.
        exchange: the exchange of each bucket.
        gather_forward, gather_backward: all-gathers of each bucket's weights, in bucket order; empty without them.
        after, update: the all-gathers after the optimizer, and the optimizer.
        feed: the loader, for the samples of one step.
        penalty: share of the time that is lost while compute and exchange both run.
        beside: share of a step's passes and update that each exchange overlaps; 0 except for local steps with a delay.
    """

    micro_steps: Number
    forward: Number
    backward: Number
    forward_units: Sequence[Number]
    backward_units: Sequence[Number]
    ready: Sequence[Number]
    exchange: Sequence[Number]
    gather_forward: Sequence[Number]
    gather_backward: Sequence[Number]
    after: Number
    update: Number
    feed: Number
    penalty: float = 0.0
    beside: float = 0.0


@dataclass(frozen=True, slots=True)
class Schedule:
    """Times of a step, in seconds after its start.

    Attributes:
        forward_starts, backward_starts: start of each FSDP unit in model order, after the start of its micro step; empty
            without sharded weights.
        gather_forward_starts, gather_backward_starts: start of each bucket's all-gather, after the start of its micro step.
        exchange_starts: start of each bucket's exchange; after the start of the micro step if every micro step exchanges.
        micro_step: time from the start of one micro step to the start of the next.
        backward_end: end of the last backward pass.
        update_start, gather_start: start of the optimizer, and of the all-gathers after it.
        step: end of the step.
        penalty: duration that is lost because exchange and compute share the device.
    """

    forward_starts: tuple[Number, ...]
    backward_starts: tuple[Number, ...]
    gather_forward_starts: tuple[Number, ...]
    gather_backward_starts: tuple[Number, ...]
    exchange_starts: tuple[Number, ...]
    micro_step: Number
    backward_end: Number
    update_start: Number
    gather_start: Number
    step: Number
    penalty: Number


def schedule_step(p: StepDurations, overlap: bool, shared: bool, top: Maximum = max) -> Schedule:
    """Return the schedule of a step. Without ``overlap`` the device does not compute and exchange at the same time.

    Args:
        shared: whether the weights are sharded.
        top: returns the larger of two durations; ``np.maximum`` if they are arrays.
    """
    compute = p.micro_steps * (p.forward + p.backward)
    if shared:
        starts, micro, last = _units(p, overlap, top)
        end, free = (p.micro_steps - 1) * micro + last, p.micro_steps * micro
        moved = p.micro_steps * (sum(p.exchange) + sum(p.gather_forward) + sum(p.gather_backward))
    else:
        micro, end = p.forward + p.backward, compute
        begin, free, at = compute - p.backward, 0.0, []
        hidden, clock = p.beside * (compute + p.update), end
        for ready, seconds in zip(p.ready, p.exchange, strict=True):
            if p.beside:  # each overlaps steps of its own fragment
                left = top(seconds - hidden, 0.0)
                at.append(top(clock + left - seconds, 0.0))
                clock = free = clock + left
                continue
            at.append(top(begin + ready if overlap else end, free))
            free = at[-1] + seconds
        free, moved, starts = top(free, end), sum(p.exchange), ((), (), (), (), tuple(at))
    penalty = p.penalty * (compute + moved - free) if overlap else 0.0 * free
    update = free + penalty
    gather = update + p.update
    return Schedule(*starts, micro, end, update, gather, top(gather + p.after, p.feed), penalty)


def _units(p: StepDurations, overlap: bool, top: Maximum) -> tuple[Starts, Number, Number]:
    """Schedule one micro step of FSDP: its starts, the end of its last exchange, and the end of its backward pass.

    ``free`` is the time from which the network is free. The next micro step waits for it, because its first all-gather does.
    """
    count = len(p.forward_units)
    gathered = list(reversed(p.gather_forward)) or [0.0] * count  # model order
    forward: list[Number] = []
    fetched: list[Number] = []
    clock: Number = 0.0
    for unit, seconds in enumerate(gathered):
        if not unit:
            fetched.append(clock)
            clock = clock + seconds
        else:  # the network is free once the unit before has its weights and starts
            fetched.append(forward[-1] if overlap else clock)
            clock = top(clock, fetched[-1] + seconds)
        forward.append(clock)
        clock = clock + p.forward_units[unit]
    backward: list[Number] = []
    again: list[Number] = []
    scattered: list[Number] = []
    free: Number = clock
    for index, seconds in enumerate(p.exchange):  # bucket order: the last unit first
        unit = count - 1 - index
        if p.gather_backward and not index:
            again.append(clock)
            free = clock + p.gather_backward[0]
            clock = free
        backward.append(clock)
        end = clock + p.backward_units[unit]
        there = clock
        if p.gather_backward and unit:
            again.append(top(clock if overlap else end, free))
            there = free = again[-1] + p.gather_backward[index + 1]
        scattered.append(top(end, free))
        free = scattered[-1] + seconds
        clock = top(end, there)
        if not overlap:
            clock = top(clock, free)
    last = backward[-1] + p.backward_units[0] if backward else clock
    back = tuple(reversed(backward))
    starts = tuple(forward), back, tuple(reversed(fetched)), tuple(again), tuple(scattered)
    return starts, top(last, free), last


def columns(plan: ExchangePlan, layers: int, shared: bool) -> Ints:
    """Return the layers at which cumulative sums are read, (columns,): each bucket's lowest layer and the end.

    With sharded weights they are the bounds of the units, in model order."""
    if not shared:
        return np.concatenate((plan.first, [layers]))
    return np.array([0, *np.maximum.accumulate(plan.first[::-1])[1:].tolist(), layers], dtype=np.int64)


def pieces(
    forward: Array,
    backward: Array,
    exchange: ExchangeSeconds,
    shared: bool,
    micro_steps: Number,
    update: Number,
    feed: Number,
    penalty: float,
    beside: float = 0.0,
) -> StepDurations:
    """Return the durations of a step, or of many candidates with the same exchange.

    Args:
        forward, backward: seconds of all layers before each of ``columns`` on the slowest worker, (columns,), or
            (candidates, columns) for many candidates. For many, one bucket with the same end replaces all buckets, unless
            exchanges overlap other steps.
    """
    many = forward.ndim > 1
    units: tuple[list[Number], ...] = ([], [])
    ready: Array = backward[..., -1:] - backward[..., :-1]
    buckets = exchange.buckets
    if shared:
        of_unit = np.diff(forward), np.diff(backward)
        units = tuple([*seconds.T] if many else seconds.tolist() for seconds in of_unit)
        ready = ready[..., :0]
    elif many and not beside:
        ready, buckets = _joined(ready, buckets)
    own = StepDurations(
        micro_steps=micro_steps,
        forward=forward[..., -1] if many else float(forward[-1]),
        backward=backward[..., -1] if many else float(backward[-1]),
        forward_units=units[0],
        backward_units=units[1],
        ready=[*ready.T] if many else ready.tolist(),
        exchange=(),
        gather_forward=(),
        gather_backward=(),
        after=0.0,
        update=update,
        feed=feed,
        penalty=penalty,
        beside=beside,
    )
    return with_exchange(own, exchange, buckets)


def _joined(ready: Array, seconds: Array) -> tuple[Array, Array]:
    """Join consecutive buckets into one with the same end: its ready times, (candidates, 1), and its seconds, (1,).

    The end is the latest over the buckets of ``ready``, (candidates, buckets), plus the seconds of it and all later buckets."""
    if not len(seconds):
        return ready, seconds
    total = seconds.sum()
    rest = np.cumsum(seconds[::-1])[::-1]
    return (ready + rest).max(axis=1, keepdims=True) - total, np.array([total])


def with_exchange(parts: StepDurations, x: ExchangeSeconds, buckets: Array | None = None) -> StepDurations:
    """Return the durations with another exchange. ``buckets``: seconds that replace those of its buckets."""
    gathers = dict(zip(x.plan.gathers, x.gathers.tolist(), strict=True))
    return replace(
        parts,
        exchange=(x.buckets if buckets is None else buckets).tolist(),
        gather_forward=gathers.get("gather_forward", ()),
        gather_backward=gathers.get("gather_backward", ()),
        after=sum(gathers.get("gather_update", ())) + _forward_excess(sum(gathers.get("gather_next", ())), parts.forward),
    )


def _forward_excess(gathered: float, forward: Number) -> Number:
    """Return the excess time of all-gathers over the next step's first forward pass, which waits layer by layer."""
    return np.maximum(0.0, gathered - forward) if isinstance(forward, np.ndarray) else max(0.0, gathered - forward)


def sums(values: Array) -> Array:
    """Return the sums of the first 0, 1, ... n values, (n + 1,)."""
    out = np.zeros(len(values) + 1)
    np.cumsum(values, out=out[1:])
    return out


def events(
    costs: StepCosts,
    parts: StepDurations,
    placed: Schedule,
    names: Sequence[str],
    blocks: Sequence[tuple[int, str]] = (),
    split: bool = False,
) -> Iterator[Event]:
    """Yield the schedule as events in the lanes ``compute``, ``codec``, ``network`` and ``input``.

    Args:
        names: names of the layers.
        blocks: index of the last layer of each recomputed block, with the name of the block.
        split: whether a layer's wait within its pass is a separate bar in the lane ``network``.
    """
    plan, shared = costs.exchange.plan, bool(placed.forward_starts)
    last = int(parts.micro_steps) - 1
    waits = [(np.zeros(len(names)) + part.near + part.far) * split for part in (costs.forward, costs.backward)]
    waited, waited_back = (wait.tolist() for wait in waits)
    blocks_of = dict(blocks)
    for micro, passes in enumerate(layer_passes(costs, parts, placed)):
        begin, suffix = micro * placed.micro_step, f", micro step {micro + 1}" if last else ""
        for p in passes:
            if p.kind == "recompute":
                name = f"recompute {blocks_of[p.layer]}{suffix}"
                yield Event(name=name, lane="compute", start_s=p.start_s, duration_s=p.seconds)
                continue
            name, first = f"{p.kind} {names[p.layer]}{suffix}", p.kind == "backward"
            wait = waited_back[p.layer] if first else waited[p.layer]
            own = p.seconds - wait
            if wait and first:
                yield _all_to_all_event(name, p.start_s, wait)
            begins = p.start_s + wait if first else p.start_s
            yield Event(name=name, lane="compute", start_s=begins, duration_s=own)
            if wait and not first:
                yield _all_to_all_event(name, p.start_s + own, wait)
        if shared or micro == last:
            yield from _exchanged(costs, placed, begin if shared else 0.0, suffix if shared else "")
    yield Event(name="optimizer", lane="compute", start_s=placed.update_start, duration_s=costs.update)
    if plan.gathers in (("gather_update",), ("gather_next",)):
        yield from _gathered(plan.gathers[0], costs.exchange.gathers[0].tolist(), placed.gather_start, float(parts.after))
    if parts.feed:
        yield input_event(parts.feed)


@dataclass(frozen=True, slots=True)
class LayerPass:
    """One pass of a micro batch through one layer. ``recompute`` is that of the part whose last layer it is."""

    kind: Literal["forward", "recompute", "backward"]
    layer: int
    start_s: float
    seconds: float

    @property
    def end_s(self) -> float:
        """End in seconds after the start of the step."""
        return self.start_s + self.seconds


def layer_passes(costs: StepCosts, parts: StepDurations, placed: Schedule) -> Iterator[Iterator[LayerPass]]:
    """Yield the passes of each micro step through the layers, with the waits within them, in order."""
    layers = len(costs.again)
    bounds = columns(costs.exchange.plan, layers, True).tolist() if placed.forward_starts else [0, layers]
    at = placed.forward_starts or (0.0,), placed.backward_starts or (parts.forward,)
    spans = list(zip(bounds, bounds[1:], *at, strict=False))
    seconds = costs.forward.total, costs.backward.total, costs.again
    forward, backward, again = ((own * costs.slowest).tolist() for own in seconds)

    def passes(begin: float) -> Iterator[LayerPass]:
        for start, stop, after, _ in spans:
            clock = begin + after
            for layer in range(start, stop):
                yield LayerPass("forward", layer, clock, forward[layer])
                clock += forward[layer]
        for start, stop, _, after in reversed(spans):
            clock = begin + after
            for layer in reversed(range(start, stop)):
                if again[layer]:
                    yield LayerPass("recompute", layer, clock, again[layer])
                    clock += again[layer]
                yield LayerPass("backward", layer, clock, backward[layer])
                clock += backward[layer]

    for micro in range(int(parts.micro_steps)):
        yield passes(micro * placed.micro_step)


def _all_to_all_event(name: str, start: float, seconds: float) -> Event:
    """Return a layer's all-to-all as a bar: of vectors after its forward kernels, of gradients before its backward kernels."""
    return Event(name=f"alltoall {name}", lane="network", start_s=start, duration_s=seconds)


def _gathered(name: str, seconds: Sequence[float], begin: float, after: float) -> Iterator[Event]:
    """Yield the all-gathers after the update. Their excess over ``after`` seconds runs at the start of the next, equal step."""
    left = after
    for index, each in enumerate(seconds):
        now, later = min(each, left), each - min(each, left)
        for start, part in ((begin + after - left, now), (sum(seconds[:index]) + now - after, later)):
            if part > 0:
                yield Event(name=f"{name} bucket {index}", lane="network", start_s=max(0.0, start), duration_s=part)
        left -= now


def input_event(feed: float) -> Event:
    """Return a bar for the loader, which prepares a step's samples in ``feed`` seconds, parallel to everything else."""
    return Event(name="input", lane="input", start_s=0.0, duration_s=feed)


def _exchanged(costs: StepCosts, placed: Schedule, begin: float, suffix: str) -> Iterator[Event]:
    """Yield the all-gathers and the exchange of one micro step."""
    gathers = dict(zip(costs.exchange.plan.gathers, costs.exchange.gathers.tolist(), strict=True))
    for name, starts in (
        ("gather_forward", placed.gather_forward_starts),
        ("gather_backward", placed.gather_backward_starts),
    ):
        for index, (at, seconds) in enumerate(zip(starts, gathers.get(name, ()), strict=bool(gathers.get(name)))):
            yield Event(name=f"{name} bucket {index}{suffix}", lane="network", start_s=begin + at, duration_s=seconds)
    for index, start in enumerate(placed.exchange_starts):
        for stage, at in _placed_stages(begin + start, costs.exchange.cost(index)):
            yield Event(name=f"{stage.name} bucket {index}{suffix}", lane=stage.lane, start_s=at, duration_s=stage.seconds)


def _placed_stages(start: float, exchange: ExchangeCost) -> Iterator[tuple[ExchangeStage, float]]:
    """Yield each stage with its start. A pipelined stage is one event for all chunks, without gaps between them.

    The network starts when the first chunk is encoded. The later stages of the codec end with the exchange.
    """
    clock = start
    for stage in exchange.before:
        yield stage, clock
        clock += stage.seconds
    end = start + exchange.seconds - sum(stage.seconds for stage in exchange.after)
    pipelined = exchange.largest < 1
    codec = [x for x in exchange.chunked if x.lane == "codec"]
    encode = [x for x in codec if x.name == "encode"]
    later = end - sum(x.seconds for x in codec if x.name != "encode")
    sent = clock + exchange.largest * sum(x.seconds for x in encode)
    for stage in exchange.chunked:
        if not pipelined:
            yield stage, clock
            clock += stage.seconds
        elif stage.lane == "network":
            yield stage, sent
            sent += stage.seconds
        elif stage.name == "encode":
            yield stage, clock
        else:
            yield stage, later
            later += stage.seconds
    for stage in exchange.after:
        yield stage, end
        end += stage.seconds
