"""Batch that grows during training, in stages, as the critical batch does.

It is small at the start and rises: OLMo 1B reaches its loss with 43 % fewer steps (Merrill et al. 2025, arXiv:2505.23971).

Micro batches stay as they are, and a stage takes more of them in a step, so the memory of a device does not grow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from paceline.errors import UserError, shorten
from paceline.strategy.strategy import Strategy
from paceline.units import parse_count

_FORM = "write stages as BATCH@SAMPLES, such as 128@20k,256@80k"


class BatchStage(NamedTuple):
    """BatchStage of a run: its global batch from a number of samples on."""

    samples: int
    batch: int


@dataclass(frozen=True, slots=True)
class BatchGrowth:
    """Stages of a run after its first, whose batch is the strategy's. Without stages the batch is constant.

    Raises:
        UserError: stages out of order, or a batch that does not grow.
    """

    stages: tuple[BatchStage, ...] = ()

    def __post_init__(self) -> None:
        for before, after in zip(self.stages, self.stages[1:], strict=False):
            if after.samples <= before.samples or after.batch <= before.batch:
                raise UserError(f"batch growth {self}", "give later stages more samples and larger batches")

    @staticmethod
    @lru_cache(maxsize=64)
    def of(text: str) -> BatchGrowth:
        """Read stages such as ``128@20k,256@80k``; empty: none. Raises UserError for another text."""
        stages: list[BatchStage] = []
        for part in text.replace(" ", "").split(",") if text.strip() else ():
            batch, at, samples = part.partition("@")
            if not at or not batch.isdecimal() or not int(batch):
                raise UserError(f"batch growth {shorten(text)!r}", _FORM)
            try:
                stages.append(BatchStage(round(parse_count(samples)), int(batch)))
            except UserError as error:
                raise UserError(f"batch growth {shorten(text)!r}: {error.message}", _FORM) from error
        return BatchGrowth(tuple(stages))

    def __str__(self) -> str:
        return ",".join(f"{stage.batch}@{stage.samples}" for stage in self.stages)

    def __bool__(self) -> bool:
        return bool(self.stages)

    def batch(self, first: int, samples: int) -> int:
        """Return the global batch of a step after a number of samples. ``first``: batch of the first stage."""
        return next((stage.batch for stage in reversed(self.stages) if samples >= stage.samples), first)

    def strategies(self, strategy: Strategy) -> list[tuple[int, Strategy]]:
        """Return the first sample and the strategy of each stage.

        Raises:
            UserError: a batch that is no multiple of the first.
        """
        found = [(0, strategy)]
        for samples, batch in self.stages:
            times, rest = divmod(batch, strategy.global_batch_size)
            if rest or times < 2:
                legal = strategy.global_batch_size * max(2, times)
                raise UserError(
                    f"batch growth to {batch} from a batch of {strategy.global_batch_size}",
                    f"grow by whole factors, for micro batches stay as they are: such as {legal}",
                )
            micro_steps = strategy.parallelism.micro_batches * times
            found.append((samples, strategy.changed(global_batch_size=batch, grad_accum_steps=micro_steps)))
        return found


NO_GROWTH = BatchGrowth()


class StepPlace(NamedTuple):
    """Place of a step: its first sample in the epoch's order, and its global batch."""

    first: int
    batch: int


class StepPlan:
    """Steps of each epoch of a run. A batch that does not fit into the rest of an epoch is dropped.

    Args:
        samples: samples of an epoch. ``batch``: global batch of the first stage.
    """

    def __init__(self, samples: int, batch: int, growth: BatchGrowth = NO_GROWTH) -> None:
        self._samples, self._batch, self._growth = samples, batch, growth
        self._epochs: dict[int, Sequence[StepPlace]] = {}
        last = growth.stages[-1].samples if growth else 0
        self._changing = -(-last // samples) if growth else 0  # epochs until every step has the last batch

    def epoch(self, epoch: int) -> Sequence[StepPlace]:
        """Return the steps of an epoch, counted from 0."""
        epoch = min(epoch, self._changing)
        if epoch not in self._epochs:
            self._epochs[epoch] = list(self._places(epoch * self._samples))
        return self._epochs[epoch]

    def _places(self, seen: int) -> Iterator[StepPlace]:
        first = 0
        while first + (batch := self._growth.batch(self._batch, seen + first)) <= self._samples:
            yield StepPlace(first, batch)
            first += batch

    def before(self, epoch: int) -> int:
        """Return the number of steps before an epoch."""
        changing = min(epoch, self._changing)
        return sum(len(self.epoch(e)) for e in range(changing)) + (epoch - changing) * len(self.epoch(self._changing))

    def place(self, step: int) -> tuple[int, int]:
        """Return samples before a step of the run, in steps of the first batch, and the step's batch."""
        epoch = 0
        while epoch < self._changing and step >= len(self.epoch(epoch)):
            step -= len(self.epoch(epoch))
            epoch += 1
        steps = self.epoch(epoch)
        more, step = divmod(step, max(1, len(steps)))
        per_epoch = self._samples // self._batch
        if not steps:
            return epoch * per_epoch, self._batch
        return (epoch + more) * per_epoch + steps[step].first // self._batch, steps[step].batch
