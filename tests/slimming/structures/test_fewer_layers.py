"""A decoder without some layers is one of the remaining layers, in order."""

from __future__ import annotations

import pytest
import torch

from paceline.errors import UserError
from paceline.slimming.slim_plan import SlimPlan
from paceline.slimming.structures.fewer_layers import KIND, layers_of
from paceline.slimming.structures.shrink import load
from tiny_decoders import decoder

TOKENS = torch.arange(2, 11)[None]


@pytest.mark.long
@pytest.mark.parametrize("name", ["Qwen3", "GPT2"])
def test_a_plan_removes_layers_and_the_rest_generates_with_a_cache(name: str) -> None:
    model = decoder(name, num_hidden_layers=3)
    path = layers_of(model)
    small = load(SlimPlan({}, {}, {}, {"": {"kind": KIND, "kept": [0, 2]}}), model)
    x = model.get_submodule(path)[1].register_forward_hook(lambda module, given, output: given[0])
    with torch.no_grad():  # a layer that returns its input is a layer that is gone
        assert torch.allclose(small(TOKENS).logits, model(TOKENS, use_cache=False).logits, atol=1e-5)
        x.remove()
        assert small.generate(TOKENS, max_new_tokens=2, do_sample=False).shape == (1, 11)
    assert model.config.num_hidden_layers == 3


def test_a_network_without_layers_is_refused() -> None:
    with pytest.raises(UserError, match="no list of layers"):
        layers_of(torch.nn.Linear(2, 2))
