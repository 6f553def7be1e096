"""One worker of a data-parallel run in which all workers are threads of one process (``LocalWire``); the codecs, exchanges and
error feedback are those of ``attach()``. Stands for DDP: one bucket of all gradients, in DDP's reversed order.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.training.exchanges import allreduce
from paceline.training.group import exchange_group, room
from paceline.training.local_wire import LocalWire
from paceline.training.sample import Sample
from paceline.training.tensors import Layout
from paceline.training.tensors import Tensor as Named
from paceline.training.ways import Way, make_plan


class Replica:
    """A model, its gradients in one bucket, and the way that they travel."""

    def __init__(self, model: nn.Module, way: Way, wire: LocalWire, seed: int) -> None:
        self.model, self.way, self.wire, self.seed = model, way, wire, seed
        self.step = self.nonfinite_steps = 0
        tensors, offset = [], 0
        for name, p in model.named_parameters():
            tensors.append(Named(name, tuple(p.shape), offset))
            offset += p.numel()
        self.bucket = torch.zeros(offset)
        parts = self.bucket.split([t.elements for t in reversed(tensors)])
        self.parts = {t.name: part for t, part in zip(reversed(tensors), parts, strict=True)}
        for name, p in model.named_parameters():
            p.grad = self.parts[name].view(p.shape)
        self.plan = make_plan(way, wire, Sample())
        self.layout = Layout(list(reversed(tensors)), way.compression.dense(tensors))
        self.flat = torch.empty(room(self.plan, self.layout) if self.plan else 0)

    def gradients(self, x: Tensor, y: Tensor) -> float:
        """Forward and backward over this worker's micro batch. Returns the loss."""
        self.bucket.zero_()
        loss = functional.cross_entropy(self.model(x), y)
        loss.backward()
        return float(loss.detach())

    def exchange(self) -> None:
        """Replace the gradients by their mean over the workers."""
        if self.plan is None:
            allreduce(self.bucket, self.way.compression.format, self.wire)
        else:
            self.nonfinite_steps += exchange_group(
                self.plan, self.layout, self.parts, self.flat, self.seed, self.step, dense=False
            )
        self.step += 1

    def digest(self) -> str:
        """Of the weights: equal on every worker, or something is wrong."""
        sha = hashlib.sha256()
        for p in self.model.parameters():
            sha.update(p.detach().numpy().tobytes())
        return sha.hexdigest()


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


__all__ = ["QuickResponseNorm", "Replica", "accuracy", "quick"]
