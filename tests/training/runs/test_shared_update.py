"""ZeRO-1: rows updated by their owners and gathered are the update of the whole model; ZeroRedundancyOptimizer beside attach.

Whole runs: ``test_sharded_loop.py``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP

import paceline
from distributed import launch_once
from paceline.errors import UserError
from paceline.training.runs.shared_update import SharedUpdate
from training_jobs import job

WORKERS, STEPS = 4, 3
CASES: dict[str, dict[str, Any]] = {
    "all": {},
    "groups of two": {"shard_devices": 2},
    "compressed": {"compression": "int8", "exchange": "sharded"},
}


def network() -> nn.Module:
    """Seven and three rows: no number of ranks divides them, and the fourth rank has none of the last layer."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 301), nn.Linear(301, 3))


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01)


def trained(model: DDP, hook: Any, optimizer: torch.optim.Optimizer, rank: int) -> dict[str, Any]:
    """The weights after some steps, and the bytes of each."""
    sent = []
    for step in range(STEPS):
        hook.meter.begin_step()
        draws = torch.Generator().manual_seed(100 * step + rank)
        model(torch.randn(6, 5, generator=draws)).square().mean().backward()
        optimizer.step()
        sent.append(hook.meter.sent_bytes)
        optimizer.zero_grad()
    return {"weights": {n: p.detach().clone() for n, p in model.module.named_parameters()}, "sent": sent}


def runs(rank: int, workers: int) -> dict[str, Any]:
    """Each case beside the same exchange with an optimizer of the whole model, and beside ZeroRedundancyOptimizer."""
    found: dict[str, Any] = {}
    for name, choices in CASES.items():
        run = job("unused", workers=workers)
        run = replace(run, strategy=run.strategy.changed(sharding="zero1", **choices))
        models = [DDP(network()) for _ in range(3)]
        hooks = [paceline.attach(model, run.strategy.gradient_exchange) for model in models]
        update = SharedUpdate.of(models[0], hooks[0], run)
        optimizer = adam(update.parts.values())
        update.follow(optimizer)
        found[name] = trained(models[0], hooks[0], optimizer, rank)
        found[name]["whole"] = trained(models[1], hooks[1], adam(models[1].parameters()), rank)["weights"]
        zero = ZeroRedundancyOptimizer(models[2].parameters(), torch.optim.Adam, lr=0.01)
        found[name]["zero"] = trained(models[2], hooks[2], zero, rank)["weights"]
        found[name]["state"] = sum(values["exp_avg"].to_local().numel() for values in optimizer.state.values())
        found[name]["zero's state"] = sum(values["exp_avg"].numel() for values in zero.optim.state.values())
        phases = run.strategy.exchange_phases(hooks[0].tensors, hooks[0].tensors[::-1])
        found[name]["predicted"] = sum(phase.sent(rank) for _, group in phases for phase in group)
    scalar = DDP(nn.ParameterList([nn.Parameter(torch.tensor(1.0))]))
    try:
        SharedUpdate.of(scalar, paceline.attach(scalar, "dense"), run)
    except UserError as error:
        found["scalar"] = str(error)
    return found


@pytest.mark.parametrize("case", CASES)
def test_rows_updated_by_their_owners_are_the_update_of_the_whole(case: str) -> None:
    """Bit for bit: the gradients are the same, and Adam works element by element."""
    for result in launch_once(runs, WORKERS):
        found = result[case]
        assert all(torch.equal(found["weights"][name], wanted) for name, wanted in found["whole"].items())


@pytest.mark.parametrize("case", CASES)
def test_attach_lives_with_zero_redundancy_optimizer(case: str) -> None:
    for result in launch_once(runs, WORKERS):
        found = result[case]
        assert all(torch.equal(found["zero"][name], wanted) for name, wanted in found["whole"].items())


def test_a_rank_has_the_state_of_its_rows() -> None:
    """By hand: (7 x 5, 7), (301 x 7, 301) and (3 x 301, 3) in equal rows, the last ranks with fewer."""
    rows = {4: [(2, 76, 1), (2, 76, 1), (2, 76, 1), (1, 73, 0)], 2: [(4, 151, 2), (3, 150, 1)]}
    results = launch_once(runs, WORKERS)
    for case, sharers in (("all", 4), ("groups of two", 2)):
        wanted = [a * 6 + b * 8 + c * 302 for a, b, c in rows[sharers]]
        assert [result[case]["state"] for result in results] == wanted * (WORKERS // sharers)
    assert max(r["all"]["zero's state"] for r in results) > 1.5 * max(r["all"]["state"] for r in results)


@pytest.mark.parametrize("case", CASES)
def test_bytes_are_as_predicted(case: str) -> None:
    for result in launch_once(runs, WORKERS):
        assert result[case]["sent"] == [result[case]["predicted"]] * STEPS


def test_a_scalar_has_no_rows() -> None:
    assert "0-dim" in launch_once(runs, WORKERS)[0]["scalar"]
