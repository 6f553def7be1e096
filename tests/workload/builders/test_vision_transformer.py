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


@pytest.mark.parametrize(
    ("name", "millions"),
    [("vit-s-16", 22.05), ("vit-b-16", 86.57), ("vit-b-32", 88.22), ("vit-l-16", 304.33), ("vit-h-14", 632.05)],
)
def test_named_ones_have_the_parameters_of_timm(name: str, millions: float) -> None:
    """pytorch-image-models, results/benchmark-train-amp-nhwc-pt112-cu113-rtx3090.csv; H: torchvision, vit_h_14."""
    assert Workload.named(name).num_parameters / 1e6 == pytest.approx(millions, rel=1e-4)


@pytest.mark.parametrize("name", ["ViT-L", "vit_large", "ViT-L/16", "google/vit-large-patch16-224", "vit_large_patch16_224"])
def test_names_forgive(name: str) -> None:
    assert Workload.named(name).name == "vit-l-16"
    with pytest.raises(UserError, match="no sequence length"):
        Workload.named(name, 128)
