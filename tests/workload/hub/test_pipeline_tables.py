"""Traced networks of a diffusion pipeline."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest

from paceline.errors import UserError
from paceline.workload.hub.pipeline_tables import autoencoder_table, denoiser_table, text_encoder_table
from paceline.workload.sample_size import SampleSize, parse_sample

pytestmark = pytest.mark.skipif(
    find_spec("diffusers") is None or find_spec("transformers") is None, reason="needs transformers and diffusers"
)
SMALL = {
    "down_block_types": ["DownEncoderBlock2D"] * 2,
    "up_block_types": ["UpDecoderBlock2D"] * 2,
    "block_out_channels": [32, 32],
}


def test_an_autoencoder_has_all_its_weights_and_the_work_of_its_encoder() -> None:
    import torch
    from diffusers import AutoencoderKL
    from torch.utils.flop_counter import FlopCounterMode

    table = autoencoder_table("AutoencoderKL", SMALL, SampleSize(64, 32))
    with torch.device("meta"):
        module = AutoencoderKL.from_config(SMALL)
        with FlopCounterMode(display=False) as counter:
            module.encode(torch.empty(1, 3, 64, 32))
    assert table.num_parameters == sum(p.numel() for p in module.parameters())
    assert table.flops_forward == counter.get_total_flops()
    with pytest.raises(UserError, match="defines no AutoencoderOfMine"):
        autoencoder_table("AutoencoderOfMine", {}, SampleSize(64, 64))


@pytest.mark.parametrize(
    ("size", "scale", "sample"),
    [
        pytest.param("64x128", None, "image 3x64x128 as 32 tokens", marks=pytest.mark.long),
        ("64px", (16, 1), "image 3x64x64 as 4 tokens"),
    ],
)
def test_tokens_of_an_image_follow_its_size(size: str, scale: tuple[int, int] | None, sample: str) -> None:
    config: dict[str, Any] = {
        "_class_name": "FluxTransformer2DModel",
        **{"attention_head_dim": 16, "num_attention_heads": 4, "joint_attention_dim": 40, "pooled_projection_dim": 24},
        **{"num_layers": 1, "num_single_layers": 1, "axes_dims_rope": [4, 6, 6]},
    }
    table = denoiser_table(config, parse_sample(size), scale, "small", "a test")
    assert table.sample == sample and "diffusers" in table.source


def test_a_text_encoder_is_a_class_of_transformers() -> None:
    own = {"model_type": "t5", "d_model": 32, "d_ff": 64, "d_kv": 8, "num_heads": 4, "num_layers": 1, "vocab_size": 99}
    table = text_encoder_table("T5EncoderModel", own, 24)
    assert table.tokens == 24 and table.num_parameters == 99 * 32 + 4 * 32 * 32 + 2 * 32 * 64 + 2 * 32 + 32 + 32 * 4
