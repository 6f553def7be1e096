"""A step of a network that several devices hold together: tensor-parallel groups, pipeline stages, and replicas of both.

A stage's part of the network, on its group, is a network of its own that its replicas train: its costs and its exchange are
those of any step (``StepModel``). What the division adds is here: collectives within the passes, the pipeline's schedule, the
table that both ends share.

The mesh lies on the cluster as ``strategy.parallelism.MESH`` says: tensor-parallel neighbours are neighbours in a node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from paceline.calibration.constants import Efficiency
from paceline.errors import UserError
from paceline.hardware.cluster import Cluster
from paceline.hardware.device import BYTES_PER_ELEMENT
from paceline.prediction.compute import Seconds
from paceline.prediction.costs import Resource
from paceline.prediction.group_view import group_view
from paceline.prediction.memory import numbers_of, sample_bytes
from paceline.prediction.network import collective_seconds
from paceline.prediction.pipeline import PipelineSchedule, schedule_pipeline
from paceline.prediction.stages import Stage, boundary_bytes, stages
from paceline.prediction.step_model import PassTimes, Step, StepModel
from paceline.prediction.tensor_parallel import Collective, share
from paceline.record import Event
from paceline.strategy.strategy import Strategy
from paceline.workload.table import Workload

WGRAD_SHARE = 0.5
"""Of a product's backward pass, what computes the gradient of its weight: collectives may run beside it."""


