"""Numbers of a configuration are found that state a smaller model, and only those."""

from __future__ import annotations

import pytest
import torch

from paceline.slimming.language.stated_config import is_hugging_face, stated_config
from paceline.slimming.structures.fewer_layers import within_layers
from paceline.slimming.structures.shrink import shrunk
from paceline.slimming.structures.soundness import sound
from paceline.slimming.structures.tracing import structures_of
from tiny_decoders import decoder


@pytest.mark.long
def test_only_the_numbers_of_the_widths_change() -> None:
    tokens = torch.arange(2, 8)[None]
    for name, part, changes in (
        ("Llama", "mlp", {"intermediate_size": 24}),
        ("GPT2", "mlp", {"n_inner": 64}),
        ("Mixtral", "attn", {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}),
        ("GPT2", "attn", None),
        ("Llama", "stream", {"hidden_size": 16, "rms_norm_eps": 2e-6}),
    ):
        model = decoder(name)
        found = sound(structures_of(model, (tokens,)), model, (tokens,))
        path = "transformer.h" if name == "GPT2" else "model.layers"
        inside = {each.number for each in within_layers(found, path).every}
        gone = {
            each.number
            for layer, every in found.layers().items()
            for each in every[1::2]
            if (each.number in inside and part in layer) or (each.number not in inside and part == "stream")
        }
        config = stated_config(model, shrunk(model, found, gone))
        before = vars(model.config)
        assert (config and {key: value for key, value in vars(config).items() if before.get(key) != value}) == changes


@pytest.mark.long
def test_an_image_model_states_the_rows_of_its_mlps() -> None:
    transformers = pytest.importorskip("transformers", reason="needs transformers: pip install transformers")
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    config = transformers.ViTConfig(**sizes, image_size=32, patch_size=16)
    model, images = transformers.ViTForImageClassification(config).eval(), torch.randn(1, 3, 32, 32)
    found = sound(structures_of(model, (images,)), model, (images,))
    rows = [every for every in found.layers().values() if len(every) == 48]
    small = shrunk(model, found, {each.number for every in rows for each in every[1::2]})
    for inputs in ((), (images,)):
        assert stated_config(model, small, inputs).intermediate_size == 24


def test_other_modules_have_no_configuration() -> None:
    assert not is_hugging_face(torch.nn.Linear(2, 2))
