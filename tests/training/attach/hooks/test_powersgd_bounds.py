"""``attach(model, "powersgd")``: what is too large for its factors goes dense, and a bare gradient can be exchanged."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel as DDP

from distributed import launch_once
from paceline.strategy import ring_bytes
from paceline.training.attach.attach import attach

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


class Scaler:
    """The part of a ``torch.amp.GradScaler`` that a hook reads."""

    def get_scale(self) -> float:
        return 1.0


def half(rank: int, workers: int) -> dict[str, Any]:
    """Gradients of fp16 parameters: of rank 1 and 40,000, as PowerSGD sends them, and topk with and without a scaler."""
    seen: dict[str, Any] = {}
    options: dict[str, dict[str, Any]] = {
        "powersgd": {"min_rate": 1},
        "topk": {"min_elements": 0},
        "topk, scaler": {"min_elements": 0, "grad_scaler": Scaler()},
    }
    for case, changed in options.items():
        torch.manual_seed(0)
        model = DDP(nn.Linear(64, 64).half())
        hook = attach(model, case.split(",")[0], **changed)
        rows = []
        for _ in range(6):
            model.zero_grad()
            (model(torch.ones(1, 64).half()) * 40000.0).sum().backward()
            state = hook.state_dict()
            owed = state["error_dict"] if case == "powersgd" else state["feedback"]["residual"]
            rows.append((model.module.weight.grad.float().numpy(), [v.float().numpy() for v in owed.values()]))
        seen[case] = rows, hook.meter.nonfinite_steps
    return seen


def test_gradients_of_fp16_leave_no_infinity_and_every_rank_counts_alike():
    ranks = launch_once(half, 2)
    for case in ("powersgd", "topk", "topk, scaler"):
        assert ranks[0][case][1] == ranks[1][case][1] and (ranks[0][case][1] > 0 or case == "powersgd")
        for gradients, owed in ranks[0][case][0]:
            assert all(np.isfinite(values).all() for values in owed)
            if case == "topk, scaler":  # skipped, and the residuals are as before: the scaler sees NaN in all of it
                assert np.isfinite(gradients).all() or np.isnan(gradients).all()
            else:
                assert np.isfinite(gradients).all()
        assert all(np.array_equal(a[0], b[0], equal_nan=True) for a, b in zip(*(r[case][0] for r in ranks), strict=True))
    (_, before), (skipped, after) = ranks[0]["topk, scaler"][0][:2]
    assert np.isnan(skipped).all() and all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))


def beside_pytorch(rank: int, workers: int) -> dict[str, Any]:
    """Gradients of the same steps under PyTorch's own wrapper of its own hook, and with everything in 16 bits here."""
    seen: dict[str, Any] = {}
    for name in ("torch", "own"):
        torch.manual_seed(1)
        model = DDP(nn.Linear(64, 48))
        if name == "torch":
            state = powerSGD_hook.PowerSGDState(
                None,
                matrix_approximation_rank=2,
                start_powerSGD_iter=2,
                min_compression_rate=2,
                orthogonalization_epsilon=1e-30,
                random_seed=5,
            )
            wrapped = default_hooks.bf16_compress_wrapper(powerSGD_hook.powerSGD_hook)
            wrapped.__name__ = "wrapped"  # by its own name DDP asks for NCCL; gloo adds bfloat16 too
            model.register_comm_hook(state, wrapped)
        else:
            hook = attach(model, "powersgd", seed=5, residual_bits=16, dense_bits=16)
        grads, sent = [], []
        for step in range(6):
            model.zero_grad()
            if name == "own":
                hook.meter.begin_step()
            model(torch.randn(4, 64, generator=torch.Generator().manual_seed(10 * step + rank))).square().mean().backward()
            grads.append([p.grad.numpy().copy() for p in model.parameters() if p.grad is not None])
            sent.append(hook.meter.sent_bytes if name == "own" else 0)
        seen[name] = grads, sent
    return seen


def test_in_16_bits_it_has_the_bits_of_pytorchs_wrapper_and_half_the_bytes() -> None:
    for seen in launch_once(beside_pytorch, 2):
        (wanted, _), (found, sent) = seen["torch"], seen["own"]
        for one, other in zip(wanted, found, strict=True):
            assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
        flag, dense, factors = ring_bytes(4, 2), 64 * 48 + 48, 2 * (64 + 48) + 48
        assert sent == [flag + ring_bytes(2 * dense, 2)] * 2 + [flag + ring_bytes(2 * factors, 2)] * 4


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
