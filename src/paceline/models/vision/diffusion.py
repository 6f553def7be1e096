"""Network of Stable Diffusion v2 for images of 512x512, with latents of 64x64: 865,910,724 parameters.

Source: Rombach et al., CVPR 2022 (arXiv:2112.10752), in the form of MLPerf Training v3.1 (mlcommons/training,
stable_diffusion): width 320 times 1, 2, 4 and 4, two residual blocks per level, self-attention and attention to 77 text tokens
on all but the coarsest level, heads of 64. Latents are precomputed, as there. The frozen text encoder, about 2 % of a
step's work, is omitted; its output is a tensor of zeros.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_WIDTH, _MULTIPLES, _BLOCKS, _HEAD = 320, (1, 2, 4, 4), 2, 64
_TIME, _TOKENS, _TEXT = 4 * _WIDTH, 77, 1024


class DiffusionResidual(nn.Module):
    """Two normalised 3x3 convolutions, with the embedded time added in between: (B, inputs, H, W) to (B, outputs, H, W)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.GroupNorm(32, inputs), nn.SiLU(), nn.Conv2d(inputs, outputs, 3, padding=1))
        self.time = nn.Sequential(nn.SiLU(), nn.Linear(_TIME, outputs))
        self.second = nn.Sequential(nn.GroupNorm(32, outputs), nn.SiLU(), nn.Conv2d(outputs, outputs, 3, padding=1))
        self.shortcut = nn.Identity() if inputs == outputs else nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: Tensor, time: Tensor, _: Tensor) -> Tensor:
        result: Tensor = self.shortcut(x) + self.second(self.first(x) + self.time(time)[:, :, None, None])
        return result


class Attention(nn.Module):
    """Attention from (B, S, width) to (B, T, given), with heads of 64."""

    def __init__(self, width: int, given: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, width, bias=False)
        self.key, self.value = nn.Linear(given, width, bias=False), nn.Linear(given, width, bias=False)
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor, given: Tensor) -> Tensor:
        parts = (self.query(x), self.key(given), self.value(given))
        q, k, v = (part.unflatten(-1, (-1, _HEAD)).transpose(1, 2) for part in parts)
        result: Tensor = self.output(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2))
        return result


class Transform(nn.Module):
    """A transformer block over the positions of a map, with attention to map and text: (B, width, H, W) to the same."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(32, width)
        self.enter, self.leave = nn.Linear(width, width), nn.Linear(width, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.own, self.cross = Attention(width, width), Attention(width, _TEXT)
        self.expand, self.contract = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, _: Tensor, text: Tensor) -> Tensor:
        y = self.enter(self.norm(x).flatten(2).transpose(1, 2))
        z = self.norms[0](y)
        y = y + self.own(z, z)
        y = y + self.cross(self.norms[1](y), text)
        value, gate = self.expand(self.norms[2](y)).chunk(2, -1)
        y = y + self.contract(value * F.gelu(gate))
        result: Tensor = x + self.leave(y).transpose(1, 2).unflatten(2, x.shape[2:])
        return result


class Resize(nn.Module):
    """A 3x3 convolution to half the size, or to twice the size after repetition of each position."""

    def __init__(self, width: int, *, up: bool) -> None:
        super().__init__()
        self.up, self.conv = up, nn.Conv2d(width, width, 3, stride=1 if up else 2, padding=1)

    def forward(self, x: Tensor, _time: Tensor, _text: Tensor) -> Tensor:
        result: Tensor = self.conv(F.interpolate(x, scale_factor=2.0) if self.up else x)
        return result


class Chain(nn.ModuleList):
    """Layers in sequence; each also receives the time and the text."""

    def forward(self, x: Tensor, time: Tensor, text: Tensor) -> Tensor:
        for layer in self:
            x = layer(x, time, text)
        return x


class Diffusion(nn.Module):
    """Diffusion network, from noisy latents (B, 4, H, W) to their noise, at time zero and for an empty text."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(_WIDTH, _TIME), nn.SiLU(), nn.Linear(_TIME, _TIME))
        self.enter = nn.Conv2d(4, _WIDTH, 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        width, skips = _WIDTH, [_WIDTH]
        for level, multiple in enumerate(_MULTIPLES):
            for _ in range(_BLOCKS):
                self.down.append(self._block(width, multiple, level))
                width = _WIDTH * multiple
                skips.append(width)
            if level < len(_MULTIPLES) - 1:
                self.down.append(Chain([Resize(width, up=False)]))
                skips.append(width)
        self.middle = Chain([DiffusionResidual(width, width), Transform(width), DiffusionResidual(width, width)])
        for level, multiple in reversed(list(enumerate(_MULTIPLES))):
            for i in range(_BLOCKS + 1):
                block = self._block(width + skips.pop(), multiple, level)
                width = _WIDTH * multiple
                if level and i == _BLOCKS:
                    block.append(Resize(width, up=True))
                self.up.append(block)
        self.leave = nn.Sequential(nn.GroupNorm(32, width), nn.SiLU(), nn.Conv2d(width, 4, 3, padding=1))

    @staticmethod
    def _block(inputs: int, multiple: int, level: int) -> Chain:
        outputs = _WIDTH * multiple
        attends = [Transform(outputs)] if level < len(_MULTIPLES) - 1 else []
        return Chain([DiffusionResidual(inputs, outputs), *attends])

    def forward(self, x: Tensor) -> Tensor:
        time = self.time(x.new_zeros(len(x), _WIDTH))
        text = x.new_zeros(len(x), _TOKENS, _TEXT)
        x = self.enter(x)
        skips = [x]
        for block in self.down:
            x = block(x, time, text)
            skips.append(x)
        x = self.middle(x, time, text)
        for block in self.up:
            x = block(torch.cat((x, skips.pop()), 1), time, text)
        result: Tensor = self.leave(x)
        return result


def stable_diffusion() -> nn.Module:
    """Return the network of Stable Diffusion v2, from latents (B, 4, 64, 64) to their noise."""
    return Diffusion()
