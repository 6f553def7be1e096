"""Diffusion models from the folder of a checkpoint of diffusers: ``model_index.json``, and a configuration for each network."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.errors import UserError
from paceline.workload.builders.attention import eager
from paceline.workload.diffusion_step import Encoding, assembled, check_words, encodes_images, encodes_text
from paceline.workload.hub.diffusion_inputs import text_tokens
from paceline.workload.hub.pipeline_tables import autoencoder_table, denoiser_table, text_encoder_table
from paceline.workload.layers import LayerTable
from paceline.workload.pipelines import needs_libraries, pipeline_table, published
from paceline.workload.sample_size import SampleSize, parse_sample

INDEX = "model_index.json"
_DENOISERS = ("transformer", "unet")
_CLIP = 77


def folder_table(folder: Path, inputs: str = "", *, fused_attention: bool = True) -> LayerTable:
    """Return the table of one training step of the pipeline in a folder.

    Raises:
        UserError: a folder without a denoiser, networks that the libraries do not define, or as ``pipeline_table``.
    """
    index = _read(folder / INDEX)
    networks = {name: _read(folder / name / "config.json") for name, kind in index.items() if _is_network(folder, name, kind)}
    own = next((name for name in _DENOISERS if name in networks), "")
    if not own:
        raise UserError(f"{folder} has no {' and no '.join(_DENOISERS)}", "give the folder of a pipeline of diffusers")
    denoiser = networks[own]
    if known := published(denoiser):
        return pipeline_table(known, inputs, fused_attention=fused_attention, given=str(folder))
    name = folder.resolve().name
    needs_libraries(name)
    asked, kind = parse_sample(inputs) if inputs else SampleSize(), str(denoiser["_class_name"])
    check_words(name, asked)
    scale = _scale(networks.get("vae", {}))
    size = parse_sample(asked.pixels or _usual(denoiser, kind, scale))
    table = denoiser_table(denoiser, size, scale, name, str(folder))
    encoders = []
    for part, settings in networks.items():
        encoder_kind = index[part][1]
        if part.startswith("text_encoder") and encodes_text(asked):
            clip = encoder_kind.startswith("CLIP")
            made = text_encoder_table(encoder_kind, settings, _CLIP if clip else text_tokens(kind))
            encoders.append(Encoding(part, made, made.num_parameters, clip))
        elif part == "vae" and encodes_images(asked):
            made = autoencoder_table(encoder_kind, settings, size)
            encoders.append(Encoding(part, made, made.num_parameters))
    whole = assembled(name, table, encoders, asked, size, str(folder))
    return whole if fused_attention else eager(whole)


def _read(path: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"cannot read {path}: {error}", "give the folder of a pipeline of diffusers") from None
    if not isinstance(found, dict):
        raise UserError(f"{path} has no values by name", "give the folder of a pipeline of diffusers")
    return found


def _is_network(folder: Path, name: str, kind: Any) -> bool:
    """Return whether an entry of the index is a network: a library and a class, and a folder with a configuration."""
    named = isinstance(kind, list) and len(kind) == 2 and all(isinstance(word, str) for word in kind)
    return named and (name in _DENOISERS or name == "vae" or name.startswith("text_encoder")) and (folder / name).is_dir()


def _scale(autoencoder: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return the pixels of one latent, which halve at each level but the first; None: as the denoiser's class has it."""
    levels = autoencoder.get("block_out_channels")
    if autoencoder.get("_class_name") != "AutoencoderKL" or not isinstance(levels, list):
        return None
    return int(2 ** (len(levels) - 1)), 1


def _usual(denoiser: Mapping[str, Any], kind: str, scale: tuple[int, int] | None) -> str:
    side = denoiser.get("sample_size")
    if "3D" in kind:
        return "81x480x832"
    return f"{side * (scale or (8, 1))[0]}px" if type(side) is int else "1024px"
