"""Example inputs of the denoising networks of diffusers: latent images or clips, a step of the noise, and encoded text.

Sizes are given in pixels, or are the usual ones: the configuration's ``sample_size``, or else images of 1024 x 1024 and clips
of 81 frames of 480 x 832. Latents are one in eight pixels and one in four frames (Rombach et al. 2022, arXiv:2112.10752; Wan
team 2025, arXiv:2503.20314, section 4.1) where a class has no other. Text encoders and the autoencoder are other networks
(``pipeline_tables``).
"""

from __future__ import annotations

import inspect
from typing import Any

from paceline.errors import UserError
from paceline.workload.hub.inputs import Example, of
from paceline.workload.sample_size import SampleSize

_CLIP, _LTX_CLIP = (81, 480, 832), (121, 512, 704)
_SIDE = 1024
_PACKED = 2  # latents of a row and of a column that are one token
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


def diffusion_examples(module: Any, size: SampleSize | None = None, scale: tuple[int, int] | None = None) -> list[Example]:
    """Return the example of a denoising network's inputs.

    Args:
        size: pixels and frames; None: the usual ones.
        scale: pixels and frames that are one latent; None: those of the class.

    Raises:
        UserError: a network whose inputs are not known here, or a size that its latents do not divide.
    """
    config, takes = module.config, inspect.signature(module.forward).parameters
    first = next((name for name in ("hidden_states", "sample") if name in takes), "")
    kind = type(module).__name__
    if not first:
        raise UserError(
            f"the inputs of {kind} are not known here",
            "trace it: write a function that returns the module and its inputs, and name it module:function",
        )
    latent, sample, (frames, high, wide) = _latent(kind, config, takes, size or SampleSize(), scale)
    given: dict[str, Any] = {first: of(*latent)}
    text = text_tokens(kind)
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
        given["img_shapes"] = (1, high // _PACKED, wide // _PACKED)
    if "rope_interpolation_scale" in takes:  # LTX
        given |= {"num_frames": frames, "height": high, "width": wide}
    if "added_cond_kwargs" in takes:
        given["added_cond_kwargs"] = _conditions(config)
    return [Example(given, sample, "; without text encoders and autoencoder")]


def text_tokens(kind: str) -> int:
    """Return the tokens of a text in the pipeline of a class."""
    return _TEXT.get(kind, 512)


def _scale(kind: str, config: Any) -> tuple[int, int]:
    """Return the pixels of one latent along each side, and its frames."""
    if kind.startswith("LTX"):
        return 32, 8
    if "3D" in kind:
        return 8, 4
    return (1 if config.get("in_channels") == 3 else 32 if kind.startswith("Sana") else 8), 1


def _usual(kind: str, config: Any, scale: tuple[int, int]) -> tuple[int, int, int]:
    """Return the usual frames, height and width of a class."""
    if kind == "CogVideoXTransformer3DModel":
        high, wide = (scale[0] * config.get(f"sample_{name}") for name in ("height", "width"))
        return config.get("sample_frames"), high, wide
    if kind.startswith("LTX"):
        return _LTX_CLIP
    if "3D" in kind:
        return _CLIP
    side = None if _packs(kind) else config.get("sample_size")
    high, wide = side if isinstance(side, list | tuple) else (side or _SIDE // scale[0],) * 2
    return 1, scale[0] * high, scale[0] * wide


def _packs(kind: str) -> bool:
    """Return whether pairs of rows and of columns of latents are one token of the input."""
    return kind.startswith(("Flux", "Chroma", "Ovis", "QwenImage"))


def _latent(
    kind: str, config: Any, takes: Any, size: SampleSize, scale: tuple[int, int] | None
) -> tuple[tuple[int, ...], str, tuple[int, int, int]]:
    """Return the shape of one sample's latents, its description, and the latents' frames, rows and columns."""
    channels, scale = config.get("in_channels"), scale or _scale(kind, config)
    spatial, temporal = scale
    frames, high, wide = _usual(kind, config, scale)
    if size.height:
        high, wide, frames = size.height, size.width, size.frames or frames
    if frames > 1 and "3D" not in kind:
        raise UserError(f"clips of {frames} frames for {kind}, which makes images", "give its size as 512px or 1024x1024")
    packs = _packs(kind) or "img_ids" in takes
    least = spatial * (_PACKED if packs else 1)
    if high % least or wide % least or (frames - 1) % temporal:
        every = f" and one frame more than a multiple of {temporal}" if temporal > 1 else ""
        raise UserError(f"{kind} does not take {frames}x{high}x{wide}", f"give multiples of {least} pixels{every}")
    shape = (frames - 1) // temporal + 1, high // spatial, wide // spatial
    tokens = shape[0] * shape[1] * shape[2] // (_PACKED**2 if packs else 1)
    about = f"clip of {frames} frames of 3x{high}x{wide}" if "3D" in kind else f"image 3x{high}x{wide}"
    if packs or kind.startswith("LTX"):
        return (tokens, channels), f"{about} as {tokens} tokens", shape
    if kind == "CogVideoXTransformer3DModel":
        return (shape[0], channels, *shape[1:]), about, shape
    return (channels, *(shape if "3D" in kind else shape[1:])), about, shape


def _conditions(config: Any) -> dict[str, Any]:
    """Return the further conditions: of SDXL the pooled text and six sizes, of PixArt the size of an image."""
    if config.get("addition_embed_type") == "text_time":
        sizes = 6
        pooled = config.get("projection_class_embeddings_input_dim") - sizes * config.get("addition_time_embed_dim")
        return {"text_embeds": of(pooled), "time_ids": of(sizes)}
    return {"resolution": of(2), "aspect_ratio": of(1)}
