"""Step of a network divided among several devices: tensor and context groups, pipeline stages, and their replicas.

A stage's part of the network is a separate network that its replicas train. Its costs and its exchange are those of any step
(``StepModel``). This module adds the effects of the division: collectives within the passes, the pipeline's schedule, the table
that both ends share.

The mesh is laid out on the cluster as in ``strategy.parallelism.MESH``: tensor-parallel neighbours are neighbours in a node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from paceline.array_types import Array
from paceline.errors import UserError
from paceline.hardware.cluster import Cluster
from paceline.memory_timeline import BEYOND, COMMUNICATORS, CONTEXT, FRAGMENTS
from paceline.prediction.exchange.exchange_seconds import ExchangeSeconds
from paceline.prediction.exchange.group_view import ACROSS, group_view
from paceline.prediction.mesh.divided_layers import divide
from paceline.prediction.mesh.exchange_overlap import ExchangeBeside, exchange_beside, megatron_bucket_bytes
from paceline.prediction.mesh.group_collectives import group_work
from paceline.prediction.mesh.pipeline import Pass, PipelineSchedule, schedule_pipeline, without_bubbles
from paceline.prediction.mesh.stage_events import stage_events
from paceline.prediction.mesh.stage_sends import sends, tie_seconds
from paceline.prediction.mesh.stages import Stage, stages
from paceline.prediction.passes.compute import Resource, Seconds
from paceline.prediction.passes.weight_gradients import weight_bytes, weight_seconds
from paceline.prediction.step.expert_replicas import expert_replicas
from paceline.prediction.step.exposed import exposed_without_exchange, share_wait
from paceline.prediction.step.framework_memory import free_bytes
from paceline.prediction.step.memory import numbers_of, sample_bytes
from paceline.prediction.step.runtime_memory import communicators_bytes
from paceline.prediction.step.step import Step
from paceline.prediction.step.step_model import StepModel, WholeStep
from paceline.record import Event
from paceline.strategy.buckets import BUCKET_BYTES
from paceline.strategy.strategy import Strategy


@dataclass(frozen=True)
class MeshStep(Step):
    """Step of a network divided among several devices.

    Attributes:
        steps: step of each stage, its micro batches one after the other, with the exchange among its replicas.
        pipeline: the real schedule of these passes.
        send_s, send_far: seconds from each part to the next, and whether over the network.
        group_s, group_bytes: for each stage, seconds and bytes of a device's collectives within the passes, hidden ones too.
        weight_s: for each stage's layers, seconds of the gradients of weights that a zero-bubble pipeline delays; else empty.
        beside: for each stage, the times of an exchange that overlaps its passes; empty if the exchange follows them.
        tie_s: seconds in which the pipeline's ends add gradients of a shared table. ``tie_far``: whether over the network.
        bubble_free: whether stages wait for no other.
        uneven: for each stage, the layers that take ``imbalance`` times as long on the device whose experts get most tokens.
    """

    strategy: Strategy
    cluster: Cluster
    stages: tuple[Stage, ...]
    steps: tuple[WholeStep, ...]
    pipeline: PipelineSchedule
    send_s: tuple[float, ...]
    send_far: tuple[bool, ...]
    weight_s: tuple[Array, ...]
    beside: tuple[ExchangeBeside, ...]
    tie_s: float
    tie_far: bool
    bubble_free: bool
    group_s: tuple[float, ...]
    group_bytes: tuple[float, ...]
    uneven: tuple[tuple[int, ...], ...] = ()
    imbalance: float = 1.0

    @property
    def seconds(self) -> float:
        """Seconds of the step."""
        return max(self._worked, self.feed_s) if self.beside else self._worked

    @property
    def _worked(self) -> float:
        """Seconds of the step without additional waits for its samples."""
        return self._delay + max(self._exchanged) + self._update

    @property
    def _delay(self) -> float:
        """Seconds that the first passes wait for weights."""
        return max((own.delay_s for own in self.beside), default=0.0)

    @property
    def update_s(self) -> float:
        """Start of the update, in seconds after the start of the step."""
        return self._delay + max(self._exchanged)

    @property
    def updated_s(self) -> float:
        """End of the update."""
        return self.update_s + self._update

    def stage_passes(self, number: int) -> tuple[Pass, ...]:
        """Return the passes of one stage in its order, in seconds after the start of the step."""
        passes = self.pipeline.passes[number]
        if self.bubble_free:
            passes = without_bubbles(passes)
        delay = self._delay
        return tuple(replace(p, start_s=p.start_s + delay, end_s=p.end_s + delay) for p in passes) if delay else passes

    @cached_property
    def _exchanged(self) -> tuple[float, ...]:
        """End of each stage's exchange. The norm of all gradients, and so the update, waits for the last."""
        ends = self.pipeline.ends
        if self.bubble_free:
            ends = tuple(step.passes_s + self.send_wait_s for step in self.steps)
        tied = [self.tie_s if stage.tied else 0.0 for stage in self.stages]
        after = [own.after_s for own in self.beside] or [
            float(step.schedule.update_start) - step.passes_s for step in self.steps
        ]
        return tuple(end + own + tie for end, own, tie in zip(ends, after, tied, strict=True))

    @property
    def _update(self) -> float:
        if self.beside:
            return max(float(step.pieces.update) for step in self.steps)
        return max(float(step.schedule.step - step.schedule.update_start) for step in self.steps)

    @property
    def stage_work_s(self) -> tuple[float, ...]:
        """Seconds of the passes of each stage, with the collectives within them."""
        return tuple(sum(p.end_s - p.start_s for p in own) for own in self.pipeline.passes)

    @property
    def _critical(self) -> int:
        """Index of the stage with the most work, which would set the step without bubbles."""
        return max(range(len(self.steps)), key=lambda stage: self.steps[stage].seconds)

    @cached_property
    def exposed(self) -> dict[Resource, float]:
        """Seconds by the resource that the critical stage waits for; they sum to the step."""
        step = self.steps[self._critical]
        if self.beside:
            waited = self.beside[self._critical].after_s + self._delay
            spent = exposed_without_exchange(step.costs, step.pieces) | {"input pipeline": self.seconds - self._worked}
            share_wait(spent, step.costs, waited)
        else:
            spent = dict(step.exposed)
        tie = self.tie_s if self.stages[self._critical].tied else 0.0
        spent["network" if self.tie_far else "intra-node link"] += tie
        if self.imbalance > 1:
            self._set_apart_imbalance(spent)
        waited = max(0.0, self.seconds - sum(spent.values()))
        spent["pipeline send"] = min(waited, self.send_wait_s)
        spent["pipeline bubble"] = waited - spent["pipeline send"] if len(self.steps) > 1 else 0.0
        return spent

    @cached_property
    def send_wait_s(self) -> float:
        """Excess of the step over one in which sends between stages take no time."""
        if not any(self.send_s):
            return 0.0
        waits = replace(self, bubble_free=False)
        return max(0.0, waits.seconds - waits._with_sends([0.0] * len(self.send_s)).seconds)

    def _with_sends(self, send_s: Sequence[float]) -> MeshStep:
        """Return the step with other seconds from each part to the next."""
        pipeline = _pipeline(self.steps, self.stages, self.strategy, send_s, self.weight_s)
        exchanges = [step.costs.exchange for step in self.steps]
        beside = _exchange_windows(self.steps, self.stages, pipeline, exchanges) if self.beside else ()
        return replace(self, pipeline=pipeline, send_s=tuple(send_s), beside=beside)

    def _set_apart_imbalance(self, spent: dict[Resource, float]) -> None:
        """Move the excess time of the fullest experts over the mean from other resources to ``expert imbalance``.

        The fullest experts launch no additional kernels.
        """
        step, layers = self.steps[self._critical], list(self.uneven[self._critical])
        more = (1 - 1 / self.imbalance) * self.strategy.parallelism.micro_batches
        kinds: tuple[tuple[Resource, Callable[[Seconds], Array | float]], ...] = (
            ("compute", lambda part: part.flops),
            ("memory bandwidth", lambda part: part.bytes),
            ("intra-node link", lambda part: part.near),
            ("network", lambda part: part.far),
        )
        for name, of in kinds:
            own = sum(float(np.broadcast_to(of(part), part.flops.shape)[layers].sum()) for part in step.kernels)
            moved = min(spent[name], more * own)
            spent[name] -= moved
            spent["expert imbalance"] += moved

    @property
    def waited_s(self) -> float:
        """Seconds that the critical stage waits for exchanges and sends, without the bubble (waits for other stages)."""
        return sum(self.exposed[name] for name in ("network", "intra-node link", "pipeline send", "codec"))

    @property
    def feed_s(self) -> float:
        """Seconds of the input pipeline for the step's samples."""
        return self.steps[0].feed_s

    @property
    def kernels(self) -> tuple[Seconds, Seconds]:
        """Seconds of the kernels of the critical stage's forward and backward pass, by layer."""
        return self.steps[self._critical].kernels

    def busy_s(self, lane: Literal["network", "codec"]) -> float:
        """Return the seconds that a lane of the critical stage is busy."""
        number = self._critical
        own = self.steps[number].costs.exchange.busy(lane)
        tie = self.tie_s if self.stages[number].tied else 0.0
        return own if lane == "codec" else own + tie + self.group_s[number] + max(self._sent_s, self.send_wait_s)

    @property
    def _sent_s(self) -> float:
        """Return the seconds in which the critical stage sends activations and gradients on."""
        count, micro = len(self.stages), self.strategy.parallelism.micro_batches
        after, before = (*self.send_s, 0.0), (0.0, *self.send_s)
        return micro * sum(after[part] + before[part] for part in range(self._critical, len(after), count))

    @property
    def wire_bytes(self) -> int:
        """Bytes sent by the device that sends most: gradients, its group's sums, and the next stage's input."""
        return round(max(step.wire_bytes + own for step, own in zip(self.steps, self.group_bytes, strict=True)))

    @property
    def dense_wire_bytes(self) -> int:
        """Bytes sent without compression."""
        return round(max(step.dense_wire_bytes + own for step, own in zip(self.steps, self.group_bytes, strict=True)))

    def memory(self) -> dict[str, float]:
        """Return bytes by purpose on a device of the stage that needs most memory."""
        return max((self.stage_memory(number) for number in range(len(self.steps))), key=lambda sizes: sum(sizes.values()))

    def stage_memory(self, number: int) -> dict[str, float]:
        """Return bytes by purpose on a device of one stage, with the activations of all micro batches that it holds at once."""
        step, stage = self.steps[number], self.stages[number]
        held = self.pipeline.in_flight[number] / len(stage.parts)
        sizes = step.memory_of_part()
        micro = step.strategy.micro_batch_size
        numbers, mesh = numbers_of(self.strategy), self.strategy.parallelism
        sharers = mesh.tensor if mesh.sequence else 1
        again = step.strategy.parallelism.recomputation
        on_host = step.strategy.parallelism.host_activations
        of_sample = sample_bytes(step.workload, numbers, again, self.strategy.precision, held, on_host=on_host)
        of_sample["activations"] += self.pipeline.late[number] * weight_bytes(step.workload, numbers, sharers)
        sizes |= {name: size * micro for name, size in of_sample.items()}
        if sizes.get(CONTEXT):
            tensors = sum(size for name, size in sizes.items() if name not in BEYOND)
            gpu = self.cluster.device.kind == "gpu"
            sizes[FRAGMENTS] = free_bytes(step.strategy, step.framework, tensors) if gpu else 0.0
            sizes[COMMUNICATORS] = communicators_bytes(mesh, self.cluster, megatron=step.framework.megatron)
        return sizes

    def seconds_with_links(self, between: float, inside: float) -> float:
        """Return the seconds with these factors on the network between nodes and on the link inside them."""
        slower = []
        for step in self.steps:
            forward, backward = (
                float(np.sum(part.near)) * (inside - 1) + float(np.sum(part.far)) * (between - 1) for part in step.kernels
            )
            after = step.seconds_with_links(between, inside) - step.seconds
            slower.append((forward, backward, after))
        send = [seconds * (between if far else inside) for seconds, far in zip(self.send_s, self.send_far, strict=True)]
        far = self.tie_far
        pipeline = _pipeline(self.steps, self.stages, self.strategy, send, self.weight_s, [(f, b) for f, b, _ in slower])
        other = replace(self, pipeline=pipeline, tie_s=self.tie_s * (between if far else inside))
        if self.beside:
            exchanges = [step.costs.exchange.slower(between, inside) for step in self.steps]
            return replace(other, beside=_exchange_windows(self.steps, self.stages, pipeline, exchanges)).seconds
        return max(end + max(0.0, own[2]) for end, own in zip(other._exchanged, slower, strict=True)) + self._update

    def events(self) -> tuple[Event, ...]:
        """Return the critical stage as bars: its passes, the exchange of its gradients, the update, and its waits."""
        number = self._critical
        passes, delay = self.pipeline.passes[number], self._delay
        if self.bubble_free:
            passes = without_bubbles(passes)
        return stage_events(
            self.steps[number],
            passes,
            self.strategy.parallelism.virtual_stages,
            self.beside[number] if self.beside else None,
            delay_s=delay,
            tie_s=self.tie_s if self.stages[number].tied else 0.0,
            update_s=self.update_s,
            step_s=self.seconds,
        )


