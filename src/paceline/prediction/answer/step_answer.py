"""Prediction of a step, assembled from its figures."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from paceline.hardware.cluster import Cluster
from paceline.prediction.answer.assumptions import assumptions
from paceline.prediction.answer.division_assumptions import uneven_stages
from paceline.prediction.answer.lazy_tuple import lazy
from paceline.prediction.answer.result import Assumption, Prediction
from paceline.prediction.answer.step_range import missed_by
from paceline.prediction.answer.task_assumptions import length_assumptions, task_assumptions
from paceline.prediction.memory.timelines import memory_timelines
from paceline.prediction.passes.attention_kernel import kernel_of
from paceline.prediction.step.exposed import without_rounding
from paceline.prediction.step.memory import fit_of
from paceline.prediction.step.step import Step
from paceline.prediction.step.step_inputs import StepInputs
from paceline.prediction.step.step_model import StepModel, measured_ratio
from paceline.prediction.tasks.length_step import task_of, useful_tokens
from paceline.strategy.strategy import Strategy
from paceline.workload.table import Workload


def step_answer(
    model: StepModel, inputs: StepInputs, step: Step, range_s: tuple[float, float], known: bool = False
) -> Prediction:
    """Return the figures of a step as a prediction.

    Args:
        model: model of the expected step.
        known: whether a step of this network on this device was observed.
    """
    workload, cluster, strategy = inputs.workload, inputs.cluster, inputs.strategy
    memory = step.memory()
    needed, available = sum(memory.values()), cluster.device.memory.value
    wire, dense, waited = step.wire_bytes, step.dense_wire_bytes, without_rounding(step.waited_s, step.seconds)
    missed = None if model.calibration is not None else missed_by(model.constants, inputs, known)

    parts = task_of(step)

    def sentences() -> tuple[Assumption, ...]:
        priced = replace(inputs, strategy=measured_ratio(strategy, model.calibration))
        of_task = task_assumptions(workload, cluster, strategy, parts) if parts else ()
        return (
            *length_assumptions(workload, strategy),
            *of_task,
            *uneven_stages(step.stage_work_s, step.seconds),
            *assumptions(model, priced, memory, missed),
        )

    return Prediction(
        workload=workload.name,
        strategy=strategy.to_json(),
        step_time_s=step.seconds,
        low_s=range_s[0],
        high_s=range_s[1],
        samples_per_s=step.counted * strategy.global_batch_size / step.seconds if step.seconds else math.inf,
        compute_s=step.seconds - waited,
        comm_s=step.busy_s("network"),
        codec_s=step.busy_s("codec"),
        exposed_comm_s=waited,
        wire_bytes_per_device=wire,
        compression_ratio=max(1.0, dense / wire) if wire else 1.0,
        memory_bytes=needed,
        bottleneck=max(step.exposed, key=lambda name: step.exposed[name]),
        assumptions=lazy(sentences),
        timeline=lazy(step.events),
        memory_timelines=lazy(lambda: memory_timelines(step, cluster.world_size, cluster.device)),
        cluster=described(cluster),
        memory=memory,
        fits=needed <= available,
        fit=fit_of(needed, cluster.device),
        framework=model.constants.framework.name,
        software=model.constants.level,
        attention=kernel_of(workload, cluster.device, strategy.precision, model.constants),
        held_out_error=None if missed is None else missed.mape,
        missing_bytes=max(0.0, needed - available),
        exposed={str(name): without_rounding(seconds, step.seconds) for name, seconds in step.exposed.items()},
        parts=parts.parts if parts else {},
        useful_tokens_per_s=_useful(workload, strategy, step),
        counted=step.counted,
    )


def _useful(workload: Workload, strategy: Strategy, step: Step) -> float:
    """Return tokens that count, a second, where samples differ in length; else 0."""
    if not strategy.tokens_per_sample.vary or not step.seconds:
        return 0.0
    return float(step.counted * strategy.global_batch_size * useful_tokens(workload, strategy) / step.seconds)


def described(cluster: Cluster) -> dict[str, Any]:
    """Describe a cluster's device, sizes and links by name."""
    return {
        "device": cluster.device.name,
        "devices_per_node": cluster.devices_per_node if cluster.even else cluster.node_text,
        "num_nodes": cluster.num_nodes,
        "intra_link": cluster.intra_link.name,
        "network": cluster.network.name if cluster.num_nodes > 1 else "none",
        **({"chosen": cluster.notes[0]} if cluster.notes else {}),
        **({"nic": cluster.nic.name} if cluster.nic else {}),
        **({"aggregation": cluster.aggregation.name} if cluster.aggregation else {}),
    }
