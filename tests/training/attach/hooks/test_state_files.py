"""States in files: ``torch.load`` as it is by default, distributed checkpoints, states of earlier versions."""

from __future__ import annotations

import io
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from distributed import launch_once
from paceline.training.attach.attach import attach

EARLIER = Path(__file__).parents[2] / "data" / "hook_states.pt"
"""Of two ranks after three steps of ``net`` and ``train``, by case, and the weights two steps later: by version 0.1.0, which
called the gradient exchange a ``way`` and kept NumPy arrays of PowerSGD's."""

SAVED: dict[str, dict[str, Any]] = {
    "NumPy seed": {"compression": "terngrad", "seed": np.int64(5)},
    "NumPy clip": {"compression": "terngrad", "clip": np.float32(2.5)},
    "NumPy min_elements": {"compression": "int8", "min_elements": np.int32(100)},
    "NumPy option": {"compression": "topk", "density": np.float64(0.05), "momentum": np.float32(0.5)},
    "NumPy ranks_per_node": {"compression": "sign", "exchange": "hierarchical", "ranks_per_node": np.int64(1)},
    "powersgd": {"compression": "powersgd"},
    "powersgd, NumPy seed": {"compression": "powersgd", "seed": np.int64(5), "rank": np.int64(2)},
}


def net() -> DDP:
    torch.manual_seed(3)
    return DDP(nn.Sequential(nn.Linear(40, 30), nn.Tanh(), nn.Linear(30, 4)))


def train(model: DDP, rank: int, steps: range) -> list[np.ndarray]:
    for step in steps:
        g = torch.Generator().manual_seed(100 * step + rank)
        model.zero_grad()
        model(torch.randn(6, 40, generator=g)).square().mean().backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad
    return [p.detach().numpy().copy() for p in model.parameters()]


DAILY = ("NumPy seed", "NumPy option", "powersgd, NumPy seed")


def loaded_by_default(rank: int, workers: int, cases: list[str]) -> dict[str, Any]:
    """Saved after three steps and loaded as ``torch.load`` does by default; what was wrong, and two steps more."""
    seen: dict[str, Any] = {}
    for case in cases:
        options = SAVED[case]
        model = net()
        hook = attach(model, **options)
        before = train(model, rank, range(3))
        file = io.BytesIO()
        torch.save(hook.state_dict(), file)
        file.seek(0)
        whole = train(model, rank, range(3, 5))
        try:
            state = torch.load(file)
        except Exception as error:
            seen[case] = str(error).splitlines()[0]
            continue
        model = net()
        hook = attach(model, **options)
        _set(model, before)
        hook.load_state_dict(state)
        rest = train(model, rank, range(3, 5))
        seen[case] = all(np.array_equal(a, b) for a, b in zip(whole, rest, strict=True))
    return seen


def _set(model: DDP, weights: Any) -> None:
    with torch.no_grad():
        for p, values in zip(model.parameters(), weights, strict=True):
            p.copy_(torch.as_tensor(values))


@pytest.mark.everyday(*DAILY)
@pytest.mark.parametrize("case", SAVED)
def test_a_state_passes_through_torch_load_as_it_is_by_default(case: str) -> None:
    cases = tuple(one for one in SAVED if (one in DAILY) == (case in DAILY))
    for seen in launch_once(loaded_by_default, 2, cases=cases):
        assert seen[case] is True, seen[case]


def _add_up(total: torch.Tensor, gradient: torch.Tensor) -> None:
    total += gradient.flatten()


BLOCKS: dict[str, float] = {"sign, ring": 0.25, "scaled, nodes": 2e-3, "int8, pulled dense": 2e-3}
"""Cases of codecs with blocks, and how far apart the rounding of two steps may take weights, relative to the largest weight.

Since these states were written every tensor begins with a block, and a small one is dense. Equal states therefore no longer
give equal messages. The learning rate is 0.1 and a gradient at most 0.63 of the largest weight. Two runs of two steps thus
differ by at most 0.25 of an encoding's error, relative to the largest gradient: 1 for sign, 2^-7 for the others."""


