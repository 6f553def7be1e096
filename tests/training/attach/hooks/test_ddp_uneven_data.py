"""``model.join()``: ranks that have run out of data take part in exchanges with zeros, and hold weights of their own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from distributed import launch_once
from paceline.training.attach.attach import attach


def uneven(rank: int, workers: int) -> dict[str, Any]:
    """The last rank has twice as many batches; weights are compared after every second step. Then some even steps."""
    seen: dict[str, Any] = {}
    for compression in ("dense", "int8", "powersgd"):
        torch.manual_seed(1)
        model = DDP(nn.Sequential(nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 4)))
        hook = attach(model, compression, check_every=2)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        told = "no error"
        try:
            with model.join():
                for step in range(10 if rank == workers - 1 else 5):
                    _step(model, optimizer, 10 * step + rank)
            for step in range(3):
                _step(model, optimizer, 10 * step + rank)
        except RuntimeError as error:
            told = str(error)
        else:
            with torch.no_grad():
                model.module[0].weight += rank
            try:
                for step in range(2):
                    _step(model, optimizer, step)
            except RuntimeError as error:
                seen[f"drift {compression}"] = str(error)
        seen[compression] = told, hook.step, [p.detach().numpy().copy() for p in model.parameters()]
    return seen


def _step(model: DDP, optimizer: torch.optim.Optimizer, seed: int) -> None:
    optimizer.zero_grad()
    model(torch.randn(6, 40, generator=torch.Generator().manual_seed(seed))).square().mean().backward()
    optimizer.step()


@pytest.mark.parametrize("compression", ["dense", "int8", "powersgd"])
def test_a_rank_without_data_has_not_diverged(compression: str) -> None:
    for seen in launch_once(uneven, 3):
        told, steps, _ = seen[compression]
        assert told == "no error"
        assert steps >= 13


@pytest.mark.parametrize("compression", ["dense", "int8", "powersgd"])
def test_replicas_that_drift_apart_after_it_are_still_named(compression: str) -> None:
    for seen in launch_once(uneven, 3):
        assert "weights of rank 1, 2 differ from those of rank 0" in seen.get(f"drift {compression}", "no error")


def test_ranks_that_go_on_are_compared_with_each_other_while_one_has_joined() -> None:
    for rank, seen in enumerate(launch_once(one_joined, 3)):
        assert "weights of rank 2 differ from those of rank 1" in seen if rank else True


def one_joined(rank: int, workers: int) -> str:
    """Rank 0 has no data; the weights of rank 2 change on their own."""
    torch.manual_seed(1)
    model = DDP(nn.Linear(40, 4))
    attach(model, "dense", check_every=1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    try:
        with model.join():
            for step in range(4 if rank else 0):
                if rank == 2 and step == 2:
                    with torch.no_grad():
                        model.module.weight += 1
                _step(model, optimizer, step)
    except RuntimeError as error:
        return str(error)
    return "no error"
