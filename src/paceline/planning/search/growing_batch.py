"""Batch that grows during training as the critical batch allows, with the time of its stages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from paceline.errors import UserError
from paceline.hardware import Cluster
from paceline.planning.search.choice import Choice
from paceline.prediction.learning.branched_batch import stages_within
from paceline.prediction.predictor import StepPredictor
from paceline.strategy.recipe import RateScaling, usual_rule
from paceline.strategy.strategy import Strategy
from paceline.strategy.updates.batch_growth import BatchGrowth, BatchStage
from paceline.workload.table import Workload


@dataclass(frozen=True, slots=True)
class GrowthStage:
    """BatchStage of a run: its first sample, its strategy, its steps and the predicted seconds of each."""

    samples: int
    strategy: Strategy
    steps: int
    step_time_s: float

    def to_json(self) -> dict[str, Any]:
        """Convert to a plain dict. An endless stage has None steps."""
        batch = self.strategy.global_batch_size
        return {"batch": batch, "samples": self.samples, "steps": self.steps or None, "step_time_s": self.step_time_s}


@dataclass(frozen=True, slots=True)
class GrowingBatch:
    """Run whose batch grows.

    Attributes:
        stages: the first one included. ``rule``: how the learning rate grows with the batch.
        constant_steps: steps of a run whose batch stays as in the first stage.
    """

    stages: tuple[GrowthStage, ...]
    rule: RateScaling
    constant_steps: int

    @property
    def steps(self) -> int:
        """Steps of the run."""
        return sum(stage.steps for stage in self.stages)

    @property
    def time_s(self) -> float:
        """Predicted seconds of all steps."""
        return sum(stage.steps * stage.step_time_s for stage in self.stages)

    @property
    def constant_s(self) -> float:
        """Predicted seconds with the batch of the first stage."""
        return self.constant_steps * self.stages[0].step_time_s

    @property
    def saved(self) -> float:
        """Share of the steps that growth saves."""
        return 1 - self.steps / self.constant_steps

    @property
    def text(self) -> str:
        """Later stages as ``train --batch-growth`` takes them; empty if the batch stays."""
        return str(BatchGrowth(tuple(BatchStage(s.samples, s.strategy.global_batch_size) for s in self.stages[1:])))

    def to_json(self) -> dict[str, Any]:
        """Convert to a plain dict."""
        stages = [stage.to_json() for stage in self.stages]
        totals = ("steps", "time_s", "constant_steps", "constant_s", "saved", "rule")
        return {"batch_growth": self.text, "stages": stages, **{name: getattr(self, name) for name in totals}}


def growing_batch(workload: Workload, best: Choice, rows: Sequence[tuple[int, int]], predictor: StepPredictor) -> GrowingBatch:
    """Return the best strategy with a batch that begins at the first critical batch and doubles as the later ones allow.

    Args:
        rows: samples and critical batch, in order.

    Raises:
        UserError: no row, or an optimizer without a scaling rule.
    """
    if not rows:
        raise UserError("no critical batch is given", "give rows of samples,critical_batch")
    total = best.samples
    first = _first(best.strategy, rows[0][1])
    found = stages_within(rows, first.global_batch_size, best.strategy.global_batch_size)
    if len(found) > 1 and found[0][1] > first.global_batch_size:
        first = _first(best.strategy, found[0][1])
    growth = BatchGrowth(tuple(BatchStage(*stage) for stage in found[1:] if stage[0] < total))
    stages = growth_stages(workload, best.cluster, first, growth, predictor, total)
    return GrowingBatch(stages, usual_rule(best.strategy.optimizer), math.ceil(total / first.global_batch_size))


def growth_stages(
    workload: Workload,
    cluster: Cluster,
    first: Strategy,
    growth: BatchGrowth,
    predictor: StepPredictor,
    total: float = math.inf,
) -> tuple[GrowthStage, ...]:
    """Return the predicted stages of a run, each as ``train`` runs it: micro batches stay, their number grows.

    Args:
        first: strategy of the first stage.
        total: samples of the run; the last stage of an endless run has 0 steps.

    Raises:
        UserError: a batch that is no multiple of the first, or local steps.
    """
    if growth and first.sync_every > 1:
        raise UserError(f"batch growth with {first.sync_every} local steps", "exchange in every step")
    begins = growth.strategies(first)
    steps = predictor.many(workload, [(cluster, strategy) for _, strategy in begins])
    ends = [*(samples for samples, _ in begins[1:]), total]
    return tuple(
        GrowthStage(
            samples, strategy, 0 if math.isinf(end) else math.ceil((end - samples) / strategy.global_batch_size), float(seconds)
        )
        for (samples, strategy), end, seconds in zip(begins, ends, steps.step_s, strict=True)
    )


def _first(strategy: Strategy, critical: int) -> Strategy:
    """Return the strategy with its batch halved until the critical batch allows it, or until it divides no further.

    Micro steps are halved before micro batches.
    """
    while strategy.global_batch_size > critical:
        micro, times = strategy.micro_batch_size, strategy.parallelism.micro_batches
        if times % 2 and micro % 2:
            break
        fewer = times // 2 if times % 2 == 0 else times
        strategy = strategy.changed(global_batch_size=strategy.global_batch_size // 2, grad_accum_steps=fewer)
    return strategy
