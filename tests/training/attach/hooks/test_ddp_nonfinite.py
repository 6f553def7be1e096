"""A NaN that shows after the first groups of a step have gone: one decision for the whole step, alike on every rank."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import paceline
from distributed import launch_once
from paceline.strategy import COMPRESSIONS, GradientExchange
from paceline.training.attach import bucketing
from paceline.training.attach.attach import attach

LATER = ("auto", "powersgd")
"""Steps 3 to 5 try the candidate of ``auto``; PowerSGD begins in step 2."""
CASES: dict[str, dict[str, Any]] = {
    "terngrad": {"compression": "terngrad"},
    "int8, to all": {"compression": "int8", "exchange": "allgather"},
    "sign": {"compression": "sign"},
    "sign, ring": {"compression": "sign", "exchange": "ring"},
    "momentum": {"compression": "topk", "density": 0.05, "momentum": 0.9},
    "powersgd": {"compression": "powersgd"},
    "dense": {"compression": "dense"},
    "bf16, sharded": {"compression": "bf16", "exchange": "sharded"},
    "auto": {"compression": "auto", "candidates": ["sign:ring"]},
}
NODES: dict[str, dict[str, Any]] = {
    "sign, nodes": {"compression": "sign", "exchange": "hierarchical", "ranks_per_node": 2},
    "terngrad, nodes": {"compression": "terngrad", "exchange": "hierarchical", "ranks_per_node": 2},
    "dense, nodes": {"compression": "dense", "exchange": "hierarchical", "ranks_per_node": 2},
}
REPEATS = ("sign", "sign, ring", "momentum", "powersgd", "sign, nodes")
"""Nothing is drawn at random: a step that was skipped leaves no trace at all."""


def bad_step(case: str) -> int:
    """Return the step with the bad gradient; the run ends with the next."""
    return 4 if case in LATER else 2


def cases(workers: int) -> dict[str, dict[str, Any]]:
    return {**CASES, **(NODES if workers == 4 else {})}


def net() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(40, 50), nn.Tanh(), nn.Linear(50, 45), nn.Tanh(), nn.Linear(45, 40), nn.Linear(40, 3))


def memories(hook: Any) -> list[np.ndarray]:
    """Residuals, velocities and factors, in one order."""
    state = hook.state_dict()
    kept = [state["feedback"][kind] for kind in ("residual", "velocity")] if "feedback" in state else []
    kept = kept or [state[name] for name in ("error_dict", "p_memory_dict", "q_memory_dict")]
    return [values[name].numpy().copy() for values in kept for name in sorted(values)]


def train(rank: int, workers: int, case: str, run: str) -> Any:
    """Gradients and memories of each step; a step has a bad gradient on the last rank.

    ``run``: the tensor with the bad gradient, "without" that step, or the compression from that step on, which pays the
    residual of the one before.
    """
    where = run if "." in run else "0.weight"
    value = float("nan") if where == "0.weight" else float("inf")
    bad = bad_step(case)
    model = DDP(net(), bucket_cap_mb=0.004, gradient_as_bucket_view=(case, run) == ("sign", "0.weight"))
    hook = attach(model, **cases(workers)[case], seed=4)
    optimizer = paceline.LARS(model.named_parameters(), lr=0.1)
    weight = dict(model.module.named_parameters())[where]
    rows = []
    for step in range(bad + 2):
        if step == bad and run == "without":
            continue
        handle = None
        if step == bad and run in PAYS:
            hook.use(GradientExchange(run))
        if step == bad and rank == workers - 1:
            handle = weight.register_hook(lambda g: torch.where(torch.arange(g.numel()).view(g.shape) == 7, value, g))
        before = memories(hook)
        model.zero_grad()
        x = torch.randn(6, 40, generator=torch.Generator().manual_seed(100 * step + rank))
        model(x).square().mean().backward()
        if handle is not None:
            handle.remove()
        grads = {name: p.grad.numpy().copy() for name, p in model.module.named_parameters()}
        optimizer.step()
        weights = [p.detach().numpy().copy() for p in model.parameters()]
        rows.append((step, grads, before, memories(hook), hook.meter.nonfinite_steps, optimizer.skipped_steps, weights))
    return rows, len(hook._groups.members)


def behaviours(rank: int, workers: int, runs: list[tuple[str, str]]) -> list[Any]:
    """Runs with a bad gradient, most in the first layer, whose group is the last one."""
    from paceline.training.attach import auto

    bucketing.FUSE_BYTES = 1
    auto.choose = lambda step, exposed, seconds: [1]
    auto.WARM, auto.TIMED = 1, 1  # step 3 to 5 try the candidate
    return [train(rank, workers, case, run) for case, run in runs]


PAYS = ("dense", "terngrad")
OTHERS = ("5.weight", "0.bias", *PAYS)
"""Runs of ``sign`` alone: a bad gradient in the first group, in a tensor that stays dense; another compression takes over."""
EVERYDAY = {
    2: [
        *((name, "0.weight") for name in cases(2)),
        *((name, "without") for name in cases(2) if name in REPEATS),
        *(("sign", run) for run in OTHERS),
    ],
    3: [("sign, ring", "0.weight"), ("sign, ring", "without"), ("terngrad", "0.weight")],
    4: [("sign, nodes", "0.weight"), ("sign, nodes", "without"), ("dense, nodes", "0.weight"), ("sign", "dense")],
}
"""Runs of each number of ranks that happen every day: each case, odd shards, and two nodes."""


def pairs(run: str, names: Collection[str]) -> list[Any]:
    """Return each number of ranks with each of its cases among ``names``."""
    return [
        pytest.param(workers, name, marks=[] if (name, run) in EVERYDAY[workers] else [pytest.mark.full])
        for workers in (2, 3, 4)
        for name in cases(workers)
        if name in names
    ]


def ranks(workers: int, name: str, run: str) -> list[Any]:
    """Return the rows of a run on each rank. Runs of every day share a launch, and the others."""
    everyday = EVERYDAY[workers]
    usual = [(one, kind) for one in cases(workers) for kind in ("0.weight", "without")[: 1 + (one in REPEATS)]]
    others = [pair for pair in (*usual, *(("sign", other) for other in OTHERS)) if pair not in everyday]
    runs = everyday if (name, run) in everyday else others
    found = [results[runs.index((name, run))] for results in launch_once(behaviours, workers, runs=tuple(runs))]
    assert all(groups == 3 for _, groups in found)
    return [rows for rows, _ in found]


@pytest.mark.parametrize(("workers", "name"), pairs("0.weight", {*CASES, *NODES}))
def test_the_whole_step_is_dense_or_skipped_on_every_rank(workers: int, name: str) -> None:
    rows = [found[bad_step(name)] for found in ranks(workers, name, "0.weight")]
    compressed = COMPRESSIONS.get(name.partition(",")[0], COMPRESSIONS["sign"]).lossy or name in ("powersgd", "momentum")
    for step, grads, before, after, bad, skipped, weights in rows:
        assert (step, bad, skipped) == (bad_step(name), 1, 1)
        assert all(np.array_equal(grads[n], rows[0][1][n], equal_nan=True) for n in grads)
        assert all(np.array_equal(a, b) for a, b in zip(weights, rows[0][-1], strict=True))
        whole = [np.isnan(values).all() for values in grads.values()]
        assert all(whole) if compressed else not any(whole) and np.isnan(grads["0.weight"]).sum() == 1
        assert len(before) == len(after) and all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
        assert np.abs(before[0]).max() > 0 if name in REPEATS else True


@pytest.mark.parametrize(("workers", "name"), pairs("without", REPEATS))
def test_a_skipped_step_leaves_no_trace(workers: int, name: str) -> None:
    for rows, without in zip(ranks(workers, name, "0.weight"), ranks(workers, name, "without"), strict=True):
        rows = [row for row in rows if row[0] != bad_step(name)]
        for (_, grads, _, after, *_), (_, expected, _, kept, *_) in zip(rows, without, strict=True):
            assert all(np.array_equal(grads[n], expected[n]) for n in grads)
            assert all(np.array_equal(a, b) for a, b in zip(after, kept, strict=True))


@pytest.mark.everyday("2")
@pytest.mark.parametrize("workers", [2, 3, 4])
def test_where_nothing_was_compressed_before_the_whole_step_is_dense(workers: int) -> None:
    for rows in ranks(workers, "sign", "5.weight"):
        grads = rows[bad_step("sign")][1]
        assert np.isinf(grads["5.weight"]).sum() == 1
        assert all(np.isfinite(values).all() for name, values in grads.items() if name != "5.weight")


@pytest.mark.everyday("2")
@pytest.mark.parametrize("workers", [2, 3, 4])
def test_a_bad_value_in_a_tensor_that_stays_dense_counts_as_well(workers: int) -> None:
    for rows in ranks(workers, "sign", "0.bias"):
        _, grads, before, after, *_ = rows[bad_step("sign")]
        assert all(np.isnan(values).all() for values in grads.values())
        assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.everyday("2-dense", "2-terngrad", "4-dense")
@pytest.mark.parametrize("then", PAYS)
@pytest.mark.parametrize("workers", [2, 3, 4])
def test_what_an_earlier_exchange_owes_is_owed_until_a_step_counts(workers: int, then: str) -> None:
    for rows in ranks(workers, "sign", then):
        before, after, paid = (row[3] for row in rows[-3:])
        assert max(np.abs(values).max() for values in before) > 0
        assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
        assert not paid
