"""Process groups of hooks, which are reused after an earlier hook has released them. Each hook has separate groups.

A group holds three threads and five file descriptors. PyTorch cannot destroy a single group safely: the next group with the
same number would have its name, and find its addresses in the store. So a group is kept, and may be reused after its hook is
deleted on all ranks.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from paceline.nic.marking import marking
from paceline.training.exchanges.wires.collectives import Soundness, Wire, collective
from paceline.training.exchanges.wires.meter import Meter

_RELEASE = tuple(int(part) for part in torch.__version__.split(".")[:2])

GroupKey = tuple[tuple[int, ...], float, bool]
"""Ranks and timeout of a group, and whether its sockets are marked for the network cards."""


@dataclass
class _GroupPool:
    """Groups of one initialisation of ``torch.distributed``. The groups of a key have the same numbers on all its ranks."""

    counts: dict[GroupKey, int] = field(default_factory=dict)
    free: dict[GroupKey, dict[int, dist.ProcessGroup]] = field(default_factory=dict)


_pools: weakref.WeakKeyDictionary[dist.ProcessGroup, _GroupPool] = weakref.WeakKeyDictionary()


def own_wire(
    parent: dist.ProcessGroup,
    ranks: Sequence[int],
    device: torch.device,
    meter: Meter,
    timeout_s: float,
    soundness: Soundness | None = None,
    marked: bool = False,
) -> Wire:
    """Return a wire over a separate group, since the script, DDP or a second model may use their groups at any time.

    On a GPU it exchanges objects over ``parent`` and connects the group, so it is called at attach, on the thread that uses the
    parent, never by an exchange.

    Args:
        parent: all its ranks call this at the same time, each with its own ``ranks``, a subset of the parent's.
        soundness: shared by the wires that fail together with this one.
        marked: True to mark the group's sockets, so that network cards compress its messages.
    """
    world = dist.group.WORLD
    assert world is not None, "parent is a group of it"
    pool = _pools.setdefault(world, _GroupPool())
    key: GroupKey = (tuple(ranks), timeout_s, marked)
    offers: list[tuple[int, list[int]]] = [(0, [])] * dist.get_world_size(parent)
    with collective(), _on(device), unbound(world):
        count = _groups_named()
        dist.all_gather_object(offers, (count, list(pool.free.get(key, {}))), group=parent)
        of_rank = dict(zip(dist.get_process_group_ranks(parent), offers, strict=True))
        free = set[int].intersection(*(set(of_rank[rank][1]) for rank in ranks))
        # PyTorch names a new group after the process's number of groups, and waits for ever if that number differs between
        # ranks, as in a script with groups of some ranks only. Groups of one rank make it equal.
        for _ in range(max(count for count, _ in offers) - count):
            dist.new_group([dist.get_rank()], use_local_synchronization=True)
        if free:
            number = min(free)
            group = pool.free[key].pop(number)
        else:
            number = pool.counts[key] = pool.counts.get(key, 0) + 1
            with marking() if marked else nullcontext():
                group = dist.new_group(list(ranks), timeout=limit(device, timeout_s), use_local_synchronization=True)
                if marked:  # a card takes the first marked byte of a connection for the beginning of a message
                    dist.barrier(group)
                if device.type == "cuda":  # NCCL connects at the first collective: not later, in a thread
                    dist.all_reduce(torch.zeros(1, dtype=torch.float32, device=device), group=group)
    wire = Wire(group, device, meter, timeout_s, soundness)
    # Also at the interpreter's exit: a finalizer's objects, and so a group's threads, would be freed after everything else.
    weakref.finalize(wire, _release, pool, key, number, group, wire.soundness)
    return wire


def _groups_named() -> int:
    """Return the number that PyTorch puts into the name of the next group."""
    world: Any = dist.distributed_c10d._world
    return int(world.group_count) if _RELEASE >= (2, 14) else len(world.pg_names)


@contextmanager
def unbound(world: dist.ProcessGroup) -> Iterator[None]:
    """Make groups of some ranks within the block, although the job's group is bound to a GPU.

    After ``init_process_group(device_id=...)``, as Lightning calls it, PyTorch splits that group's NCCL communicator for a new
    group (torch 2.13, distributed_c10d, ``_new_process_group_helper``). NCCL needs all its ranks for that, and with
    ``use_local_synchronization`` the others do not take part: the new group would wait for ever. Without a bound GPU the new
    group's ranks meet at the store instead.
    """
    bound = world.bound_device_id
    world.bound_device_id = None
    try:
        yield
    finally:
        world.bound_device_id = bound


def _on(device: torch.device) -> AbstractContextManager[object]:
    """Make a GPU current: NCCL exchanges objects there, and a new thread's current GPU is the first."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _release(pool: _GroupPool, key: GroupKey, number: int, group: dist.ProcessGroup, soundness: Soundness) -> None:
    """Release the group for reuse, unless an exchange over it failed, since its messages may still arrive."""
    if soundness.sound:
        pool.free.setdefault(key, {})[number] = group


def limit(device: torch.device, timeout_s: float) -> timedelta:
    """Return the time limit of a group. NCCL's ends the process, so it is a minute later than that of the exchanges' watch."""
    return timedelta(seconds=timeout_s + (60 if device.type == "cuda" else 0))
