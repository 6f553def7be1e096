"""``auto`` decides on one thread, from what every rank has seen: a slow rank changes nothing but the times."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from distributed import launch_once
from paceline.training.attach import auto
from paceline.training.attach.attach import attach
from paceline.training.attach.exchange_thread import Exchanges

STEPS = 12
LARGE = 1 << 18


def one_thread_is_late(rank: int, workers: int) -> dict[str, Any]:
    """Two buckets, the last one small, and the two steps before the trials: which rank exchanges the large one when its
    backward pass is over, and which before, differs.
    """
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(256, 128), nn.Tanh(), nn.Linear(128, 2048)), bucket_cap_mb=0.2)
    hook = attach(model, "auto", candidates=["int8"], min_elements=0)
    submit, sizes = Exchanges.submit, []
    backward_ended, exchanged = threading.Event(), threading.Event()
    measured = auto.WARM + auto.TIMED

    def in_order(self: Any, exchange: Any, waiting: Any, last: bool = True) -> None:
        size, step = waiting[0][0].numel(), hook.step
        sizes.append(size)
        large = size > LARGE and step in (measured - 1, measured)
        after = large and (rank == 1 or step == measured)
        (backward_ended.clear if large else backward_ended.set)()

        def job() -> None:
            if after:
                backward_ended.wait(20)
            exchange()
            exchanged.set()

        exchanged.clear()
        submit(self, job, waiting, last)
        if large and not after:
            exchanged.wait(20)

    Exchanges.submit = in_order  # type: ignore[method-assign]
    for step in range(STEPS):
        model.zero_grad()
        x = torch.randn(4, 256, generator=torch.Generator().manual_seed(10 * step + rank))
        model(x).square().mean().backward()
    return {"steps": hook.step, "small buckets": sum(size < LARGE for size in sizes)}


def test_ranks_try_the_same_sizes_though_the_exchange_of_one_comes_late() -> None:
    for seen in launch_once(one_thread_is_late, 2):
        assert seen["small buckets"] >= auto.WARM + auto.TIMED - 1
        assert seen["steps"] == STEPS
