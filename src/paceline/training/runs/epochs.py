"""Epochs of a run on one rank: train, evaluate, save, and stop in order on request."""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from paceline.errors import Interrupted, ReplicasDiverged, TrainingDiverged, UserError
from paceline.rundir import RunDir
from paceline.training.attach.consistency import of_all_ranks, refuse_unequal
from paceline.training.runs.calibrate import means_over_ranks
from paceline.training.runs.checkpoints import checkpoint
from paceline.training.runs.checkpoints import surviving_state as survivors
from paceline.training.runs.checkpoints.checkpoint_writer import CheckpointWriter, is_shared
from paceline.training.runs.checkpoints.run_state import own_part, own_state, shared_state, snapshot
from paceline.training.runs.loop import Trainer, gradient_histogram
from paceline.training.runs.progress import Progress
from paceline.training.runs.step_agreement import StepAgreement, Wish
from paceline.training.runs.stop_requests import StopRequests
from paceline.training.runs.training_run import TrainingRun
from paceline.units import format_seconds


class _Last(NamedTuple):
    """Last boundary of a step: its place, the model's buffers, and the state of this rank alone."""

    epoch: int
    step: int
    buffers: Mapping[str, torch.Tensor]
    own: Mapping[str, Any]


class Epochs:
    """Loop over the remaining epochs of a run, which writes its checkpoints.

    Attributes:
        curve: an entry for each epoch so far, also those before a resumption.
        histogram: histogram of a gradient in the middle of the run; empty if its compression has none.
        writer: writer of the checkpoints. Whoever ends the run calls its ``finish`` last.
    """

    def __init__(
        self, run: TrainingRun, trainer: Trainer, progress: Progress, curve: list[dict[str, Any]], stops: StopRequests
    ) -> None:
        self._run, self._trainer, self._progress, self._stops = run, trainer, progress, stops
        self.curve, self.histogram = curve, dict[str, Any]()
        workers = trainer.strategy.world_size
        self.writer = CheckpointWriter(run, trainer.rank, workers, is_shared(Path(run.out)))
        self._agreement = StepAgreement(workers, run.timeout_s)
        self._every = run.save_every
        self._saved_at = time.monotonic()
        self._last: _Last | None = None
        self._agreed = Wish()  # at the last step of an epoch, for its end

    def train(self, first: int) -> None:
        """Train from epoch ``first``, or within it, to the last. Raises Interrupted on every rank if any is asked to stop."""
        run, trainer = self._run, self._trainer
        self._stops.elastic = run.elastic
        with self._stops.while_training(), self._left_behind(), self._progress.epochs(self._steps_left(first)) as show:
            for epoch in range(first, run.epochs):
                finish = self._sampler() if epoch == (first + run.epochs) // 2 else None

                def on_step(
                    number: int, epoch: int = epoch, finish: list[Callable[[], dict[str, Any]]] = [finish] if finish else []
                ) -> None:
                    show(number)
                    if finish:
                        self.histogram.update(finish.pop()())
                    self._boundary(epoch, number)

                (loss,) = means_over_ranks([trainer.train_epoch(epoch, on_step)], trainer.device)
                self._end_epoch(epoch, loss)

    def _steps_left(self, first: int) -> int:
        plan = self._trainer.plan
        return plan.before(self._run.epochs) - plan.before(first)

    @contextmanager
    def _left_behind(self) -> Iterator[None]:
        """Leave the state of the last step to the surviving ranks if a rank is lost in an elastic run."""
        try:
            yield
        except (RuntimeError, dist.DistError) as error:
            last, trainer = self._last, self._trainer
            if last is not None and not trainer.torn and not isinstance(error, ReplicasDiverged | TrainingDiverged):
                shared = shared_state(trainer, self.curve)
                shared["model"] |= {name: value for name, value in last.buffers.items() if name in shared["model"]}
                with suppress(UserError):  # the error that is raised matters more
                    survivors.leave(self._run, last.epoch, last.step, shared, {**last.own, "shards": trainer.shards()})
            raise

    def _remember(self, epoch: int, step: int) -> None:
        """Copy the state that a failing step may change. Weights and optimizer change only in the update (``torn``)."""
        if self._run.elastic:
            buffers = {name: buffer.clone() for name, buffer in self._trainer.model.module.named_buffers()}
            self._last = _Last(epoch, step, buffers, snapshot(own_state(self._trainer)))

    def _boundary(self, epoch: int, number: int) -> None:
        """Save or stop between step ``number`` of an epoch and the next, if any rank must."""
        step, whole = number + 1, len(self._trainer.plan.epoch(epoch))
        self._remember(epoch, step)  # before the ranks confer: that may fail, and the weights are of this step already
        due = self._trainer.rank == 0 and self._due_by_time() and not self.writer.busy
        wish = Wish(self._stops.number, due, self._trainer.diverges)
        agreed = self._agreement.after_step(wish, self._trainer.times.step[-1])
        self._say_failure()
        if agreed.diverges:
            self._check_health(epoch, step)
        if step == whole:
            self._agreed = agreed
        elif agreed.stop:
            self._stop(agreed.stop, epoch, step)
        elif agreed.save or self._due_by_steps(self._trainer.plan.before(epoch) + step):
            self._save(epoch, step)

    def _end_epoch(self, epoch: int, loss: float) -> None:
        run, trainer, done = self._run, self._trainer, epoch + 1
        accuracy, held_out = trainer.evaluate()
        trainer.check_replicas()
        self._check_health(done, 0, held_out)
        seconds = trainer.seconds_so_far
        entry = {"epoch": done, "loss": loss, "accuracy": accuracy, "held_out_loss": held_out, "seconds": seconds}
        self.curve.append({**entry, "noise_scale": trainer.noise_scale()})
        if done < run.epochs:
            self._remember(done, 0)  # the curve has the epoch: a run that continues from here does not end it again
        agreed, self._agreed = self._agreed, Wish()
        stop = agreed.stop if done < run.epochs else 0
        by_steps = self._due_by_steps(trainer.plan.before(done))
        if trainer.rank == 0:
            try:
                RunDir(run.out).write_progress(_reached(trainer, self.curve[-1]))
            except UserError as error:  # whoever watches sees an older one
                self._report(str(error))
        self._progress.epoch_done(self.curve[-1])
        if stop:
            self._stop(stop, done, 0)
        if self._every == (0, 0.0) or done == run.epochs or agreed.save or by_steps:
            self._save(done, 0)

    def _check_health(self, epoch: int, step: int, held_out: float = 0.0) -> None:
        """Compare what ranks train on, and look for NaN and infinity, before they are saved over better weights.

        Args:
            held_out: the loss on held-out samples, equal on all ranks.

        Raises:
            TrainingDiverged: on every rank, if weights or losses of any rank are not finite.
            ReplicasDiverged: on every rank, if one reads other samples.
        """
        trainer = self._trainer
        defect = trainer.defect()
        bad, samples = of_all_ranks(trainer.group, [int(bool(defect)), trainer.samples_checksum(epoch)], trainer.device)
        where = f"{self._run.label}, after {checkpoint.place({'epoch': epoch, 'step': step})}"
        if any(bad) or not math.isfinite(held_out):
            ranks = ", ".join(str(rank) for rank, flag in enumerate(bad) if flag)
            what = defect or (f"rank {ranks} has NaN or infinity" if ranks else f"the held-out loss is {held_out}")
            raise TrainingDiverged(
                f"{where}: {what}: the network has diverged, and is not saved; lower the learning rate of "
                f"{self._run.learning_rate:g}, or warm it up, and resume from the last checkpoint"
            )
        refuse_unequal(f"{where}: the training samples", samples)

    def save_now(self, epoch: int) -> None:
        """Write the state before the run continues, and wait for it. Raises UserError if it cannot be written."""
        self._save(epoch, self._trainer.done)
        self.writer.finish()

    def _due_by_steps(self, steps: int) -> bool:
        return bool(self._every[0]) and steps % self._every[0] == 0

    def _due_by_time(self) -> bool:
        """Return whether a checkpoint is due by the monotonic clock."""
        return bool(self._every[1]) and time.monotonic() - self._saved_at >= self._every[1]

    def _save(self, epoch: int, step: int) -> None:
        trainer = self._trainer
        if step:  # the end of an epoch has looked already
            self._check_health(epoch, step)
        shared = shared_state(trainer, self.curve) if trainer.rank == 0 else {}
        if failed := self.writer.save(epoch, step, shared, own_part(trainer)):
            self._report(failed)
        self._saved_at = time.monotonic()

    def _stop(self, number: int, epoch: int, step: int) -> None:
        """Save, report the state of the run, and raise Interrupted after all ranks have finished."""
        self._save(epoch, step)
        where = checkpoint.place({"epoch": epoch, "step": step})
        kept = f"the checkpoint of {where} is kept; resume {self._run.out} to go on"
        try:
            self.writer.finish()
        except UserError as error:
            kept = f"{error}; {checkpoint.kept(self._run)}"
        self._progress.say(self._summary(where))
        self._last = None
        self._agreement.barrier()  # or the launcher would end those that still write
        raise Interrupted(number, kept)

    def _summary(self, where: str) -> str:
        trainer, times = self._trainer, self._trainer.times.step
        epochs = len(self.curve)
        total = trainer.plan.before(self._run.epochs)
        done = trainer.plan.before(epochs) + trainer.done % max(1, len(trainer.plan.epoch(epochs)))
        loss = f"  loss {float(trainer.loss_so_far) / trainer.done:.4f}" if trainer.done else ""
        return f"stopped after {where}, {done} of {total} steps{loss}  {format_seconds(statistics.median(times))} a step"

    def _say_failure(self) -> None:
        if failed := self.writer.failure():
            self._report(failed)

    def _report(self, failed: str) -> None:
        text = f"{self._run.label}: rank {self._trainer.rank}: {failed}; training continues, what was saved before is kept"
        with suppress(OSError):
            print(text, file=sys.stderr, flush=True)

    def _sampler(self) -> Callable[[], dict[str, Any]] | None:
        """Request the stages of the largest compressed gradient from TernGrad. Returns a function that makes their
        histogram."""
        trainer = self._trainer
        named = trainer.model.module.named_parameters()
        packed = {name: p for name, p in named if p.requires_grad and name not in trainer.hook.dense}
        if not trainer.strategy.gradient_exchange.compression.clips or not packed or trainer.rank != 0:
            return None
        sample = trainer.hook.sample
        sample.name = max(packed, key=lambda n: packed[n].numel())

        def finish() -> dict[str, Any]:
            sample.name = ""
            return gradient_histogram(sample.stages) if sample.stages else {}

        return finish


def _reached(trainer: Trainer, entry: Mapping[str, Any]) -> dict[str, float]:
    """Return the place of the run after an epoch, the contents of ``progress.json``."""
    places = trainer.plan.epoch(entry["epoch"] - 1)
    steps, samples = len(places), sum(place.batch for place in places)
    numbers = {name: entry[name] for name in ("epoch", "accuracy", "loss")}
    rate = samples / entry["seconds"] if entry["seconds"] else 0.0
    exchange_s = statistics.fmean(trainer.times.exposed[-steps:] or [0.0])
    return {
        **numbers,
        "step": trainer.plan.before(entry["epoch"]),
        "samples_per_s": rate,
        "exchange_s": exchange_s,
        "workers": trainer.strategy.world_size,
    }
