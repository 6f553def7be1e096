"""Step of a task: generation, forward passes of frozen or earlier networks, rewards, and the training of the policy.

The training is a plain step of the policy's network, and a forward pass a step of the same network without backward passes, so
each has the costs, waits and collectives of any step. The parts follow each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from paceline.errors import UserError
from paceline.hardware.cluster import Cluster
from paceline.prediction.mesh.mesh_step import MeshStep, mesh_step
from paceline.prediction.passes.compute import Resource, Seconds
from paceline.prediction.step.memory import loss_bytes, loss_of, numbers_of, sample_bytes, saved_numbers
from paceline.prediction.step.peer_step import any_worker_step
from paceline.prediction.step.step import Step
from paceline.prediction.step.step_model import StepModel, WholeStep
from paceline.prediction.step.worker_step import WorkerStep
from paceline.prediction.tasks.forward_only import forward_only, is_adapted, tokens_of, with_logits
from paceline.prediction.tasks.generation import Generation, generation
from paceline.record import Event
from paceline.strategy.recompute import NO_RECOMPUTE
from paceline.strategy.strategy import Strategy
from paceline.strategy.tasks.task import SFT, Reward, StepTask
from paceline.workload.table import Workload

TRAIN, GENERATE, OLD, REFERENCE, REWARD = "train", "generate", "old policy", "reference", "reward"
"""Names of the parts of a step."""
BESIDE_REFERENCE = 3.5
"""Bytes of logits while the reference runs, over those that the policy's loss stores. The reference has 16-bit logits, an
fp32 copy and logarithms, and the policy's fp32 logits are kept for the metrics (LLaMA-Factory, ``dpo/trainer.py``; TRL before
0.12). Chosen in sight of a report of DPO of Qwen2-72B (LLaMA-Factory)."""


@dataclass(frozen=True)
class Forward:
    """Forward pass of a whole step's samples.

    Attributes:
        step: the pass as a step of a network without backward passes.
        gather_s: seconds that it waits for sharded weights.
        gather_far: whether the network between nodes sets them.
    """

    name: str
    step: Step
    gather_s: float
    gather_far: bool

    @property
    def seconds(self) -> float:
        """Seconds of the pass."""
        return self.step.seconds + self.gather_s


@dataclass(frozen=True)
class Parts:
    """Parts of a step before its training, in order.

    Attributes:
        generated: the generation; None without one.
        forwards: forward passes of frozen and of earlier networks.
        reward_s: seconds in which rewards are computed.
        memory: bytes of one device by purpose, in addition to those of the training.
    """

    generated: Generation | None
    forwards: tuple[Forward, ...]
    reward_s: float
    memory: Mapping[str, float]

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of each part by name."""
        generated = {GENERATE: self.generated.seconds} if self.generated else {}
        reward = {REWARD: self.reward_s} if self.reward_s else {}
        return {**generated, **{own.name: own.seconds for own in self.forwards}, **reward}

    @property
    def bars(self) -> tuple[Event, ...]:
        """The parts as bars, one after the other from the start of the step."""
        bars, clock = list[Event](), 0.0
        for name, seconds in self.seconds.items():
            bars.append(Event(name=name, lane="compute", start_s=clock, duration_s=seconds))
            clock += seconds
        return tuple(bars)


def trained_strategy(strategy: Strategy) -> Strategy:
    """Return the strategy of the training alone, with a batch in sequences. Raises UserError for a batch of no whole groups."""
    batch, group = strategy.global_batch_size, strategy.task.group
    if batch % group:
        raise UserError(
            f"a global batch of {batch:,} holds no whole groups of {group} completions",
            f"give a multiple of {group}, or the task other samples",
        )
    return replace(strategy, task=SFT, global_batch_size=strategy.global_batch_size * strategy.task.sequences)


def trained_workload(workload: Workload, task: StepTask) -> Workload:
    """Return the network as the task trains it. Raises UserError if it is no language model."""
    tokens = tokens_of(workload)
    return with_logits(workload, task.completion / tokens) if isinstance(task, Reward) else workload


