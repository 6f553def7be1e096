"""Process groups of hooks: each hook has its own, and takes one that an earlier hook has left where there is one.

A group holds three threads and five descriptors. PyTorch cannot take a single one down: the next group of as many would have
its name, and find its addresses in the store. So a group stays, and is free again when its hook is gone on every rank.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import torch
import torch.distributed as dist

from paceline.training.collectives import Soundness, Wire, collective
from paceline.training.meter import Meter

GroupKey = tuple[tuple[int, ...], float]
"""Ranks and timeout of a group."""


@dataclass
class _Pool:
    """Of one initialisation of ``torch.distributed``. Groups of a key are numbered alike on all its ranks."""

    counts: dict[GroupKey, int] = field(default_factory=dict)
    free: dict[GroupKey, dict[int, dist.ProcessGroup]] = field(default_factory=dict)


_pools: weakref.WeakKeyDictionary[dist.ProcessGroup, _Pool] = weakref.WeakKeyDictionary()


def own_wire(
    parent: dist.ProcessGroup,
    ranks: Sequence[int],
    device: torch.device,
    meter: Meter,
    timeout_s: float,
    soundness: Soundness | None = None,
) -> Wire:
    """A wire over a group that nobody else uses: the script, DDP or a second model may use theirs at any time.

    Args:
        parent: every rank of it calls this at the same time, each with its own ``ranks``, which are some of the parent's.
        soundness: that of the wires that fail together with this one.
    """
    world = dist.group.WORLD
    assert world is not None, "parent is a group of it"
    pool = _pools.setdefault(world, _Pool())
    key: GroupKey = (tuple(ranks), timeout_s)
    offers: list[tuple[int, list[int]]] = [(0, [])] * dist.get_world_size(parent)
    with collective():
        count = len(dist.distributed_c10d._world.pg_names)
        dist.all_gather_object(offers, (count, list(pool.free.get(key, {}))), group=parent)
        of_rank = dict(zip(dist.get_process_group_ranks(parent), offers, strict=True))
        free = set[int].intersection(*(set(of_rank[rank][1]) for rank in ranks))
        # PyTorch names a new group after the number of groups that a process is in, and waits for ever where that differs
        # between ranks, as it does in a script with groups of some ranks only. Groups of one rank make it equal.
        for _ in range(max(count for count, _ in offers) - count):
            dist.new_group([dist.get_rank()], use_local_synchronization=True)
        if free:
            number = min(free)
            group = pool.free[key].pop(number)
        else:
            number = pool.counts[key] = pool.counts.get(key, 0) + 1
            group = dist.new_group(list(ranks), timeout=timedelta(seconds=timeout_s), use_local_synchronization=True)
    wire = Wire(group, device, meter, timeout_s, soundness)
    # At the interpreter's end too: what a finalizer holds would be freed after everything else, a group's threads with it.
    weakref.finalize(wire, _release, pool, key, number, group, wire.soundness)
    return wire


def _release(pool: _Pool, key: GroupKey, number: int, group: dist.ProcessGroup, soundness: Soundness) -> None:
    """Offer the group again, unless an exchange over it has failed: messages of that may still come."""
    if soundness.sound:
        pool.free.setdefault(key, {})[number] = group


__all__ = ["own_wire"]
