"""Transformers over the patches of an image."""

from __future__ import annotations

import pytest

from paceline.errors import UserError
from paceline.workload import Workload

VIT = {
    "model_type": "vit",
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "id2label": {str(i): str(i) for i in range(1000)},
}


def test_flops_are_those_of_the_paper() -> None:
    """17.6 GMACs, as torchvision's page of ViT-B/16 has it (GFLOPS 17.56), which counts a multiply-add once."""
    assert Workload.from_config(VIT).flops_forward / 2 == pytest.approx(17.56e9, rel=0.01)


def test_what_an_image_has_no_place_for_is_refused() -> None:
    with pytest.raises(UserError, match="no sequence length to choose; its images have 197 tokens"):
        Workload.from_config(VIT, 128)
    with pytest.raises(UserError, match="patches of 16 pixels in an image of 100"):
        Workload.from_config({**VIT, "image_size": 100})
