"""DiLoCo in one process and NumPy: the weights that workers must end with. Nothing here comes from the library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn


def network(seed: int = 0) -> nn.Module:
    """A network without buffers whose five tensors are no round numbers."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 41), nn.Tanh(), nn.Linear(41, 33), nn.Tanh(), nn.Linear(33, 3, bias=False))


def samples(rank: int, steps: int) -> list[torch.Tensor]:
    """What a worker learns from: other samples than those of the others."""
    generator = torch.Generator().manual_seed(100 + rank)
    return [torch.randn(7, 5, generator=generator) for _ in range(steps)]


def local_step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
    """One step of a worker."""
    optimizer.zero_grad()
    (model(x) - x[:, :3]).square().mean().backward()
    optimizer.step()


def optimizer(name: str, model: nn.Module) -> torch.optim.Optimizer:
    """The inner optimizer."""
    kinds: dict[str, Any] = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}
    return kinds[name](model.parameters(), lr=0.05 if name == "sgd" else 0.01)


def simulated(
    workers: int,
    steps: int,
    *,
    every: int,
    inner: str = "adamw",
    lr: float = 0.7,
    momentum: float = 0.9,
    parts: Sequence[Sequence[int]] = ((0, 1, 2, 3, 4),),
    at: Sequence[int] = (0,),
    delay: int = 0,
    share: float = 0.0,
    devices: int = 1,
) -> list[list[np.ndarray]]:
    """The weights of every worker (Douillard et al. 2023, Algorithm 1; Douillard et al. 2025, Algorithm 2), in float64.

    Args:
        parts: tensors of each fragment. ``at``: the step modulo ``every`` behind which each is exchanged.
        share: of a worker's own weights, ``alpha`` of the latter paper.
        devices: of a worker; together they take the samples of as many ranks, in equal parts.
    """
    models = [network() for _ in range(workers)]
    optimizers = [optimizer(inner, model) for model in models]
    of_rank = [samples(rank, steps) for rank in range(workers * devices)]
    data = [[torch.cat(x) for x in zip(*of_rank[w * devices : (w + 1) * devices], strict=True)] for w in range(workers)]
    anchor = [p.detach().double().numpy().copy() for p in models[0].parameters()]
    buffer = [np.zeros_like(a) for a in anchor]
    flying: dict[int, list[tuple[int, np.ndarray]]] = {}
    for step in range(1, steps + 1):
        for model, optimize, x in zip(models, optimizers, data, strict=True):
            local_step(model, optimize, x[step - 1])
        weights = [list(model.parameters()) for model in models]
        for fragment, tensors in enumerate(parts):
            if step % every == at[fragment]:
                means = [
                    (i, np.mean([anchor[i] - own[i].detach().double().numpy() for own in weights], axis=0)) for i in tensors
                ]
                flying[step + delay] = means
        for i, mean in flying.pop(step, []):
            buffer[i] = momentum * buffer[i] + mean
            anchor[i] = anchor[i] - lr * (mean + momentum * buffer[i])
            for own in weights:
                mixed = share * own[i].detach().double().numpy() + (1 - share) * anchor[i]
                own[i].data.copy_(torch.from_numpy(mixed))
    return [[p.detach().double().numpy() for p in model.parameters()] for model in models]
