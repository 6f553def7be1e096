"""Word-level language models of one book: the text in three parts, an LSTM and a transformer, their training and perplexity.

The text is cut as Penn Treebank is for Mikolov et al. 2010: words in small letters, the most frequent ones of the training
part, the others `<unk>`; a line's end is a token. The first 80 % train, the next 10 % tune, the last 10 %
test. A perplexity is of all tokens of a part, in order, and counts `<unk>` as a word.
"""

from __future__ import annotations

import copy
import gzip
import math
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

FILES = {"tinyshakespeare": "tinyshakespeare/input.txt.gz", "war-and-peace": "war-and-peace/2600-0.txt.gz"}
STEPS = 35
"""Tokens that a gradient goes back through, as in Zaremba et al. 2014."""
ROWS = 32
"""Parts of the text that are read side by side."""
CLIP = 1.0
"""The largest norm of a gradient."""


@dataclass(frozen=True)
class Text:
    """Tokens of the three parts, each of shape (tokens,); ``vocabulary``: how many there are."""

    train: Tensor
    tune: Tensor
    test: Tensor
    vocabulary: int

    @classmethod
    def read(cls, name: str, folder: Path, vocabulary: int, most: int | None = None) -> Text:
        """A book of ``folder``; of its tokens at most the first ``most``."""
        letters = gzip.decompress((folder / FILES[name]).read_bytes()).decode("utf-8-sig").replace("\u2019", "'").lower()
        if (begin := letters.find("\nbook one: 1805")) >= 0:  # without the contents and the licence of Project Gutenberg
            letters = letters[begin : letters.find("*** end of this project")]
        words = re.findall(r"[a-z\u00e0-\u00ff']+|[0-9]+|\n|[^\sa-z0-9]", letters)[:most]
        first, second = len(words) * 8 // 10, len(words) * 9 // 10
        common = [word for word, _ in Counter(words[:first]).most_common(vocabulary - 1)]
        place = {word: number for number, word in enumerate(common)}
        tokens = torch.tensor([place.get(word, len(common)) for word in words])
        return cls(tokens[:first], tokens[first:second], tokens[second:], len(common) + 1)


class LstmModel(nn.Module):
    """Tokens (B, T) and states to logits (B, T, V) and states: the network of Zaremba et al. 2014 (arXiv:1409.2329)."""

    def __init__(self, vocabulary: int, width: int, hidden: Sequence[int], dropout: float) -> None:
        super().__init__()
        self.table, self.drop = nn.Embedding(vocabulary, width), nn.Dropout(dropout)
        inputs = [width, *hidden[:-1]]
        self.layers = nn.ModuleList(nn.LSTM(a, b, batch_first=True) for a, b in zip(inputs, hidden, strict=True))
        self.output = nn.Linear(hidden[-1], vocabulary)

    def forward(self, tokens: Tensor, states: list[Any] | None = None) -> tuple[Tensor, list[Any]]:
        """Dropout stands before each layer and before the output, not between steps."""
        x, ends = self.table(tokens), []
        for number, layer in enumerate(self.layers):
            x, end = layer(self.drop(x), None if states is None else states[number])
            ends.append(end)
        return self.output(self.drop(x)), ends


class Attention(nn.Module):
    """Causal, of heads of one width: (B, T, width) to the same."""

    def __init__(self, width: int, heads: int, head_width: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv, self.project = nn.Linear(width, 3 * heads * head_width), nn.Linear(heads * head_width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout if self.training else 0.0, is_causal=True)
        result: Tensor = self.project(mixed.transpose(1, 2).flatten(-2))
        return result


class Block(nn.Module):
    """Attention and two linear layers, normalised before and added to what enters."""

    def __init__(self, width: int, heads: int, head_width: int, rows: int, dropout: float) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, head_width, dropout)
        self.expand, self.contract = nn.Linear(width, rows), nn.Linear(rows, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop(self.attention(self.attention_norm(x)))
        result: Tensor = x + self.drop(self.contract(F.gelu(self.expand(self.mlp_norm(x)))))
        return result


class TransformerModel(nn.Module):
    """Tokens (B, T) to logits (B, T, V), the form of GPT-2. ``blocks``: heads and rows of each; ``context``: the largest T."""

    def __init__(
        self,
        vocabulary: int,
        width: int,
        head_width: int,
        blocks: Sequence[tuple[int, int]],
        dropout: float,
        context: int = STEPS,
    ) -> None:
        super().__init__()
        self.table, self.places, self.drop = nn.Embedding(vocabulary, width), nn.Embedding(context, width), nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(Block(width, heads, head_width, rows, dropout) for heads, rows in blocks))
        self.norm, self.output = nn.LayerNorm(width), nn.Linear(width, vocabulary)
        for module in self.modules():
            if isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens: Tensor, states: None = None) -> tuple[Tensor, None]:
        """States are for recurrent networks."""
        x = self.drop(self.table(tokens) + self.places(torch.arange(tokens.shape[1])))
        return self.output(self.norm(self.blocks(x))), None


