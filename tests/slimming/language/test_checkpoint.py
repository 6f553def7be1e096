"""Checkpoints in Hugging Face's format and texts are read or refused with a next step."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paceline.errors import UserError
from paceline.slimming.language.checkpoint import Checkpoint, TextParts, load_checkpoint
from paceline.slimming.language.model_folder import load_folder
from tiny_decoders import config, decoder


@pytest.mark.long
def test_weights_are_those_of_the_folder_or_random(tmp_path: Path) -> None:
    model = decoder("GPT2")
    model.save_pretrained(tmp_path / "with")
    loaded = load_checkpoint(tmp_path / "with")
    assert not loaded.random
    assert loaded.tokens("Aé").tolist() == [65, 195, 169]
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), loaded.model.parameters(), strict=True))
    config("GPT2", vocab_size=100).save_pretrained(tmp_path / "without")
    other = load_checkpoint(tmp_path / "without")
    assert other.random
    with pytest.raises(UserError, match=r"no tokenizer.json"):
        other.tokens("a")


def test_missing_and_unknown_weights_are_refused_by_name_but_not_tied_ones(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch", reason="needs safetensors: pip install safetensors")
    load_file, save_file = safetensors.load_file, safetensors.save_file
    file = tmp_path / "model.safetensors"
    decoder("Qwen3").save_pretrained(tmp_path)  # type: ignore[operator]
    weights = load_file(str(file))
    assert "lm_head.weight" not in weights
    gone = "model.layers.1.mlp.up_proj.weight"
    for kept, says in (
        (weights, ""),
        ({name: each for name, each in weights.items() if name != gone}, f"lacks the weights: {gone}"),
        (weights | {"other.weight": weights[gone].clone()}, "has weights that Qwen3ForCausalLM does not: other.weight"),
    ):
        save_file(kept, str(file), metadata={"format": "pt"})
        for load in (load_checkpoint, load_folder):
            try:
                load(tmp_path)
                found = ""
            except UserError as error:
                found = error.message
            assert found.endswith(says) and bool(says) == bool(found)


@pytest.mark.long
def test_other_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"config.json"):
        load_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "vit"}')
    pytest.importorskip("transformers", reason="needs transformers: pip install transformers")
    with pytest.raises(UserError, match="vit"):
        load_checkpoint(tmp_path)


def test_tokens_beyond_the_vocabulary_are_refused() -> None:
    model = SimpleNamespace(config=SimpleNamespace(vocab_size=500))
    known: Any = partial(Checkpoint, "m", model, random=False)
    assert known(tokenizer=lambda text: [1, 499]).tokens("a").tolist() == [1, 499]
    with pytest.raises(UserError, match="token 500, and its model has 500 words"):
        known(tokenizer=lambda text: [1, 500]).tokens("a")


def test_the_end_of_a_text_is_held_out() -> None:
    parts = TextParts.of(torch.arange(1000), 10)
    assert torch.equal(torch.cat([parts.train, parts.tune, parts.test]), torch.arange(1000))
    assert (len(parts.test), len(parts.tune)) == (100, 50)
    with pytest.raises(UserError, match="at least 1,600"):
        TextParts.of(torch.arange(1000), 20)
