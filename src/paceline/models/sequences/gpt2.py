"""GPT-2 small: 12 layers, width 768, 12 heads, 124,439,808 parameters, the output tied to the token embedding.

Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.3 and table 2, and the
released weights (the paper's table says 117 M; the weights count 124 M).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

VOCABULARY, CONTEXT = 50257, 1024
_DROPOUT, _STD = 0.1, 0.02


class CausalAttention(nn.Module):
    """Multi-head attention of every token to itself and earlier ones: (B, S, width) to the same shape."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        dropout = _DROPOUT if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        result: Tensor = self.project(mixed.transpose(1, 2).flatten(-2))
        return result


class Gpt2Block(nn.Module):
    """Attention and a feed-forward network, normalised before and added to its input: (B, S, width) to the same."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = CausalAttention(width, heads)
        self.mlp_norm = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width)
        self.gelu = nn.GELU(approximate="tanh")
        self.contract = nn.Linear(4 * width, width)
        self.drop = nn.Dropout(_DROPOUT)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop(self.attention(self.attention_norm(x)))
        result: Tensor = x + self.drop(self.contract(self.gelu(self.expand(self.mlp_norm(x)))))
        return result


class Gpt2(nn.Module):
    """GPT-2, from tokens (B, S), S at most 1024, to logits of the next token (B, S, 50257)."""

    def __init__(self, layers: int, width: int, heads: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(CONTEXT, width)
        self.drop = nn.Dropout(_DROPOUT)
        self.blocks = nn.Sequential(*(Gpt2Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                # Section 2.3: initial weights of residual layers are divided by the square root of their number.
                residual = name.endswith((".project", ".contract"))
                nn.init.normal_(module.weight, std=_STD / math.sqrt(2 * layers) if residual else _STD)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[-1], device=tokens.device)
        x = self.drop(self.tokens(tokens) + self.positions(places))
        result: Tensor = self.head(self.norm(self.blocks(x)))
        return result


def gpt2() -> nn.Module:
    """Return GPT-2 small, from tokens (B, S) to logits (B, S, 50257)."""
    return Gpt2(layers=12, width=768, heads=12)
