"""Memory over time of all ranks of a step, one timeline for ranks that do the same."""

from __future__ import annotations

from paceline.hardware.device import Device
from paceline.memory_timeline import MemoryTimeline
from paceline.prediction.memory.stage_timeline import stage_allocations
from paceline.prediction.memory.whole_timeline import whole_allocations
from paceline.prediction.mesh.mesh_step import MeshStep
from paceline.prediction.step.memory import memory_range
from paceline.prediction.step.step import Step
from paceline.prediction.step.step_model import WholeStep


def memory_timelines(step: Step, ranks: int, device: Device) -> tuple[MemoryTimeline, ...]:
    """Return a timeline for the ranks of each pipeline stage, or one for all ``ranks``."""
    if isinstance(step, MeshStep):
        each = step.strategy.parallelism.stage_devices
        parts = [(step.stage_memory(number), stage_allocations(step, number)) for number in range(len(step.stages))]
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
            span=memory_range(sum(memory.values()), device),
        )
        for number, (memory, (allocations, passes)) in enumerate(parts)
    )
