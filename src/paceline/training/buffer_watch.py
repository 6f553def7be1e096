"""Buffers of the replicas, such as BatchNorm's running statistics: which must be equal on all ranks, and whether they are.

DDP broadcasts rank 0's buffers at the beginning of a forward pass; the pass then changes them on every rank by its own data.
So they are compared as they are right after the broadcast. With ``broadcast_buffers=False`` each rank keeps its own by design,
which is worth one warning and no error: a checkpoint then holds those of one rank. SyncBatchNorm over all ranks needs no
broadcast, since every rank computes the same statistics: its buffers must be equal after every step.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from paceline.training.consistency import checksum

_log = logging.getLogger("paceline")

UNSEEN = -1
"""In place of a checksum: this rank has nothing to compare."""


class BufferChecksums(NamedTuple):
    """Checksums of the buffers that DDP has broadcast, of those that are equal by themselves, and of each rank's own."""

    broadcast: int = UNSEEN
    alike: int = UNSEEN
    own: int = UNSEEN


class BufferWatch:
    """Checksums of a model's buffers, for one step at a time."""

    def __init__(self, model: DistributedDataParallel) -> None:
        self._model = weakref.ref(model)
        self._seen, self._told = UNSEEN, False
        self._handle: Any = None
        copied = model.modules_buffers if model.broadcast_buffers and not hasattr(model, "buffer_hook") else []
        by_ddp = {id(buffer) for buffer in copied}
        self._alike: list[tuple[nn.Module, str]] = []
        self._own: list[tuple[nn.Module, str]] = []
        self.own_names: list[str] = []
        for path, module in model.module.named_modules():
            for name, buffer in module.named_buffers(recurse=False):
                full = f"{path}.{name}" if path else name
                if id(buffer) in by_ddp or full in model.parameters_to_ignore:  # the latter are the script's own affair
                    continue
                if isinstance(module, nn.SyncBatchNorm) and _spans(module, model):
                    self._alike.append((module, name))
                else:
                    self._own.append((module, name))
                    self.own_names.append(full)
        self._broadcasts = bool(copied)

    def arm(self) -> None:
        """Look at the buffers in the next forward pass in which DDP broadcasts them."""
        model = self._model()
        if self._broadcasts and self._handle is None and model is not None:
            self._handle = model.module.register_forward_pre_hook(_AfterBroadcast(self._look))

    def _look(self) -> None:
        model = self._model()
        within = model is not None and model._get_active_ddp_module() is model
        if model is None or not within or not model.will_sync_module_buffers():
            return  # a call of the inner module, or a pass that broadcasts nothing
        self._seen = checksum(model.modules_buffers)
        self._handle.remove()
        self._handle = None

    def checksums(self) -> BufferChecksums:
        """Those of the step that ends; to be called once a step that is checked."""
        seen, self._seen = self._seen, UNSEEN
        of = [checksum(_tensors(buffers)) if buffers else UNSEEN for buffers in (self._alike, self._own)]
        return BufferChecksums(seen, *of)

    def tell_of_own(self) -> None:
        """Say once that ranks have buffers of their own, and what that means."""
        if not self._told:
            self._told = True
            names = ", ".join(self.own_names[:3]) + (", ..." if len(self.own_names) > 3 else "")
            _log.warning(
                "buffers differ between the ranks (%s): DDP does not broadcast them here, so a checkpoint holds those of one "
                "rank; broadcast_buffers=True or SyncBatchNorm makes them equal",
                names,
            )


class _AfterBroadcast:
    """A forward pre-hook. A copy of the model, or a saved one, has one that does nothing."""

    def __init__(self, look: Callable[[], None] | None = None) -> None:
        self._look = look

    def __call__(self, module: nn.Module, inputs: object) -> None:
        if self._look is not None:
            self._look()

    def __reduce__(self) -> tuple[Any, ...]:
        return _AfterBroadcast, ()


def _spans(module: nn.SyncBatchNorm, model: DistributedDataParallel) -> bool:
    """Whether its statistics are of all ranks of the model."""
    group = module.process_group
    return dist.get_world_size(group) == dist.get_world_size(model.process_group)


def _tensors(buffers: list[tuple[nn.Module, str]]) -> list[torch.Tensor]:
    return [getattr(module, name) for module, name in buffers]


__all__ = ["UNSEEN", "BufferChecksums", "BufferWatch"]
