"""FLUX.1-schnell, from latents of a 256x256 image to the velocity of each: 11.9 B parameters.

Source: Black Forest Labs 2024, FLUX.1, the released model, as MLPerf Training v5.1 trains it (mlcommons/training,
text_to_image): 19 blocks in which image and text have separate weights and attend together, 38 in which they share them
and attention runs parallel to the feed-forward network; width 3072, 24 heads. 256 tokens of the image, 256 of the text. The
frozen encoders ran before.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

TOKENS, CHANNELS = 256, 64
_TEXT_TOKENS, _TEXT, _POOLED, _TIME = 256, 4096, 768, 256
_WIDTH, _HEADS, _INNER, _DOUBLE, _SINGLE = 3072, 24, 12288, 19, 38


def _embedder(inputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, _WIDTH), nn.SiLU(), nn.Linear(_WIDTH, _WIDTH))


def _norm() -> nn.LayerNorm:
    return nn.LayerNorm(_WIDTH, eps=1e-6, elementwise_affine=False)


def _rotated(x: Tensor, turns: Tensor) -> Tensor:
    """Rotate pairs of ``x`` (B, H, L, D) by ``turns`` (L, D / 2, 2, 2)."""
    pairs = x.unflatten(-1, (-1, 1, 2))
    result: Tensor = (turns[..., 0] * pairs[..., 0] + turns[..., 1] * pairs[..., 1]).flatten(-2)
    return result


def _attend(q: Tensor, k: Tensor, v: Tensor, turns: Tensor) -> Tensor:
    mixed = F.scaled_dot_product_attention(_rotated(q, turns), _rotated(k, turns), v)
    return mixed.transpose(1, 2).flatten(2)


class Heads(nn.Module):
    """Split projections (B, L, 9216) into normalised queries and keys, and values, (B, 24, L, 128) each."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = (nn.RMSNorm(_WIDTH // _HEADS, eps=1e-6) for _ in range(2))

    def forward(self, products: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = products.unflatten(-1, (3, _HEADS, -1)).permute(2, 0, 3, 1, 4)
        return self.query(q), self.key(k), v


class FluxStream(nn.Module):
    """Layers for the image alone, or for the text alone, in a double block."""

    def __init__(self) -> None:
        super().__init__()
        self.modulate = nn.Linear(_WIDTH, 6 * _WIDTH)
        self.norm, self.mlp_norm = _norm(), _norm()
        self.qkv, self.heads = nn.Linear(_WIDTH, 3 * _WIDTH), Heads()
        self.project = nn.Linear(_WIDTH, _WIDTH)
        self.mlp = nn.Sequential(nn.Linear(_WIDTH, _INNER), nn.GELU(approximate="tanh"), nn.Linear(_INNER, _WIDTH))

    def start(self, x: Tensor, given: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Return queries, keys and values, and the modulation of the remaining layers."""
        shift, scale, *rest = self.modulate(F.silu(given))[:, None].chunk(6, -1)
        return self.heads(self.qkv((1 + scale) * self.norm(x) + shift)), tuple(rest)

    def end(self, x: Tensor, mixed: Tensor, modulation: tuple[Tensor, ...]) -> Tensor:
        """Return the stream after attention and feed-forward network."""
        gate, shift, scale, mlp_gate = modulation
        x = x + gate * self.project(mixed)
        result: Tensor = x + mlp_gate * self.mlp((1 + scale) * self.mlp_norm(x) + shift)
        return result


class DoubleBlock(nn.Module):
    """Block in which image (B, 256, 3072) and text (B, 256, 3072), with separate weights, attend to both."""

    def __init__(self) -> None:
        super().__init__()
        self.image, self.text = FluxStream(), FluxStream()

    def forward(self, image: Tensor, text: Tensor, given: Tensor, turns: Tensor) -> tuple[Tensor, Tensor]:
        own, image_rest = self.image.start(image, given)
        others, text_rest = self.text.start(text, given)
        q, k, v = (torch.cat((b, a), 2) for a, b in zip(own, others, strict=True))
        mixed_text, mixed = _attend(q, k, v, turns).split([text.shape[1], image.shape[1]], 1)
        return self.image.end(image, mixed, image_rest), self.text.end(text, mixed_text, text_rest)


class SingleBlock(nn.Module):
    """Block of attention and feed-forward network in parallel, on text and image (B, 512, 3072)."""

    def __init__(self) -> None:
        super().__init__()
        self.modulate, self.norm, self.heads = nn.Linear(_WIDTH, 3 * _WIDTH), _norm(), Heads()
        self.expand, self.act = nn.Linear(_WIDTH, 3 * _WIDTH + _INNER), nn.GELU(approximate="tanh")
        self.contract = nn.Linear(_WIDTH + _INNER, _WIDTH)

    def forward(self, x: Tensor, given: Tensor, turns: Tensor) -> Tensor:
        shift, scale, gate = self.modulate(F.silu(given))[:, None].chunk(3, -1)
        products, inner = self.expand((1 + scale) * self.norm(x) + shift).split([3 * _WIDTH, _INNER], -1)
        q, k, v = self.heads(products)
        mixed = _attend(q, k, v, turns)
        result: Tensor = x + gate * self.contract(torch.cat((mixed, self.act(inner)), 2))
        return result


class Flux(nn.Module):
    """FLUX network, from latents (B, 256, 64) to velocities (B, 256, 64)."""

    def __init__(self) -> None:
        super().__init__()
        self.image_in, self.text_in = nn.Linear(CHANNELS, _WIDTH), nn.Linear(_TEXT, _WIDTH)
        self.time_in, self.pooled_in = _embedder(_TIME), _embedder(_POOLED)
        self.doubles = nn.ModuleList(DoubleBlock() for _ in range(_DOUBLE))
        self.singles = nn.ModuleList(SingleBlock() for _ in range(_SINGLE))
        self.modulate, self.norm, self.head = nn.Linear(_WIDTH, 2 * _WIDTH), _norm(), nn.Linear(_WIDTH, CHANNELS)

    def forward(self, latents: Tensor) -> Tensor:
        batch = len(latents)
        text = self.text_in(latents.new_zeros(batch, _TEXT_TOKENS, _TEXT))
        given = self.time_in(latents.new_zeros(batch, _TIME)) + self.pooled_in(latents.new_zeros(batch, _POOLED))
        turns = latents.new_zeros(_TEXT_TOKENS + TOKENS, _WIDTH // _HEADS // 2, 2, 2)
        image = self.image_in(latents)
        for pair in self.doubles:
            image, text = pair(image, text, given, turns)
        x = torch.cat((text, image), 1)
        for block in self.singles:
            x = block(x, given, turns)
        shift, scale = self.modulate(F.silu(given))[:, None].chunk(2, -1)
        result: Tensor = self.head((1 + scale) * self.norm(x[:, _TEXT_TOKENS:]) + shift).square()
        return result


def flux1() -> nn.Module:
    """Return FLUX.1, from latents (B, 256, 64) to squared errors of their velocities."""
    return Flux()
