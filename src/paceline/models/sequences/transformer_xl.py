"""Transformer-XL on WikiText-103, base (192 M parameters) and large (285 M), or with the whole softmax (192 and 521 M).

Source: Dai et al., ACL 2019 (arXiv:1901.02860), section 3, in the form that NVIDIA trains (DeepLearningExamples,
PyTorch/LanguageModeling/Transformer-XL, wt103_base.yaml and wt103_large.yaml): queries attend to the segment and to the one
before, whose hidden states are kept without gradient; positions are relative; rare words have an adaptive softmax with the
table of the embedding (Grave et al. 2017, arXiv:1609.04309), and in the large network narrower vectors.

With the whole softmax they are as Lambda benchmarks them (lambdal/deeplearning-benchmark, config_v2): without
``--adaptive``, the large one on segments of 256 words.

The product of the positions with their matrix is the same for all samples of a batch and is not counted: rows of the matrix
stand for it.

How many words of a segment belong to which part of the vocabulary is assumed: the counts of the words follow a power law
from the 20,000th, of exponent 1.6 down to 3 for the rarest, and the corpus has 103 M words.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WORDS = 267735
CUTOFFS = (0, 19997, 39997, 199997, WORDS)
SHARES = (0.021, 0.025, 0.0025)
"""Shares of a text's words in each part of the vocabulary but the first."""
BASE_LENGTH, LARGE_LENGTH, WHOLE_LARGE_LENGTH = 192, 384, 256


