"""Denoising networks of diffusers."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest

from paceline.errors import UserError
from paceline.workload import Workload

pytestmark = pytest.mark.skipif(find_spec("diffusers") is None, reason="needs diffusers")
WIDE = {"attention_head_dim": 16, "num_attention_heads": 4, "joint_attention_dim": 40, "pooled_projection_dim": 24}
CASES: dict[str, dict[str, Any]] = {
    "FluxTransformer2DModel": {**WIDE, "num_layers": 2, "num_single_layers": 3, "axes_dims_rope": [4, 6, 6]},
    "SD3Transformer2DModel": {**WIDE, "num_layers": 3, "caption_projection_dim": 64, "sample_size": 16},
    "WanTransformer3DModel": {
        "num_attention_heads": 4,
        "attention_head_dim": 16,
        "num_layers": 3,
        "ffn_dim": 96,
        "text_dim": 40,
    },
    "UNet2DConditionModel": {"sample_size": 16, "block_out_channels": [32, 64, 64, 64], "cross_attention_dim": 40},
}


@pytest.mark.everyday("FluxTransformer2DModel", others="full")
@pytest.mark.parametrize("kind", CASES)
def test_parameters_are_those_of_the_module_and_attention_takes_adapters(kind: str) -> None:
    import diffusers

    given = {"_class_name": kind, **CASES[kind]}
    table = Workload.from_config(given)
    whole = getattr(diffusers, kind).from_config(CASES[kind])
    assert table.num_parameters == sum(p.numel() for p in whole.parameters() if p.requires_grad)
    assert table.coverage.share == 1 and "without text encoders" in table.source
    assert table.with_lora("r=4").num_parameters > 0


def test_a_file_that_leaves_a_width_out_is_refused_with_the_reason() -> None:
    with pytest.raises(UserError, match=r"normalized_shape.*leaves out .*caption_projection_dim \(1536 there\)"):
        Workload.from_config({"_class_name": "SD3Transformer2DModel", **WIDE, "num_layers": 2, "sample_size": 16})


def test_no_length_can_be_chosen() -> None:
    with pytest.raises(UserError, match="no sequence length to choose"):
        Workload.from_config({"_class_name": "FluxTransformer2DModel", **CASES["FluxTransformer2DModel"]}, 64)
