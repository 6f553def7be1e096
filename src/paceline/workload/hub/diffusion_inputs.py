"""Example inputs of the denoising networks of diffusers: latent images or clips, a step of the noise, and encoded text.

Sizes are the usual ones of each pipeline: the configuration's ``sample_size``, or else images of 1024 x 1024 and clips of 81
frames of 480 x 832, in latents of one in eight pixels and one in four frames (Rombach et al. 2022, arXiv:2112.10752; Wan team
2025, arXiv:2503.20314, section 4.1). Text encoders and the autoencoder are other networks and are not counted.
"""

from __future__ import annotations

import inspect
from typing import Any

from paceline.errors import UserError
from paceline.workload.hub.inputs import Example, of

_CLIP = (21, 60, 104)
_LTX = (16, 16, 22)  # latents of one in 32 pixels and one in eight frames
_SIDE = 128
_TEXT = {
    "UNet2DConditionModel": 77,
    "ControlNetModel": 77,
    "SD3Transformer2DModel": 77 + 256,
    "PixArtTransformer2DModel": 300,
    "SanaTransformer2DModel": 300,
    "CogVideoXTransformer3DModel": 226,
    "LTXVideoTransformer3DModel": 128,
    "HunyuanVideoTransformer3DModel": 256,
    "MochiTransformer3DModel": 256,
    "AuraFlowTransformer2DModel": 256,
    "Lumina2Transformer2DModel": 256,
}
"""Tokens of a text in the pipeline of each class, ``max_sequence_length`` in diffusers 0.42; others have 512."""
_WIDTHS = ("joint_attention_dim", "text_dim", "text_embed_dim", "caption_channels", "cap_feat_dim", "cross_attention_dim")


def diffusion_examples(module: Any) -> list[Example]:
    """Return the example of a denoising network's inputs.

    Raises:
        UserError: a network whose inputs are not known here.
    """
    config, takes = module.config, inspect.signature(module.forward).parameters
    first = next((name for name in ("hidden_states", "sample") if name in takes), "")
    if not first:
        raise UserError(
            f"the inputs of {type(module).__name__} are not known here",
            "trace it: write a function that returns the module and its inputs, and name it module:function",
        )
    latent, sample = _latent(type(module).__name__, config, takes)
    given: dict[str, Any] = {first: of(*latent)}
    text = _TEXT.get(type(module).__name__, 512)
    width = next((value for name in _WIDTHS if type(value := config.get(name)) is int), 0)
    if "encoder_hidden_states" in takes and width:
        given["encoder_hidden_states"] = of(text, width)
        for mask in ("encoder_attention_mask", "encoder_hidden_states_mask"):
            if mask in takes and takes[mask].default is inspect.Parameter.empty:
                given[mask] = of(text, whole=True)
    if "timestep" in takes:
        given["timestep"] = of()
    if "pooled_projections" in takes:
        given["pooled_projections"] = of(config.get("pooled_projection_dim"))
    if "guidance" in takes and config.get("guidance_embeds"):
        given["guidance"] = of()
    if "class_labels" in takes and config.get("num_embeds_ada_norm") and not width:
        given["class_labels"] = of(whole=True)
    if "img_ids" in takes:
        axes = len(config.get("axes_dims_rope", (0, 0, 0)))
        given |= {"img_ids": of(latent[0], axes), "txt_ids": of(text, axes)}
    if "img_shapes" in takes:
        given["img_shapes"] = (1, _SIDE // 2, _SIDE // 2)
    if "rope_interpolation_scale" in takes:  # LTX
        given |= dict(zip(("num_frames", "height", "width"), _LTX, strict=True))
    if "added_cond_kwargs" in takes:
        given["added_cond_kwargs"] = _conditions(config)
    return [Example(given, sample, "; without text encoders and autoencoder")]


def _latent(kind: str, config: Any, takes: Any) -> tuple[tuple[int, ...], str]:
    """Return the shape of one sample's latents, and its description."""
    channels = config.get("in_channels")
    if "img_ids" in takes or kind == "QwenImageTransformer2DModel":  # pairs of rows and of columns are one token
        tokens = (_SIDE // 2) ** 2
        return (tokens, channels), f"image 3x{8 * _SIDE}x{8 * _SIDE} as {tokens} tokens"
    if kind == "CogVideoXTransformer3DModel":
        frames, high, wide = (config.get(f"sample_{name}") for name in ("frames", "height", "width"))
        return ((frames - 1) // 4 + 1, channels, high, wide), f"clip of {frames} frames of 3x{8 * high}x{8 * wide}"
    if kind.startswith("LTX"):
        tokens = _LTX[0] * _LTX[1] * _LTX[2]
        return (
            tokens,
            channels,
        ), f"clip of {8 * (_LTX[0] - 1) + 1} frames of 3x{32 * _LTX[1]}x{32 * _LTX[2]} as {tokens} tokens"
    if "3D" in kind:
        return (channels, *_CLIP), f"clip of {4 * (_CLIP[0] - 1) + 1} frames of 3x{8 * _CLIP[1]}x{8 * _CLIP[2]}"
    side = config.get("sample_size") or _SIDE
    high, wide = side if isinstance(side, list | tuple) else (side, side)
    scale = 1 if channels == 3 else 32 if kind.startswith("Sana") else 8
    return (channels, high, wide), f"image 3x{scale * high}x{scale * wide}"


def _conditions(config: Any) -> dict[str, Any]:
    """Return the further conditions: of SDXL the pooled text and six sizes, of PixArt the size of an image."""
    if config.get("addition_embed_type") == "text_time":
        sizes = 6
        pooled = config.get("projection_class_embeddings_input_dim") - sizes * config.get("addition_time_embed_dim")
        return {"text_embeds": of(pooled), "time_ids": of(sizes)}
    return {"resolution": of(2), "aspect_ratio": of(1)}
