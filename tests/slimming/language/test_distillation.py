"""A model learns a text, and a student the distribution of its teacher."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

from paceline.slimming.language.distillation import TextTraining, train_language_model
from paceline.slimming.language.perplexity import perplexity
from tiny_decoders import decoder

TEXT = torch.arange(400) % 10
SCHEDULE = TextTraining(steps=12, batch=4, window=8, lr=1e-2, seed=1)


def test_the_rate_rises_and_falls() -> None:
    rates = [replace(SCHEDULE, steps=100).rate(step) for step in range(100)]
    assert max(rates) == rates[4] == 1
    assert rates[5:] == sorted(rates[5:], reverse=True)
    assert rates[-1] == pytest.approx(0.1, abs=0.01)


@pytest.mark.long
def test_a_model_learns_and_teaches() -> None:
    model = decoder("Qwen3", num_hidden_layers=1)
    student = copy.deepcopy(model)
    before = perplexity(model, TEXT, 8)
    train_language_model(model, TEXT, SCHEDULE)
    after = perplexity(model, TEXT, 8)
    assert after < before / 3
    noise = torch.randint(256, (400,), generator=torch.Generator().manual_seed(0))
    train_language_model(student, torch.cat([TEXT, noise]), replace(SCHEDULE, share=1.0), teacher=model)
    assert perplexity(student, TEXT, 8) < before / 2
