"""Overlap of a stage's exchange with the passes of its pipeline, as in tuned software.

A bucket is exchanged as soon as the last micro batch has completed its gradients. With several parts on a stage, those of the
later parts are complete long before the last pass (Megatron-Core, ``--overlap-grad-reduce``). Updated weights are gathered when
the next step's forward pass needs them, part by part in the order of the network (``--overlap-param-gather``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from paceline.array_types import Array
from paceline.prediction.exchange.exchange_seconds import ExchangeSeconds
from paceline.prediction.mesh.pipeline import PipelineSchedule
from paceline.prediction.mesh.stages import Stage
from paceline.prediction.step.step_model import WholeStep
from paceline.prediction.step.timeline import sums
from paceline.record import Event


@dataclass(frozen=True, eq=False)
class ExchangeBeside:
    """Times at which a stage exchanges, in seconds.

    Attributes:
        starts: start of each bucket's exchange, after the earliest first pass of the step, (buckets,).
        gather_starts: start of each bucket's all-gather, after the update, (buckets,); empty without.
        after_s: time from the stage's last pass to the end of its exchange, including the overlap loss.
        delay_s: time that the passes of a step wait for weights, including the overlap loss.
        after_loss_s, delay_loss_s: overlap losses in both.
    """

    starts: Array
    gather_starts: Array
    after_s: float
    delay_s: float
    after_loss_s: float = 0.0
    delay_loss_s: float = 0.0


def megatron_bucket_bytes(replicas: int) -> int:
    """Return the bytes of fp32 gradients that Megatron-Core exchanges at once by default.

    They are those of 40 million parameters, or of a million for each replica (``DistributedDataParallel``, ``bucket_size``).
    """
    return 4 * max(40_000_000, 1_000_000 * replicas)


def exchange_beside(
    step: WholeStep, stage: Stage, number: int, stages: int, pipeline: PipelineSchedule, exchange: ExchangeSeconds
) -> ExchangeBeside:
    """Return when stage ``number`` of ``stages`` exchanges the buckets that ``exchange`` prices."""
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
    """Return when a step first needs each layer's weights, and when its last backward pass has completed the gradients.

    Both are (layers,).
    """
    costs = step.costs
    forward = sums(costs.forward.total * costs.slowest)
    backward = sums((costs.backward.total + costs.again) * costs.slowest)
    needed, ready = np.zeros(len(forward) - 1), np.zeros(len(forward) - 1)
    for turn, layers in enumerate(stage.parts):
        part, own = number + turn * stages, slice(layers.start, layers.stop)
        needed[own] = pipeline.first_start(part) + forward[own] - forward[layers.start]
        start, end = pipeline.last_pass(part)  # in a zero-bubble pipeline it computes only gradients of weights
        ready[own] = np.maximum(start, end - (backward[own] - backward[layers.start]))
    return needed, ready


def exchange_events(own: ExchangeBeside, exchange: ExchangeSeconds, delay_s: float) -> Iterator[Event]:
    """Yield the exchange of a stage as bars. The first pass of the step begins after ``delay_s``."""
    for index, (start, seconds) in enumerate(zip(own.starts.tolist(), exchange.buckets.tolist(), strict=True)):
        name = f"{exchange.plan.pieces[int(exchange.plan.begin[index])].name} bucket {index}"
        yield Event(name=name, lane="network", start_s=delay_s + start, duration_s=seconds)
    gathers = exchange.gathers[0].tolist() if exchange.plan.gathers else []
    for index, (start, seconds) in enumerate(zip(own.gather_starts.tolist(), gathers, strict=True)):
        yield Event(name=f"gather_update bucket {index}", lane="network", start_s=start, duration_s=seconds)