def mesh_step(model: StepModel, cluster: Cluster, strategy: Strategy) -> MeshStep:
    """Return the step of a strategy whose replicas are several devices each.

    Raises:
        UserError: as ``StepModel.step``; layers, heads or blocks that do not divide.
    """
    mesh = strategy.parallelism
    if model.worker_times:
        raise UserError(
            f"{len(model.worker_times)} worker times of a network that several devices hold together",
            "leave worker_times out, or divide the network no further than by data",
        )
    own_part = divide(model, cluster, strategy)
    whole, collectives, waits, uneven = own_part.workload, own_part.collectives, own_part.waits, own_part.uneven
    forward, backward = own_part.passes
    parts = (
        stages(whole, mesh.pipeline, mesh.virtual_stages, (mesh.first_stage_layers, mesh.last_stage_layers))
        if mesh.pipeline > 1
        else (Stage(whole, (range(len(whole.layers)),)),)
    )
    replicas = group_view(cluster, mesh.data * mesh.context, mesh.tensor, ACROSS)
    # Megatron overlaps the exchange with the passes. Compressed exchanges, and those of every micro step, are as elsewhere.
    plain = strategy.gradient_exchange.is_plain
    beside = model.constants.level == "tuned" and model.overlap and plain and not mesh.sharding.weights
    # Each stage's replicas are a job of data parallelism, in which parts of a sequence count as separate samples.
    inner = replace(strategy, global_batch_size=strategy.global_batch_size * mesh.context, parallelism=mesh.replicas)
    if beside and strategy.bucket_bytes == BUCKET_BYTES:
        size = megatron_bucket_bytes(mesh.data * mesh.context)
        inner = replace(inner, first_bucket_bytes=size, bucket_bytes=size)
    hosted = max(cluster.node_sizes) if mesh.offload else 0
    model = replace(model, loader=model.loader * mesh.context, host_devices=hosted, numbers=numbers_of(strategy))
    own_layers = _own_layers(parts)
    known: dict[int, WholeStep] = {}
    steps = []
    for number, stage in enumerate(parts):
        key = id(stage.workload)
        if key not in known:
            layers = own_layers[number]
            passes = forward.of(layers), backward.of(layers)
            rest, experts_apart = expert_replicas(stage.workload, cluster, strategy)
            own_model = replace(model, workload=rest, workers=strategy.world_size, experts=experts_apart)
            known[key] = own_model.step(replicas, inner, passes)
        steps.append(known[key])
    weights: tuple[Array, ...] = ()
    if mesh.schedule.splits_backward:
        every = weight_seconds(whole, strategy.micro_batch_size, strategy.precision, cluster.device, model.constants)
        weights = tuple(np.minimum(every[own_layers[i]], step.costs.backward.kernels) for i, step in enumerate(steps))
    send, far, sent_bytes = sends(parts, cluster, strategy, model.constants, model.free)
    tie_s, tie_far = tie_seconds(parts, cluster, strategy, model.constants, model.free)
    work = group_work(collectives, waits[0], strategy)
    own = [[work[layer] for layer in layers if layer in work] for layers in own_layers]
    pipeline = _pipeline(steps, parts, strategy, send, weights)
    return MeshStep(
        strategy=strategy,
        cluster=cluster,
        stages=parts,
        steps=tuple(steps),
        pipeline=pipeline,
        send_s=tuple(send),
        send_far=tuple(far),
        weight_s=weights,
        beside=_exchange_windows(steps, parts, pipeline, [step.costs.exchange for step in steps]) if beside else (),
        tie_s=tie_s,
        tie_far=tie_far,
        bubble_free="pipeline bubble" in model.free,
        group_s=tuple(sum(seconds for seconds, _ in stage) for stage in own),
        group_bytes=tuple(sum(moved for _, moved in stage) + sent_bytes for stage in own),
        uneven=tuple(tuple(i for i, layer in enumerate(layers) if layer in uneven) for layers in own_layers),
        imbalance=1.0 if "expert imbalance" in model.free else mesh.expert_imbalance,
    )


