"""BERT, base and large, with the masked-language-model head.

Source: Devlin et al., NAACL 2019 (arXiv:1810.04805), section 3: 110 M and 340 M parameters; uncased vocabulary of
30,522. The head (a dense layer, GELU, normalisation and the tied token embedding with a bias) is that of the
pre-training code and reads every position, where the original reads the masked 15 % only; there is no pooler and no
next-sentence head. The result is 109,514,298 and 335,174,458 parameters. All tokens are of segment 0, without padding.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

VOCABULARY, _POSITIONS, _SEGMENTS = 30522, 512, 2
_DROPOUT, _EPS, _STD = 0.1, 1e-12, 0.02


class BidirectionalAttention(nn.Module):
    """Multi-head attention between all tokens: (B, S, width) to the same shape."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.query, self.key, self.value))
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=_DROPOUT if self.training else 0.0)
        result: Tensor = self.output(mixed.transpose(1, 2).flatten(-2))
        return result


class EncoderLayer(nn.Module):
    """Attention and a feed-forward network, each added to its input and then normalised: (B, S, width) to the same."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = BidirectionalAttention(width, heads)
        self.attention_norm = nn.LayerNorm(width, eps=_EPS)
        self.expand = nn.Linear(width, 4 * width)
        self.gelu = nn.GELU()
        self.contract = nn.Linear(4 * width, width)
        self.output_norm = nn.LayerNorm(width, eps=_EPS)
        self.drop = nn.Dropout(_DROPOUT)

    def forward(self, x: Tensor) -> Tensor:
        x = self.attention_norm(x + self.drop(self.attention(x)))
        result: Tensor = self.output_norm(x + self.drop(self.contract(self.gelu(self.expand(x)))))
        return result


class Embeddings(nn.Module):
    """Token, position and segment embeddings, summed and normalised: tokens (B, S) to (B, S, width)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(_POSITIONS, width)
        self.segments = nn.Embedding(_SEGMENTS, width)
        self.norm = nn.LayerNorm(width, eps=_EPS)
        self.drop = nn.Dropout(_DROPOUT)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[-1], device=tokens.device)
        x = self.tokens(tokens) + self.segments(torch.zeros_like(tokens)) + self.positions(places)
        result: Tensor = self.drop(self.norm(x))
        return result


class MaskedLanguageHead(nn.Module):
    """Head for masked tokens, (B, S, width) to logits (B, S, vocabulary); its weight is the token embedding."""

    def __init__(self, width: int, tokens: nn.Embedding) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)
        self.gelu = nn.GELU()
        self.norm = nn.LayerNorm(width, eps=_EPS)
        self.decoder = nn.Linear(width, VOCABULARY)
        self.decoder.weight = tokens.weight

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.decoder(self.norm(self.gelu(self.dense(x))))
        return result


class Bert(nn.Module):
    """BERT, from tokens (B, S), S at most 512, to logits (B, S, 30522)."""

    def __init__(self, layers: int, width: int, heads: int) -> None:
        super().__init__()
        self.embeddings = Embeddings(width)
        self.encoder = nn.Sequential(*(EncoderLayer(width, heads) for _ in range(layers)))
        self.head = MaskedLanguageHead(width, self.embeddings.tokens)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=_STD)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        result: Tensor = self.head(self.encoder(self.embeddings(tokens)))
        return result


def bert_base() -> nn.Module:
    """Return BERT base, from tokens (B, S) to logits (B, S, 30522): 12 layers, width 768, 12 heads."""
    return Bert(layers=12, width=768, heads=12)


def bert_large() -> nn.Module:
    """Return BERT large, from tokens (B, S) to logits (B, S, 30522): 24 layers, width 1024, 16 heads."""
    return Bert(layers=24, width=1024, heads=16)
