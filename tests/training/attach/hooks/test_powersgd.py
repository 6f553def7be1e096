"""``attach(model, "powersgd")``: what PyTorch's own hook lacks, and each fault made."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from distributed import launch_and_let_fail, launch_once
from paceline.errors import UserError
from paceline.training.attach.attach import attach
from paceline.training.attach.hooks.powersgd import PowerSGD

STEPS, BAD = 7, 4


class Scaler:
    """What attach reads of a ``torch.amp.GradScaler``."""

    scale = 1.0

    def get_scale(self) -> float:
        return self.scale


class Odd(nn.Module):
    """Matrices beside a tensor without a dimension and one without elements."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(40, 60), nn.Linear(60, 50)
        self.factor, self.none = nn.Parameter(torch.tensor(1.5)), nn.Parameter(torch.empty(0, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.factor * self.b(torch.tanh(self.a(x))) + self.none.sum()


def made(cap: float = 25) -> DDP:
    torch.manual_seed(3)
    return DDP(Odd(), bucket_cap_mb=cap)


def backward(model: DDP, rank: int, step: int, factor: float = 1.0) -> list[np.ndarray]:
    x = torch.randn(6, 40, generator=torch.Generator().manual_seed(100 * step + rank))
    model.zero_grad()
    (model(x).square().mean() * factor).backward()
    return [p.grad.numpy().copy() for p in model.parameters() if p.grad is not None]


def kept(hook: Any) -> list[np.ndarray]:
    """Residuals and factors, in one order."""
    state = hook.state_dict()
    names = ("error_dict", "p_memory_dict", "q_memory_dict")
    return [state[name][i].numpy() for name in names for i in sorted(state[name])]


def behaviours(rank: int, workers: int) -> dict[str, Any]:
    """All that leaves the group usable."""
    seen: dict[str, Any] = {}
    for cap in (25, 0.008):
        model = made(cap)
        hook = attach(model, "powersgd", seed=5)
        rows = []
        for step in range(STEPS):
            before = kept(hook)
            bad = float("nan") if step == BAD and rank == 1 else 1.0
            rows.append((backward(model, rank, step, bad), before, kept(hook), hook.meter.nonfinite_steps))
        seen[f"nan {cap}"] = rows
    seen["state"] = hook.state_dict()["nonfinite_steps"]
    hook.load_state_dict({**hook.state_dict(), "nonfinite_steps": 7})
    seen["restored"] = hook.state_dict()["nonfinite_steps"]

    def scaled(factors: list[float]) -> tuple[list[list[np.ndarray]], list[np.ndarray]]:
        model, scaler = made(), Scaler()
        hook = attach(model, "powersgd", seed=5, grad_scaler=scaler)
        results = []
        for step, factor in enumerate(factors):
            scaler.scale = factor
            results.append([g / factor for g in backward(model, rank, step, factor)])
        return results, [e / scaler.scale for e in kept(hook)[:1]]

    seen["constant"], seen["scaled"] = scaled([1.0] * 6), scaled([1.0, 8.0, 8.0, 65536.0, 2.0, 2.0])

    model = made()
    attach(model, "powersgd", check_every=3)
    seen["drift"] = []
    for step in range(4):
        if step == 2 and rank:
            with torch.no_grad():
                model.module.a.weight[3, 3] *= 1 + 2**-23
        try:
            backward(model, rank, step)
            seen["drift"].append("no error")
        except RuntimeError as error:
            seen["drift"].append(f"{type(error).__name__}: {error}")
    return seen


@pytest.mark.parametrize("cap", [25, 0.008])
def test_a_nonfinite_step_goes_dense_and_poisons_nothing(cap):
    ranks = [r[f"nan {cap}"] for r in launch_once(behaviours, 2)]
    for rank, rows in enumerate(ranks):
        for step, (grads, before, after, bad) in enumerate(rows):
            assert bad == (step >= BAD)
            assert all(np.array_equal(a, b, equal_nan=True) for a, b in zip(grads, ranks[0][step][0], strict=True))
            assert all(np.isfinite(g).all() for g in grads) == (step != BAD)
            assert all(np.isfinite(values).all() for values in after), (rank, step)
            if step == BAD:
                assert len(before) >= 3
                assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
    assert max(np.abs(error).max(initial=0) for error in ranks[0][-1][2]) > 0


def test_nonfinite_steps_are_kept_in_the_state():
    assert all((r["state"], r["restored"]) == (1, 7) for r in launch_once(behaviours, 2))


def test_tensors_without_a_dimension_or_without_elements_are_exchanged():
    for r in launch_once(behaviours, 2):
        for grads, *_ in r["nan 25"]:
            shapes = [g.shape for g in grads]
            assert () in shapes and (0, 3) in shapes


def test_residuals_follow_the_gradient_scaler():
    for r in launch_once(behaviours, 2):
        (constant, owed), (scaled, owed_scaled) = r["constant"], r["scaled"]
        for one, other in zip(constant, scaled, strict=True):
            for a, b in zip(one, other, strict=True):
                np.testing.assert_allclose(b, a, rtol=1e-3, atol=1e-6)
        np.testing.assert_allclose(owed_scaled[0], owed[0], rtol=1e-3, atol=1e-6)
        assert np.abs(owed[0]).max() > 1e-4


def test_replicas_that_drifted_apart_are_named():
    for r in launch_once(behaviours, 2):
        assert r["drift"][:2] == ["no error"] * 2
        assert "ReplicasDiverged: weights of rank 1 differ from those of rank 0" in r["drift"][2]
        assert "ReplicasDiverged" in r["drift"][3]  # it does not go on by itself


def refusals(rank: int, workers: int) -> dict[str, str]:
    """What is said of states of other settings, and of damaged ones, by a hook after two steps; at the end, its step."""
    states: list[Any] = []
    for options in (
        {},
        {"start_iter": 10},
        {"rank": 4},
        {"min_rate": 3},
        {"residual_bits": 16, "dense_bits": 16},
        {"residual_bits": 16},
    ):
        model = made()
        states.append(attach(model, "powersgd", **options).state_dict())
    good, start_iter, other_rank, min_rate, dense_bits, residual_bits = states
    model = made()
    hook = attach(model, "powersgd")
    for step in range(2):
        backward(model, rank, step)
    bad: dict[str, Any] = {
        "start_iter": start_iter,
        "rank": other_rank,
        "min_rate": min_rate,
        "dense_bits": dense_bits,
        "codec": attach(made(), "topk").state_dict(),
        "groups": {**good, "groups": good["groups"][:-1]},
        "iter": {**good, "iter": None},
        "no rng": {name: value for name, value in good.items() if name != "rng"},
        "empty rng": {**good, "rng": {}},
        "short rng": {**good, "rng": {**good["rng"], "state": {"key": torch.zeros(3), "pos": 0}}},
        "no residual": {name: value for name, value in good.items() if name != "error_dict"},
        "short residual": {**good, "error_dict": {0: torch.zeros(3)}},
        "no tensor": {**good, "q_memory_dict": {0: None}},
        "no exchange": {name: value for name, value in good.items() if name != "gradient_exchange"},
    }
    said = {}
    for name, state in bad.items():
        try:
            hook.load_state_dict(state)
            said[name] = "taken"
        except UserError as error:
            said[name] = str(error)
    said["step"] = str(hook.step)
    hook.load_state_dict(residual_bits)
    return {**said, "residual_bits": str(hook.step)}


def test_states_of_other_settings_and_damaged_ones_are_refused():
    """Before anything is taken from them. How residuals are kept may differ."""
    expected = {
        "start_iter": "of other settings: options {'rank': 2, 'start_iter': 10",
        "rank": "of other settings: options {'rank': 4",
        "min_rate": "of other settings: options",
        "dense_bits": "of other settings: dense_bits 16, here None",
        "codec": "the state is of topk, the model sends powersgd",
        "groups": "another model or other groups",
        "iter": "damaged: iter missing or wrong",
        "no rng": "damaged: rng missing or wrong",
        "empty rng": "damaged: rng missing or wrong",
        "short rng": "damaged: rng missing or wrong",
        "no residual": "damaged: error_dict missing or wrong",
        "short residual": "damaged: error_dict missing or wrong",
        "no tensor": "q_memory_dict missing or wrong",
        "no exchange": "the state's gradient exchange is damaged",
        "step": "2",
        "residual_bits": "0",
    }
    for said in launch_once(refusals, 2):
        assert said.keys() == expected.keys()
        for name, words in expected.items():
            assert words in said[name], (name, words, said[name])


def vanish(rank: int, workers: int, how: int, timeout_s: float) -> None:
    """In one step the last rank gets the signal ``how`` before its matrices leave."""
    model = made()
    attach(model, "powersgd", timeout_s=timeout_s)
    low_rank = PowerSGD._low_rank

    def low_rank_and_vanish(self: Any, *args: Any) -> None:
        if rank == workers - 1 and self.step == 3:
            os.kill(os.getpid(), how)
        low_rank(self, *args)

    PowerSGD._low_rank = low_rank_and_vanish  # type: ignore[method-assign]
    for step in range(10):
        backward(model, rank, step)


@pytest.mark.parametrize(("how", "timeout_s"), [("SIGKILL", 1800), ("SIGSTOP", 8)])
def test_a_rank_that_is_lost_is_named(how, timeout_s):
    outcomes = launch_and_let_fail(vanish, 2, how=int(signal.Signals[how]), timeout_s=timeout_s)
    said = outcomes[0].said
    assert outcomes[0].code == 1 and outcomes[0].seconds < 30, said
    assert "LostRank: rank 1 is lost" in said[said.rindex("Traceback") :], said
