"""Memory over time of all ranks of a step, one timeline for ranks that do the same."""

from __future__ import annotations

from dataclasses import replace

from paceline.hardware.device import Device
from paceline.memory_timeline import Allocation, MemoryTimeline
from paceline.prediction.memory.stage_timeline import stage_allocations
from paceline.prediction.memory.whole_timeline import whole_allocations
from paceline.prediction.mesh.mesh_step import MeshStep
from paceline.prediction.step.memory import memory_range
from paceline.prediction.step.step import Step
from paceline.prediction.step.step_model import WholeStep
from paceline.prediction.step.worker_step import WorkerStep
from paceline.prediction.tasks.length_step import LengthStep
from paceline.prediction.tasks.task_step import TaskStep


def memory_timelines(step: Step, ranks: int, device: Device) -> tuple[MemoryTimeline, ...]:
    """Return a timeline for the ranks of each pipeline stage, or one for all ``ranks``."""
    if isinstance(step, LengthStep):  # of the longest samples
        return memory_timelines(step.fullest, ranks, device)
    if isinstance(step, TaskStep):
        return tuple(_of_task(own, step, device) for own in memory_timelines(step.training, ranks, device))
    if isinstance(step, MeshStep):
        each = step.strategy.parallelism.stage_devices
        parts = [(step.stage_memory(number), stage_allocations(step, number)) for number in range(len(step.stages))]
    elif isinstance(step, WorkerStep):
        allocations, passes = whole_allocations(step.own)
        held = tuple(Allocation(name, name, size) for name, size in step.between_bytes.items() if size)
        each, parts = ranks, [(step.memory(), ((*held, *allocations), passes))]
    else:
        assert isinstance(step, WholeStep)
        each, parts = ranks, [(step.memory(), whole_allocations(step))]
    return tuple(
        MemoryTimeline(
            ranks=range(number * each, (number + 1) * each),
            stage=number,
            stages=len(parts),
            allocations=allocations,
            passes=passes,
            memory=memory,
            step_s=step.seconds,
            available=device.memory.value,
            span=memory_range(memory, device),
        )
        for number, (memory, (allocations, passes)) in enumerate(parts)
    )


def _of_task(training: MemoryTimeline, step: TaskStep, device: Device) -> MemoryTimeline:
    """Return the timeline of a task's training after its other parts. Their memory is held throughout, as it is predicted."""
    later_s, sizes = sum(step.before.seconds.values()), step.before.memory
    held = (Allocation(name, name, size) for name, size in sizes.items() if size)
    memory = {**training.memory, **{name: training.memory.get(name, 0.0) + size for name, size in sizes.items()}}
    shifted = (replace(own, start_s=own.start_s + later_s, end_s=own.end_s + later_s) for own in training.allocations)
    return replace(
        training,
        allocations=(*held, *shifted),
        passes=(*step.before.bars, *(replace(bar, start_s=bar.start_s + later_s) for bar in training.passes)),
        memory=memory,
        step_s=step.seconds,
        span=memory_range(memory, device),
    )
