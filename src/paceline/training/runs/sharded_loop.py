"""Training loop of a model that FSDP2 has sharded, with weights and optimizer state in shards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from paceline.training.attach.attach import attach
from paceline.training.attach.hooks.ddp import Hook
from paceline.training.attach.hooks.sharded import ShardedHook
from paceline.training.runs.checkpoints.state_shards import as_sharded, rows_of
from paceline.training.runs.loop import Alone, Trainer, classification_loss
from paceline.training.runs.shard import shard
from paceline.training.runs.training_run import TrainingRun

_BATCH = 256  # samples of a forward pass without gradients


def sharded(module: nn.Module, run: TrainingRun) -> tuple[DistributedDataParallel, Hook]:
    """Return the model and its gradient exchange as a ``Trainer`` needs them. Raises UserError as ``attach``."""
    shard(module, run.strategy)
    hook = attach(module, run.strategy.gradient_exchange, run.attach_options)
    return cast(DistributedDataParallel, Alone(module)), cast(Hook, hook)


class ShardedTrainer(Trainer):
    """Rank of a run with sharded weights and optimizer state."""

    @property
    def _sharded(self) -> ShardedHook:
        return cast(ShardedHook, self.hook)

    def settle_buckets(self) -> None:
        """Do nothing, because there are no buckets."""

    def _exchanges(self, last: bool) -> bool:
        """Return True: a rank keeps its shard of the gradients alone, also between micro steps."""
        return True

    @torch.no_grad()
    def evaluate(self) -> tuple[float, float]:
        """Evaluate as ``Trainer`` does. Ranks run equally many forward passes, because each gathers weights from all."""
        self.model.eval()
        for buffer in self.model.module.buffers():
            dist.broadcast(buffer, 0)
        mine = slice(self.rank, None, self.strategy.world_size)
        x, y = self.data.test_x[mine], self.data.test_y[mine]
        most = ceil(len(self.data.test_y) / self.strategy.world_size)
        sums = torch.zeros(2, dtype=torch.float64)
        for start in range(0, most, _BATCH):
            a, b = x[start : start + _BATCH], y[start : start + _BATCH]
            images = a if len(b) else self.data.test_x[:1]
            output = self._outputs(self.model, images)
            if len(b):
                right = (output.argmax(-1) == b).sum()
                sums += torch.stack([right, classification_loss(output, b) * b.numel()])
        counted = sums.to(self.device)
        dist.all_reduce(counted)
        right_share, loss = (counted.cpu() / self.data.test_y.numel()).tolist()
        return right_share, loss

    def shards(self) -> dict[str, Any]:
        """Return this rank's shards; see ``Trainer``."""
        return dict(rows_of({"model": self.model.module.state_dict(), "optimizer": self.optimizer.state_dict()}))

    def state(self) -> dict[str, Any]:
        """Return the state that differs from rank to rank; see ``Trainer``."""
        return self._sharded.own_state(copied=False)

    @torch.no_grad()
    def resume(self, model: Mapping[str, Any], optimizer: Mapping[str, Any], states: Sequence[Any]) -> None:
        """Continue as ``Trainer`` does, with whole tensors or ``SharedTensor``; residuals are those of this rank or of all."""
        for name, value in self.model.module.state_dict().items():
            _local(value).copy_(_local(as_sharded(model[name], value)))
        load_shared_state(self.optimizer, optimizer)
        self._sharded.load_own_states(states)

    def check_replicas(self) -> None:
        """Compare the copies of the shards, in HSDP. Raises ReplicasDiverged on every rank."""
        self._sharded.check_replicas()


def load_shared_state(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Load an optimizer's state of a checkpoint, from any number of ranks, into an optimizer of sharded parameters."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    placed = {
        index: {name: _loaded(v, parameters[index]) for name, v in values.items()} for index, values in state["state"].items()
    }
    optimizer.load_state_dict({**state, "state": placed})


def _loaded(value: Any, parameter: Any) -> Any:
    """Return a value of the optimizer's state that is not on the disk any more."""
    placed = as_sharded(value, parameter)
    return placed.clone() if placed is value and isinstance(value, Tensor) else placed


def _local(value: Tensor) -> Tensor:
    return value.to_local() if isinstance(value, DTensor) else value
