"""DiLoCo in one process and NumPy: the weights that workers must end with. Nothing here comes from the library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    if name == "muon":
        from paceline import Muon

        return Muon(model, lr=0.01)
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
    encoded: Callable[[np.ndarray], np.ndarray] = lambda values: values,
    decay: float = 1.0,
) -> list[list[np.ndarray]]:
    """The weights of every worker (Douillard et al. 2023, Algorithm 1; Douillard et al. 2025, Algorithm 2), in float64.

    Args:
        parts: tensors of each fragment. ``at``: the step modulo ``every`` behind which each is exchanged.
        share: of a worker's own weights, ``alpha`` of the latter paper.
        encoded: what a worker sends of a tensor and its residual. ``decay``: of the residuals (Sarfi et al. 2025,
            arXiv:2508.15706, Algorithm 1).
        devices: of a worker; together they take the samples of as many ranks, in equal parts.
    """
    models = [network() for _ in range(workers)]
    optimizers = [optimizer(inner, model) for model in models]
    of_rank = [samples(rank, steps) for rank in range(workers * devices)]
    data = [[torch.cat(x) for x in zip(*of_rank[w * devices : (w + 1) * devices], strict=True)] for w in range(workers)]
    anchor = [p.detach().double().numpy().copy() for p in models[0].parameters()]
    buffer = [np.zeros_like(a) for a in anchor]
    residuals = [[np.zeros_like(a) for a in anchor] for _ in range(workers)]

    def sent(worker: int, i: int, delta: np.ndarray) -> np.ndarray:
        total = decay * residuals[worker][i] + delta
        found = encoded(total)
        residuals[worker][i] = total - found
        return found

    flying: dict[int, list[tuple[int, np.ndarray]]] = {}
    for step in range(1, steps + 1):
        for model, optimize, x in zip(models, optimizers, data, strict=True):
            local_step(model, optimize, x[step - 1])
        weights = [list(model.parameters()) for model in models]
        for fragment, tensors in enumerate(parts):
            if step % every == at[fragment]:
                means = [
                    (i, np.mean([sent(w, i, anchor[i] - own[i].detach().double().numpy()) for w, own in enumerate(weights)], 0))
                    for i in tensors
                ]
                flying[step + delay] = means
        for i, mean in flying.pop(step, []):
            buffer[i] = momentum * buffer[i] + mean
            anchor[i] = anchor[i] - lr * (mean + momentum * buffer[i])
            for own in weights:
                mixed = share * own[i].detach().double().numpy() + (1 - share) * anchor[i]
                own[i].data.copy_(torch.from_numpy(mixed))
    return [[p.detach().double().numpy() for p in model.parameters()] for model in models]


def in_two_bits(kept: int, chunk: int) -> Callable[[np.ndarray], np.ndarray]:
    """The ``kept`` largest elements of each chunk, each as a sign and the mean of the larger or of the smaller magnitudes."""

    def encode(values: np.ndarray) -> np.ndarray:
        if values.size < 1024:  # stays dense
            return values
        flat = np.pad(values.reshape(-1), (0, -values.size % chunk)).reshape(-1, chunk)
        out = np.zeros_like(flat)
        for row, sent in zip(flat, out, strict=True):
            index = np.argsort(-np.abs(row), kind="stable")[:kept]
            size = np.abs(row[index])
            above = size >= size.mean()
            levels = [size[above].mean(), size[~above].mean() if (~above).any() else 0.0]
            high, low = torch.tensor(levels, dtype=torch.float32).bfloat16().double().tolist()
            sent[index] = np.where(above, high, low) * np.where(np.signbit(row[index]), -1, 1)
        return out.reshape(-1)[: values.size].reshape(values.shape)

    return encode
