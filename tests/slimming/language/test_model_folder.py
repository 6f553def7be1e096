"""A slimmed model of Hugging Face is saved so that it loads again and computes the same."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import paceline
from paceline.errors import UserError
from paceline.slimming.language.model_folder import opens_in_transformers
from paceline.slimming.slim_plan import SlimPlan
from paceline.slimming.structures.fewer_layers import within_layers
from paceline.slimming.structures.soundness import sound
from paceline.slimming.structures.structures import Structures
from paceline.slimming.structures.tracing import structures_of
from tiny_decoders import decoder

TOKENS = torch.arange(2, 11)[None]


def halves(model: nn.Module, every: int = 2, path: str = "") -> SlimPlan:
    """Return the plan without every second structure of the first layers, of all if ``every`` is 2.

    Args:
        path: of the decoder layers, if the width between them stays.
    """
    found: Structures = sound(structures_of(model, (TOKENS,)), model, (TOKENS,))
    found = within_layers(found, path) if path else found
    gone = {each.number for layer in list(found.layers().values())[:every] for each in layer[1::2]}
    if every == 2:
        gone = {each.number for layer in found.layers().values() for each in layer[1::2]}
    return SlimPlan.of(found, gone)


@pytest.mark.long
@pytest.mark.parametrize("name", ["Qwen3", "Llama", "Mixtral"])
def test_a_slimmed_decoder_opens_in_transformers_with_equal_logits(name: str, tmp_path: Path) -> None:
    model = decoder(name)
    # norms of heads and of the width between layers share one epsilon in the configuration, and only one would change
    small = paceline.slim.load(halves(model, path="model.layers" if name == "Qwen3" else ""), model)
    assert opens_in_transformers(small)
    small.save_pretrained(tmp_path)
    import transformers

    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        assert torch.equal(again(TOKENS).logits, small(TOKENS).logits)
    assert again.config.num_attention_heads == model.config.num_attention_heads // 2
    assert again.config.hidden_size == (32 if name == "Qwen3" else 16) and model.config.hidden_size == 32
    assert again.generate(TOKENS, max_new_tokens=2, do_sample=False).shape == (1, 11)
    assert model.config.num_attention_heads == 4, "the caller's configuration is as it was"
    with torch.no_grad():
        assert torch.equal(paceline.slim.load(tmp_path)(TOKENS).logits, small(TOKENS).logits)


@pytest.mark.long
@pytest.mark.parametrize(("name", "layers"), [("GPT2", 2), ("Qwen3", 1)])
def test_widths_that_no_configuration_states_are_saved_with_a_plan(name: str, layers: int, tmp_path: Path) -> None:
    model = decoder(name)
    small = copy.deepcopy(paceline.slim.load(halves(model, layers), model))
    assert not opens_in_transformers(small)
    with torch.no_grad():
        next(small.parameters()).add_(0.1)
    folder = tmp_path / "small"
    with pytest.warns(UserWarning, match="paceline.slim.load"):
        small.save_pretrained(folder)
    assert "paceline.slim.load" in (folder / "README.md").read_text()
    again = paceline.slim.load(folder)
    with torch.no_grad():
        assert torch.equal(again(TOKENS).logits, small(TOKENS).logits)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        again.save_pretrained(tmp_path / "again")
    assert (tmp_path / "again" / "plan.json").read_bytes() == (folder / "plan.json").read_bytes()


def test_other_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds no slimmed model|transformers is not installed"):
        paceline.slim.load(tmp_path)
    with pytest.raises(UserError, match="a plan without its network"):
        paceline.slim.load(SlimPlan({}, {}, {}))
