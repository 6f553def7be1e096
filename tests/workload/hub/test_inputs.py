"""Example inputs of models."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from paceline.errors import UserError
from paceline.workload.hub.inputs import examples, longest


def model(first: str, **config: Any) -> Any:
    class Model(nn.Module):
        main_input_name = first

        def forward(self, input_ids: Any = None, pixel_values: Any = None, use_cache: bool = True) -> None: ...

    own = Model()
    own.config = SimpleNamespace(**config)  # type: ignore[assignment]
    return own


def test_tokens_images_and_both() -> None:
    (text,) = examples(model("input_ids"), 7)
    assert text.sample == "sequence of 7 tokens" and text.given["input_ids"].shape == (2, 7) and not text.given["use_cache"]
    (image,) = examples(model("pixel_values", image_size={"height": 4, "width": 6}, num_channels=1), 7)
    assert image.sample == "image 1x4x6" and image.given["pixel_values"].shape == (2, 1, 4, 6)
    towers = model("input_ids", vision_config=SimpleNamespace(image_size=4), text_config=SimpleNamespace())
    towers.lm_head = nn.Identity()
    both, alone = examples(towers, 7)
    assert both.sample == "sequence of 7 tokens, one image 3x4x4" and "text alone" in alone.remark


def test_unknown_inputs_are_refused_and_the_length_is_the_configurations() -> None:
    with pytest.raises(UserError, match=r"inputs of Model \(points\) are not known"):
        examples(model("points"), 7)
    assert longest(SimpleNamespace(max_position_embeddings=100), 50) == 50
    assert longest(SimpleNamespace(n_positions=20), 50) == 20 and longest(SimpleNamespace(), 50) == 50