@dataclass(frozen=True)
class ParallelStep:
    """A step on a mesh. It has what ``Step`` has.

    Attributes:
        steps: of each stage, its micro batches one after the other, with the exchange among its replicas.
        pipeline: when they really run.
        tie_s: seconds in which the ends of the pipeline add up the gradients of a table that both have.
        update: seconds from the end of the last exchange to the end of the step.
    """

    strategy: Strategy
    cluster: Cluster
    stages: tuple[Stage, ...]
    steps: tuple[Step, ...]
    pipeline: PipelineSchedule
    send_s: tuple[float, ...]
    tie_s: float
    bubble_free: bool
    model_bytes: float

    @property
    def seconds(self) -> float:
        """How long it takes."""
        return max(self._exchanged) + self._update

    @cached_property
    def _exchanged(self) -> tuple[float, ...]:
        """When the exchange of each stage ends: the norm of all gradients, and so the update, waits for the last."""
        ends = self.pipeline.ends
        if self.bubble_free:
            ends = tuple(_compute_s(step) for step in self.steps)
        tied = [self.tie_s if stage.tied else 0.0 for stage in self.stages]
        after = [float(step.schedule.update_start - step.schedule.backward_end) for step in self.steps]
        return tuple(end + own + tie for end, own, tie in zip(ends, after, tied, strict=True))

    @property
    def _update(self) -> float:
        return max(float(step.schedule.step - step.schedule.update_start) for step in self.steps)

    @property
    def _critical(self) -> int:
        """The stage with the most work: without bubbles it would set the step."""
        return max(range(len(self.steps)), key=lambda stage: self.steps[stage].seconds)

    @cached_property
    def exposed(self) -> dict[Resource, float]:
        """Seconds by the resource that the critical stage waits for; they sum to the step."""
        spent = dict(self.steps[self._critical].exposed)
        tie = self.tie_s if self.stages[self._critical].tied else 0.0
        spent["network" if self.cluster.num_nodes > 1 else "intra-node link"] += tie
        spent["pipeline bubble"] = max(0.0, self.seconds - sum(spent.values()))
        return spent

    @property
    def waited_s(self) -> float:
        """Seconds that it waits for exchanges and for other stages."""
        step = self.steps[self._critical]
        worked = float(step.pieces.micro_steps) * _kernel_s(step)
        return max(0.0, self.seconds - self._update - worked)

    @property
    def feed_s(self) -> float:
        """What the input pipeline needs for its samples."""
        return self.steps[0].feed_s

    @property
    def kernels(self) -> tuple[Seconds, Seconds]:
        """Of the forward and of the backward pass of the critical stage."""
        return self.steps[self._critical].kernels

    def busy_s(self, lane: Literal["network", "codec"]) -> float:
        """Seconds that a lane of the critical stage works."""
        step = self.steps[self._critical]
        own = step.busy_s(lane)
        if lane == "codec":
            return own
        inside = sum(float(np.sum(part.near) + np.sum(part.far)) for part in step.kernels)
        return own + inside * float(step.pieces.micro_steps)

    @property
    def wire_bytes(self) -> int:
        """Bytes that the device that sends most sends: gradients, what its group adds up, what the next stage needs."""
        return max(step.wire_bytes for step in self.steps) + round(self.model_bytes)

    @property
    def dense_wire_bytes(self) -> int:
        """The same without compression."""
        return max(step.dense_wire_bytes for step in self.steps) + round(self.model_bytes)

    def memory(self) -> dict[str, float]:
        """Bytes by purpose on a device of the stage that needs most."""
        return max((self.stage_memory(number) for number in range(len(self.steps))), key=lambda sizes: sum(sizes.values()))

    def stage_memory(self, number: int) -> dict[str, float]:
        """Bytes by purpose on a device of one stage, with the activations of all micro batches that it holds at once."""
        step, stage = self.steps[number], self.stages[number]
        held = self.pipeline.in_flight[number] / len(stage.parts)
        sizes = step.memory()
        micro = step.strategy.micro_batch_size
        of_sample = sample_bytes(step.workload, numbers_of(self.strategy), step.strategy.parallelism.recompute, held)
        return sizes | {name: size * micro for name, size in of_sample.items()}

    def seconds_with_links(self, between: float, inside: float) -> float:
        """How long it takes where the network between nodes, and the link inside them, take so many times as long."""
        slower = []
        for step in self.steps:
            forward, backward = (
                float(np.sum(part.near)) * (inside - 1) + float(np.sum(part.far)) * (between - 1) for part in step.kernels
            )
            after = step.seconds_with_links(between, inside) - step.seconds
            slower.append((forward, backward, after))
        far = self.cluster.num_nodes > 1
        send = [seconds * (between if far else inside) for seconds in self.send_s]
        pipeline = _pipeline(self.steps, self.stages, self.strategy, send, [(f, b) for f, b, _ in slower])
        other = replace(self, pipeline=pipeline, tie_s=self.tie_s * (between if far else inside))
        return max(end + max(0.0, own[2]) for end, own in zip(other._exchanged, slower, strict=True)) + self._update

    def events(self) -> tuple[Event, ...]:
        """The critical stage as bars: its passes, the exchange of its gradients, the update."""
        number = self._critical
        step, own = self.steps[number], self.pipeline.passes[number]
        several = self.strategy.parallelism.virtual_stages > 1
        bars = [
            Event(
                name=f"{'backward' if p.backward else 'forward'} stage {number}"
                f"{f' part {p.part}' if several else ''}, micro step {p.micro_batch + 1}",
                lane="compute",
                start_s=p.start_s,
                duration_s=p.end_s - p.start_s,
            )
            for p in own
        ]
        later = own[-1].end_s - float(step.schedule.backward_end)
        moved = [e for e in step.events() if e.lane in ("network", "codec")]
        bars += [replace(e, start_s=max(0.0, e.start_s + later)) for e in moved]
        start = max(self._exchanged)
        return (*bars, Event(name="optimizer", lane="compute", start_s=start, duration_s=self._update))


