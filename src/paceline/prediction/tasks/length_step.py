"""Step on samples of different length: the time of the tokens that are computed, and the memory of the longest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from paceline.errors import UserError
from paceline.hardware.cluster import Cluster
from paceline.prediction.passes.compute import Resource, Seconds
from paceline.prediction.step.step import Step
from paceline.prediction.step.step_model import StepModel
from paceline.prediction.tasks.resized import sequence_tokens, with_documents, with_tokens
from paceline.prediction.tasks.task_step import TaskStep, plain_step, task_step
from paceline.record import Event
from paceline.strategy.strategy import Strategy
from paceline.strategy.tasks.lengths import SAME_LENGTHS
from paceline.strategy.tasks.task import Reward
from paceline.workload.table import Workload


def plain_lengths(strategy: Strategy) -> Strategy:
    """Return the strategy with samples of one length."""
    return replace(strategy, tokens_per_sample=SAME_LENGTHS)


def computed_tokens(workload: Workload, strategy: Strategy) -> float:
    """Return the tokens of a sequence that a step computes at the mean.

    Raises:
        UserError: samples that are no sequences, or longer ones than the network's sequences; generated ones.
    """
    lengths, mesh, tokens = strategy.tokens_per_sample, strategy.parallelism, sequence_tokens(workload)
    if isinstance(strategy.task, Reward):
        raise UserError("tokens_per_sample with generated completions", "state prompt= and completion= of the task")
    if lengths.longest > tokens or (lengths.longest < tokens and not lengths.packed):
        raise UserError(
            f"samples of up to {lengths.longest:,} tokens in sequences of {tokens:,}",
            f"give sequences of {lengths.longest:,} (--seq-len {lengths.longest})",
        )
    if lengths.packed:
        return float(tokens)
    samples = strategy.micro_batch_size * strategy.task.sequences
    return lengths.computed(samples, mesh.micro_batches, mesh.data, mesh.sharding.weights)


def timed_workload(workload: Workload, strategy: Strategy) -> Workload:
    """Return the network by which a step takes its time. Raises UserError as ``computed_tokens``."""
    lengths, tokens = strategy.tokens_per_sample, computed_tokens(workload, strategy)
    if lengths.packed:
        return with_documents(workload, lengths.mean_square / lengths.mean / tokens)
    return with_tokens(workload, float(round(tokens)))


def useful_tokens(workload: Workload, strategy: Strategy) -> float:
    """Return the tokens of a sample that count: without padding. Packed sequences are full."""
    lengths = strategy.tokens_per_sample
    each = lengths.mean if lengths.vary and not lengths.packed else float(workload.tokens)
    return each * strategy.task.sequences


@dataclass(frozen=True)
class LengthStep(Step):
    """Step on samples of different length.

    Attributes:
        timed: step of the tokens that are computed at the mean.
        fullest: step in which all samples are the longest.
    """

    timed: Step
    fullest: Step

    @property
    def seconds(self) -> float:
        """Seconds of the step."""
        return self.timed.seconds

    @property
    def exposed(self) -> Mapping[Resource, float]:
        """Seconds by the resource that the step waits for. They sum to the step."""
        return self.timed.exposed

    @property
    def waited_s(self) -> float:
        """Seconds that the step waits for exchanges and sends."""
        return self.timed.waited_s

    @property
    def counted(self) -> float:
        """Share of the workers' steps that count in the trained model."""
        return self.fullest.counted

    @property
    def feed_s(self) -> float:
        """Seconds that the input pipeline needs for the samples of the step."""
        return self.timed.feed_s

    @property
    def kernels(self) -> tuple[Seconds, Seconds]:
        """Seconds of the kernels of the forward and of the backward pass, by layer."""
        return self.timed.kernels

    @property
    def wire_bytes(self) -> int:
        """Bytes sent by the device that sends most."""
        return self.timed.wire_bytes

    @property
    def dense_wire_bytes(self) -> int:
        """Bytes that the same device sends without compression."""
        return self.timed.dense_wire_bytes

    @property
    def stage_work_s(self) -> tuple[float, ...]:
        """Seconds of work of each pipeline stage; empty without a pipeline."""
        return self.timed.stage_work_s

    def busy_s(self, lane: Literal["network", "codec"]) -> float:
        """Return the seconds that a lane is busy."""
        return self.timed.busy_s(lane)

    def memory(self) -> dict[str, float]:
        """Return bytes by purpose on one device, with the longest samples."""
        return self.fullest.memory()

    def seconds_with_links(self, between: float, inside: float) -> float:
        """Return the seconds with these factors on the network between nodes and on the link inside them."""
        return self.timed.seconds_with_links(between, inside)

    def events(self) -> tuple[Event, ...]:
        """Return the step as bars of a timeline."""
        return self.timed.events()


def any_step(model: StepModel, cluster: Cluster, strategy: Strategy) -> Step:
    """Return the step of a strategy with any task and any lengths of samples. Raises UserError as ``task_step``."""
    if strategy.tokens_per_sample.vary:
        inner, timed = plain_lengths(strategy), timed_workload(model.workload, strategy)
        return LengthStep(any_step(replace(model, workload=timed), cluster, inner), any_step(model, cluster, inner))
    return plain_step(model, cluster, strategy) if strategy.task.alone else task_step(model, cluster, strategy)


def task_of(step: Step) -> TaskStep | None:
    """Return the step as one of a task; None if it has no parts."""
    step = step.timed if isinstance(step, LengthStep) else step
    return step if isinstance(step, TaskStep) else None
