"""Folders of diffusers' checkpoints."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from paceline.errors import UserError
from paceline.workload import Workload
from paceline.workload.pipelines import pipelines

SMALL: dict[str, tuple[str, str, dict[str, Any]]] = {
    "transformer": (
        "diffusers",
        "FluxTransformer2DModel",
        {
            **{"attention_head_dim": 16, "num_attention_heads": 4, "joint_attention_dim": 32, "pooled_projection_dim": 24},
            **{"num_layers": 1, "num_single_layers": 1, "axes_dims_rope": [4, 6, 6]},
        },
    ),
    "text_encoder": (
        "transformers",
        "CLIPTextModel",
        {
            **{"model_type": "clip_text_model", "hidden_size": 24, "intermediate_size": 32, "vocab_size": 99},
            **{"num_hidden_layers": 1, "num_attention_heads": 2},
        },
    ),
    "text_encoder_2": (
        "transformers",
        "T5EncoderModel",
        {"model_type": "t5", "d_model": 32, "d_ff": 64, "d_kv": 8, "num_heads": 4, "num_layers": 1, "vocab_size": 99},
    ),
    "vae": (
        "diffusers",
        "AutoencoderKL",
        {
            **{"down_block_types": ["DownEncoderBlock2D"] * 2, "up_block_types": ["UpDecoderBlock2D"] * 2},
            **{"block_out_channels": [32, 32], "latent_channels": 16},
        },
    ),
}


def written(folder: Path, networks: dict[str, tuple[str, str, dict[str, Any]]]) -> str:
    index: dict[str, Any] = {"_class_name": "MyPipeline", "scheduler": ["diffusers", "MyScheduler"], "tokenizer": [None, None]}
    for name, (library, kind, settings) in networks.items():
        (folder / name).mkdir()
        own = {"_class_name": kind} if library == "diffusers" else {"architectures": [kind]}
        (folder / name / "config.json").write_text(json.dumps(own | settings))
        index[name] = [library, kind]
    (folder / "model_index.json").write_text(json.dumps(index))
    return f"{folder}/"


@pytest.mark.long
@pytest.mark.skipif(find_spec("diffusers") is None or find_spec("transformers") is None, reason="needs diffusers")
def test_all_networks_of_a_folder_are_read(tmp_path: Path) -> None:
    from diffusers import AutoencoderKL

    folder = written(tmp_path, SMALL)
    whole, cached = (Workload.named(folder, inputs=words) for words in ("64px", "64px,cached"))
    assert whole.num_parameters == cached.num_parameters and cached.resident == 0
    assert "image 3x64x64 as 256 tokens" in whole.sample  # the autoencoder halves each side once, and four latents are a token
    t5 = 99 * 32 + 4 * 32 * 32 + 2 * 32 * 64 + 2 * 32 + 32 + 32 * 4
    clip = 99 * 24 + 77 * 24 + 4 * (24 * 24 + 24) + 2 * 24 * 32 + 32 + 24 + 3 * 2 * 24
    vae = sum(p.numel() for p in AutoencoderKL(**SMALL["vae"][2]).parameters())
    assert whole.resident == t5 + clip + vae
    trained = Workload.named(folder, inputs="64px,train-text")
    assert trained.num_parameters == whole.num_parameters + clip and trained.resident == t5 + vae
    with pytest.raises(UserError, match="no sequence length"):
        Workload.named(folder, 64)


def test_a_published_denoiser_needs_no_library(tmp_path: Path) -> None:
    denoiser = {key: value for key, value in pipelines()["sdxl"].denoiser.items() if key != "_class_name"}
    table = Workload.named(written(tmp_path, {"unet": ("diffusers", "UNet2DConditionModel", denoiser)}))
    assert table.num_parameters == 2_567_463_684 and "has the values of sdxl" in table.notes[0]


def test_a_folder_without_a_denoiser_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no transformer and no unet"):
        Workload.named(written(tmp_path, {"vae": SMALL["vae"]}))
    (tmp_path / "model_index.json").write_text("[1]")
    with pytest.raises(UserError, match="no values by name"):
        Workload.named(f"{tmp_path}/model_index.json")