def parallel_step(model: StepModel, cluster: Cluster, strategy: Strategy) -> ParallelStep:
    """The step of a strategy whose replicas are several devices each.

    Raises:
        UserError: as ``StepModel.step``; layers, heads or blocks that do not divide.
    """
    mesh = strategy.parallelism
    if model.calibration is not None:
        raise UserError("a calibration is of data parallelism alone", "leave it out, or give tensor=1 and pipeline=1")
    whole: Workload = model.workload
    collectives: tuple[Collective, ...] = ()
    if mesh.tensor > 1:
        own = share(model.workload, mesh.tensor, mesh.sequence)
        whole, collectives = own.workload, own.collectives
    parts = (
        stages(whole, mesh.pipeline, mesh.virtual_stages) if mesh.pipeline > 1 else (Stage(whole, (range(len(whole.layers)),)),)
    )
    forward, backward = replace(model, workload=whole).passes(cluster.device, strategy)
    group = group_view(cluster, mesh.tensor, 1)
    forward, backward = _with_collectives(model, (forward, backward), collectives, group, strategy)
    replicas = group_view(cluster, mesh.data, mesh.context * mesh.tensor)
    # Each stage's replicas are a job of data parallelism.
    inner = replace(strategy, parallelism=mesh.replicas)
    firsts = _first_layers(whole, parts)
    known: dict[int, Step] = {}
    steps = []
    for number, stage in enumerate(parts):
        key = id(stage.workload)
        if key not in known:
            layers = firsts[number]
            passes = forward.of(layers), backward.of(layers)
            known[key] = replace(model, workload=stage.workload, workers=strategy.world_size).step(replicas, inner, passes)
        steps.append(known[key])
    send, sent_bytes = _sends(parts, cluster, strategy, model.constants)
    tie = _tie_s(parts, cluster, strategy, model.constants)
    moved = _group_bytes(collectives, mesh.tensor, strategy) + sent_bytes
    pipeline = _pipeline(steps, parts, strategy, send)
    free = "pipeline bubble" in model.free
    return ParallelStep(strategy, cluster, parts, tuple(steps), pipeline, tuple(send), tie, free, moved)