def _exchange_windows(
    steps: Sequence[WholeStep], parts: Sequence[Stage], pipeline: PipelineSchedule, exchanges: Sequence[ExchangeSeconds]
) -> tuple[ExchangeBeside, ...]:
    """Return the times at which each stage exchanges gradients."""
    return tuple(
        exchange_beside(step, stage, number, len(parts), pipeline, exchange)
        for number, (step, stage, exchange) in enumerate(zip(steps, parts, exchanges, strict=True))
    )


def _own_layers(parts: Sequence[Stage]) -> list[list[int]]:
    """Return the indices of each stage's layers in the whole network."""
    count, turns = len(parts), len(parts[0].parts)
    begin = 0
    own: list[list[int]] = [[] for _ in parts]
    for part in range(count * turns):
        size = len(parts[part % count].parts[part // count])
        own[part % count] += range(begin, begin + size)
        begin += size
    return own


def _pipeline(
    steps: Sequence[WholeStep],
    parts: Sequence[Stage],
    strategy: Strategy,
    send_s: Sequence[float],
    weight_s: Sequence[Array] = (),
    more: Sequence[tuple[float, float]] = (),
) -> PipelineSchedule:
    """Return the schedule of the stages' passes. ``more``: seconds of each stage's passes beyond their costs."""
    count, turns = len(parts), len(parts[0].parts)
    forward, backward = [0.0] * (count * turns), [0.0] * (count * turns)
    weights = [float(own.sum()) * step.costs.slowest for own, step in zip(weight_s, steps, strict=bool(weight_s))]
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
    return schedule_pipeline(forward, backward, mesh.micro_batches, count, send_s, mesh.schedule, weights)
