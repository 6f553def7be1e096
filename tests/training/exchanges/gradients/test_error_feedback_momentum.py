"""Momentum correction of top-k against Deep Gradient Compression, Algorithm 4 (Lin et al. 2018), written out in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from distributed import launch_once
from paceline.errors import UserError
from paceline.training.attach.attach import attach

COUNT, KEPT, STEPS, MOMENTUM = 2000, 40, 12, 0.9
EXCHANGES = ("allgather", "sharded", "ring", "parameter_server")


def gradients() -> list[NDArray[np.float32]]:
    rng = np.random.default_rng(5)
    return [rng.standard_normal(COUNT).astype(np.float32) for _ in range(STEPS)]


def algorithm_4(value_bits: int) -> tuple[list[NDArray[np.float32]], NDArray[np.float32], NDArray[np.float32]]:
    """What one worker sends in each step, and its u and v in the end."""
    u, v, sent = np.zeros(COUNT, np.float32), np.zeros(COUNT, np.float32), []
    for g in gradients():
        u = np.float32(MOMENTUM) * u + g
        v = v + u
        mask = np.zeros(COUNT, bool)
        mask[np.argsort(-np.abs(v), kind="stable")[:KEPT]] = True
        rounded = torch.from_numpy(v).bfloat16().float().numpy() if value_bits == 16 else v
        sent.append(np.where(mask, rounded, np.float32(0)))
        v, u = v - sent[-1], np.where(mask, np.float32(0), u)  # v keeps what the rounding lost
    return sent, u, v


def one_worker(rank: int, workers: int, value_bits: int, exchange: str) -> dict[str, Any]:
    model = DDP(nn.Linear(COUNT, 1, bias=False))
    hook = attach(
        model, "topk", exchange=exchange, min_elements=0, momentum=MOMENTUM, density=KEPT / COUNT, value_bits=value_bits
    )
    hook.dense.clear()  # its only layer is the last one
    delivered = []
    for g in gradients():
        model.zero_grad()
        model(torch.from_numpy(g)[None]).sum().backward()
        delivered.append(model.module.weight.grad.numpy()[0].copy())
    refused = ""
    try:
        attach(DDP(nn.Linear(4, 4)), "topk", momentum=1.0)
    except UserError as error:
        refused = str(error)
    state = hook.state_dict()["feedback"]
    return {"delivered": delivered, "refused": refused, **{kind: state[kind]["weight"].numpy() for kind in state}}


@pytest.mark.everyday("32-allgather", "32-ring", "16-allgather", "16-ring")
@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("value_bits", [32, 16])
def test_one_worker_is_algorithm_4(value_bits, exchange):
    (seen,) = launch_once(one_worker, 1, value_bits=value_bits, exchange=exchange)
    sent, u, v = algorithm_4(value_bits)
    assert all(np.array_equal(a, b) for a, b in zip(seen["delivered"], sent, strict=True))
    assert np.array_equal(seen["velocity"], u) and np.array_equal(seen["residual"], v)
    assert np.count_nonzero(u == 0) >= KEPT
    assert "momentum 1 of topk" in seen["refused"]


def four_workers(rank: int, workers: int, exchange: str) -> dict[str, Any]:
    """One step of bfloat16 top-k: where did this rank's momentum stop, and what is left?"""
    model = DDP(nn.Linear(COUNT, 1, bias=False))
    hook = attach(model, "topk", exchange=exchange, min_elements=0, momentum=MOMENTUM, density=KEPT / COUNT, value_bits=16)
    hook.dense.clear()
    g = torch.randn(1, COUNT, generator=torch.Generator().manual_seed(rank))
    model(g).sum().backward()
    state = hook.state_dict()["feedback"]
    return {"g": g.numpy()[0], "mean": model.module.weight.grad.numpy()[0].copy(), "u": state["velocity"]["weight"].numpy()}


@pytest.mark.everyday("parameter_server")
@pytest.mark.parametrize("exchange", EXCHANGES)
def test_momentum_stops_where_a_rank_has_sent_and_nowhere_else(exchange):
    ranks = launch_once(four_workers, 4, exchange=exchange)
    stopped = [r["u"] == 0 for r in ranks]
    for r, zero in zip(ranks, stopped, strict=True):
        assert np.array_equal(r["u"][~zero], r["g"][~zero])
        assert KEPT <= np.count_nonzero(zero) <= KEPT + 8  # each part of a message keeps at least its share
    arrived = ranks[0]["mean"] != 0
    assert not np.any(arrived & ~np.any(stopped, axis=0))
