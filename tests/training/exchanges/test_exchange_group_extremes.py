"""Buckets that a codec gains nothing from: zero on every rank, or larger in its format than as fp32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from distributed import launch_once
from paceline.strategy import COMPRESSIONS
from paceline.training.attach import bucketing as groups_module
from paceline.training.attach.attach import attach

STEPS = 2
SIDE = 64
HEADER, LENGTH, FLAG = 32, 8, 4


class Net(nn.Module):
    """A layer, and a matrix whose gradient is ``factor`` everywhere."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.live = nn.Linear(SIDE, SIDE)
        self.still = nn.Parameter(torch.zeros(SIDE, SIDE))

    def forward(self, x: torch.Tensor, factor: float) -> torch.Tensor:
        return self.live(x).square().mean() + factor * self.still.sum()


def zero_then_not(rank: int, workers: int) -> dict[str, Any]:
    """For each compression: the gradients of each step, what is kept back, and which buckets were zero."""
    groups_module.FUSE_BYTES = 1
    seen: dict[str, Any] = {}
    for compression in COMPRESSIONS:
        model = DDP(Net(), bucket_cap_mb=0.004)
        hook = attach(model, compression)
        submit, zeros, grads = hook.submit, [], []

        def noted(bucket: Any, submit: Any = submit, zeros: Any = zeros) -> Any:
            zeros.append(not bucket.buffer().any())
            return submit(bucket)

        hook.submit = noted  # type: ignore[method-assign]
        generator = torch.Generator().manual_seed(rank)
        for factor in [0.0] * STEPS + [1.0] * 2:
            model.zero_grad()
            model(torch.randn(8, SIDE, generator=generator), factor).backward()
            grads.append({n: p.grad.numpy().copy() for n, p in model.module.named_parameters() if p.grad is not None})
            if len(grads) == STEPS:
                state = hook.state_dict()
                kept = state["error_dict"] if compression == "powersgd" else state["feedback"]["residual"]
                kept = {name: values.numpy().copy() for name, values in kept.items()}
        seen[compression] = {"zeros": sum(zeros), "grads": grads, "kept": kept}
    return seen


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_bucket_of_zeros_stays_zero_and_training_goes_on(compression):
    ranks = [r[compression] for r in launch_once(zero_then_not, 2)]
    for r in ranks:
        assert r["zeros"] >= STEPS - 1  # a bucket of its own, but for the step before DDP builds its buckets anew
        assert all(np.isfinite(values).all() for values in r["kept"].values())
        assert not r["kept"].get("still", np.zeros(1)).any()
        for grads in r["grads"][:STEPS]:
            assert not grads["still"].any() and np.isfinite(grads["live.weight"]).all()
        for grads, others in zip(r["grads"], ranks[0]["grads"], strict=True):
            assert all(np.isfinite(g).all() and g.tobytes() == others[name].tobytes() for name, g in grads.items())
        assert all(r["grads"][-1][name].any() for name in ("still", "live.weight"))


class Large(nn.Module):
    """A matrix whose gradient is what the model is given, and a last layer, which stays dense, of one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.large, self.last = nn.Linear(SIDE, SIDE, bias=False), nn.Linear(1, 1, bias=False)

    def forward(self, gradient: torch.Tensor) -> torch.Tensor:
        return (self.large.weight * gradient).sum() + self.last.weight.sum()


def large_values(rank: int, workers: int) -> dict[str, Any]:
    """Bytes and mean of one step, by compression and size of the gradient's values."""
    seen: dict[str, Any] = {}
    for compression in ("inceptionn", "dense"):
        for scale in (1.0, 2.0**-24):
            model = DDP(Large())
            hook = attach(model, compression, exchange="sharded")
            own = [torch.from_numpy(values(r) * np.float32(scale)) for r in range(workers)]
            for _ in range(2):
                model.zero_grad()
                hook.meter.begin_step()
                model(own[rank]).backward()
            seen[f"{compression} {scale}"] = (hook.meter.sent_bytes, model.module.large.weight.grad.numpy())
    return seen


def values(rank: int) -> np.ndarray:
    """Whole numbers from 1 to 1000: their sums are exact, and 34 bits each in INCEPTIONN's format."""
    return np.random.default_rng(rank).integers(1, 1001, (SIDE, SIDE)).astype(np.float32)


def test_a_payload_larger_than_fp32_travels_as_fp32():
    # Half of the matrix to its owner, the sum of the other half back; the weight of the last layer goes one way alone.
    as_fp32 = 2 * (HEADER + 4 * SIDE * SIDE // 2) + HEADER + 4
    for r in launch_once(large_values, 2):
        sent, mean = r["inceptionn 1.0"]
        assert np.array_equal(mean, (values(0) + values(1)) / 2)
        assert sent == as_fp32 + 2 * LENGTH + FLAG
        assert r["dense 1.0"][0] <= as_fp32  # one stream for both
        assert r["inceptionn 5.960464477539063e-08"][0] < as_fp32 / 8  # the format itself was in use
