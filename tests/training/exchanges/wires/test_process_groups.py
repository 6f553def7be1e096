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
