"""Perplexity is that of a known distribution."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from paceline.slimming.language.perplexity import batches, perplexity


class Even(nn.Module):
    """The next token is one of eight, each as likely."""

    def forward(self, input_ids: Tensor, use_cache: bool) -> SimpleNamespace:
        return SimpleNamespace(logits=torch.zeros(*input_ids.shape, 8))


def test_an_even_distribution_over_eight_tokens_has_a_perplexity_of_eight() -> None:
    assert perplexity(Even(), torch.arange(41) % 8, 10) == pytest.approx(8)


def test_some_windows_are_spread_over_the_text() -> None:
    rows = torch.cat(list(batches(torch.arange(101), 10, most=3)))
    assert rows[:, 0].tolist() == [0, 40, 90]
    assert torch.equal(rows[0], torch.arange(11))
