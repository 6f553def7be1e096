"""One worker of a data-parallel run in which all workers are threads of one process (``LocalWire``); the codecs, exchanges and
error feedback are those of ``attach()``. Stands for DDP: one bucket of all gradients, in DDP's reversed order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import _orthogonalize
from torch.nn import functional

from paceline.strategy import GradientExchange
from paceline.strategy.compression.compression import low_rank_factors
from paceline.training.attach.hooks.powersgd import START
from paceline.training.exchanges import allreduce
from paceline.training.exchanges.exchange_group import Gradients, exchange_group, room
from paceline.training.exchanges.exchange_setup import make_setup
from paceline.training.exchanges.gradients.gradient_sample import Sample
from paceline.training.exchanges.gradients.tensor_layout import Layout, TensorSpec
from paceline.training.exchanges.wires.in_process_collectives import LocalWire


class Replica:
    """A model, its gradients in one bucket, and their exchange."""

    def __init__(self, model: nn.Module, exchange: GradientExchange, wire: LocalWire, seed: int) -> None:
        self.model, self.description, self.wire, self.seed = model, exchange.description, wire, seed
        self.step = self.nonfinite_steps = 0
        tensors: list[TensorSpec] = []
        offset = 0
        for name, p in model.named_parameters():
            tensors.append(TensorSpec(name, tuple(p.shape), offset))
            offset += p.numel()
        self.tensors = tensors[::-1]
        self.bucket = torch.zeros(offset)
        parts = self.bucket.split([t.elements for t in self.tensors])
        self.parts = {t.name: part for t, part in zip(self.tensors, parts, strict=True)}
        for name, p in model.named_parameters():
            p.grad = self.parts[name].as_strided(p.shape, p.stride())  # memory in the weight's order, as DDP's buckets
        low_rank = self.description.low_rank
        self.low_rank = LowRank(int(self.description.option("rank")), wire, seed) if low_rank else None
        self.plan = None if low_rank else make_setup(exchange, wire, Sample())
        self.layout = Layout(self.tensors, self.description.dense(tensors))
        self.flat = torch.empty(room(self.plan, self.layout) if self.plan else 0)

    def gradients(self, x: Tensor, y: Tensor) -> float:
        """Forward and backward over this worker's micro batch. Returns the loss."""
        self.bucket.zero_()
        loss = functional.cross_entropy(self.model(x), y)
        loss.backward()
        return float(loss.detach())

    def exchange(self) -> None:
        """Replace the gradients by their mean over the workers."""
        if self.low_rank is not None:
            self.low_rank.exchange([self.parts[t.name].view(t.shape) for t in self.tensors])
        elif self.plan is None:
            allreduce(self.bucket, self.description.format, self.wire)
        else:
            gradients = Gradients(layout=self.layout, parts=self.parts, workspace=self.flat, seed=self.seed, step=self.step)
            self.nonfinite_steps += exchange_group(self.plan, gradients)
        self.step += 1

    def digest(self) -> str:
        """Of the weights: equal on every worker, or something is wrong."""
        sha = hashlib.sha256()
        for p in self.model.parameters():
            sha.update(p.detach().numpy().tobytes())
        return sha.hexdigest()