def plain_step(model: StepModel, cluster: Cluster, strategy: Strategy) -> Step:
    """Return the step of a strategy with the task ``sft``. Raises UserError as ``mesh_step``."""
    return (any_worker_step if strategy.parallelism.whole else mesh_step)(model, cluster, strategy)


def parts(model: StepModel, cluster: Cluster, strategy: Strategy, gathered: tuple[float, bool]) -> Parts:
    """Return the parts of a step before its training.

    Args:
        model: of the network that is given, not of the one that is trained.
        gathered: as ``gathers`` returns it for a step of the training.

    Raises:
        UserError: as ``plain_step`` and ``generation``.
    """
    task, workload = strategy.task, model.workload
    inner = trained_strategy(strategy)
    adapted = is_adapted(workload)
    alone = replace(inner, parallelism=replace(inner.parallelism, recompute=NO_RECOMPUTE, recompute_layers=0))
    gather_s, far = gathered

    def forward(name: str, with_adapters: bool) -> Forward:
        network = forward_only(trained_workload(workload, task), with_adapters)
        step = plain_step(replace(model, workload=network, calibration=None), cluster, alone)
        waited = max(0.0, gather_s * inner.parallelism.micro_batches - step.seconds) if gather_s else 0.0
        return Forward(name, step, waited, far)

    forwards, memory = [], dict[str, float]()
    generated = None
    if isinstance(task, Reward):
        generated = generation(workload, cluster, inner, task, model.constants)
        memory |= generated.memory
        if "generation cache" in memory:  # it lies where the training keeps its activations later
            memory["generation cache"] = max(0.0, memory["generation cache"] - _activations(model, inner))
        if task.old:
            forwards.append(forward(OLD, True))
    if task.has_reference:
        reference = forward(REFERENCE, False)
        forwards.append(reference)
        if not adapted:
            memory["reference weights"] = reference.step.memory()["frozen weights"]
    if task.has_reference and not isinstance(task, Reward):
        memory["reference logits"] = _logits(model, inner)
    reward_s = task.reward if isinstance(task, Reward) else 0.0
    return Parts(generated, tuple(forwards), reward_s, memory)


def gathers(step: Step) -> tuple[float, bool]:
    """Return the seconds in which one pass gathers all sharded weights, and whether the network between nodes sets them."""
    whole = max(step.steps, key=lambda own: own.seconds) if isinstance(step, MeshStep) else step
    whole = whole.own if isinstance(whole, WorkerStep) else whole
    assert isinstance(whole, WholeStep)
    x = whole.costs.exchange
    if not whole.strategy.parallelism.sharding.weights or not len(x.gathers):
        return 0.0, False
    return float(x.gathers[0].sum()), bool(x.gathers_network[0].any())


def _logits(model: StepModel, strategy: Strategy) -> float:
    """Return bytes of the reference's logits next to those of the policy, beyond what the backward pass needs later."""
    framework = model.constants.framework
    numbers, loss = numbers_of(strategy, framework), loss_of(strategy, framework)
    if numbers == "fused" or not loss.fp32_copies or loss.chunks != 1:
        return 0.0
    stored = loss_bytes(model.workload, numbers) * strategy.micro_batch_size
    return max(0.0, (BESIDE_REFERENCE - loss.fp32_copies) * stored)


def _activations(model: StepModel, strategy: Strategy) -> float:
    """Return bytes of activations of an undivided network; 0 for a divided one, where they are not counted here."""
    mesh = strategy.parallelism
    if not mesh.whole:
        return 0.0
    framework = model.constants.framework
    numbers, loss = saved_numbers(strategy, framework), loss_of(strategy, framework)
    of_sample = sample_bytes(model.workload, numbers, mesh.recomputation, strategy.precision, loss=loss)
    return sum(of_sample.values()) * strategy.micro_batch_size


