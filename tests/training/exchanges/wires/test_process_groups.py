"""A model that is thrown away takes threads and connections of its hook with it."""

from __future__ import annotations

import gc
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from distributed import launch_once
from paceline.training.attach.attach import attach
from paceline.training.exchanges.exchange_setup import own_wires
from paceline.training.exchanges.wires.meter import Meter
from paceline.training.exchanges.wires.process_groups import own_wire

TIMES = 4
CASES: dict[str, dict[str, Any]] = {
    "sharded": {"compression": "int8"},
    "nodes": {"compression": "sign", "exchange": "hierarchical", "ranks_per_node": 2},
    "powersgd": {"compression": "powersgd"},
    "another timeout": {"compression": "int8", "timeout_s": 77},
}


def model_of(seed: int) -> DDP:
    torch.manual_seed(seed)
    return DDP(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 4)))


def gradient(model: DDP, rank: int) -> np.ndarray:
    model.zero_grad()
    model(torch.randn(3, 64, generator=torch.Generator().manual_seed(rank))).square().mean().backward()
    return model.module[0].weight.grad.numpy().copy()


def in_use(at_most: tuple[int, int]) -> tuple[int, int]:
    """Descriptors and threads of this process, when those that were told to end have done so."""
    gc.collect()
    until = time.monotonic() + 100
    while True:
        descriptors, threads = (len(list(Path(f"/proc/self/{kind}").iterdir())) for kind in ("fd", "task"))
        ended = not any(t.name.startswith("paceline") for t in threading.enumerate())
        if (ended and descriptors <= at_most[0] and threads <= at_most[1]) or time.monotonic() > until:
            return descriptors, threads
        time.sleep(0.01)


def attached_again(rank: int, workers: int) -> dict[str, Any]:
    """Models one after another, each with a hook; then some at once, which must not meet; then one whose hook was kept by some
    ranks only.
    """
    seen: dict[str, Any] = {}
    for case, options in CASES.items():
        counts: list[tuple[int, int]] = []
        results = []
        for _ in range(TIMES):
            model = model_of(1)
            attach(model, **options)
            results.append(gradient(model, rank))
            del model
            counts.append(in_use(counts[0] if counts else (1000, 1000)))
        seen[case] = counts, results

    at_once = [model_of(1) for _ in range(3)]
    hooks = [attach(model, "int8") for model in at_once]
    groups = {id(hook.wire.group) for hook in hooks}
    seen["at once"] = len(groups), [gradient(model, rank) for model in reversed(at_once)]

    del hooks
    kept = at_once if rank == 0 else at_once[:1]
    del at_once
    gc.collect()
    for number in range(3):
        model = model_of(1)
        attach(model, "int8")
        seen[f"kept by some {number}"] = gradient(model, rank)
        del model
        gc.collect()
    seen["the kept one"] = gradient(kept[0], rank)
    dist.barrier()
    return seen


def calls_with_a_bound_gpu(rank: int, workers: int) -> list[list[Any]]:
    """Every call on the job's group that takes part in making groups, with the bound GPU that PyTorch sees at that time.

    A group of CPUs plays one of GPUs: the name of a GPU is bound to it, and PyTorch's split of a bound group is refused.
    """
    dist.barrier()
    world: Any = dist.group.WORLD
    calls: list[list[Any]] = []
    helper, gather = dist.distributed_c10d._new_process_group_helper, dist.all_gather_object

    def new_group(size: int, place: int, ranks: list[int], *others: Any, **options: Any) -> Any:
        assert world.bound_device_id is None and options.get("device_id") is None, "PyTorch would split the job's group"
        calls.append(["new", list(ranks)])
        return helper(size, place, ranks, *others, **options)

    def objects(into: list[Any], what: Any, group: Any = None) -> None:
        calls.append(["objects", dist.get_process_group_ranks(group)])
        gather(into, what, group=group)

    dist.distributed_c10d._new_process_group_helper = new_group
    dist.all_gather_object = objects
    world.bound_device_id = torch.device("cuda", rank)
    wire = own_wire(world, range(workers), torch.device("cpu"), Meter(rank), 60)
    inner, outer = own_wires(wire, 1 + (workers > 2))
    assert world.bound_device_id == torch.device("cuda", rank), "the script's own groups are made as before"
    world.bound_device_id = None
    dist.distributed_c10d._new_process_group_helper, dist.all_gather_object = helper, gather
    total = outer.all_reduce(torch.ones(1)).wait()
    assert float(total) == outer.world_size and (inner is None) == (workers == 2)
    return calls


def test_groups_are_made_in_one_order_and_split_no_bound_group() -> None:
    ranks = launch_once(calls_with_a_bound_gpu, 2)
    assert ranks == [[["objects", [0, 1]], ["new", [0, 1]]] * 2] * 2


@pytest.mark.long
def test_groups_of_nodes_are_made_in_one_order() -> None:
    ranks = launch_once(calls_with_a_bound_gpu, 4)
    assert [[call[0] for call in calls] for calls in ranks] == [["objects", "new"] * 3] * 4
    every = list(range(4))
    for rank, calls in enumerate(ranks):
        node, column = [rank - rank % 2, rank - rank % 2 + 1], [rank % 2, rank % 2 + 2]
        assert [call[1] for call in calls] == [every, every, every, node, every, column]


@pytest.mark.long
def test_descriptors_and_threads_do_not_grow_with_every_model() -> None:
    for seen in launch_once(attached_again, 2):
        for case in CASES:
            counts, results = seen[case]
            assert counts[-1][0] <= counts[0][0] and counts[-1][1] <= counts[0][1], (case, counts)
            assert all(np.array_equal(result, results[0]) for result in results), case


def test_models_at_the_same_time_have_groups_of_their_own() -> None:
    for seen in launch_once(attached_again, 2):
        groups, results = seen["at once"]
        assert groups == 3
        assert all(np.array_equal(result, seen["sharded"][1][0]) for result in results)


def test_a_group_that_a_rank_still_uses_is_no_other_models() -> None:
    for seen in launch_once(attached_again, 2):
        for name in ("kept by some 0", "kept by some 1", "kept by some 2", "the kept one"):
            assert seen[name] is not None and seen[name].shape == (64, 64)
