"""Example inputs of models of transformers and diffusers, on the meta device, with two samples."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paceline.errors import UserError

if TYPE_CHECKING:
    import torch

_SECONDS = 15
"""Length of a recording: wav2vec 2.0 crops to at most 15.6 s (Baevski et al. 2020, arXiv:2006.11477, section 4.2)."""
_RATE = 16_000


def longest(config: Any, usual: int) -> int:
    """Return the longest sequence of a configuration, at most ``usual``."""
    own = config.get_text_config() if hasattr(config, "get_text_config") else config
    for name in ("max_target_positions", "max_position_embeddings", "max_seq_len", "n_positions", "max_sequence_length"):
        value = getattr(own, name, None)
        if type(value) is int and value > 0:
            return min(value, usual)
    return usual


@dataclass(frozen=True)
class Example:
    """Arguments of one forward pass, the description of one sample, and a remark on what it leaves out."""

    given: dict[str, Any]
    sample: str
    remark: str = ""


def examples(module: Any, tokens: int) -> list[Example]:
    """Return examples of a model's inputs, the fullest first: those that follow leave the images out.

    Raises:
        UserError: a model whose inputs are not known here.
    """
    config, takes = module.config, inspect.signature(module.forward).parameters
    usual: dict[str, Any] = {name: False for name in ("use_cache",) if name in takes}
    first, text = module.main_input_name, f"sequence of {tokens} tokens"
    size = _image(config) if "pixel_values" in takes else ()
    if _towers(config) and size and not hasattr(module, "lm_head"):  # images and their captions
        short = getattr(config.text_config, "max_position_embeddings", tokens)
        given = usual | {"pixel_values": of(*size), "input_ids": of(short, whole=True)}
        return [Example(given, f"image {_by(size)}, {short} tokens")]
    if first in ("input_ids", "input_features") and {"input_ids", "decoder_input_ids"} & {*takes}:
        given = usual | ({"decoder_input_ids": of(tokens, whole=True)} if "decoder_input_ids" in takes else {})
        if first == "input_features":
            return [Example(given | {first: of(config.num_mel_bins, 2 * config.max_source_positions)}, text)]
        alone = given | {first: of(tokens, whole=True)}
        if not _towers(config):
            return [Example(alone, text)]
        seen = [Example(alone | {"pixel_values": of(*size)} | _tiles(config, size, tokens), f"{text}, one image {_by(size)}")]
        return [*(seen if size else []), Example(alone, text, "; text alone, the tower of images does not run")]
    if first == "pixel_values" and size:
        return [Example(usual | {first: of(*size)}, f"image {_by(size)}")]
    if first == "input_values":
        return [Example(usual | {first: of(_SECONDS * _RATE)}, f"sound of {_SECONDS} s")]
    raise UserError(
        f"the inputs of {type(module).__name__} ({first}) are not known here",
        "trace it: write a function that returns the module and its inputs, and name it module:function",
    )


def of(*shape: int, whole: bool = False) -> torch.Tensor:
    """Return two samples of a shape; ``whole``: of whole numbers."""
    import torch

    return torch.empty((2, *shape), dtype=torch.int64 if whole else torch.float32, device="meta")


def _tiles(config: Any, size: tuple[int, ...], tokens: int) -> dict[str, Any]:
    """Return the arguments of models that divide an image into tiles (Llama 3.2), with one image of the most tiles."""
    most = getattr(config.vision_config, "max_num_tiles", 0)
    if not most:
        return {}
    seen = {"pixel_values": of(1, most, *size), "cross_attention_mask": of(tokens, 1, most, whole=True)}
    return seen | {"aspect_ratio_ids": of(1, whole=True), "aspect_ratio_mask": of(1, most, whole=True)}


def _by(size: tuple[int, ...]) -> str:
    return "x".join(map(str, size))


def _towers(config: Any) -> bool:
    return hasattr(config, "text_config") and hasattr(config, "vision_config")


def _image(config: Any) -> tuple[int, ...]:
    own = getattr(config, "vision_config", config)
    size, channels = getattr(own, "image_size", None), getattr(own, "num_channels", 3)
    if isinstance(size, dict):
        size = size.get("height"), size.get("width")
    if type(size) is int:
        size = size, size
    return (channels, *size) if isinstance(size, list | tuple) and len(size) == 2 else ()