@dataclass(frozen=True)
class TaskStep(Step):
    """Step of a task: its parts, then the training of the policy."""

    training: Step
    before: Parts

    @cached_property
    def parts(self) -> dict[str, float]:
        """Seconds of each part by name; they sum to the step."""
        return {**self.before.seconds, TRAIN: self.training.seconds}

    @property
    def seconds(self) -> float:
        """Seconds of the step."""
        return sum(self.parts.values())

    @cached_property
    def exposed(self) -> dict[Resource, float]:
        """Seconds by the resource that the step waits for; they sum to the step."""
        spent = dict(self.training.exposed)
        for own in self.before.forwards:
            for name, seconds in own.step.exposed.items():
                spent[name] = spent.get(name, 0.0) + seconds
            spent["network" if own.gather_far else "intra-node link"] += own.gather_s
        for name, seconds in (self.before.generated.spent if self.before.generated else {}).items():
            spent[name] += seconds
        spent["input pipeline"] += self.before.reward_s
        return spent

    @property
    def waited_s(self) -> float:
        """Seconds that the step waits for exchanges and sends."""
        generated = self.before.generated.spent if self.before.generated else {}
        links = sum(seconds for name, seconds in generated.items() if name in ("network", "intra-node link"))
        return self.training.waited_s + links + sum(own.step.waited_s + own.gather_s for own in self.before.forwards)

    @property
    def counted(self) -> float:
        """Share of the workers' steps that count in the trained model."""
        return self.training.counted

    @property
    def feed_s(self) -> float:
        """Seconds that the input pipeline needs for the samples of the step."""
        return self.training.feed_s

    @property
    def kernels(self) -> tuple[Seconds, Seconds]:
        """Seconds of the kernels of the training's forward and backward pass, by layer."""
        return self.training.kernels

    @property
    def stage_work_s(self) -> tuple[float, ...]:
        """Seconds of work of each pipeline stage in the training."""
        return self.training.stage_work_s

    @property
    def wire_bytes(self) -> int:
        """Bytes that the training sends."""
        return self.training.wire_bytes

    @property
    def dense_wire_bytes(self) -> int:
        """Bytes that the training sends without compression."""
        return self.training.dense_wire_bytes

    def busy_s(self, lane: Literal["network", "codec"]) -> float:
        """Return the seconds that a lane is busy."""
        return self.training.busy_s(lane) + sum(own.step.busy_s(lane) for own in self.before.forwards)

    def memory(self) -> dict[str, float]:
        """Return bytes by purpose on one device."""
        sizes = self.training.memory()
        return {**sizes, **{name: sizes.get(name, 0.0) + size for name, size in self.before.memory.items()}}

    def seconds_with_links(self, between: float, inside: float) -> float:
        """Return the seconds with these factors on the network between nodes and on the link inside them."""
        seconds = self.training.seconds_with_links(between, inside) + self.before.reward_s
        for own in self.before.forwards:
            slower = own.step.seconds_with_links(between, inside)
            seconds += slower + own.gather_s * (between if own.gather_far else inside)
        factors = {"network": between, "intra-node link": inside}
        generated = self.before.generated.spent if self.before.generated else {}
        return seconds + sum(own * factors.get(name, 1.0) for name, own in generated.items())

    def events(self) -> tuple[Event, ...]:
        """Return the step as bars: one for each part before the training, then the training's."""
        clock = sum(self.before.seconds.values())
        return (*self.before.bars, *(replace(bar, start_s=bar.start_s + clock) for bar in self.training.events()))


def task_step(model: StepModel, cluster: Cluster, strategy: Strategy) -> TaskStep:
    """Return the step of a strategy with a task. Raises UserError as ``parts``."""
    inner, task = trained_strategy(strategy), strategy.task
    own = replace(model, workload=trained_workload(model.workload, task), loader=model.loader * task.sequences)
    training = plain_step(own, cluster, inner)
    return TaskStep(training, parts(model, cluster, strategy, gathers(training)))
