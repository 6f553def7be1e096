"""Training loop of local steps, with an exchange at intervals instead of one in every backward pass."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from paceline.errors import UserError
from paceline.record import Event
from paceline.training.attach.attach_local import attach_local
from paceline.training.attach.hooks.ddp import Hook
from paceline.training.attach.local.local_steps import LocalSync
from paceline.training.exchanges.gradients.tensor_layout import numbered
from paceline.training.exchanges.wires.meter import Meter
from paceline.training.runs.data import Dataset
from paceline.training.runs.loop import Alone, Trainer
from paceline.training.runs.starting_model import starting_model
from paceline.training.runs.training_run import TrainingRun


def attached(module: nn.Module, run: TrainingRun) -> tuple[DistributedDataParallel, Hook]:
    """Return the model and its exchange as a ``Trainer`` needs them. Raises UserError as ``attach_local``."""
    sync = attach_local(module, run.strategy.gradient_exchange, run.attach_options, local=run.strategy.local)
    return cast(DistributedDataParallel, Alone(module)), cast(Hook, sync)


def check_local(run: TrainingRun, data: Dataset) -> None:
    """Raise UserError for local steps that do not fit the run: a round longer than the run, or more fragments than layers."""
    local, batch = run.strategy.local, run.strategy.global_batch_size
    steps = run.epochs * (len(data.train_y) // batch)
    if local.sync_every == 1:
        return
    if steps < local.sync_every:
        raise UserError(
            f"an exchange every {local.sync_every} steps in a run of {steps} steps: there would be none",
            f"give sync_every up to {steps}, or more epochs",
        )
    named = [(name, p) for name, p in starting_model(run).named_parameters() if p.requires_grad]
    local.split(list(numbered(named).values()))


class LocalTrainer(Trainer):
    """Rank of a run of local steps.

    It is evaluated and saved with the shared weights, which are equal on every rank. Each rank's own weights and optimizer
    state are part of ``state``. The run ends with ``LocalSync.finish``, so that its last steps count.

    Attributes:
        last_epoch: number of the run's last epoch.
    """

    last_epoch = -1

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sync = cast(LocalSync, self.hook)
        self._clock = Meter(self.rank)
        self._ended: dict[str, Any] | None = None

    def settle_buckets(self) -> None:
        """Do nothing, because there are no buckets."""

    def train_epoch(self, epoch: int, on_step: Any = None) -> float:
        """Train one epoch as ``Trainer`` does. After the last epoch all ranks exchange their remaining changes."""
        loss = super().train_epoch(epoch, on_step)
        if epoch == self.last_epoch:
            self._ended = self.state()  # of before: a resumed run has other exchanges
            self.sync.finish()
        return loss

    def _exchanges(self, last: bool) -> bool:
        return False

    def _step(self, x: Tensor, y: Tensor) -> Tensor:
        clock, returned, times = self._clock, self.sync.returned, self.times
        began = time.perf_counter()
        clock.begin_step()
        loss, _ = self._passes(x, y, clock)
        with clock.span("optimizer", "compute"):
            self.arithmetic.update(self.optimizer)
            if self.schedule is not None:
                self.schedule.step()
            self.optimizer.zero_grad()
            self._synchronize()
        start = clock.now()
        ended = self.sync.step()
        self._synchronize()
        if self.sync.returned > returned:
            self._forget()
        meter = self.sync.meter
        times.step.append(clock.now())
        times.exposed.append(clock.now() - start)
        times.comm.append(meter.seconds("network") if ended else 0.0)
        times.codec.append(meter.seconds("codec") if ended else 0.0)
        times.sent.append(meter.sent_bytes if ended else 0)
        if ended and not self.strategy.local.sync_delay:
            later = self.sync.began_s - began
            clock.events.extend(_shifted(event, later) for event in meter.events)
        times.events.append(list(clock.events))
        self._drop_events()
        return loss

    def _forget(self) -> None:
        """Restart with an empty optimizer if its state may hold non-finite values; all ranks decide equally."""
        state = self.optimizer.state_dict()
        self.optimizer.load_state_dict({**state, "state": {}})

    @torch.no_grad()
    def evaluate(self) -> tuple[float, float]:
        """Evaluate the shared weights as ``Trainer`` does."""
        with self.sync.shared_weights():
            return super().evaluate()

    @property
    def diverges(self) -> bool:
        """True as of ``Trainer``, after two exchanges: each returns to the shared weights if those of a rank are bad."""
        return super().diverges and self.bad_steps >= 2 * self.strategy.sync_every

    def weights_to_check(self) -> Mapping[str, Tensor]:
        """Return the shared weights, in fragments."""
        return {f"fragment {number}": fragment.anchor for number, fragment in enumerate(self.sync.fragments)}

    def check_replicas(self) -> None:
        """Compare a checksum of the shared weights over the workers. Raises ReplicasDiverged on every rank."""
        self.sync.check_replicas()

    def weights(self) -> dict[str, Any]:
        """Return the shared weights."""
        with self.sync.shared_weights():
            return {name: value.clone() for name, value in self.model.module.state_dict().items()}

    def state(self) -> dict[str, Any]:
        """Return the state of this rank that, with the shared weights, continues the run bit for bit."""
        if self._ended is not None:
            return self._ended
        return {**self.sync.state_dict(), "optimizer": self.optimizer.state_dict()}

    def resume(self, model: Any, optimizer: Any, states: Sequence[Any]) -> None:
        """Continue from the states of all ranks. Another number of ranks gets the optimizers' states in turn."""
        super().resume(model, optimizer, states)
        by_rank = {state["rank"]: state for state in states}
        own = by_rank.get(self.rank) or by_rank[self.rank % len(by_rank)]
        if "optimizer" in own:  # else rank 0's has been loaded
            self.optimizer.load_state_dict(own["optimizer"])


def _shifted(event: Event, seconds: float) -> Event:
    return Event(
        name=event.name,
        lane=event.lane,
        start_s=event.start_s + seconds,
        duration_s=event.duration_s,
        rank=event.rank,
    )
