"""ZeRO-1: every rank holds the whole model, updates its rows of every tensor, and gathers those of the others (Rajbhandari et
al. 2020, ZeRO, SC, section 5.1).

The rows are DTensors in the memory of the model's weights, so any optimizer of torch, LARS and LAMB keep state of these rows
alone. ``ZeroRedundancyOptimizer`` divides by whole tensors, so that the largest tensor limits the savings of a rank.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.nn.parallel import DistributedDataParallel

from paceline.errors import UserError
from paceline.training.attach.hooks.ddp import Hook
from paceline.training.attach.hooks.powersgd import PowerSGD
from paceline.training.exchanges.wires.collectives import Wire
from paceline.training.exchanges.wires.process_groups import own_wire
from paceline.training.runs.checkpoints.state_shards import rows_of
from paceline.training.runs.loop import Trainer
from paceline.training.runs.sharded_loop import load_shared_state
from paceline.training.runs.training_run import TrainingRun


class SharedUpdate:
    """This rank's rows of a model's weights, for an optimizer, with a gather of the others' rows after each step.

    Args:
        parameters: the trained weights by name, equal on all ranks.
        groups: names of weights that are gathered together, in order.
        mesh: the ranks that share the weights out, of one dimension; ``wire``: among them.

    Attributes:
        parts: this rank's rows by name, as parameters to optimize. Their state belongs to these rows.
    """

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], groups: Sequence[Sequence[str]], mesh: DeviceMesh, wire: Wire
    ) -> None:
        self._whole, self._wire, self._mesh = dict(parameters), wire, mesh
        self._groups = [[self._whole[name] for name in group] for group in groups]
        self.parts = {name: nn.Parameter(self._part(p.detach())) for name, p in self._whole.items()}
        self._buffer = torch.empty(0, dtype=torch.float32)
        self.waited_s = 0.0  # in the last gather

    @classmethod
    def of(cls, model: DistributedDataParallel, hook: Hook | PowerSGD, run: TrainingRun) -> SharedUpdate:
        """Return the update that a run describes, in the groups of its prediction. Every rank must call this.

        Raises:
            UserError: a parameter without dimensions.
        """
        strategy, device = run.strategy, next(model.module.parameters()).device
        workers, sharers = strategy.world_size, strategy.parallelism.sharers
        shape, names = (workers // sharers, sharers), ("replicate", "shard")
        mesh = init_device_mesh(device.type, shape, mesh_dim_names=names)["shard"]
        ranks = dist.get_process_group_ranks(mesh.get_group())
        wire = own_wire(model.process_group, ranks, device, hook.meter, run.timeout_s, hook.wire.soundness)
        groups = strategy.partition(hook.tensors, hook.tensors[::-1])
        trained = {name: p for name, p in model.module.named_parameters() if p.requires_grad}
        if scalars := [name for name, p in trained.items() if not p.ndim]:
            raise UserError(f"{', '.join(scalars)}: a 0-dim tensor has no rows to share out", "give it shape (1,)")
        return cls(trained, [[tensor.name for tensor in members] for members, _ in groups], mesh, wire)

    def follow(self, optimizer: torch.optim.Optimizer) -> None:
        """Give the optimizer of ``parts`` its gradients before each step, and gather after it."""
        optimizer.register_step_pre_hook(lambda *_: self._take_gradients())
        optimizer.register_step_post_hook(lambda *_: self._gather())

    def _part(self, whole: Tensor) -> DTensor:
        """Return this rank's rows of a tensor, which share its memory."""
        rows = self._rows(whole)
        first = self._wire.rank * rows
        own = whole[first : first + rows]
        return DTensor.from_local(own, self._mesh, [Shard(0)], run_check=False, shape=whole.shape, stride=whole.stride())

    def _rows(self, whole: Tensor) -> int:
        """Return the number of rows of a tensor on each rank; the last ranks may have fewer, or none."""
        return -(-whole.shape[0] // self._wire.world_size)

    def _take_gradients(self) -> None:
        for name, parameter in self._whole.items():
            self.parts[name].grad = None if parameter.grad is None else self._part(parameter.grad)

    @torch.no_grad()
    def _gather(self) -> None:
        """Fill the model's weights with all ranks' rows, and drop the used gradients."""
        start = time.perf_counter()
        ranks, rank = self._wire.world_size, self._wire.rank
        for group in self._groups:
            sizes = [self._rows(p) * (p.numel() // max(1, p.shape[0])) for p in group]
            mine, arrived = self._room(group, sum(sizes))
            at = 0
            for parameter, size in zip(group, sizes, strict=True):
                own = parameter.reshape(-1)[rank * size : (rank + 1) * size]
                mine[at : at + own.numel()] = own
                at += size
            self._wire.all_gather(arrived, mine, "gather_update").wait()
            at = 0
            for parameter, size in zip(group, sizes, strict=True):
                whole = arrived.view(ranks, -1)[:, at : at + size].reshape(-1)[: parameter.numel()]
                parameter.copy_(whole.view(parameter.shape))
                at += size
        for parameter in self._whole.values():
            parameter.grad = None
        self.waited_s = time.perf_counter() - start

    def _room(self, group: Sequence[Tensor], size: int) -> tuple[Tensor, Tensor]:
        """Return a buffer for a rank's part of a gather and one for all ranks' parts, shared by all groups."""
        wanted, like = (self._wire.world_size + 1) * size, group[0]
        if self._buffer.numel() < wanted:
            self._buffer = torch.zeros(wanted, dtype=like.dtype, device=like.device)
        return self._buffer[:size], self._buffer[size:wanted]


class SharedUpdateTrainer(Trainer):
    """Rank of a ZeRO-1 run, whose optimizer has the state of its rows."""

    update: SharedUpdate

    def settle_buckets(self) -> None:
        """Settle the buckets as ``Trainer`` does, with the gradients of the model instead of those of the optimizer's parts."""
        super().settle_buckets()
        self.model.zero_grad()

    def _step(self, x: Tensor, y: Tensor) -> Tensor:
        loss = super()._step(x, y)
        self.times.exposed[-1] += self.update.waited_s
        return loss

    def shards(self) -> dict[str, Any]:
        """Return this rank's shards; see ``Trainer``."""
        return dict(rows_of({"optimizer": self.optimizer.state_dict()}))

    def resume(self, model: Any, optimizer: Any, states: Sequence[Any]) -> None:
        """Continue as ``Trainer`` does, with the optimizer's state as whole tensors or ``SharedTensor``."""
        self.model.module.load_state_dict(model)
        load_shared_state(self.optimizer, optimizer)
        self.hook.load_state_dict(states)