class LowRank:
    """PowerSGD (Vogels et al. 2019, Algorithm 1) as PyTorch's ``powerSGD_hook`` computes it, over a ``LocalWire``.

    The hook itself needs a process group. The same steps, starting factors and orthogonalisation; a test compares both.
    """

    def __init__(self, rank: int, wire: LocalWire, seed: int, start: int = START) -> None:
        self.rank, self.wire, self.start, self.step = rank, wire, start, 0
        self._random = np.random.RandomState(seed)
        self._q: list[Tensor] = []
        self._lost: list[Tensor] = []

    def exchange(self, gradients: Sequence[Tensor]) -> None:
        """Replace the gradients, contiguous and in the bucket's order, by their mean, the matrices' in low rank."""
        n = self.wire.world_size
        self.step += 1
        plain = [g for g in gradients if low_rank_factors(tuple(g.shape), self.rank) is None]
        matrices = [g.view(g.shape[0], -1) for g in gradients if low_rank_factors(tuple(g.shape), self.rank) is not None]
        if self.step <= self.start:
            self._sum(gradients, n)
            return
        if not self._q:
            self._q = self._first_factors(matrices)
            self._lost = [torch.zeros_like(m) for m in matrices]
        else:
            for q in self._q:
                _orthogonalize(q[None])
        for matrix, lost in zip(matrices, self._lost, strict=True):
            matrix += lost
            lost.copy_(matrix)
        self._sum(plain, n)
        ps = [matrix @ q for matrix, q in zip(matrices, self._q, strict=True)]
        self._sum(ps, 1)
        for p in ps:
            _orthogonalize(p[None])
        for matrix, p, q in zip(matrices, ps, self._q, strict=True):
            torch.mm(matrix.T, p, out=q)
        self._sum(self._q, n)
        for matrix, lost, p, q in zip(matrices, self._lost, ps, self._q, strict=True):
            torch.mm(p, q.T, out=matrix)
            lost -= matrix

    def _first_factors(self, matrices: Sequence[Tensor]) -> list[Tensor]:
        generator = torch.Generator().manual_seed(int(self._random.randint(1_000_000_000)))
        factors = [torch.randn(1, m.shape[1], min(self.rank, *m.shape), generator=generator)[0] for m in matrices]
        for q in factors:
            _orthogonalize(q[None])
        return factors

    def _sum(self, tensors: Sequence[Tensor], divisor: int) -> None:
        flat = torch.cat([t.reshape(-1) for t in tensors])
        self.wire.all_reduce(flat, name="powersgd").wait()
        for tensor, part in zip(tensors, flat.div_(divisor).split([t.numel() for t in tensors]), strict=True):
            tensor.copy_(part.view_as(tensor))


class QuickResponseNorm(nn.Module):
    """``LocalResponseNorm(size, alpha, beta=0.75, k=1)`` as a 1x1 convolution with a band: a third of the time on a CPU."""

    def __init__(self, channels: int, size: int, alpha: float) -> None:
        super().__init__()
        index = torch.arange(channels)
        near = (index[None] - index[:, None]).abs() <= size // 2
        self.alpha, self.size = alpha, size
        self.register_buffer("band", (near * (alpha / size)).view(channels, channels, 1, 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = _Norm.apply(x, self.band)
        return out


class _Norm(torch.autograd.Function):
    """y = x s^-3/4 with s = 1 + band * x^2; dx = g s^-3/4 - 3/2 x band * (g x s^-7/4)."""

    @staticmethod
    def forward(ctx, x: Tensor, band: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        band = band.to(x.dtype)
        root = functional.conv2d(x.square(), band).add_(1.0).rsqrt_()  # s^-1/2
        scale = root.sqrt().mul_(root)
        ctx.save_for_backward(x, band, root, scale)
        return x * scale

    @staticmethod
    def backward(ctx, *grads: Tensor) -> tuple[Tensor, None]:  # type: ignore[no-untyped-def]
        x, band, root, scale = ctx.saved_tensors
        inner = (grads[0] * x).mul_(scale).mul_(root).mul_(root)
        return functional.conv2d(inner, band).mul_(x).mul_(-1.5).addcmul_(grads[0], scale), None


def quick(model: nn.Module) -> nn.Module:
    """The same network in less time on a CPU: ``QuickResponseNorm``, and channels innermost in memory. In place."""
    channels = 0
    for name, layer in list(model.named_children()):
        if isinstance(layer, nn.Conv2d):
            channels = layer.out_channels
        if isinstance(layer, nn.LocalResponseNorm):
            assert (layer.beta, layer.k) == (0.75, 1.0)
            model.register_module(name, QuickResponseNorm(channels, layer.size, layer.alpha))
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> tuple[float, float]:
    """Share of the samples classified right, and the mean loss."""
    model.eval()
    right, loss = 0, 0.0
    with torch.no_grad():
        for a, b in zip(x.split(250), y.split(250), strict=True):
            logits = model(a)
            right += int((logits.argmax(-1) == b).sum())
            loss += float(functional.cross_entropy(logits, b, reduction="sum"))
    model.train()
    return right / len(y), loss / len(y)


__all__ = ["LowRank", "QuickResponseNorm", "Replica", "accuracy", "quick"]
