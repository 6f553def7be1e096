"""``attach(model, "powersgd")``: what is too large for its factors goes dense, and a bare gradient can be exchanged."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from distributed import launch_once
from paceline.strategy import ring_bytes
from paceline.training.attach import attach

LARGE = {3: 2.0**119, 4: 2.0**70}


def large(rank: int, workers: int) -> dict[str, Any]:
    """Gradients of 2^119 and 2^70 on one rank in two steps: squares of both are infinite in fp32."""
    seen: dict[str, Any] = {}
    torch.manual_seed(1)
    model = DDP(nn.Sequential(nn.Linear(64, 64, bias=False), nn.Linear(64, 2, bias=False)))
    hook = attach(model, "powersgd")
    weight = model.module[0].weight
    rows = []
    for step in range(6):
        value = LARGE.get(step) if rank == 1 else None
        handle = None
        if value is not None:
            handle = weight.register_hook(lambda g, value=value: torch.full_like(g, value))
        model.zero_grad()
        model(torch.randn(4, 64, generator=torch.Generator().manual_seed(10 * step + rank))).square().mean().backward()
        if handle is not None:
            handle.remove()
        errors = [values.numpy() for values in hook.state_dict()["error_dict"].values()]
        rows.append((weight.grad.numpy().copy(), errors, hook.meter.nonfinite_steps))
    seen["rows"] = rows

    hook = attach(DDP(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 2))), "powersgd")
    elements = sum(t.elements for t in hook.tensors)
    for step in range(4):
        bare = torch.randn(elements, generator=torch.Generator().manual_seed(10 * step + rank))
        own, before = bare.clone(), hook.step
        hook.meter.begin_step()
        hook.exchange_now(bare)
        seen[f"bare {step}"] = own.numpy(), bare.numpy().copy(), hook.meter.sent_bytes, hook.step - before
    seen["shapes"] = [t.shape for t in hook.tensors]
    return seen


def test_what_is_too_large_goes_dense_and_leaves_no_infinity() -> None:
    ranks = launch_once(large, 2)
    for seen in ranks:
        assert [bad for *_, bad in seen["rows"]] == [0, 0, 0, 1, 2, 2]
        for step, (gradient, errors, _) in enumerate(seen["rows"]):
            assert np.isfinite(gradient).all() and all(np.isfinite(e).all() for e in errors), step
            assert np.array_equal(gradient, ranks[0]["rows"][step][0])
        for step, value in LARGE.items():
            np.testing.assert_allclose(seen["rows"][step][0], value / 2, rtol=1e-6)


def test_a_bare_gradient_is_exchanged_as_a_steps_gradients_are() -> None:
    ranks = launch_once(large, 2)
    for step in range(4):
        exact = np.mean([seen[f"bare {step}"][0] for seen in ranks], axis=0)
        for seen in ranks:
            _, result, sent, steps = seen[f"bare {step}"]
            assert np.array_equal(result, ranks[0][f"bare {step}"][1])
            assert steps == 0, "no step of the run"
            dense = ring_bytes(4 * exact.size, 2)
            assert (sent < dense / 4) == (step >= 2)  # PyTorch's hook compresses from its third iteration on
            if step < 2:
                np.testing.assert_allclose(result, exact, rtol=1e-5, atol=1e-6)
            else:
                assert not np.allclose(result, exact) and np.corrcoef(result, exact)[0, 1] > 0.1
