"""Perplexity of language models on a text."""

from __future__ import annotations

from collections.abc import Iterator
from math import exp

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 8
"""Windows that run together."""


def windows(tokens: Tensor, window: int) -> Tensor:
    """Return whole windows of a text with the next token of each, shape (windows, window + 1)."""
    count = (len(tokens) - 1) // window
    starts = torch.arange(count)[:, None] * window
    return tokens[starts + torch.arange(window + 1)]


def batches(tokens: Tensor, window: int, batch: int = BATCH, most: int = 0) -> Iterator[Tensor]:
    """Yield a text's windows in batches; with ``most`` only as many windows, evenly over the text."""
    rows = windows(tokens, window)
    if 0 < most < len(rows):
        rows = rows[torch.linspace(0, len(rows) - 1, most).long()]
    yield from rows.split(batch)


def logits_of(model: nn.Module, tokens: Tensor) -> Tensor:
    """Return the logits (batch, tokens, vocabulary) without a cache."""
    found: Tensor = model(input_ids=tokens, use_cache=False).logits
    return found


def loss_of(logits: Tensor, rows: Tensor) -> Tensor:
    """Return the mean cross-entropy of each window's next tokens."""
    return F.cross_entropy(logits.flatten(0, 1).float(), rows[:, 1:].flatten())


@torch.no_grad()
def perplexity(model: nn.Module, tokens: Tensor, window: int, most: int = 0) -> float:
    """Return the perplexity of a text in windows that each begin without a cache. Arguments as of ``batches``."""
    lost = count = 0.0
    for rows in batches(tokens, window, most=most):
        lost += float(loss_of(logits_of(model, rows[:, :-1]), rows)) * rows[:, 1:].numel()
        count += rows[:, 1:].numel()
    return exp(min(lost / count, 700.0))
