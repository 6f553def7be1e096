"""Memory of a step on a device of one pipeline stage.

A stage holds the saved tensors of every micro batch whose backward pass has not run. Its parts count as equal, as in the
prediction (``MeshStep.stage_memory``). In a zero-bubble pipeline, operands of products stay until the gradients of weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from paceline.memory_timeline import Allocation
from paceline.prediction.memory.saved_tensors import ACTIVATIONS, allocations, saved_tensors
from paceline.prediction.memory.whole_timeline import held, of_update
from paceline.prediction.mesh.mesh_step import MeshStep
from paceline.prediction.mesh.pipeline import Pass
from paceline.prediction.passes.weight_gradients import weight_bytes
from paceline.prediction.step.costs import StepCosts
from paceline.prediction.step.memory import numbers_of
from paceline.prediction.step.timeline import LayerPass
from paceline.record import Event
from paceline.strategy.frameworks.loss import IN_PLACE_LOSS


def stage_allocations(step: MeshStep, number: int) -> tuple[tuple[Allocation, ...], tuple[Event, ...]]:
    """Return the allocations of one stage in a step, and its passes as bars."""
    memory, own, stage = step.stage_memory(number), step.steps[number], step.stages[number]
    passes, turns = step.stage_passes(number), len(stage.parts)
    choice, micro = own.strategy.parallelism.recomputation, own.strategy.micro_batch_size
    count = step.strategy.parallelism.micro_batches
    one = memory[ACTIVATIONS] / max(1, step.pipeline.in_flight[number])  # the loss is never that of plain PyTorch
    numbers, precision = numbers_of(step.strategy), step.strategy.precision
    on_host = own.strategy.parallelism.host_activations
    saved = saved_tensors(own.workload, numbers, choice, precision, micro, one, count, IN_PLACE_LOSS, on_host)
    saved = replace(saved, stays=False)  # other micro batches pass before its backward pass
    made, parts = [*held(memory)], [saved.part(layers, turns) for layers in stage.parts]
    splits = any(p.weights for p in passes)
    operands = _operand_bytes(step, number, saved.total / turns, passes) if splits else 0.0
    for turn, layers in enumerate(stage.parts):
        tensors = parts[turn]
        for ahead, back, late in _visits(passes, number + turn * len(step.stages)):
            made += allocations(tensors, _through(own.costs, layers, ahead, back))
            if operands and late is not None:
                name = "operands of weight gradients"
                made.append(Allocation(ACTIVATIONS, name, operands, back.end_s, late.end_s))
    first, last = passes[0].start_s, max(p.end_s for p in passes if p.backward and not p.weights)
    made += [Allocation("inputs", "micro batch", memory["inputs"], first, last)] if memory["inputs"] else []
    update_s, updated_s = step.update_s, step.updated_s
    if memory["gathered"]:
        weights = step.strategy.parallelism.real_sharding.weights
        when = (first, passes[-1].end_s) if weights else (update_s, updated_s)
        made.append(Allocation("gathered", "units of weights and gradients", memory["gathered"], *when))
    if memory.get("update"):
        size = min(of_update(own.memory_of_part()), of_update(memory))
        made.append(Allocation("update", "optimizer", size, update_s, updated_s))
    bars = [Event(name=_kind(p), lane="compute", start_s=p.start_s, duration_s=p.end_s - p.start_s) for p in passes]
    bars.append(Event(name="optimizer", lane="compute", start_s=update_s, duration_s=updated_s - update_s))
    return tuple(made), tuple(bars)


def _kind(p: Pass) -> str:
    return "backward" if p.backward else "forward"


def _visits(passes: Sequence[Pass], part: int) -> Iterator[tuple[Pass, Pass, Pass | None]]:
    """Yield the forward and backward pass of each micro batch through a part, and that of its weights if it is separate."""
    own = [p for p in passes if p.part == part]
    back = {p.micro_batch: p for p in own if p.backward and not p.weights}
    late = {p.micro_batch: p for p in own if p.weights}
    for p in own:
        if not p.backward:
            yield p, back[p.micro_batch], late.get(p.micro_batch)


def _through(costs: StepCosts, layers: range, ahead: Pass, back: Pass) -> Iterator[LayerPass]:
    """Yield the passes of a micro batch through the layers of a part, in the span that the pipeline gives them."""
    forward, backward = costs.forward.total, costs.backward.total
    again = costs.again
    own = slice(layers.start, layers.stop)
    clock, scale = ahead.start_s, _scale(ahead, float(forward[own].sum()))
    for layer in layers:
        seconds = float(forward[layer]) * scale
        yield LayerPass("forward", layer, clock, seconds)
        clock += seconds
    clock, scale = back.start_s, _scale(back, float((backward + again)[own].sum()))
    for layer in reversed(layers):
        if again[layer]:
            seconds = float(again[layer]) * scale
            yield LayerPass("recompute", layer, clock, seconds)
            clock += seconds
        seconds = float(backward[layer]) * scale if layer > layers.start else back.end_s - clock
        yield LayerPass("backward", layer, clock, seconds)
        clock += seconds


def _scale(p: Pass, seconds: float) -> float:
    """Return the length of a pass over the seconds of its layers."""
    return (p.end_s - p.start_s) / seconds if seconds else 0.0


def _operand_bytes(step: MeshStep, number: int, saved: float, passes: Sequence[Pass]) -> float:
    """Return bytes that stay of a micro batch until the gradients of its weights.

    The prediction counts them for the ``late`` micro batches alone (``MeshStep.stage_memory``), so all of them share its sum.

    Args:
        saved: bytes that a pass saves.
    """
    own, mesh = step.steps[number], step.strategy.parallelism
    size = weight_bytes(own.workload, numbers_of(step.strategy), mesh.tensor if mesh.sequence else 1)
    size *= own.strategy.micro_batch_size / len(step.stages[number].parts)
    predicted = step.pipeline.in_flight[number] * saved + step.pipeline.late[number] * size
    whole = waiting = 0
    for p in passes:
        whole += -1 if p.backward and not p.weights else 0 if p.weights else 1
        waiting += -1 if p.weights else 1 if p.backward else 0
        if waiting:
            size = min(size, (predicted - whole * saved) / waiting)
    return max(0.0, size)