def set_dropout(model: nn.Module, share: float) -> None:
    """The share of every dropout of a model."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = share
        elif isinstance(module, Attention):
            module.dropout = share


def windows(tokens: Tensor, rows: int) -> Iterator[tuple[Tensor, Tensor]]:
    """What is read and what comes next, (rows, STEPS) each, side by side through the whole text."""
    lines = tokens[: len(tokens) // rows * rows].view(rows, -1)
    for start in range(0, lines.shape[1] - STEPS, STEPS):
        yield lines[:, start : start + STEPS], lines[:, start + 1 : start + STEPS + 1]


def steps_of(text: Text) -> int:
    """Of an epoch."""
    return sum(1 for _ in windows(text.train, ROWS))


def detached(states: Any) -> Any:
    """States without their history."""
    if isinstance(states, Tensor):
        return states.detach()
    return None if states is None else type(states)(map(detached, states))


@torch.no_grad()
def perplexity(model: nn.Module, tokens: Tensor) -> float:
    """Of a text, states carried on."""
    was_training = model.training
    model.eval()
    total, count, states = 0.0, 0, None
    for given, wanted in windows(tokens, 16):
        logits, states = model(given, states)
        total += float(F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="sum"))
        count += wanted.numel()
    model.train(was_training)
    return math.exp(total / count)


@dataclass
class Trained:
    """What a training left: the weights of the epoch with the least perplexity on the tuning part.

    Attributes:
        tune: that perplexity. ``seconds``: of processor time. ``curve``: the perplexity after each epoch.
    """

    tune: float = math.inf
    seconds: float = 0.0
    curve: list[float] = field(default_factory=list)


def train(
    model: nn.Module,
    text: Text,
    optimizer: Optimizer,
    epochs: int,
    *,
    teacher: nn.Module | None = None,
    falling: bool = True,
) -> Trained:
    """Train with products in bfloat16 where oneDNN has them for this processor, and end with the best epoch's weights where the
    rate falls.

    Args:
        teacher: half of the loss is the distance to its distribution (Hinton et al. 2015).
        falling: the rate falls to nothing along a half cosine; else it stays, and the last weights are kept.
    """
    found, best = Trained(), copy.deepcopy(model.state_dict())
    rate = optimizer.param_groups[0]["lr"]
    count = steps_of(text)
    # An LSTM in bfloat16 is an error of oneDNN's on processors without AVX-512.
    autocast = torch.autocast("cpu", torch.bfloat16, torch.ops.mkldnn._is_mkldnn_bf16_supported())
    for epoch in range(epochs):
        model.train()
        begin, states, teacher_states = time.process_time(), None, None
        for number, (given, wanted) in enumerate(windows(text.train, ROWS)):
            if falling:
                done = (epoch * count + number) / (epochs * count)
                optimizer.param_groups[0]["lr"] = rate * (0.5 + 0.5 * math.cos(math.pi * done))
            with autocast:
                logits, states = model(given, detached(states))
                if teacher is not None:
                    with torch.no_grad():
                        taught, teacher_states = teacher(given, teacher_states)
            logits = logits.float().flatten(0, 1)
            loss = F.cross_entropy(logits, wanted.flatten())
            if teacher is not None:
                near = F.kl_div(logits.log_softmax(-1), taught.float().flatten(0, 1).softmax(-1), reduction="batchmean")
                loss = 0.5 * loss + 0.5 * near
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
        found.seconds += time.process_time() - begin
        found.curve.append(perplexity(model, text.tune))
        if found.curve[-1] < found.tune:
            found.tune = found.curve[-1]
            best = copy.deepcopy(model.state_dict()) if falling else best
    if falling:
        model.load_state_dict(best)
    return found


__all__ = [
    "FILES",
    "ROWS",
    "STEPS",
    "Attention",
    "Block",
    "LstmModel",
    "Text",
    "Trained",
    "TransformerModel",
    "perplexity",
    "set_dropout",
    "steps_of",
    "train",
    "windows",
]