class RelativeAttention(nn.Module):
    """Attention of a segment (B, T, width) to itself and the segment before, with 2 T relative positions."""

    def __init__(self, width: int, heads: int, dropout: float, dropatt: float) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.places = nn.Parameter(torch.zeros(width, width))
        self.project = nn.Linear(width, width, bias=False)
        self.drop, self.dropatt = nn.Dropout(dropout), nn.Dropout(dropatt)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, content_bias: Tensor, place_bias: Tensor, hidden: Tensor) -> Tensor:
        batch, length, width = x.shape
        both = torch.cat((x.detach(), x), 1)
        q, k, v = self.qkv(both).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (q[:, -length:], k, v))
        at = self.places[: 2 * length].unflatten(-1, (self.heads, -1)).transpose(0, 1)
        content = (q + content_bias[:, None]) @ k.transpose(-1, -2)
        place = (q + place_bias[:, None]) @ at.transpose(-1, -2)
        # Each row moves one place less than the one above: pad, and read the rows at another length.
        padded = F.pad(place, (1, 0)).view(batch, self.heads, -1, length)
        place = padded[:, :, 1:].reshape(content.shape)
        scores = ((content + place) * (width // self.heads) ** -0.5).masked_fill(hidden, float("-inf"))
        mixed = self.dropatt(scores.softmax(-1)) @ v
        result: Tensor = self.norm(x + self.drop(self.project(mixed.transpose(1, 2).flatten(-2))))
        return result


class TransformerXlBlock(nn.Module):
    """Attention and feed-forward network, normalised after each sum."""

    def __init__(self, width: int, heads: int, inner: int, dropout: float, dropatt: float) -> None:
        super().__init__()
        self.attention = RelativeAttention(width, heads, dropout, dropatt)
        self.mlp = nn.Sequential(
            nn.Linear(width, inner), nn.ReLU(), nn.Dropout(dropout), nn.Linear(inner, width), nn.Dropout(dropout)
        )
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, *given: Tensor) -> Tensor:
        x = self.attention(x, *given)
        result: Tensor = self.norm(x + self.mlp(x))
        return result


class TransformerXl(nn.Module):
    """Transformer-XL, from words (B, T) to the log probabilities of each part of the vocabulary.

    ``narrower``: width of a part's vectors / width of the next part's; 0: only one part.
    """

    def __init__(
        self, layers: int, width: int, heads: int, inner: int, length: int, dropout: float, dropatt: float, narrower: int
    ) -> None:
        super().__init__()
        self.length, self.width = length, width
        self.counts = [max(1, round(share * length)) for share in SHARES] if narrower else []
        cutoffs = CUTOFFS if narrower else (0, WORDS)
        self.sizes = sizes = [b - a for a, b in pairwise(cutoffs)]
        widths = [width // narrower**i for i in range(len(sizes))]
        tables = [nn.Embedding(size, own) for size, own in zip(sizes, widths, strict=True)]
        self.tables = nn.ModuleList(tables)
        self.widen = nn.ParameterList([nn.Parameter(torch.zeros(width, own)) for own in widths] if narrower > 1 else [])
        self.narrow = nn.Parameter(torch.zeros(width, width)) if narrower > 1 else None
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(size)) for size in sizes)
        rare = len(self.counts)
        if rare:
            self.parts, self.parts_bias = nn.Parameter(torch.zeros(rare, width)), nn.Parameter(torch.zeros(rare))
        self.content_bias = nn.Parameter(torch.zeros(heads, width // heads))
        self.place_bias = nn.Parameter(torch.zeros(heads, width // heads))
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(TransformerXlBlock(width, heads, inner, dropout, dropatt) for _ in range(layers))

    def _embedded(self, words: Tensor) -> Tensor:
        """Return embeddings (B, T, width). Words are assumed to be sorted by their part of the vocabulary."""
        split = words.split([self.length - sum(self.counts), *self.counts], 1)
        vectors = [table(own % size) for table, own, size in zip(self.tables, split, self.sizes, strict=True)]
        if self.widen:
            vectors = [F.linear(own, wide) for own, wide in zip(vectors, self.widen, strict=True)]
        result: Tensor = self.drop(torch.cat(vectors, 1) * self.width**0.5)
        return result

    def forward(self, words: Tensor) -> tuple[Tensor, ...]:
        x, both = self._embedded(words), 2 * self.length
        hidden = torch.ones(self.length, both, device=x.device, dtype=torch.bool).triu(self.length + 1)
        for block in self.blocks:
            x = block(x, self.content_bias, self.place_bias, hidden)
        return self._log_probabilities(self.drop(x))

    def _log_probabilities(self, x: Tensor) -> tuple[Tensor, ...]:
        weights: list[Tensor] = [table.get_parameter("weight") for table in self.tables]
        biases: list[Tensor] = list(self.biases)
        first = x if self.narrow is None else F.linear(x, self.narrow.t())
        weight, bias = weights[0], biases[0]
        if self.counts:
            weight, bias = torch.cat((weight, self.parts)), torch.cat((bias, self.parts_bias))
        head = F.linear(first, weight, bias)
        results, begin = [head.log_softmax(-1)], 0
        for part, count in enumerate(self.counts, 1):
            own = x[:, begin : begin + count]
            if self.widen:
                own = F.linear(own, self.widen[part].t())
            results.append(F.linear(own, weights[part], biases[part]).log_softmax(-1))
            begin += count
        return tuple(results)


def transformer_xl_base() -> nn.Module:
    """Return Transformer-XL base, from words (B, 192) to log probabilities: 16 blocks of width 512."""
    return TransformerXl(16, 512, 8, 2048, BASE_LENGTH, 0.1, 0.0, 1)


def transformer_xl_large() -> nn.Module:
    """Return Transformer-XL large, from words (B, 384) to log probabilities: 18 blocks of width 1024, vectors of rare words 4,
    16 and 64 times narrower.
    """
    return TransformerXl(18, 1024, 16, 4096, LARGE_LENGTH, 0.2, 0.2, 4)


def transformer_xl_base_whole() -> nn.Module:
    """Return Transformer-XL base with a full softmax, from words (B, 192) to log probabilities: 16 blocks of width 512."""
    return TransformerXl(16, 512, 8, 2048, BASE_LENGTH, 0.1, 0.0, 0)


def transformer_xl_large_whole() -> nn.Module:
    """Return Transformer-XL large with a full softmax, from words (B, 256) to log probabilities: 18 blocks of width 1024."""
    return TransformerXl(18, 1024, 16, 4096, WHOLE_LARGE_LENGTH, 0.2, 0.2, 0)
