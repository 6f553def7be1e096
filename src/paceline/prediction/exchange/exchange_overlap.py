"""The exchange of a stage's gradients and weights beside the passes of its pipeline, as tuned software runs it.

A bucket is exchanged as soon as the last micro batch has completed its gradients: with several parts on a stage those of the
later parts are complete long before the last pass (Megatron-Core, ``--overlap-grad-reduce``). Updated weights are gathered when
the next step's forward pass needs them, part by part in the order of the network (``--overlap-param-gather``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from paceline.array_types import Array
from paceline.prediction.mesh.pipeline import PipelineSchedule
from paceline.prediction.mesh.stages import Stage
from paceline.prediction.passes.costs import ExchangeSeconds
from paceline.prediction.step_model import WholeStep
from paceline.prediction.timeline import sums
from paceline.record import Event


@dataclass(frozen=True, eq=False)
class ExchangeBeside:
    """When a stage exchanges, in seconds.

    Attributes:
        starts: of each bucket's exchange, after the first pass of the step could begin, (buckets,).
        gather_starts: of each bucket's all-gather, after the update, (buckets,); empty without.
        after_s: from the stage's last pass to the end of its exchange, with what running both at once loses.
        delay_s: that the passes of a step wait for weights in all, with what running both at once loses.
        after_loss_s, delay_loss_s: of both, what running both at once loses.
    """

    starts: Array
    gather_starts: Array
    after_s: float
    delay_s: float
    after_loss_s: float = 0.0
    delay_loss_s: float = 0.0


def megatron_bucket_bytes(replicas: int) -> int:
    """The bytes of fp32 gradients that Megatron-Core exchanges at once if no size is given: those of 40 million parameters, or
    of a million for each replica (``DistributedDataParallel``, ``bucket_size``)."""
    return 4 * max(40_000_000, 1_000_000 * replicas)


def exchange_beside(
    step: WholeStep, stage: Stage, number: int, stages: int, pipeline: PipelineSchedule, exchange: ExchangeSeconds
) -> ExchangeBeside:
    """When stage ``number`` of ``stages`` exchanges what ``exchange`` prices."""
    first = exchange.plan.first
    needed, ready = _needed_and_ready(step, stage, number, stages, pipeline)
    penalty = step.pieces.penalty
    clock, starts = 0.0, []
    for at, seconds in zip(ready[first].tolist(), exchange.buckets.tolist(), strict=True):
        starts.append(max(clock, at))
        clock = starts[-1] + seconds
    after = max(0.0, clock - pipeline.ends[number])
    loss = penalty * (float(exchange.buckets.sum()) - after)
    if not exchange.plan.gathers:
        return ExchangeBeside(np.array(starts), np.zeros(0), after + loss, 0.0, loss)
    gathers, wanted = exchange.gathers[0], needed[first]
    order = np.argsort(wanted, kind="stable")
    there = np.cumsum(gathers[order])
    gather_starts = np.empty_like(there)
    gather_starts[order] = there - gathers[order]
    delay = max(0.0, float((there - wanted[order]).max(initial=0.0)))
    delay_loss = penalty * (float(gathers.sum()) - delay)
    return ExchangeBeside(np.array(starts), gather_starts, after + loss, delay + delay_loss, loss, delay_loss)


def _needed_and_ready(
    step: WholeStep, stage: Stage, number: int, stages: int, pipeline: PipelineSchedule
) -> tuple[Array, Array]:
    """When the first forward pass of a step needs each layer's weights, and when the last backward pass has completed its
    gradients, both (layers,)."""
    costs = step.costs
    forward = sums(costs.forward.total * costs.slowest)
    backward = sums((costs.backward.total + costs.again) * costs.slowest)
    needed, ready = np.zeros(len(forward) - 1), np.zeros(len(forward) - 1)
    for turn, layers in enumerate(stage.parts):
        part, own = number + turn * stages, slice(layers.start, layers.stop)
        needed[own] = pipeline.first_start(part) + forward[own] - forward[layers.start]
        start, end = pipeline.last_pass(part)  # in a zero-bubble pipeline it computes gradients of weights alone
        ready[own] = np.maximum(start, end - (backward[own] - backward[layers.start]))
    return needed, ready


def exchange_events(own: ExchangeBeside, exchange: ExchangeSeconds, delay_s: float) -> Iterator[Event]:
    """The exchange of a stage as bars, where the first pass of the step begins after ``delay_s``."""
    for index, (start, seconds) in enumerate(zip(own.starts.tolist(), exchange.buckets.tolist(), strict=True)):
        name = f"{exchange.plan.pieces[int(exchange.plan.begin[index])].name} bucket {index}"
        yield Event(name=name, lane="network", start_s=delay_s + start, duration_s=seconds)
    gathers = exchange.gathers[0].tolist() if exchange.plan.gathers else []
    for index, (start, seconds) in enumerate(zip(own.gather_starts.tolist(), gathers, strict=True)):
        yield Event(name=f"gather_update bucket {index}", lane="network", start_s=start, duration_s=seconds)
