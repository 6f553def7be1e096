"""The hook of 1-bit optimizers: DDP's mean at first, then each rank's own gradients and an exchange of what it is given."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from distributed import launch_once
from paceline.training.attach.attach import attach_momentum
from paceline.training.attach.attach_options import AttachOptions


def behaviours(rank: int, workers: int) -> dict[str, Any]:
    torch.manual_seed(3)
    bare = nn.Sequential(nn.Linear(40, 50), nn.Linear(50, 40))
    x = torch.randn(6, 40, generator=torch.Generator().manual_seed(rank))

    def grads(model: nn.Module) -> list[np.ndarray]:
        model.zero_grad()
        model(x).square().mean().backward()
        return [p.grad.numpy().copy() for p in model.parameters()]

    seen: dict[str, Any] = {"own": grads(bare), "stock": grads(DDP(bare))}
    model = DDP(bare, bucket_cap_mb=0.004)
    hook, tensors = attach_momentum(model, 64, AttachOptions(check_every=1, timeout_s=100))
    hook.meter.begin_step()
    seen["mean"] = grads(model)
    hook.frozen, seen["step"], seen["dense"] = True, hook.step, hook.meter.sent_bytes
    hook.meter.begin_step()
    seen["left"], seen["sent"] = grads(model), hook.meter.sent_bytes
    given = {t.name: torch.full((t.elements,), float(rank + 1)) for t in tensors.values()}
    seen["finite"], seen["ones"] = hook.exchange(given), [v.numpy().copy() for v in given.values()]
    before = hook.state_dict()["feedback"]["residual"]
    given["0.weight"][7] = float("nan") if rank else 1.0
    seen["bad"] = hook.exchange(given)
    after = hook.state_dict()["feedback"]["residual"]
    seen["kept"] = all(torch.equal(before[name], after[name]) for name in before)
    seen["steps"], seen["nonfinite"] = hook.step, hook.meter.nonfinite_steps
    return seen


def test_gradients_are_ddp_s_means_and_then_each_rank_s_own() -> None:
    for r in launch_once(behaviours, 3):
        assert all(np.allclose(a, b, rtol=1e-5, atol=1e-8) for a, b in zip(r["mean"], r["stock"], strict=True))
        assert all(np.array_equal(a, b) for a, b in zip(r["left"], r["own"], strict=True))
        assert (r["step"], r["sent"]) == (1, 0) and r["dense"] > 0


def test_what_it_is_given_is_averaged_and_a_nan_leaves_no_trace() -> None:
    for r in launch_once(behaviours, 3):
        assert r["finite"] and not r["bad"] and r["kept"]
        assert all(np.allclose(values, 2.0) for values in r["ones"])  # signs are exact where magnitudes are equal
        assert (r["steps"], r["nonfinite"]) == (3, 1)
