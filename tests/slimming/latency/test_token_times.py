"""Decoders are timed by token and by prompt, in turns."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.errors import UserError
from paceline.slimming.export.cached_decoder import decoder_to_onnx
from paceline.slimming.latency.token_times import token_latencies
from tiny_decoders import decoder


@pytest.mark.long
def test_a_decoder_of_fewer_layers_is_faster_in_turns_with_the_whole_one(tmp_path: Path) -> None:
    sizes = {"hidden_size": 128, "intermediate_size": 512, "head_dim": 32}
    files = {str(n): decoder_to_onnx(decoder("Qwen3", num_hidden_layers=n, **sizes), tmp_path / f"{n}.onnx") for n in (4, 1)}
    found = token_latencies(files, 256, context=16, prompt=32)
    assert found["1"].decode.median_s < 0.6 * found["4"].decode.median_s
    assert found["1"].prefill.median_s < 0.6 * found["4"].prefill.median_s


def test_a_context_of_no_tokens_is_refused() -> None:
    with pytest.raises(UserError, match="0 tokens"):
        token_latencies({}, 10, context=0)
