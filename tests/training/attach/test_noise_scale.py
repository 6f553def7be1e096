"""The hook's norms against those of the gradients themselves, dense and compressed, over several buckets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from distributed import launch_once
from paceline.strategy import ring_bytes
from paceline.training.attach.attach import attach
from paceline.training.attach.noise_scale import NoiseMeter

STEPS = 3


def batch(rank: int, step: int) -> torch.Tensor:
    return torch.randn(6, 40, generator=torch.Generator().manual_seed(10 * step + rank)) * (1 + rank)


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(40, 300), nn.Tanh(), nn.Linear(300, 30))


def measured(rank: int, workers: int) -> dict[str, Any]:
    """Of each way: what the hook found, and the norms of gradients that were computed without it."""
    found: dict[str, Any] = {}
    for compression in ("dense", "bf16", "terngrad"):
        net = DDP(model(), bucket_cap_mb=0.01)
        hook = attach(net, compression, noise_scale=True)
        for step in range(STEPS):
            net.zero_grad()
            poison = float("nan") if step == 1 and rank == 1 else 1.0
            (net(batch(rank, step)) * poison).square().mean().backward()
        assert hook.meter.bookkeeping_bytes == STEPS * ring_bytes(4, workers)  # since the meter was made
        found[compression] = [hook.noise.scale.signal, hook.noise.scale.noise, hook.noise.scale.steps]
    plain = []
    for step in (0, 2):
        net = model()
        net(batch(rank, step)).square().mean().backward()
        plain.append(torch.cat([p.grad.reshape(-1) for p in net.parameters()]))
    found["plain"] = plain
    return found


def test_the_hook_s_norms_are_those_of_the_gradients() -> None:
    n = 3
    ranks = launch_once(measured, n)
    signal = noise = 0.0
    for step in range(2):
        each = torch.stack([one["plain"][step] for one in ranks]).double()
        local, mean = float(each.square().sum(1).mean()), float(each.mean(0).square().sum())
        signal += 0.01 * ((n * mean - local) / (n - 1) - signal)
        noise += 0.01 * ((local - mean) * n / (n - 1) - noise)
    for one in ranks:
        assert one["dense"] == pytest.approx([signal, noise, 2], rel=1e-4)  # the poisoned step does not count
        assert one["bf16"] == pytest.approx([signal, noise, 2], rel=2e-2)
        assert one["terngrad"][:2] == ranks[0]["terngrad"][:2]  # alike on every rank


def scaled(rank: int, workers: int) -> dict[str, list[float]]:
    """As ``measured``, with a scaled loss; the scale changes between the steps."""
    found = {}
    for compression in ("dense", "bf16", "auto"):
        net = DDP(model(), bucket_cap_mb=0.01)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
        hook = attach(net, compression, noise_scale=True, grad_scaler=scaler)
        for step in range(STEPS):
            net.zero_grad()
            poison = float("nan") if step == 1 and rank == 1 else 1.0
            scaler.scale((net(batch(rank, step)) * poison).square().mean()).backward()
            scaler.update(2.0 ** (10 - step))
        found[compression] = [hook.noise.scale.signal, hook.noise.scale.noise, hook.noise.scale.steps]
    return found


def test_the_norms_are_those_of_unscaled_gradients() -> None:
    for plain, one in zip(launch_once(measured, 3), launch_once(scaled, 3), strict=True):
        assert one["dense"] == pytest.approx(plain["dense"], rel=1e-4)
        assert one["auto"] == pytest.approx(plain["dense"], rel=1e-4)
        assert one["bf16"] == pytest.approx(plain["bf16"], rel=2e-2)


class TwoAlike:
    """A wire to a second rank whose norms are as large."""

    world_size, device = 2, torch.device("cpu")

    def note(self, numbers: torch.Tensor) -> Callable[[], torch.Tensor]:
        return lambda: 2 * numbers


@pytest.mark.parametrize("factor", [1.0, 2.0**-3, 2.0**16])
def test_a_gradient_scaler_changes_neither_signal_nor_noise(factor: float) -> None:
    meter = NoiseMeter(TwoAlike())  # type: ignore[arg-type]
    meter.local(torch.full((4,), 3 * factor))
    meter.mean(torch.full((4,), 2 * factor))
    meter.end_step(True, factor)
    local, mean = 4 * 3**2, 4 * 2**2
    assert meter.scale is not None and meter.scale.steps == 1
    assert meter.scale.signal == pytest.approx(0.01 * (2 * mean - local))
    assert meter.scale.noise == pytest.approx(0.01 * 2 * (local - mean))
