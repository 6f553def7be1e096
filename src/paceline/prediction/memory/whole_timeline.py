"""Memory of a step on devices that each hold the whole network.

State between steps is there throughout. With sharded weights (FSDP; Zhao et al. 2023, VLDB 16(12), section 3.3), a unit's
weights are there from their all-gather to the end of the unit's pass, and its gradients from its backward pass to the end of
their reduce-scatter, of two units at most.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from paceline.hardware.precision import BYTES_PER_ELEMENT, RECIPES
from paceline.memory_timeline import BEYOND, Allocation
from paceline.prediction.memory.saved_tensors import ACTIVATIONS, allocations, saved_tensors
from paceline.prediction.step.memory import (
    GATHERED,
    at_once,
    loss_of,
    saved_numbers,
    temporary_update_bytes,
    units_of,
    update_bytes,
    updated_weights,
)
from paceline.prediction.step.step_model import WholeStep
from paceline.prediction.step.timeline import LayerPass, layer_passes
from paceline.record import Event

PASSING = (ACTIVATIONS, "inputs", "gathered", "update")
"""Purposes that come and go within a step. All others are held."""


def held(memory: Mapping[str, float]) -> Iterator[Allocation]:
    """Yield the state that is there throughout the step."""
    for purpose, size in memory.items():
        if size and purpose not in (*PASSING, *BEYOND):
            yield Allocation(purpose, purpose, size)


def whole_allocations(step: WholeStep) -> tuple[tuple[Allocation, ...], tuple[Event, ...]]:
    """Return the allocations of a step, and its passes as bars."""
    memory, strategy = step.memory(), step.strategy
    choice, micro = strategy.parallelism.recomputation, strategy.micro_batch_size
    count, loss = int(step.pieces.micro_steps), loss_of(strategy, step.framework)
    numbers = saved_numbers(strategy, step.framework)
    on_host, precision = strategy.parallelism.host_activations, strategy.precision
    saved = saved_tensors(step.workload, numbers, choice, precision, micro, memory[ACTIVATIONS], count, loss, on_host)
    made, bars = [*held(memory)], list[Event]()
    for number, passes in enumerate(layer_passes(step.costs, step.pieces, step.schedule)):
        own = list(passes)
        made += allocations(saved, own)
        ahead, back = (_span(own, kind) for kind in ("forward", "backward"))
        bars += [ahead, back]
        if memory["inputs"]:
            made.append(Allocation("inputs", "micro batch", memory["inputs"], ahead.start_s, back.end_s))
        if strategy.parallelism.sharding.weights:
            made += _gathered_units(step, memory["gathered"], ahead.start_s, number * float(step.schedule.micro_step))
    update_s, end_s = float(step.schedule.update_start), step.seconds
    updated_s = update_s + float(step.pieces.update)
    bars.append(Event(name="optimizer", lane="compute", start_s=update_s, duration_s=updated_s - update_s))
    most = of_update(memory, update_bytes(step.workload, strategy, step.framework, step.plan))
    if update := min(most, temporary_update_bytes(step.workload, strategy, step.framework)):
        made.append(Allocation("update", "optimizer", update, update_s, updated_s))
    if gathered := min(most, updated_weights(strategy, step.plan)):
        made.append(Allocation("gathered", "updated weights", gathered, updated_s, max(updated_s, end_s)))
    return tuple(made), tuple(bars)


def of_update(memory: Mapping[str, float], least: float = 0.0) -> float:
    """Return bytes that the update allocates. A prediction counts only those beyond what the passes need.

    Args:
        memory: predicted bytes by purpose. ``least``: bytes of the update if it needs less than the passes.
    """
    passing = sum(memory.get(name, 0.0) for name in (ACTIVATIONS, "inputs", "gathered"))
    return memory["update"] + passing if "update" in memory else min(passing, least)


def _span(passes: Sequence[LayerPass], kind: str) -> Event:
    """Return one bar for all passes of a kind. Recomputation belongs to the backward pass."""
    own = [p for p in passes if (p.kind == "forward") == (kind == "forward")]
    start, end = (own[0].start_s, own[-1].end_s) if own else (0.0, 0.0)
    return Event(name=kind, lane="compute", start_s=start, duration_s=end - start)


def _gathered_units(step: WholeStep, predicted: float, first_s: float, begin: float) -> Iterator[Allocation]:
    """Yield the gathered weights and the unsharded gradients of each unit in one micro step.

    Args:
        predicted: bytes of all that is gathered at once, with weights that a framework keeps to use them again.
        first_s: start of the first pass. ``begin``: start of the micro step.
    """
    strategy, placed, pieces = step.strategy, step.schedule, step.pieces
    again, recipe = strategy.parallelism.sharding.gathers_again, RECIPES.get(strategy.precision)
    copies = recipe.copies(step.cluster.device.architecture) * recipe.operand if recipe else 0.0
    of_weights, of_gradients = units_of(step.plan, BYTES_PER_ELEMENT[strategy.precision], copies)
    gathered = at_once(of_weights, of_gradients, again=again, ordered=True)
    weights, gradients = of_weights.tolist(), of_gradients.tolist()
    count = len(gradients)
    starts, ends = placed.backward_starts, [s + d for s, d in zip(placed.backward_starts, pieces.backward_units, strict=True)]
    end = max(ends, default=0.0)
    if predicted > gathered:
        yield Allocation("gathered", "weights kept for another use", predicted - gathered, first_s, begin + end)
    for bucket in range(count):
        unit = count - 1 - bucket
        name, size = f"unit.{unit}", weights[bucket]
        ahead = placed.gather_forward_starts[bucket] if placed.gather_forward_starts else placed.forward_starts[unit]
        if again:
            after = placed.forward_starts[unit] + pieces.forward_units[unit]
            back = placed.gather_backward_starts[bucket] if placed.gather_backward_starts else starts[unit]
            yield Allocation("gathered", f"weights of {name}", size, begin + ahead, begin + after)
            yield Allocation("gathered", f"weights of {name}", size, begin + back, begin + ends[unit])
        else:
            yield Allocation("gathered", f"weights of {name}", size, begin + ahead, begin + end)
        sent = placed.exchange_starts[bucket] + pieces.exchange[bucket]
        if unit >= GATHERED:  # the unit after the next one waits for the memory
            sent = min(sent, starts[unit - GATHERED])
        own = begin + starts[unit], begin + max(sent, starts[unit])
        yield Allocation("gathered", f"gradients of {name}", gradients[bucket], *own)