def _first_layers(whole: object, parts: Sequence[Stage]) -> list[list[int]]:
    """Indices of each stage's layers in the whole network."""
    count, turns = len(parts), len(parts[0].parts)
    begin = 0
    own: list[list[int]] = [[] for _ in parts]
    for part in range(count * turns):
        size = len(parts[part % count].parts[part // count])
        own[part % count] += range(begin, begin + size)
        begin += size
    return own


def _with_collectives(
    model: StepModel, passes: PassTimes, collectives: Sequence[Collective], group: Cluster, strategy: Strategy
) -> PassTimes:
    """The passes with what their layers wait for the group's collectives."""
    if not collectives:
        return passes
    width, micro, e = BYTES_PER_ELEMENT[strategy.precision], strategy.micro_batch_size, model.constants
    sizes = np.array([c.bytes * micro * (1.0 if c.wide else width / 4) for c in collectives])
    halves = np.array([c.kind != "allreduce" for c in collectives])
    seconds, far = np.zeros(len(sizes)), np.zeros(len(sizes), dtype=np.bool_)
    for half in (False, True):
        own = halves == half
        if own.any():
            seconds[own], far[own] = collective_seconds(sizes[own], group, e, halves=half)
    added = []
    for backward, part in enumerate(passes):
        near_s, far_s = np.zeros_like(part.flops), np.zeros_like(part.flops)
        beside = part.kernels * WGRAD_SHARE
        for index, c in enumerate(collectives):
            if c.backward != bool(backward):
                continue
            wait = float(seconds[index])
            if c.hidden and model.overlap:
                over = min(wait, float(beside[c.layer]))
                beside[c.layer] -= over
                wait -= over * (1 - e.overlap_penalty)
            (far_s if far[index] else near_s)[c.layer] += wait
        near_s = near_s * ("intra-node link" not in model.free)
        far_s = far_s * ("network" not in model.free)
        added.append(replace(part, near=near_s, far=far_s))
    return added[0], added[1]


def _compute_s(step: Step) -> float:
    """Seconds of all micro batches of a stage, one after the other."""
    return float(step.schedule.backward_end)


def _kernel_s(step: Step) -> float:
    """Seconds of one micro batch without its collectives."""
    waits = sum(float(np.sum(part.near) + np.sum(part.far)) for part in step.kernels)
    return float(step.pieces.forward + step.pieces.backward) - waits * step.costs.slowest


def _pipeline(
    steps: Sequence[Step],
    parts: Sequence[Stage],
    strategy: Strategy,
    send_s: Sequence[float],
    more: Sequence[tuple[float, float]] = (),
) -> PipelineSchedule:
    """The schedule of the stages' passes. ``more``: seconds that each stage's passes take beyond their costs."""
    count, turns = len(parts), len(parts[0].parts)
    forward, backward = [0.0] * (count * turns), [0.0] * (count * turns)
    for number, (step, stage) in enumerate(zip(steps, parts, strict=True)):
        costs = step.costs
        gathers = max(0.0, float(step.schedule.micro_step) - float(step.pieces.forward + step.pieces.backward))
        extra = more[number] if more else (0.0, 0.0)
        for turn, layers in enumerate(stage.parts):
            at = number + turn * count
            own = slice(layers.start, layers.stop)
            forward[at] = float(costs.forward.total[own].sum()) * costs.slowest + extra[0] / turns
            again = float((costs.backward.total + costs.again)[own].sum()) * costs.slowest
            backward[at] = again + (extra[1] + gathers) / turns
    mesh = strategy.parallelism
    return schedule_pipeline(forward, backward, mesh.micro_batches, count, send_s, mesh.schedule)


def _sends(parts: Sequence[Stage], cluster: Cluster, strategy: Strategy, e: Efficiency) -> tuple[list[float], float]:
    """Seconds from each part to the next, and bytes that a device sends in a step.

    Each device of a group sends its share; without sequence parallelism the group then gathers the whole (Narayanan et al.
    2021, section 4.1).
    """
    mesh, turns = strategy.parallelism, len(parts[0].parts)
    count = len(parts) * turns
    if count == 1:
        return [], 0.0
    stage_devices = mesh.data * mesh.context * mesh.tensor
    far = stage_devices >= cluster.devices_per_node or cluster.num_nodes > 1
    link = cluster.network if far and cluster.num_nodes > 1 else cluster.intra_link
    users = min(cluster.devices_per_node, stage_devices) if link is cluster.network else 1
    rate = e.bandwidth(link) / users
    size = strategy.micro_batch_size * BYTES_PER_ELEMENT[strategy.precision] / 4
    seconds, sent = [], 0.0
    for part in range(count - 1):
        stage = parts[part % len(parts)]
        layers = [stage.workload.layers[i] for i in stage.parts[part // len(parts)]]
        own = boundary_bytes(layers) * size / mesh.tensor
        wait = link.latency.value * e.latency_factor + own / rate
        if mesh.tensor > 1 and not mesh.sequence:
            wait += float(
                collective_seconds(np.array([own * mesh.tensor]), group_view(cluster, mesh.tensor, 1), e, halves=True)[0][0]
            )
        seconds.append(wait)
        sent = max(sent, own)
    return seconds, 2.0 * sent * turns * mesh.micro_batches


def _tie_s(parts: Sequence[Stage], cluster: Cluster, strategy: Strategy, e: Efficiency) -> float:
    """Seconds of the all-reduce of the shared table's gradient between the ends of the pipeline, in fp32."""
    if len(parts) == 1 or not parts[0].tied:
        return 0.0
    ends = group_view(cluster, 2, max(1, cluster.world_size // 2))
    return float(collective_seconds(np.array([4.0 * parts[0].tied]), ends, e)[0][0])


def _group_bytes(collectives: Sequence[Collective], tensor: int, strategy: Strategy) -> float:
    """Bytes that a device sends in a step for the group's collectives."""
    width = BYTES_PER_ELEMENT[strategy.precision] / 4
    sizes = [c.bytes * (1.0 if c.wide else width) * (2 if c.kind == "allreduce" else 1) for c in collectives]
    samples = strategy.micro_batch_size * strategy.parallelism.micro_batches
    return sum(sizes) * samples * (tensor - 1) / tensor
