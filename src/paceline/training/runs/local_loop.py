"""Training loop of local steps, with an exchange at intervals instead of one in every backward pass."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from paceline.errors import UserError
from paceline.record import Event
from paceline.training.attach.attach import attach, wrap
from paceline.training.attach.attach_local import attach_local
from paceline.training.attach.hooks.ddp import Hook
from paceline.training.attach.hooks.sharded import ShardedHook
from paceline.training.attach.local.local_steps import LocalSync
from paceline.training.attach.local.worker_state import place_in
from paceline.training.exchanges.gradients.tensor_layout import numbered
from paceline.training.exchanges.wires.meter import Meter
from paceline.training.runs.checkpoints.run_state import snapshot
from paceline.training.runs.checkpoints.state_shards import without_shards
from paceline.training.runs.data import Dataset
from paceline.training.runs.loop import Alone, Trainer
from paceline.training.runs.shard import mesh_of, shard
from paceline.training.runs.sharded_loop import ShardedTrainer, load_shared_state
from paceline.training.runs.starting_model import starting_model
from paceline.training.runs.training_run import TrainingRun

AnyInner = Hook | ShardedHook | None
"""Exchange of gradients within a worker; None for a worker of one device."""


def attached(module: nn.Module, run: TrainingRun) -> tuple[DistributedDataParallel, Hook, AnyInner]:
    """Return the model, its exchange between workers, and that within a worker, as a ``Trainer`` needs them.

    Raises:
        UserError: as ``attach_local``.
    """
    strategy, options = run.strategy, run.attach_options
    model: nn.Module = module
    inner: Any = None
    if strategy.parallelism.sharding.weights:
        inner = attach(shard(module, strategy), "dense", options)
    elif strategy.worker_devices > 1:
        group = mesh_of(strategy, next(module.parameters()).device.type).get_group()
        model = wrap(module, strategy, group)
        inner = attach(model, "dense", options)
    sync = attach_local(model, strategy.gradient_exchange, options, local=strategy.local)
    return cast(DistributedDataParallel, model if model is not module else Alone(module)), cast(Hook, sync), inner


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
        inner: exchange of gradients within the worker; None for a worker of one device.
    """

    last_epoch = -1
    inner: AnyInner = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sync, self.group = cast(LocalSync, self.hook), cast(dist.ProcessGroup, dist.group.WORLD)
        self._clock = Meter(self.rank)
        self._ended: dict[str, Any] | None = None

    def exchange_within(self, inner: AnyInner) -> None:
        """Take the exchange within the worker. Its meter counts the step."""
        self.inner = inner
        if inner is not None:
            self._clock = inner.meter

    def settle_buckets(self) -> None:
        """Settle the buckets within a worker as ``Trainer`` does. Other workers have none."""
        if isinstance(self.model, DistributedDataParallel):
            super().settle_buckets()

    def train_epoch(self, epoch: int, on_step: Any = None) -> float:
        """Train one epoch as ``Trainer`` does. After the last epoch all ranks exchange their remaining changes."""
        loss = super().train_epoch(epoch, on_step)
        if epoch == self.last_epoch:
            self._ended = self.state()  # of before: a resumed run has other exchanges
            self.sync.finish()
        return loss

    def _exchanges(self, last: bool) -> bool:
        return self.inner is not None and last

    def _step(self, x: Tensor, y: Tensor) -> Tensor:
        clock, returned, times = self._clock, self.sync.returned, self.times
        began = time.perf_counter()
        clock.begin_step()
        loss, waited = self._passes(x, y, clock)
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
        times.exposed.append(clock.now() - start + (waited if self.inner is not None else 0.0))
        times.comm.append(clock.seconds("network") + (meter.seconds("network") if ended else 0.0))
        times.codec.append(clock.seconds("codec") + (meter.seconds("codec") if ended else 0.0))
        times.sent.append(clock.sent_bytes + (meter.sent_bytes if ended else 0))
        times.batch.append(self.batch)
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
        own = self._own(states)
        if "optimizer" in own:  # else rank 0's has been loaded
            self.optimizer.load_state_dict(own["optimizer"])

    def _own(self, states: Sequence[Any]) -> Any:
        """Return the state of this rank's worker and place, or of another worker."""
        worker, place = self.sync.wire.rank, self.sync.place
        by_rank = {state["rank"]: state for state in states if place_in(state) == place}
        return by_rank.get(worker) or (by_rank[sorted(by_rank)[worker % len(by_rank)]] if by_rank else {})


class ShardedLocalTrainer(LocalTrainer, ShardedTrainer):
    """Rank of a run of local steps whose workers are sharded."""

    def settle_buckets(self) -> None:
        """Do nothing, because there are no buckets."""

    def _exchanges(self, last: bool) -> bool:
        return True

    def weights(self) -> dict[str, Any]:
        """Return the shared weights and buffers that are whole on each rank."""
        with self.sync.shared_weights():
            return dict(snapshot(without_shards(self.model.module.state_dict())))

    def shards(self) -> dict[str, Any]:
        """Return this rank's rows of the shared weights, and of its optimizer's state."""
        with self.sync.shared_weights():
            return dict(snapshot(super().shards()))

    def state(self) -> dict[str, Any]:
        """Return the state of this rank, with its shards of the optimizer's state."""
        if self._ended is not None:
            return self._ended
        kept = {n: {k: _shard(v) for k, v in values.items()} for n, values in self.optimizer.state_dict()["state"].items()}
        return {**self.sync.state_dict(), "optimizer": kept}

    @torch.no_grad()
    def resume(self, model: Any, optimizer: Any, states: Sequence[Any]) -> None:
        """Continue from the states of all ranks. Workers of another shape have the optimizer's state of the first worker."""
        load_shared_state(self.optimizer, optimizer)
        self.sync.load_state_dict(list(states))
        for index, values in self._own(states).get("optimizer", {}).items():
            parameter = [p for group in self.optimizer.param_groups for p in group["params"]][index]
            for name, value in values.items():
                if isinstance(found := self.optimizer.state[parameter][name], Tensor):
                    _shard(found).copy_(value)
                else:
                    self.optimizer.state[parameter][name] = value

    def check_replicas(self) -> None:
        """Compare a checksum of the shared weights over workers and copies. Raises ReplicasDiverged on every rank."""
        self.sync.check_replicas()


def _shard(value: Any) -> Any:
    return value.to_local() if isinstance(value, DTensor) else value


def _shifted(event: Event, seconds: float) -> Event:
    return Event(
        name=event.name,
        lane=event.lane,
        start_s=event.start_s + seconds,
        duration_s=event.duration_s,
        rank=event.rank,
    )