def from_an_earlier_version(rank: int, workers: int) -> dict[Any, Any]:
    """The largest difference of any weight two steps after loading, and what the updates lack of gradients and residuals, both
    relative to the largest weight; the hook's step. Also of a run that does not load it."""
    seen: dict[Any, Any] = {}
    for case, kept in torch.load(EARLIER, weights_only=False).items():
        after = [values.numpy() for values in kept["after"].values()]
        largest = max(float(np.abs(w).max()) for w in after)
        for what, states in (("own", kept["states"][rank]), ("all", kept["states"]), ("none", None)):
            model = net()
            hook = attach(model, seed=7, **kept["options"])
            _set(model, kept["weights"].values())
            if states is not None:
                hook.load_state_dict(states)
            seen[case, what, "step"] = hook.step
            owed = kept["states"][rank].get("feedback", {}).get("residual", {})
            seen[case, "owed"] = bool(owed)
            sums = {name: owed.get(name, torch.zeros(p.numel())).clone() for name, p in model.module.named_parameters()}
            for name, p in model.module.named_parameters():  # before DDP exchanges it
                p.register_hook(partial(_add_up, sums[name]))
            weights = train(model, rank, range(3, 5))
            seen[case, what] = max(float(np.abs(a - b).max()) for a, b in zip(after, weights, strict=True)) / largest
            left = hook.state_dict().get("feedback", {}).get("residual", {})
            lacking = []
            for (name, total), old, new in zip(sums.items(), kept["weights"].values(), weights, strict=True):
                total -= left.get(name, torch.zeros_like(total)).flatten()
                dist.all_reduce(total)
                update = (old - torch.as_tensor(new)).flatten()
                lacking.append(float((update - 0.1 * total / workers).abs().max()))
            seen[case, what, "lacking"] = max(lacking) / largest
    return seen


def earlier_cases() -> list[str]:
    return list(torch.load(EARLIER, weights_only=False))


@pytest.mark.parametrize("case", earlier_cases())
def test_states_of_an_earlier_version_load_and_the_run_goes_on_as_it_did(case: str) -> None:
    """With blocks, a loaded residual is paid to the last digit: updates are the gradients and the residual before, without the
    residual after. A lost one would lack 1e-4 to 3e-2. A state without residuals continues the draws at its step."""
    for seen in launch_once(from_an_earlier_version, 2):
        assert seen[case, "none"] > 1e-5, "the state changes nothing here"
        for what in ("own", "all"):
            if case not in BLOCKS:
                assert seen[case, what] < 1e-6
                continue
            assert seen[case, what] < BLOCKS[case] and seen[case, what, "step"] == 3
            if seen[case, "owed"]:
                assert seen[case, what, "lacking"] < 1e-6
                assert seen[case, "none", "lacking"] > 1e-4
        assert seen[case, "owed"] == (case in ("topk, momentum", "sign, ring", "scaled, nodes"))


CHECKPOINTED = {
    "topk": {"compression": "topk", "momentum": 0.9},
    "sign": {"compression": "sign"},
    "nodes": {"compression": "sign", "exchange": "hierarchical", "ranks_per_node": 1},
    "powersgd": {"compression": "powersgd"},
}


def checkpointed(rank: int, workers: int) -> dict[str, Any]:
    """``dcp.save`` of every rank's state under a key of its own, and ``dcp.load`` into that of a fresh hook."""
    seen: dict[str, Any] = {}
    shared = [tempfile.mkdtemp() if rank == 0 else ""]
    dist.broadcast_object_list(shared)
    for case, options in CHECKPOINTED.items():
        folder = f"{shared[0]}/{case}"
        model = net()
        hook = attach(model, **options)
        before = train(model, rank, range(3))
        dcp.save({f"hook of rank {rank}": hook.state_dict()}, checkpoint_id=folder)
        whole = train(model, rank, range(3, 5))

        model = net()
        hook = attach(model, **options)
        state = {f"hook of rank {rank}": hook.state_dict()}
        dcp.load(state, checkpoint_id=folder)
        hook.load_state_dict(state[f"hook of rank {rank}"])
        _set(model, before)
        rest = train(model, rank, range(3, 5))
        seen[case] = hook.step, all(np.array_equal(a, b) for a, b in zip(whole, rest, strict=True))
    return seen


@pytest.mark.parametrize("case", CHECKPOINTED)
def test_a_distributed_checkpoint_keeps_residuals(case: str) -> None:
    for seen in launch_once(checkpointed, 2):
        assert seen[case] == (5, True)
