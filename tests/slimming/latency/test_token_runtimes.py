"""Each runtime decodes as the modules do, token by token, and is timed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from paceline.errors import UserError
from paceline.slimming.latency.targets import TARGETS
from paceline.slimming.latency.token_runtimes import TOKEN_RUNTIMES, token_runtime
from tiny_decoders import decoder


@pytest.mark.long
@pytest.mark.parametrize("name", list(TOKEN_RUNTIMES))
def test_a_runtime_gives_the_logits_of_the_modules_and_times(name: str, tmp_path: Path) -> None:
    try:
        runtime = token_runtime(name)
    except UserError as error:
        pytest.skip(f"needs the target's package: {error}")
    model = decoder("Qwen3", num_hidden_layers=1)
    file = runtime.export(model, tmp_path / f"model{runtime.target.suffix}", 16)
    assert [each.name for each in tmp_path.iterdir()] == [f"model{runtime.target.suffix}"]
    tokens = np.random.default_rng(1).integers(0, 256, (1, 14))
    with torch.no_grad():
        expected = model(torch.from_numpy(tokens), use_cache=False).logits.numpy()
    program = runtime.open(file)
    past, rows = program.empty(), []
    for part in np.split(tokens, [12, 13], axis=1):
        logits, past = program(part, past)
        rows.append(logits)
    assert np.abs(np.concatenate(rows, 1) - expected).max() < 1e-4 * np.abs(expected).max()
    found = runtime.latencies({"it": file}, 256, context=12, prompt=14, turns=2)["it"]
    assert 0 < found.decode.median_s < 1 and 0 < found.prefill.median_s < 1


def test_targets_that_do_not_decode_are_refused() -> None:
    assert all(TARGETS[name] is each.target for name, each in TOKEN_RUNTIMES.items())
    for name in ("litert", "tensorrt", "onnx"):
        with pytest.raises(UserError, match=f"a language model on {name}; .* onnxruntime, executorch, torch-compile only"):
            token_runtime(name)
