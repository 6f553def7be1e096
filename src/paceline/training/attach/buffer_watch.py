"""Comparison of the replicas' buffers, such as BatchNorm's running statistics, over the ranks.

DDP broadcasts rank 0's buffers at the beginning of a forward pass; the pass then changes them on every rank by its own data.
So they are compared as they are right after the broadcast. With ``broadcast_buffers=False`` each rank keeps its own by design,
which is worth one warning and no error: a checkpoint then holds those of one rank. SyncBatchNorm over all ranks needs no
broadcast, since every rank computes the same statistics: its buffers must be equal after every step. FSDP2 broadcasts nothing.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from paceline.training.attach.consistency import Checksum, comparable

_log = logging.getLogger("paceline")

UNSEEN = -1
"""In place of a checksum: this rank has nothing to compare."""


class BufferChecksums(NamedTuple):
    """Checksums of the buffers that DDP broadcasts, of those that are equal without it, and of each rank's own."""

    broadcast: Checksum = UNSEEN
    alike: Checksum = UNSEEN
    own: Checksum = UNSEEN


class UnsentBuffers:
    """Buffers that DDP does not broadcast: those that should be equal anyway, and those that differ by rank.

    Buffers that are in no checkpoint, such as caches, are left out.

    Args:
        ranks: ranks of the model's data, or those of them that this rank exchanges with.
        left_out: names of other buffers.
        why, remedy: texts of the warning of ``tell_of_own``.
    """

    def __init__(self, model: nn.Module, ranks: Collection[int], left_out: Collection[str], why: str, remedy: str) -> None:
        self._why, self._remedy, self._told = why, remedy, False
        self._alike: list[tuple[nn.Module, str]] = []
        self._own: list[tuple[nn.Module, str]] = []
        self.own_names: list[str] = []
        for path, module in model.named_modules():
            for name, _ in module.named_buffers(recurse=False):
                full = f"{path}.{name}" if path else name
                if full in left_out or name in module._non_persistent_buffers_set:
                    continue
                if isinstance(module, nn.SyncBatchNorm) and _spans(module, ranks):
                    self._alike.append((module, name))
                else:
                    self._own.append((module, name))
                    self.own_names.append(full)

    def unsent(self) -> tuple[Checksum, Checksum]:
        """Return checksums of those that should be equal, and of this rank's own."""
        alike, own = (comparable(_tensors(buffers)) if buffers else UNSEEN for buffers in (self._alike, self._own))
        return alike, own

    def tell_of_own(self) -> None:
        """Warn once that ranks have different buffers, with the consequences."""
        if not self._told:
            self._told = True
            names = ", ".join(self.own_names[:3]) + (", ..." if len(self.own_names) > 3 else "")
            _log.warning(
                "buffers differ between the ranks (%s): %s, so a checkpoint holds those of one rank; %s",
                names,
                self._why,
                self._remedy,
            )


def buffers_of_sharded(model: nn.Module, ranks: Collection[int]) -> UnsentBuffers:
    """Return all buffers of an FSDP2 model, which FSDP2 does not synchronize. ``ranks`` as above."""
    return UnsentBuffers(model, ranks, (), "FSDP2 does not broadcast them", "SyncBatchNorm makes them equal")


class BufferWatch(UnsentBuffers):
    """Checksums of a DDP model's buffers for one step at a time."""

    def __init__(self, model: DistributedDataParallel) -> None:
        copied = model.modules_buffers if model.broadcast_buffers and not hasattr(model, "buffer_hook") else []
        by_ddp = {id(buffer) for buffer in copied}
        sent = {name for name, buffer in model.module.named_buffers(remove_duplicate=False) if id(buffer) in by_ddp}
        super().__init__(
            model.module,
            dist.get_process_group_ranks(model.process_group),
            sent.union(model.parameters_to_ignore),  # the latter are the script's own affair
            "DDP does not broadcast them here",
            "broadcast_buffers=True or SyncBatchNorm makes them equal",
        )
        self._model = weakref.ref(model)
        self._seen: Checksum = UNSEEN
        self._handle: Any = None
        self._broadcasts = bool(copied)

    def arm(self) -> None:
        """Compute checksums in the next forward pass in which DDP broadcasts the buffers."""
        model = self._model()
        if self._broadcasts and self._handle is None and model is not None:
            self._handle = model.module.register_forward_pre_hook(_AfterBroadcast(self._look))

    def _look(self) -> None:
        model = self._model()
        within = model is not None and model._get_active_ddp_module() is model
        if model is None or not within or not model.will_sync_module_buffers():
            return  # a call of the inner module, or a pass that broadcasts nothing
        self._seen = comparable(model.modules_buffers)
        self._handle.remove()
        self._handle = None

    def checksums(self) -> BufferChecksums:
        """Return the checksums of the step that ends. Call this once in each checked step."""
        seen, self._seen = self._seen, UNSEEN
        return BufferChecksums(seen, *self.unsent())


class _AfterBroadcast:
    """Forward pre-hook that does nothing in a copied or saved model."""

    def __init__(self, look: Callable[[], None] | None = None) -> None:
        self._look = look

    def __call__(self, module: nn.Module, inputs: object) -> None:
        if self._look is not None:
            self._look()

    def __reduce__(self) -> tuple[Any, ...]:
        return _AfterBroadcast, ()


def _spans(module: nn.SyncBatchNorm, ranks: Collection[int]) -> bool:
    """Return whether the statistics of a module are computed over all given ranks."""
    return set(ranks).issubset(dist.get_process_group_ranks(module.process_group))


def _tensors(buffers: list[tuple[nn.Module, str]]) -> list[torch.Tensor]:
    found = [getattr(module, name) for module, name in buffers]
    return [buffer.to_local() if isinstance(buffer, DTensor) else buffer for buffer in found]
