"""A decoder in ONNX Runtime gives the logits of its modules, token by token with its cache."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from paceline.errors import UserError
from paceline.slimming.export.cached_decoder import CachedDecoder, decoder_to_onnx
from paceline.slimming.latency.token_times import TokenRunner
from tiny_decoders import decoder


@pytest.mark.long
@pytest.mark.parametrize("name", ["Qwen3", "GPT2", "Llama", "Mixtral"])
def test_the_logits_are_those_of_the_modules_at_every_step(name: str, tmp_path: Path) -> None:
    model = decoder(name)
    runner = TokenRunner(decoder_to_onnx(model, tmp_path / "model.onnx"))
    tokens = np.random.default_rng(1).integers(0, 256, (1, 12))
    with torch.no_grad():
        expected = model(torch.from_numpy(tokens), use_cache=False).logits.numpy()
    past, rows = runner.empty(), []
    for part in np.split(tokens, [5, 6, 7, 10, 11], axis=1):
        logits, past = runner(part, past)
        rows.append(logits)
    assert np.abs(np.concatenate(rows, 1) - expected).max() < 1e-4 * np.abs(expected).max()
    losses = torch.nn.functional.cross_entropy(torch.from_numpy(expected[0, :-1]), torch.from_numpy(tokens[0, 1:]))
    assert runner.perplexity(tokens[0], 11) == pytest.approx(float(losses.exp()), rel=1e-4)


def test_networks_without_a_cache_are_refused() -> None:
    with pytest.raises(UserError, match="no decoder"):
        CachedDecoder(torch.nn.Linear(2, 2)).sizes()
