"""A NaN that shows after the first groups of a step have gone: one decision for the whole step, alike on every rank."""

from __future__ import annotations

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

BAD, STEPS = 4, 7
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


def train(
    rank: int, workers: int, options: dict[str, Any], skip: bool, where: str, value: float, view: bool = False, then: str = ""
) -> Any:
    """Gradients and memories of each step; a step ``BAD`` with a bad gradient on the last rank, or none if ``skip``.

    ``then``: the compression from ``BAD`` on, which pays what the one before still owes.
    """
    model = DDP(net(), bucket_cap_mb=0.004, gradient_as_bucket_view=view)
    hook = attach(model, **options, seed=4)
    optimizer = paceline.LARS(model.named_parameters(), lr=0.1)
    weight = dict(model.module.named_parameters())[where]
    rows = []
    for step in range(STEPS):
        if step == BAD and skip:
            continue
        handle = None
        if step == BAD and then:
            hook.use(GradientExchange(then))
        if step == BAD and rank == workers - 1:
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


def behaviours(rank: int, workers: int) -> dict[str, Any]:
    """Runs with a NaN in the first layer, whose group is the last one."""
    from paceline.training.attach import auto

    bucketing.FUSE_BYTES = 1
    auto.choose = lambda step, exposed, seconds: [1]
    auto.WARM, auto.TIMED = 1, 1  # step 3 to 5 try the candidate
    seen: dict[str, Any] = {}
    for name, options in cases(workers).items():
        seen[name] = train(rank, workers, options, False, "0.weight", float("nan"), name == "sign")
        if name in REPEATS:
            seen[f"{name} without"] = train(rank, workers, options, True, "0.weight", 0.0)
    seen["first"] = train(rank, workers, CASES["sign"], False, "5.weight", float("inf"))
    seen["small"] = train(rank, workers, CASES["sign"], False, "0.bias", float("inf"))
    for then in PAYS:
        seen[f"owed, {then}"] = train(rank, workers, CASES["sign"], False, "0.weight", float("nan"), then=then)
    return seen


PAYS = ("dense", "terngrad")
PAIRS = [(workers, name) for workers in (2, 3, 4) for name in cases(workers)]


def bad_rows(workers: int, name: str) -> list[Any]:
    ranks = launch_once(behaviours, workers)
    assert all(groups == 3 for _, groups in (r[name] for r in ranks))
    return [r[name][0][BAD] for r in ranks]


@pytest.mark.everyday("2-terngrad", "2-sign", "2-momentum", "2-powersgd", "2-bf16, sharded", "4-sign, nodes")
@pytest.mark.parametrize(("workers", "name"), PAIRS)
def test_the_whole_step_is_dense_or_skipped_on_every_rank(workers: int, name: str) -> None:
    rows = bad_rows(workers, name)
    compressed = COMPRESSIONS.get(name.partition(",")[0], COMPRESSIONS["sign"]).lossy or name in ("powersgd", "momentum")
    for step, grads, before, after, bad, skipped, weights in rows:
        assert (step, bad, skipped) == (BAD, 1, 1)
        assert all(np.array_equal(grads[n], rows[0][1][n], equal_nan=True) for n in grads)
        assert all(np.array_equal(a, b) for a, b in zip(weights, rows[0][-1], strict=True))
        whole = [np.isnan(values).all() for values in grads.values()]
        assert all(whole) if compressed else not any(whole) and np.isnan(grads["0.weight"]).sum() == 1
        assert len(before) == len(after) and all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
        assert np.abs(before[0]).max() > 0 if name in REPEATS else True


@pytest.mark.parametrize(("workers", "name"), [pair for pair in PAIRS if pair[1] in REPEATS])
def test_a_skipped_step_leaves_no_trace(workers: int, name: str) -> None:
    for r in launch_once(behaviours, workers):
        (rows, _), (without, _) = r[name], r[f"{name} without"]
        rows = [row for row in rows if row[0] != BAD]
        for (_, grads, _, after, *_), (_, expected, _, kept, *_) in zip(rows, without, strict=True):
            assert all(np.array_equal(grads[n], expected[n]) for n in grads)
            assert all(np.array_equal(a, b) for a, b in zip(after, kept, strict=True))


@pytest.mark.everyday("2")
@pytest.mark.parametrize("workers", [2, 3, 4])
def test_where_nothing_was_compressed_before_the_whole_step_is_dense(workers: int) -> None:
    for grads in (r["first"][0][BAD][1] for r in launch_once(behaviours, workers)):
        assert np.isinf(grads["5.weight"]).sum() == 1
        assert all(np.isfinite(values).all() for name, values in grads.items() if name != "5.weight")


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_a_bad_value_in_a_tensor_that_stays_dense_counts_as_well(workers: int) -> None:
    for _, grads, before, after, *_ in (r["small"][0][BAD] for r in launch_once(behaviours, workers)):
        assert all(np.isnan(values).all() for values in grads.values())
        assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("then", PAYS)
@pytest.mark.parametrize("workers", [2, 3, 4])
def test_what_an_earlier_exchange_owes_is_owed_until_a_step_counts(workers: int, then: str) -> None:
    for rows, _ in (r[f"owed, {then}"] for r in launch_once(behaviours, workers)):
        before, after, paid = rows[BAD - 1][3], rows[BAD][3], rows[BAD + 1][3]
        assert max(np.abs(values).max() for values in before) > 0
        assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
        assert not paid
